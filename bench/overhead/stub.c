// Engine stub: the upstream of every variant. Speaks just enough of vLLM's HTTP face to satisfy a prober, and answers
// chat completions without computing anything. One thread, epoll, keep-alive, linked by nothing to the load generator
// but the stamps of common.h.
//
//   stub PORT MODEL...        PORT 0: any free one; prints {"event":"listening","port":N}
//
// The model's name says what a streamed answer looks like: bench-<chunks>x<gapMs>; gap 0 sends all in one write.
//   POST /v1/chat/completions  "stream":true: SSE, one HTTP chunk an event; else one JSON answer of about 1 KB
//   GET /health, /v1/models, /metrics (vLLM dialect, waiting is always 0), /stub/stats
//
// Does not: check the request's JSON, limit concurrency, speak TLS or HTTP/2.
//
// I1. A connection is in the wheel exactly while it streams and more events are due.
// I2. A request that arrives behind a running answer is kept until that answer ends (no pipelined answers).
// I3. A client that leaves mid-stream is noticed at once: the connection is closed and counted in `aborted`.
#include "common.h"

#define CONNECTIONS_MAX 65536
#define WHEEL_SLOTS 8192          // ms; larger gaps go round more than once
#define REQUEST_BYTES_MAX (4 << 20)
#define UNSENT_BYTES_MAX (256 << 10) // a reader this far behind stops its stream's clock

typedef struct connection {
  int fd;
  int close_after, want_write;
  bytes in, out;
  size_t sent;
  // The stream being answered; streaming == 0: none.
  int streaming, with_usage, index, total, gap_ms;
  char nonce[NONCE_DIGITS];
  int64_t due_ms;
  struct connection *next, *previous;
} connection;

static connection *connections[CONNECTIONS_MAX];
static connection wheel[WHEEL_SLOTS];
static int poll_fd;
static int64_t clock_ms, origin_ns;
static uint64_t call_base;
static int model_count;
static char **model_names;
static struct {
  uint64_t connections_open, connections_total, streams_open, streams_open_max, streams_done, json_done, aborted, events,
      requests_bad;
} stats;

// --- the wheel --------------------------------------------------------------------------------------------------

static void unschedule(connection *c) {
  if (c->previous == NULL) return;
  c->previous->next = c->next;
  if (c->next != NULL) c->next->previous = c->previous;
  c->next = c->previous = NULL;
}

static void schedule(connection *c, int64_t at_ms) {
  unschedule(c);
  if (at_ms <= clock_ms) at_ms = clock_ms + 1;
  c->due_ms = at_ms;
  connection *head = &wheel[at_ms % WHEEL_SLOTS];
  c->next = head->next;
  c->previous = head;
  if (head->next != NULL) head->next->previous = c;
  head->next = c;
}

// --- bytes out --------------------------------------------------------------------------------------------------

static void close_connection(connection *c) {
  unschedule(c);
  if (c->streaming) {
    stats.aborted++;
    stats.streams_open--;
  }
  stats.connections_open--;
  connections[c->fd] = NULL;
  close(c->fd);
  free(c->in.at);
  free(c->out.at);
  free(c);
}

// Returns -1 when the peer is gone.
static int flush(connection *c) {
  while (c->sent < c->out.length) {
    ssize_t n = send(c->fd, c->out.at + c->sent, c->out.length - c->sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EAGAIN) {
      if (!c->want_write) watch(poll_fd, EPOLL_CTL_MOD, c->fd, EPOLLIN | EPOLLRDHUP | EPOLLOUT, (uint64_t)c->fd);
      c->want_write = 1;
      return 0;
    }
    if (n < 0) return -1;
    c->sent += (size_t)n;
  }
  bytes_drop(&c->out, c->out.length);
  c->sent = 0;
  if (c->want_write) watch(poll_fd, EPOLL_CTL_MOD, c->fd, EPOLLIN | EPOLLRDHUP, (uint64_t)c->fd);
  c->want_write = 0;
  return 0;
}

__attribute__((format(printf, 2, 3))) static void add_text(connection *c, const char *format, ...) {
  char text[8192];
  va_list list;
  va_start(list, format);
  int n = vsnprintf(text, sizeof text, format, list);
  va_end(list);
  if (n < 0 || n >= (int)sizeof text) die("an answer of %d bytes does not fit the stub's buffer", n);
  bytes_add(&c->out, text, (size_t)n);
}

static void add_answer(connection *c, const char *status, const char *type, const char *body) {
  add_text(c, "HTTP/1.1 %s\r\ncontent-type: %s\r\nserver: bench-stub\r\ncontent-length: %zu\r\n\r\n", status, type,
           strlen(body));
  bytes_add(&c->out, body, strlen(body));
}

// --- events of a stream -----------------------------------------------------------------------------------------
// An event is a template with four holes, cut out once; per event only the holes are written.

#define EVENT_HEAD \
  "data: {\"id\":\"chatcmpl-00000000\",\"object\":\"chat.completion.chunk\",\"created\":1765000000,\"model\":\"m\"," STAMP_KEY \
  "00.00000000000000\","
typedef struct {
  char text[640];
  size_t length, nonce, stamp, call;
} event_template;
static event_template content_event, call_event, arguments_event, finish_event, usage_event;

static void make_event(event_template *t, const char *rest) {
  char body[512];
  int n = snprintf(body, sizeof body, "%s%s}\n\n", EVENT_HEAD, rest);
  t->length = (size_t)snprintf(t->text, sizeof t->text, "%x\r\n%s\r\n", n, body);
  t->nonce = (size_t)(find(t->text, t->length, NONCE_KEY_OUT) - t->text) + strlen(NONCE_KEY_OUT);
  t->stamp = (size_t)(find(t->text, t->length, STAMP_KEY) - t->text) + strlen(STAMP_KEY);
  const char *call = find(t->text, t->length, "\"call_");
  t->call = call == NULL ? 0 : (size_t)(call - t->text) + strlen("\"call_");
}

static void make_events(void) {
  make_event(&content_event, "\"choices\":[{\"index\":0,\"delta\":{\"content\":\" token\"},\"finish_reason\":null}]");
  make_event(&call_event, "\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"call_0000000000000000\","
                          "\"type\":\"function\",\"function\":{\"name\":\"" CALL_NAME "\",\"arguments\":\"\"}}]},"
                          "\"finish_reason\":null}]");
  make_event(&arguments_event, "\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":"
                               "\"" CALL_ARGUMENTS "\"}}]},\"finish_reason\":null}]");
  make_event(&finish_event, "\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"}]");
  make_event(&usage_event, "\"choices\":[],\"usage\":{\"prompt_tokens\":512,\"completion_tokens\":60,\"total_tokens\":572,"
                           "\"prompt_tokens_details\":{\"cached_tokens\":384}}");
}

// The last events of an answer, counted from its end: tool call, its arguments, finish reason, usage (when asked for).
static const event_template *event_at(const connection *c) {
  int from_end = c->total - c->index - (c->with_usage ? 1 : 0);
  if (from_end <= 0) return &usage_event;
  if (from_end == 1) return &finish_event;
  if (c->total < 5) return &content_event;
  return from_end == 3 ? &call_event : from_end == 2 ? &arguments_event : &content_event;
}

static void add_event(connection *c) {
  const event_template *t = event_at(c);
  bytes_add(&c->out, t->text, t->length);
  char *at = c->out.at + c->out.length - t->length;
  memcpy(at + t->nonce, c->nonce, NONCE_DIGITS);
  at[t->stamp] = (char)('0' + c->index / 10 % 10);
  at[t->stamp + 1] = (char)('0' + c->index % 10);
  put_hex(at + t->stamp + STAMP_INDEX_DIGITS + 1, (uint64_t)now_ns(), STAMP_CLOCK_DIGITS);
  if (t->call > 0) put_hex(at + t->call, ++call_base, 16);
  stats.events++;
  if (++c->index < c->total) return;
  static const char end[] = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
  bytes_add(&c->out, end, sizeof end - 1);
  c->streaming = 0;
  stats.streams_open--;
  stats.streams_done++;
}

// --- routes -----------------------------------------------------------------------------------------------------

static char json_answer[2048];
static size_t json_length, json_nonce, json_call;

static void make_json_answer(void) {
  char body[1200];
  int n = snprintf(body, sizeof body,
                   "{\"id\":\"chatcmpl-00000000\",\"object\":\"chat.completion\",\"created\":1765000000,\"model\":\"m\","
                   "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"");
  while (n < 720) n += snprintf(body + n, sizeof body - (size_t)n, "word ");
  n += snprintf(body + n, sizeof body - (size_t)n,
                "\",\"tool_calls\":[{\"id\":\"call_0000000000000000\",\"type\":\"function\",\"function\":{\"name\":"
                "\"" CALL_NAME "\",\"arguments\":\"" CALL_ARGUMENTS "\"}}]},\"finish_reason\":\"tool_calls\"}],"
                "\"usage\":{\"prompt_tokens\":512,\"completion_tokens\":180,\"total_tokens\":692,"
                "\"prompt_tokens_details\":{\"cached_tokens\":384}}}");
  json_length = (size_t)snprintf(json_answer, sizeof json_answer,
                                 "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nserver: bench-stub\r\n"
                                 "content-length: %d\r\n\r\n%s", n, body);
  json_nonce = (size_t)(find(json_answer, json_length, NONCE_KEY_OUT) - json_answer) + strlen(NONCE_KEY_OUT);
  json_call = (size_t)(find(json_answer, json_length, "\"call_") - json_answer) + strlen("\"call_");
}

// Looks for "key" : value at any depth; the values looked for are ones no message text of the generator holds.
static const char *value_of(const char *body, size_t length, const char *key) {
  const char *end = body + length, *at = body;
  while ((at = find(at, (size_t)(end - at), key)) != NULL) {
    at += strlen(key);
    const char *v = at;
    while (v < end && (*v == ' ' || *v == ':')) v++;
    if (v > at && v < end) return v;
  }
  return NULL;
}

static int starts_with(const char *at, const char *end, const char *what) {
  size_t n = strlen(what);
  return at != NULL && (size_t)(end - at) >= n && memcmp(at, what, n) == 0;
}

static int chat(connection *c, const char *body, size_t length) {
  const char *end = body + length;
  const char *model = value_of(body, length, "\"model\"");
  char name[64] = "";
  if (model != NULL && *model == '"') {
    size_t n = 0;
    while (model + 1 + n < end && model[1 + n] != '"' && n + 1 < sizeof name) n++;
    memcpy(name, model + 1, n);
  }
  int total, gap_ms;
  if (sscanf(name, "bench-%dx%d", &total, &gap_ms) != 2 || total < 1 || total > 1000000 || gap_ms < 0 || gap_ms > 60000) {
    stats.requests_bad++;
    add_answer(c, "400 Bad Request", "application/json",
               "{\"error\":{\"message\":\"the stub needs a model named bench-<chunks>x<gapMs>\",\"type\":\"BadRequestError\","
               "\"param\":\"model\",\"code\":400}}");
    return flush(c);
  }
  const char *nonce = value_of(body, length, "\"user\"");
  memset(c->nonce, '0', NONCE_DIGITS);
  if (starts_with(nonce, end, "\"bench-") && end - nonce >= 7 + NONCE_DIGITS) memcpy(c->nonce, nonce + 7, NONCE_DIGITS);
  if (!starts_with(value_of(body, length, "\"stream\""), end, "true")) {
    bytes_add(&c->out, json_answer, json_length);
    char *at = c->out.at + c->out.length - json_length;
    memcpy(at + json_nonce, c->nonce, NONCE_DIGITS);
    put_hex(at + json_call, ++call_base, 16);
    stats.json_done++;
    return flush(c);
  }
  add_text(c, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nserver: bench-stub\r\n"
              "transfer-encoding: chunked\r\n\r\n");
  c->with_usage = starts_with(value_of(body, length, "\"include_usage\""), end, "true");
  c->index = 0;
  c->total = total;
  c->gap_ms = gap_ms;
  c->streaming = 1;
  if (++stats.streams_open > stats.streams_open_max) stats.streams_open_max = stats.streams_open;
  add_event(c);
  while (gap_ms == 0 && c->streaming) add_event(c);
  if (flush(c) < 0) return -1;
  if (c->streaming) schedule(c, clock_ms + gap_ms);
  return 0;
}

static int page(connection *c, const char *path) {
  char text[6144];
  int n = 0;
  if (strcmp(path, "/health") == 0) {
    add_answer(c, "200 OK", "text/plain", "");
  } else if (strcmp(path, "/v1/models") == 0) {
    n += snprintf(text, sizeof text, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i < model_count; i++)
      n += snprintf(text + n, sizeof text - (size_t)n,
                    "%s{\"id\":\"%s\",\"object\":\"model\",\"created\":1765000000,\"owned_by\":\"vllm\",\"max_model_len\":32768}",
                    i > 0 ? "," : "", model_names[i]);
    snprintf(text + n, sizeof text - (size_t)n, "]}");
    add_answer(c, "200 OK", "application/json", text);
  } else if (strcmp(path, "/metrics") == 0) {
    const char *labels = "engine=\"0\",model_name=\"bench\"";
    snprintf(text, sizeof text,
             "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{%s} %llu\n"
             "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{%s} 0.0\n"
             "# TYPE vllm:num_requests_waiting_by_reason gauge\n"
             "vllm:num_requests_waiting_by_reason{%s,reason=\"capacity\"} 0.0\n"
             "vllm:num_requests_waiting_by_reason{%s,reason=\"deferred\"} 0.0\n"
             "# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{%s} 0.1\n"
             "# TYPE vllm:prefix_cache_queries_total counter\nvllm:prefix_cache_queries_total{%s} 1000.0\n"
             "# TYPE vllm:prefix_cache_hits_total counter\nvllm:prefix_cache_hits_total{%s} 750.0\n"
             "# TYPE vllm:num_preemptions_total counter\nvllm:num_preemptions_total{%s} 0.0\n"
             "# TYPE vllm:cache_config_info gauge\n"
             "vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"100000\"} 1.0\n"
             "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1765000000.0\n",
             labels, (unsigned long long)stats.streams_open, labels, labels, labels, labels, labels, labels, labels);
    add_answer(c, "200 OK", "text/plain; version=0.0.4; charset=utf-8", text);
  } else if (strcmp(path, "/stub/stats") == 0) {
    snprintf(text, sizeof text,
             "{\"connectionsOpen\":%llu,\"connectionsTotal\":%llu,\"streamsOpen\":%llu,\"streamsOpenMax\":%llu,"
             "\"streamsDone\":%llu,\"jsonDone\":%llu,\"aborted\":%llu,\"events\":%llu,\"requestsBad\":%llu}",
             (unsigned long long)stats.connections_open, (unsigned long long)stats.connections_total,
             (unsigned long long)stats.streams_open, (unsigned long long)stats.streams_open_max,
             (unsigned long long)stats.streams_done, (unsigned long long)stats.json_done,
             (unsigned long long)stats.aborted, (unsigned long long)stats.events, (unsigned long long)stats.requests_bad);
    stats.streams_open_max = stats.streams_open; // the maximum since the last look
    add_answer(c, "200 OK", "application/json", text);
  } else {
    stats.requests_bad++;
    add_answer(c, "404 Not Found", "application/json", "{\"detail\":\"Not Found\"}");
  }
  return flush(c);
}

// --- requests ---------------------------------------------------------------------------------------------------

// Decodes a chunked body that starts at `at`. Returns bytes eaten, 0 when it is not complete, -1 when it is malformed.
static ssize_t decode_chunked(const char *at, size_t length, bytes *body) {
  size_t i = 0;
  for (;;) {
    const char *line = memmem(at + i, length - i, "\r\n", 2);
    if (line == NULL) return 0;
    char *stop;
    unsigned long size = strtoul(at + i, &stop, 16);
    if (stop == at + i || size > REQUEST_BYTES_MAX) return -1;
    i = (size_t)(line - at) + 2;
    if (size == 0) {
      const char *end = memmem(at + i - 2, length - i + 2, "\r\n\r\n", 4);
      return end == NULL ? 0 : end + 4 - at;
    }
    if (length - i < size + 2) return 0;
    bytes_add(body, at + i, size);
    i += size + 2;
  }
}

static int answer(connection *c, const char *body, size_t length) {
  char method[8] = "", path[256] = "";
  sscanf(c->in.at, "%7s %255s", method, path);
  char *query = strchr(path, '?');
  if (query != NULL) *query = 0;
  if (strcmp(method, "POST") == 0 && strcmp(path, "/v1/chat/completions") == 0) return chat(c, body, length);
  return page(c, strcmp(method, "GET") == 0 ? path : "/");
}

// Answers every complete request that is buffered (I2). Returns -1 when the connection must be closed.
static int process(connection *c) {
  while (!c->streaming && c->in.length > 0) {
    const char *end = find(c->in.at, c->in.length, "\r\n\r\n");
    if (end == NULL) return c->in.length > 65536 ? -1 : 0;
    size_t head = (size_t)(end - c->in.at) + 4;
    long content = 0;
    int chunked = 0;
    for (const char *line = c->in.at; line < end;) {
      const char *next = memmem(line, (size_t)(end + 2 - line), "\r\n", 2);
      if (strncasecmp(line, "content-length:", 15) == 0) content = atol(line + 15);
      else if (strncasecmp(line, "transfer-encoding:", 18) == 0) chunked = 1;
      else if (strncasecmp(line, "connection: close", 17) == 0) c->close_after = 1;
      line = next + 2;
    }
    if (content < 0 || content > REQUEST_BYTES_MAX) return -1;
    size_t total;
    bytes decoded = {0};
    if (chunked) {
      ssize_t eaten = decode_chunked(c->in.at + head, c->in.length - head, &decoded);
      if (eaten <= 0) {
        free(decoded.at);
        return (int)eaten;
      }
      total = head + (size_t)eaten;
    } else {
      total = head + (size_t)content;
      if (c->in.length < total) return 0;
    }
    int result = answer(c, chunked ? decoded.at : c->in.at + head, chunked ? decoded.length : (size_t)content);
    free(decoded.at);
    if (result < 0) return -1;
    bytes_drop(&c->in, total);
    if (c->close_after && !c->streaming && c->out.length == 0) return -1;
  }
  return 0;
}

static int receive(connection *c) {
  static char buffer[1 << 18];
  ssize_t n = recv(c->fd, buffer, sizeof buffer, 0);
  if (n < 0) return errno == EAGAIN ? 0 : -1;
  if (n == 0) return -1;
  bytes_add(&c->in, buffer, (size_t)n);
  if (c->in.length > REQUEST_BYTES_MAX + 65536) return -1;
  return process(c);
}

static void accept_all(int listener) {
  for (;;) {
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    if (fd >= CONNECTIONS_MAX) {
      close(fd);
      continue;
    }
    set_no_delay(fd);
    connection *c = calloc(1, sizeof *c);
    if (c == NULL) die("out of memory for a connection");
    c->fd = fd;
    connections[fd] = c;
    stats.connections_open++;
    stats.connections_total++;
    watch(poll_fd, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLRDHUP, (uint64_t)fd);
  }
}

static void step_stream(connection *c) {
  unschedule(c);
  if (c->out.length - c->sent > UNSENT_BYTES_MAX) {
    schedule(c, clock_ms + c->gap_ms);
    return;
  }
  add_event(c);
  if (flush(c) < 0) {
    close_connection(c);
    return;
  }
  if (c->streaming) schedule(c, clock_ms + c->gap_ms);
  else if ((c->close_after && c->out.length == 0) || process(c) < 0) close_connection(c);
}

static void run_wheel(void) {
  int64_t target = (now_ns() - origin_ns) / 1000000;
  if (stats.streams_open == 0) clock_ms = target; // nothing is due (I1)
  while (clock_ms < target) {
    clock_ms++;
    connection *c = wheel[clock_ms % WHEEL_SLOTS].next;
    while (c != NULL) {
      connection *next = c->next;
      if (c->due_ms == clock_ms) step_stream(c);
      c = next;
    }
  }
}

static void serve(connection *c, uint32_t events) {
  if ((events & EPOLLOUT) != 0 && flush(c) < 0) return close_connection(c);
  if ((events & EPOLLOUT) != 0 && c->close_after && !c->streaming && c->out.length == 0) return close_connection(c);
  // I3: a half-closed client counts as gone; none of the variants half-closes.
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) return close_connection(c);
  if ((events & EPOLLIN) != 0 && receive(c) < 0) close_connection(c);
}

static int listen_on(int port) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0) die("stub: cannot bind 127.0.0.1:%d: %s", port, strerror(errno));
  if (listen(fd, 4096) != 0) die("stub: listen: %s", strerror(errno));
  socklen_t size = sizeof address;
  getsockname(fd, (struct sockaddr *)&address, &size);
  printf("{\"event\":\"listening\",\"port\":%d}\n", ntohs(address.sin_port));
  fflush(stdout);
  return fd;
}

int main(int argc, char **argv) {
  if (argc < 3) die("usage: stub PORT MODEL...");
  signal(SIGPIPE, SIG_IGN);
  raise_file_limit();
  model_names = argv + 2;
  model_count = argc - 2 > 40 ? 40 : argc - 2;
  make_events();
  make_json_answer();
  call_base = ((uint64_t)getpid() << 40) ^ (uint64_t)now_ns();
  origin_ns = now_ns();
  poll_fd = epoll_create1(EPOLL_CLOEXEC);
  int listener = listen_on(atoi(argv[1]));
  watch(poll_fd, EPOLL_CTL_ADD, listener, EPOLLIN, (uint64_t)listener);
  static struct epoll_event events[512];
  for (;;) {
    int64_t wait_ns = 1000000000;
    if (stats.streams_open > 0) {
      wait_ns = origin_ns + (clock_ms + 1) * 1000000 - now_ns();
      if (wait_ns < 0) wait_ns = 0;
    }
    struct timespec wait = {.tv_sec = wait_ns / 1000000000, .tv_nsec = wait_ns % 1000000000};
    int count = epoll_pwait2(poll_fd, events, 512, &wait, NULL);
    if (stats.streams_open == 0) clock_ms = (now_ns() - origin_ns) / 1000000;
    for (int i = 0; i < count; i++) {
      int fd = (int)events[i].data.u64;
      if (fd == listener) accept_all(listener);
      else if (connections[fd] != NULL) serve(connections[fd], events[i].events);
    }
    run_wheel();
  }
}
