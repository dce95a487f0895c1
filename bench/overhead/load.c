// Load generator: valid agent traffic over HTTP/1.1 keep-alive, checked answer by answer. One thread, epoll.
//
//   load --port N --model bench-64x5 [--stream] [--chunks 64] --conns 64 --seconds 6      closed loop
//        --rate 300        open loop: turns start at Poisson times; a late start counts into the latency
//        --hold            opens every stream, prints {"event":"open"}, keeps them until stdin closes, then leaves
//        --abort-percent P, --reopen-percent P     churn: clients that leave mid-turn; a new connection after a turn
//        --script nEeRr    kinds of turns, per connection, over and over (see below)
//        --runs N          run ids come from a pool of N (0: never the same twice)
//        --turns N, --ramp PER_SECOND, --body-bytes N, --record-after-ms N, --drain-seconds N, --seed N, --header 'k: v'
//
// Prints one JSON line at the end (stdout). Exit code 0 whatever the answers were: judging them is the driver's work.
//
// Kinds of turns: n = a conversation never seen, no header. e = no header either, but the tool call of the answer before
// is echoed with its result (what an agent loop does). R = a new run named by x-luftpause-run-id. r = the next turn of
// that run, with the tool result. The run id of each answer is compared with the one before, if the proxy sends any.
//
// Does not: TLS, HTTP/2, pipelining, redirects.
//
// I1. A turn ends exactly once: served, failed (with one reason) or aborted by its own plan.
// I2. A turn that met any irregularity is never counted as served.
// I3. Time is read once per read(2): all events of one read get the same time of arrival.
#include "load.h"
#include <getopt.h>
#include <math.h>

#define CONNECT_FAILURES_MAX 1000

static double quantile_us(const histogram *h, double q) {
  uint64_t rank = (uint64_t)(q * (double)h->count), below = 0;
  for (int i = 0; i < BUCKETS; i++) {
    below += h->bucket[i];
    if (below > rank) return i < 64 ? i * 0.1 : (double)((64ULL + (uint64_t)(i % 64)) << (i / 64 - 1)) * 0.1;
  }
  return 0;
}

options option = {.conns = 1, .seconds = 1, .drain_seconds = 10, .body_bytes = 2048, .script = "neeRr", .model = "bench-64x5", .seed = 1};
counters seen;
int64_t begin_ns;

static client *clients;
static int poll_fd, opened, busy, holding, stdin_closed;
static int *free_clients, free_count;
static uint64_t turns_started, random_state;
static int64_t end_ns, next_open_ns, next_start_ns;

static uint64_t random_bits(void) { // xorshift64*
  random_state ^= random_state >> 12;
  random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  return random_state * 0x2545F4914F6CDD1DULL;
}
static double random_unit(void) { return (double)(random_bits() >> 11) / 9007199254740992.0; }

static int is_stopping(int64_t t) {
  if (seen.failures[failed_connect] >= CONNECT_FAILURES_MAX) return 1; // nobody listens: no use in going on
  return t >= end_ns || (option.turns > 0 && turns_started >= (uint64_t)option.turns) || stdin_closed;
}

// --- connections ------------------------------------------------------------------------------------------------

static uint64_t tag_of(const client *c) { return (uint64_t)(c - clients); }
static void end_turn(client *c, int64_t t);

static void close_client(client *c) {
  if (c->fd >= 0) close(c->fd);
  c->fd = -1;
  c->phase = closed;
  c->want_write = 0;
}

static void want_write(client *c, int on) {
  if (c->want_write != on) watch(poll_fd, EPOLL_CTL_MOD, c->fd, on ? EPOLLIN | EPOLLOUT : EPOLLIN, tag_of(c));
  c->want_write = on;
}

static void send_request(client *c, int64_t t) {
  while (c->sent < c->out.length) {
    ssize_t n = send(c->fd, c->out.at + c->sent, c->out.length - c->sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EAGAIN) return want_write(c, 1);
    if (n < 0) {
      fail(c, failed_cut);
      close_client(c);
      return end_turn(c, t);
    }
    c->sent += (size_t)n;
  }
  want_write(c, 0);
  if (c->abort_after == 0) {
    c->aborts = 1;
    close_client(c);
    end_turn(c, t);
  }
}

static void connect_client(client *c, int64_t t) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)option.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (c->fd < 0) die("load: no socket (%s): raise the limit on open files", strerror(errno));
  set_no_delay(c->fd);
  c->turns_on_connection = 0;
  seen.connects++;
  int result = connect(c->fd, (struct sockaddr *)&address, sizeof address);
  if (result != 0 && errno != EINPROGRESS) {
    fail(c, failed_connect);
    close_client(c);
    return end_turn(c, t);
  }
  watch(poll_fd, EPOLL_CTL_ADD, c->fd, result == 0 ? EPOLLIN : EPOLLIN | EPOLLOUT, tag_of(c));
  c->want_write = result != 0;
  c->phase = result == 0 ? in_turn : connecting;
  if (result == 0) send_request(c, t);
}

static void start_turn(client *c, int64_t due_ns, int64_t t) {
  write_request(c);
  reset_answer(c);
  c->started_ns = due_ns;
  c->reason = not_failed;
  c->aborts = 0;
  c->abort_after = -1;
  if (option.abort_percent > 0 && random_unit() * 100 < option.abort_percent)
    c->abort_after = (long)(random_unit() * (double)(option.chunks > 0 ? option.chunks : 1));
  turns_started++;
  busy++;
  if (c->phase == closed) return connect_client(c, t);
  c->phase = in_turn;
  send_request(c, t);
}

static void end_turn(client *c, int64_t t) { // I1
  busy--;
  if (c->aborts) seen.aborted++;
  else if (c->reason != not_failed) seen.failures[c->reason]++;
  else {
    seen.served++;
    seen.kinds[c->kind]++;
    if ((double)(t - begin_ns) >= option.record_after_ms * 1e6) {
      record(&seen.total_time, t - c->started_ns);
      record(&seen.first_byte_time, c->first_byte_ns - c->started_ns);
    }
  }
  c->has_call = !c->aborts && c->reason == not_failed && c->saw_call;
  c->turns_on_connection++;
  if (c->fd >= 0) c->phase = idle;
  int drop = c->reason != not_failed || c->closing || (option.reopen_percent > 0 && random_unit() * 100 < option.reopen_percent);
  if (drop && c->fd >= 0) close_client(c);
  free_clients[free_count++] = (int)tag_of(c);
}

static void on_closed(client *c, int64_t t) {
  phase was = c->phase;
  close_client(c);
  if (was == idle) return;
  if (was == in_turn && c->part == part_until_close && c->status == 200) {
    check_answer(c);
    return end_turn(c, t);
  }
  // The idle race: the peer closed a kept connection while the request was on its way. A client asks again; it is counted.
  if (was == in_turn && c->head_length == 0 && c->turns_on_connection > 0) {
    seen.stale_retries++;
    c->sent = 0;
    return connect_client(c, t);
  }
  fail(c, was == connecting ? failed_connect : failed_cut);
  end_turn(c, t);
}

static void on_readable(client *c) {
  static char buffer[1 << 18];
  ssize_t n = recv(c->fd, buffer, sizeof buffer, 0);
  int64_t t = now_ns();
  if (n < 0 && errno == EAGAIN) return;
  if (n <= 0) return on_closed(c, t);
  if (c->phase != in_turn) return close_client(c); // bytes that nobody asked for
  int done = feed_answer(c, buffer, (size_t)n, t);
  if (done < 0) fail(c, failed_framing);
  if (done > 0) check_answer(c);
  if (done == 0 && c->reason == not_failed && c->abort_after > 0 && c->events >= c->abort_after) {
    c->aborts = 1;
    close_client(c);
    return end_turn(c, t);
  }
  if (done == 0 && c->reason == not_failed) return;
  if (done <= 0) close_client(c);
  end_turn(c, t);
}

// --- the loop ---------------------------------------------------------------------------------------------------

// The next client to use: one that is free, else one that was never opened; NULL when there is none.
static client *take_client(void) {
  if (free_count > 0) return &clients[free_clients[--free_count]];
  return opened < option.conns ? &clients[opened++] : NULL;
}

static void start_due(int64_t t) {
  // Turns that end at once (aborted, refused) are free again at once: bounded, so that reads get their turn too.
  int budget = 2 * option.conns;
  client *c;
  if (option.rate > 0) {
    while (next_start_ns <= t && budget-- > 0 && !is_stopping(t) && (c = take_client()) != NULL) {
      start_turn(c, next_start_ns, t);
      next_start_ns += (int64_t)(-log(1 - random_unit()) * 1e9 / option.rate);
    }
    return;
  }
  while (opened < option.conns && next_open_ns <= t && budget-- > 0 && !is_stopping(t)) {
    if (option.ramp > 0) next_open_ns += (int64_t)(1e9 / option.ramp);
    start_turn(&clients[opened++], t, t);
  }
  while (!option.hold && free_count > 0 && budget-- > 0 && !is_stopping(t)) start_turn(take_client(), t, t);
}

static int64_t wait_ns(int64_t t) {
  int64_t until = t + 50000000;
  if (end_ns < until && end_ns > t) until = end_ns;
  if (option.rate > 0 && (free_count > 0 || opened < option.conns) && next_start_ns < until) until = next_start_ns;
  if (option.rate == 0 && opened < option.conns && next_open_ns < until) until = next_open_ns;
  return until > t ? until - t : 0;
}

static void on_stdin(void) {
  char byte[64];
  ssize_t n = read(0, byte, sizeof byte);
  if (n == 0 || (n < 0 && errno != EAGAIN)) {
    stdin_closed = 1;
    epoll_ctl(poll_fd, EPOLL_CTL_DEL, 0, NULL);
  }
}

static void note_open(void) {
  if (!option.hold || holding || opened < option.conns) return;
  for (int i = 0; i < option.conns; i++)
    if (clients[i].phase == connecting || (clients[i].phase == in_turn && clients[i].events == 0)) return;
  holding = 1;
  printf("{\"event\":\"open\",\"streams\":%d}\n", busy);
  fflush(stdout);
}

static void serve(const struct epoll_event *event, int64_t t) {
  if (event->data.u64 == UINT64_MAX) return on_stdin();
  client *c = &clients[event->data.u64];
  if (c->fd < 0) return;
  if ((event->events & EPOLLOUT) != 0) {
    if (c->phase == connecting) {
      int error = 0;
      socklen_t size = sizeof error;
      getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &size);
      if (error != 0) return on_closed(c, t);
      c->phase = in_turn;
    }
    send_request(c, t);
    if (c->fd < 0) return;
  }
  if ((event->events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) on_readable(c);
}

static void report(int64_t t, long held, long held_events_min) {
  struct timespec cpu;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
  uint64_t failed = 0;
  for (int i = 0; i < REASON_COUNT; i++) failed += seen.failures[i];
  printf("{\"event\":\"end\",\"seconds\":%.3f,\"served\":%llu,\"failed\":%llu,\"aborted\":%llu,\"held\":%ld,\"heldEventsMin\":%ld,"
         "\"events\":%llu,\"bytes\":%llu,\"comments\":%llu,\"connects\":%llu,\"staleRetries\":%llu,\"cpuSeconds\":%.3f,",
         (double)(t - begin_ns) / 1e9, (unsigned long long)seen.served, (unsigned long long)failed, (unsigned long long)seen.aborted, held,
         held_events_min, (unsigned long long)seen.events, (unsigned long long)seen.bytes, (unsigned long long)seen.comments,
         (unsigned long long)seen.connects, (unsigned long long)seen.stale_retries, (double)cpu.tv_sec + (double)cpu.tv_nsec / 1e9);
  const histogram *all[] = {&seen.total_time, &seen.first_byte_time, &seen.event_delay};
  const char *names[] = {"totalUs", "firstByteUs", "eventDelayUs"};
  for (int i = 0; i < 3; i++)
    printf("\"%s\":{\"count\":%llu,\"p50\":%.1f,\"p99\":%.1f,\"p999\":%.1f},", names[i], (unsigned long long)all[i]->count,
           quantile_us(all[i], .5), quantile_us(all[i], .99), quantile_us(all[i], .999));
  printf("\"failures\":{");
  for (int i = 0, first = 1; i < REASON_COUNT; i++)
    if (seen.failures[i] > 0) first = (printf("%s\"%s\":%llu", first ? "" : ",", reason_names[i], (unsigned long long)seen.failures[i]), 0);
  printf("},\"firstFailure\":\"%s\",\"kinds\":{\"new\":%llu,\"echo\":%llu,\"run\":%llu,\"runNext\":%llu},", seen.first_failure,
         (unsigned long long)seen.kinds[0], (unsigned long long)seen.kinds[1], (unsigned long long)seen.kinds[2],
         (unsigned long long)seen.kinds[3]);
  printf("\"runIds\":{\"same\":%llu,\"other\":%llu,\"fresh\":%llu,\"joined\":%llu,\"unnamed\":%llu},\"sources\":{",
         (unsigned long long)seen.run_same, (unsigned long long)seen.run_other, (unsigned long long)seen.run_fresh,
         (unsigned long long)seen.run_joined, (unsigned long long)seen.run_unnamed);
  for (int i = 0; i < SOURCES_MAX && seen.sources[i].count > 0; i++)
    printf("%s\"%s\":%llu", i > 0 ? "," : "", seen.sources[i].name, (unsigned long long)seen.sources[i].count);
  printf("}}\n");
}

static void parse_options(int argc, char **argv) {
  static const struct option names[] = {
      {"port", 1, 0, 'p'},         {"model", 1, 0, 'm'},          {"stream", 0, 0, 's'},         {"chunks", 1, 0, 'c'},
      {"conns", 1, 0, 'n'},        {"seconds", 1, 0, 't'},        {"rate", 1, 0, 'r'},           {"ramp", 1, 0, 'a'},
      {"hold", 0, 0, 'h'},         {"script", 1, 0, 'x'},         {"runs", 1, 0, 'u'},           {"turns", 1, 0, 'T'},
      {"body-bytes", 1, 0, 'b'},   {"drain-seconds", 1, 0, 'd'},  {"abort-percent", 1, 0, 'A'},  {"reopen-percent", 1, 0, 'O'},
      {"seed", 1, 0, 'S'},         {"header", 1, 0, 'H'},         {"record-after-ms", 1, 0, 'w'}, {0}};
  int o;
  while ((o = getopt_long(argc, argv, "", names, NULL)) != -1) {
    switch (o) {
      case 'p': option.port = atoi(optarg); break;
      case 'm': option.model = optarg; break;
      case 's': option.stream = 1; break;
      case 'c': option.chunks = atol(optarg); break;
      case 'n': option.conns = atoi(optarg); break;
      case 't': option.seconds = atof(optarg); break;
      case 'r': option.rate = atof(optarg); break;
      case 'a': option.ramp = atof(optarg); break;
      case 'h': option.hold = 1; break;
      case 'x': option.script = optarg; break;
      case 'u': option.runs = atol(optarg); break;
      case 'T': option.turns = atol(optarg); break;
      case 'b': option.body_bytes = atol(optarg); break;
      case 'd': option.drain_seconds = atof(optarg); break;
      case 'A': option.abort_percent = atof(optarg); break;
      case 'O': option.reopen_percent = atof(optarg); break;
      case 'S': option.seed = strtoull(optarg, NULL, 10) & 0xff; break;
      case 'w': option.record_after_ms = atof(optarg); break;
      case 'H':
        if (strlen(option.headers) + strlen(optarg) + 3 > sizeof option.headers) die("load: --header: more than %zu bytes of headers", sizeof option.headers);
        strcat(strcat(option.headers, optarg), "\r\n");
        break;
      default: die("load: see the head of load.c for the options");
    }
  }
  if (option.port <= 0 || option.conns <= 0) die("load: --port and --conns must be above 0");
  if (option.script[0] != 'n' && option.script[0] != 'R') die("load: --script must begin with n or R, a turn that needs no earlier answer");
  if (strspn(option.script, "nRrEe") != strlen(option.script)) die("load: --script may hold n, e, R and r only");
}

int main(int argc, char **argv) {
  parse_options(argc, argv);
  signal(SIGPIPE, SIG_IGN);
  raise_file_limit();
  make_texts();
  random_state = 0x9E3779B97F4A7C15ULL ^ option.seed << 20;
  poll_fd = epoll_create1(EPOLL_CLOEXEC);
  clients = calloc((size_t)option.conns, sizeof *clients);
  free_clients = calloc((size_t)option.conns, sizeof *free_clients);
  if (clients == NULL || free_clients == NULL) die("load: out of memory for %d clients", option.conns);
  for (int i = 0; i < option.conns; i++) clients[i].fd = -1;
  if (option.hold) watch(poll_fd, EPOLL_CTL_ADD, 0, EPOLLIN, UINT64_MAX);
  begin_ns = next_open_ns = next_start_ns = now_ns();
  end_ns = begin_ns + (int64_t)(option.seconds * 1e9);
  int64_t drain_end = 0, t;
  static struct epoll_event events[512];
  for (;;) {
    t = now_ns();
    if (is_stopping(t)) {
      if (drain_end == 0) drain_end = t + (int64_t)(option.drain_seconds * 1e9);
      if (busy == 0 || option.hold || t >= drain_end) break;
    }
    start_due(t);
    int64_t wait = wait_ns(now_ns());
    struct timespec ts = {.tv_sec = wait / 1000000000, .tv_nsec = wait % 1000000000};
    int count = epoll_pwait2(poll_fd, events, 512, &ts, NULL);
    t = now_ns();
    for (int i = 0; i < count; i++) serve(&events[i], t);
    note_open();
  }
  long held = 0, held_events_min = -1;
  for (int i = 0; i < option.conns; i++) {
    client *c = &clients[i];
    if (c->phase != in_turn && c->phase != connecting) continue;
    if (!option.hold || c->phase == connecting) {
      fail(c, failed_timeout);
      close_client(c);
      end_turn(c, t);
      continue;
    }
    held++;
    if (held_events_min < 0 || c->events < held_events_min) held_events_min = c->events;
    close_client(c);
  }
  report(t, held, held_events_min);
  return 0;
}
