// The load generator's reading of answers: HTTP framing, events, and every check that a served turn has passed.
// Nothing here touches a socket. I2 and I3 of load.c.
#include "load.h"

const char *const reason_names[] = {REASONS(AS_TEXT)};

void fail(client *c, reason why) {
  if (c->reason != not_failed) return;
  c->reason = why;
  if (seen.first_failure[0] != 0) return;
  char text[200];
  const char *from = c->line_length > 0 ? c->line : c->head;
  size_t n = c->line_length > 0 ? c->line_length : c->head_length, k = 0;
  for (size_t i = 0; i < n && k + 1 < sizeof text; i++) text[k++] = from[i] < 32 || from[i] == '"' || from[i] == '\\' || from[i] == 127 ? ' ' : from[i];
  text[k] = 0;
  snprintf(seen.first_failure, sizeof seen.first_failure, "%s after %ld events: %s", reason_names[why], c->events, text);
}

void reset_answer(client *c) {
  c->part = part_head;
  c->status = c->closing = c->is_stream = c->in_extension = c->trailer_bytes = 0;
  c->saw_done = c->saw_usage = c->saw_finish = c->saw_call = 0;
  c->left = 0;
  c->events = 0;
  c->head_length = c->line_length = 0;
  c->first_byte_ns = 0;
}

static const char *header_value(const client *c, const char *name) {
  const char *at = strcasestr(c->head, name);
  if (at == NULL) return NULL;
  at += strlen(name);
  while (*at == ' ') at++;
  return at;
}

static void note_source(const char *value) {
  size_t n = strcspn(value, "\r\n");
  if (n >= sizeof seen.sources[0].name) n = sizeof seen.sources[0].name - 1;
  for (int i = 0; i < SOURCES_MAX; i++) {
    if (seen.sources[i].count == 0) {
      memcpy(seen.sources[i].name, value, n);
      for (size_t k = 0; k < n; k++)
        if (value[k] == '"' || value[k] == '\\') seen.sources[i].name[k] = '?';
    }
    if (strlen(seen.sources[i].name) == n && memcmp(seen.sources[i].name, value, n) == 0) {
      seen.sources[i].count++;
      return;
    }
  }
}

// Compares the run id that the proxy names with the one of this connection's answer before.
static void note_run(client *c) {
  const char *id = header_value(c, "\nx-luftpause-run-id:"), *source = header_value(c, "\nx-luftpause-run-source:");
  if (source != NULL) note_source(source);
  if (id == NULL) {
    seen.run_unnamed++;
    c->run_id[0] = 0;
    return;
  }
  size_t n = strcspn(id, "\r\n");
  if (n >= sizeof c->run_id) n = sizeof c->run_id - 1;
  int same = strlen(c->run_id) == n && memcmp(c->run_id, id, n) == 0;
  int continues = c->kind == kind_echo || c->kind == kind_run_next;
  if (continues && c->run_id[0] != 0) *(same ? &seen.run_same : &seen.run_other) += 1;
  if (!continues) *(same ? &seen.run_joined : &seen.run_fresh) += 1;
  memcpy(c->run_id, id, n);
  c->run_id[n] = 0;
}

static void take_call(client *c, const char *text, size_t length) {
  const char *at = find(text, length, "\"id\":\"call_");
  if (at == NULL || (size_t)(text + length - at) < 6 + CALL_ID_LENGTH) return;
  memcpy(c->call, at + 6, CALL_ID_LENGTH);
  c->saw_call = 1;
}

static void check_nonce(client *c, const char *text, size_t length) {
  const char *at = find(text, length, NONCE_KEY_OUT);
  if (at == NULL || (size_t)(text + length - at) < strlen(NONCE_KEY_OUT) + NONCE_DIGITS ||
      memcmp(at + strlen(NONCE_KEY_OUT), c->nonce, NONCE_DIGITS) != 0)
    fail(c, failed_wrong_client);
}

static void on_event(client *c, const char *text, size_t length, int64_t t) {
  if (length == 6 && memcmp(text, "[DONE]", 6) == 0) {
    c->saw_done = 1;
    return;
  }
  const char *stamp = find(text, length, STAMP_KEY);
  size_t need = strlen(STAMP_KEY) + STAMP_INDEX_DIGITS + 1 + STAMP_CLOCK_DIGITS;
  if (stamp == NULL || (size_t)(text + length - stamp) < need || c->saw_done) return fail(c, failed_bad_event);
  stamp += strlen(STAMP_KEY);
  long index = (stamp[0] - '0') * 10 + stamp[1] - '0';
  uint64_t sent_ns = get_hex(stamp + STAMP_INDEX_DIGITS + 1, STAMP_CLOCK_DIGITS);
  if (index != c->events % 100) fail(c, failed_disorder);
  check_nonce(c, text, length);
  c->events++;
  seen.events++;
  if ((double)(t - begin_ns) >= option.record_after_ms * 1e6) record(&seen.event_delay, t - (int64_t)sent_ns);
  if (!c->saw_call) take_call(c, text, length);
  if (find(text, length, "\"finish_reason\":\"tool_calls\"") != NULL) c->saw_finish = 1;
  if (find(text, length, "\"usage\":{") != NULL) c->saw_usage = 1;
}

static void on_line(client *c, int64_t t) {
  const char *line = c->line;
  size_t n = c->line_length;
  if (n > 0 && line[n - 1] == '\r') n--;
  if (n == 0) return;
  if (line[0] == ':') seen.comments++;
  else if (n > 6 && memcmp(line, "data: ", 6) == 0) on_event(c, line + 6, n - 6, t);
  else fail(c, failed_bad_event);
}

static void on_body(client *c, const char *at, size_t length, int64_t t) {
  seen.bytes += length;
  while (length > 0) {
    const char *newline = c->is_stream ? memchr(at, '\n', length) : NULL;
    size_t n = newline == NULL ? length : (size_t)(newline - at);
    if (c->line_length + n >= LINE_MAX_BYTES) return fail(c, failed_bad_event);
    memcpy(c->line + c->line_length, at, n);
    c->line_length += n;
    if (newline == NULL) return;
    on_line(c, t);
    c->line_length = 0;
    at += n + 1;
    length -= n + 1;
  }
}

static void on_head(client *c) {
  c->head[c->head_length] = 0;
  c->status = c->head_length > 12 ? atoi(c->head + 9) : 0;
  const char *length = header_value(c, "\ncontent-length:"), *type = header_value(c, "\ncontent-type:");
  const char *encoding = header_value(c, "\ntransfer-encoding:"), *connection = header_value(c, "\nconnection:");
  c->is_stream = type != NULL && strncasecmp(type, "text/event-stream", 17) == 0;
  c->closing = connection != NULL && strncasecmp(connection, "close", 5) == 0;
  if (encoding != NULL && strncasecmp(encoding, "chunked", 7) == 0) c->part = part_size;
  else if (length != NULL) c->part = part_plain;
  else c->part = part_until_close;
  c->left = c->part == part_plain ? strtoull(length, NULL, 10) : 0;
  if (c->status == 200) note_run(c);
}

// One byte of a chunk-size line. Returns 1 at its end, -1 when it is not hex.
static int on_size_byte(client *c, char byte) {
  if (byte == '\n') return 1;
  if (byte == '\r' || c->in_extension) return 0;
  if (byte == ';') {
    c->in_extension = 1;
    return 0;
  }
  uint64_t digit = get_hex((const char[]){(char)(byte >= 'A' && byte <= 'F' ? byte + 32 : byte)}, 1);
  if (digit > 15 || c->left > 1 << 24) return -1;
  c->left = c->left * 16 + digit;
  return 0;
}

int feed_answer(client *c, const char *at, size_t length, int64_t t) {
  for (size_t i = 0; i < length;) {
    if (c->part == part_head) {
      if (c->head_length + 1 >= HEAD_MAX) return -1;
      c->head[c->head_length++] = at[i++];
      if (c->head_length < 4 || memcmp(c->head + c->head_length - 4, "\r\n\r\n", 4) != 0) continue;
      on_head(c);
      if (c->part == part_plain && c->left == 0) return 1;
    } else if (c->part == part_size) {
      int end = on_size_byte(c, at[i++]);
      if (end < 0) return -1;
      if (end == 0) continue;
      c->part = c->left == 0 ? part_trailer : part_data;
      c->in_extension = c->trailer_bytes = 0;
    } else if (c->part == part_data || c->part == part_plain || c->part == part_until_close) {
      size_t n = length - i;
      if (c->part != part_until_close && n > c->left) n = (size_t)c->left;
      if (c->first_byte_ns == 0) c->first_byte_ns = t;
      on_body(c, at + i, n, t);
      i += n;
      if (c->part == part_until_close) continue;
      c->left -= n;
      if (c->left > 0) continue;
      if (c->part == part_plain) return i == length ? 1 : -1;
      c->part = part_data_end;
    } else if (c->part == part_data_end) {
      char byte = at[i++];
      if (byte == '\n') c->part = part_size;
      else if (byte != '\r') return -1;
    } else { // trailer: the answer ends with its first empty line
      char byte = at[i++];
      if (byte == '\n' && c->trailer_bytes == 0) return i == length ? 1 : -1;
      c->trailer_bytes = byte == '\n' ? 0 : c->trailer_bytes + (byte != '\r');
    }
  }
  return 0;
}

// What a complete answer must have held (I2).
void check_answer(client *c) {
  if (c->status != 200) return fail(c, failed_status);
  if (option.stream) {
    if (!c->is_stream || (option.chunks > 0 && c->events != option.chunks)) fail(c, failed_short_answer);
    if (!c->saw_done) fail(c, failed_no_done);
  } else {
    check_nonce(c, c->line, c->line_length);
    take_call(c, c->line, c->line_length);
    c->saw_finish = find(c->line, c->line_length, "\"finish_reason\":\"tool_calls\"") != NULL;
    c->saw_usage = find(c->line, c->line_length, "\"usage\":{") != NULL;
  }
  if (!c->saw_usage) fail(c, failed_no_usage);
  if (!c->saw_finish) fail(c, failed_no_finish);
  if (!c->saw_call) fail(c, failed_no_call);
}
