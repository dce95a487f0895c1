// What the three files of the load generator share: a client, the options, the counters. See load.c.
#ifndef OVERHEAD_LOAD_H
#define OVERHEAD_LOAD_H
#include "common.h"

#define HEAD_MAX 4096
#define LINE_MAX_BYTES 2048
#define SOURCES_MAX 12

// --- what is measured -------------------------------------------------------------------------------------------
// Log-linear histogram, 0.1 us wide at the bottom, 64 buckets per power of two (error below 1.6 %).
#define BUCKETS 2560
typedef struct {
  uint64_t bucket[BUCKETS], count;
} histogram;

static inline void record(histogram *h, int64_t ns) {
  uint64_t v = ns < 0 ? 0 : (uint64_t)ns / 100;
  int i = (int)v;
  if (v >= 64) {
    int e = 63 - __builtin_clzll(v);
    i = (e - 5) * 64 + (int)(v >> (e - 6) & 63);
  }
  h->bucket[i < BUCKETS ? i : BUCKETS - 1]++;
  h->count++;
}

#define REASONS(X)                                                                                                     \
  X(connect) X(cut) X(status) X(framing) X(wrong_client) X(disorder) X(bad_event) X(short_answer) X(no_done)          \
  X(no_usage) X(no_finish) X(no_call) X(timeout)
#define AS_ENUM(name) failed_##name,
#define AS_TEXT(name) #name,
typedef enum { REASONS(AS_ENUM) REASON_COUNT, not_failed = -1 } reason;

typedef struct {
  histogram total_time, first_byte_time, event_delay;
  uint64_t failures[REASON_COUNT], served, aborted, events, bytes, comments, connects, stale_retries;
  // Kinds of turns that were served, and what became of their run ids (against the answer before).
  uint64_t kinds[4], run_same, run_other, run_fresh, run_joined, run_unnamed;
  char first_failure[320];
  struct {
    char name[32];
    uint64_t count;
  } sources[SOURCES_MAX];
} counters;

// --- clients ----------------------------------------------------------------------------------------------------

typedef enum { part_head, part_plain, part_until_close, part_size, part_data, part_data_end, part_trailer } part;
typedef enum { closed, connecting, idle, in_turn } phase;
enum { kind_new, kind_echo, kind_run, kind_run_next };

typedef struct {
  int fd, want_write, turns_on_connection;
  phase phase;
  bytes out;
  size_t sent;
  // the conversation that the turn belongs to
  size_t script_at;
  uint64_t conversation, run;
  int has_call, kind;
  char call[CALL_ID_LENGTH], run_id[64];
  // the turn
  char nonce[NONCE_DIGITS];
  int64_t started_ns, first_byte_ns;
  long abort_after; // events; -1: never
  reason reason;
  int aborts;
  // the answer being read
  part part;
  int status, closing, is_stream, in_extension, trailer_bytes, saw_done, saw_usage, saw_finish, saw_call;
  uint64_t left;
  long events;
  size_t head_length, line_length;
  char head[HEAD_MAX], line[LINE_MAX_BYTES];
} client;

typedef struct {
  int port, stream, conns, hold;
  long chunks, turns, runs, body_bytes;
  double seconds, rate, ramp, record_after_ms, drain_seconds, abort_percent, reopen_percent;
  uint64_t seed;
  const char *model, *script;
  char headers[2048];
} options;

extern const char *const reason_names[];
extern options option;
extern counters seen;
extern int64_t begin_ns;

// Marks the turn as failed; the first reason counts.
void fail(client *c, reason why);

// load-request.c
void make_texts(void);
void write_request(client *c); // the next turn of the client's conversation, into c->out

// load-answer.c
void reset_answer(client *c);
// Reads on. Returns 1 when the answer is complete, -1 when its framing is broken, 0 when more must come.
int feed_answer(client *c, const char *at, size_t length, int64_t t);
// What a complete answer must have held; fails the turn when it did not.
void check_answer(client *c);
#endif
