// Shared by the engine stub and the load generator: clock, hex digits, a growing byte buffer, socket helpers.
// Both programs are single-threaded and Linux-only (epoll); an error in set-up ends them with a message that says what failed.
#ifndef OVERHEAD_COMMON_H
#define OVERHEAD_COMMON_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

// Every event of a stream carries "system_fingerprint":"<index mod 100, 2 digits>.<CLOCK_MONOTONIC ns, 14 hex digits>".
#define STAMP_KEY "\"system_fingerprint\":\""
#define STAMP_INDEX_DIGITS 2
#define STAMP_CLOCK_DIGITS 14
// Every request carries "user":"bench-<nonce>", every answer "id":"chatcmpl-<nonce>": an answer that reaches the wrong
// client is seen.
#define NONCE_DIGITS 8
#define NONCE_KEY_IN "\"user\":\"bench-"
#define NONCE_KEY_OUT "\"id\":\"chatcmpl-"
#define CALL_ID_LENGTH 21 // "call_" and 16 hex digits
#define CALL_NAME "lookup"
#define CALL_ARGUMENTS "{\\\"query\\\":\\\"population of the capital\\\"}" // as it stands inside a JSON string

static inline int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000LL + t.tv_nsec;
}

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...) {
  va_list list;
  va_start(list, format);
  vfprintf(stderr, format, list);
  va_end(list);
  fputc('\n', stderr);
  exit(2);
}

static inline void put_hex(char *at, uint64_t value, int digits) {
  for (int i = digits - 1; i >= 0; i--, value >>= 4) at[i] = "0123456789abcdef"[value & 15];
}

static inline uint64_t get_hex(const char *at, int digits) {
  uint64_t value = 0;
  for (int i = 0; i < digits; i++) {
    char c = at[i];
    int v = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (v < 0) return UINT64_MAX;
    value = value << 4 | (uint64_t)v;
  }
  return value;
}

typedef struct {
  char *at;
  size_t length, capacity;
} bytes;

static inline void bytes_add(bytes *b, const void *from, size_t n) {
  if (b->length + n > b->capacity) {
    b->capacity = (b->length + n) * 2;
    b->at = realloc(b->at, b->capacity);
    if (b->at == NULL) die("out of memory at %zu bytes", b->capacity);
  }
  memcpy(b->at + b->length, from, n);
  b->length += n;
}

// Takes n bytes off the front and gives the memory back once a large buffer is empty, so that idle connections cost little.
static inline void bytes_drop(bytes *b, size_t n) {
  b->length -= n;
  if (b->length > 0) memmove(b->at, b->at + n, b->length);
  else if (b->capacity > 4096) {
    free(b->at);
    b->at = NULL;
    b->capacity = 0;
  }
}

static inline void raise_file_limit(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

static inline void set_no_delay(int fd) {
  int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static inline void watch(int poll, int operation, int fd, uint32_t events, uint64_t tag) {
  struct epoll_event event = {.events = events, .data.u64 = tag};
  if (epoll_ctl(poll, operation, fd, &event) != 0) die("epoll_ctl on descriptor %d: %s", fd, strerror(errno));
}

// memmem over a body that may not be 0-terminated.
static inline const char *find(const char *in, size_t length, const char *what) {
  return memmem(in, length, what, strlen(what));
}
#endif
