// The load generator's requests: bodies that an agent loop would send. See load.c for the kinds of turns.
#include "load.h"

static uint64_t conversations, runs_made, nonces;
static char *user_pad, *tools_text;

void make_texts(void) {
  // A turn without a tool result is a little smaller than --body-bytes, one with a result a little larger.
  long pad = option.body_bytes - 1130;
  if (pad < 16) pad = 16;
  user_pad = malloc((size_t)pad + 1);
  for (long i = 0; i < pad; i++) user_pad[i] = "Compare with the old figure. "[i % 29];
  user_pad[pad] = 0;
  tools_text =
      "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"" CALL_NAME "\",\"description\":\"Look a thing up in the "
      "reference and return text\",\"parameters\":{\"type\":\"object\",\"properties\":{\"query\":{\"type\":\"string\"}},"
      "\"required\":[\"query\"]}}},{\"type\":\"function\",\"function\":{\"name\":\"deep_search\",\"description\":\"Search all "
      "sources and return the best passages\",\"parameters\":{\"type\":\"object\",\"properties\":{\"query\":{\"type\":"
      "\"string\"},\"limit\":{\"type\":\"integer\"}},\"required\":[\"query\"]}}}]";
}

// The kind of the next turn; sets up the conversation that it belongs to.
static int next_kind(client *c) {
  size_t length = strlen(option.script);
  char k = option.script[c->script_at % length];
  int needs_call = k == 'e' || k == 'E' || k == 'r';
  if (needs_call && !c->has_call) {
    c->script_at = 0;
    k = option.script[0];
  }
  c->script_at++;
  if (k == 'e' || k == 'E') return kind_echo;
  if (k == 'r') return kind_run_next;
  c->conversation = option.seed << 32 | ++conversations;
  if (k == 'n') return kind_new;
  c->run = option.runs > 0 ? runs_made % (uint64_t)option.runs : runs_made;
  runs_made++;
  return kind_run;
}

void write_request(client *c) {
  char body[16384], head[3072], echo[768] = "", run[96] = "";
  c->kind = next_kind(c);
  if (c->kind == kind_echo || c->kind == kind_run_next)
    snprintf(echo, sizeof echo,
             ",{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"%.*s\",\"type\":\"function\",\"function\":"
             "{\"name\":\"" CALL_NAME "\",\"arguments\":\"" CALL_ARGUMENTS "\"}}]},{\"role\":\"tool\",\"tool_call_id\":"
             "\"%.*s\",\"content\":\"The result says: \\\"2,102,650\\\" people\\nas of this year.\"}",
             CALL_ID_LENGTH, c->call, CALL_ID_LENGTH, c->call);
  if (c->kind == kind_run || c->kind == kind_run_next)
    snprintf(run, sizeof run, "x-luftpause-run-id: bench-%llx-%llu\r\n", (unsigned long long)option.seed,
             (unsigned long long)c->run);
  put_hex(c->nonce, ++nonces + (option.seed << 24), NONCE_DIGITS);
  int n = snprintf(body, sizeof body,
                   "{\"model\":\"%s\",\"messages\":[{\"role\":\"system\",\"content\":\"You are a careful agent. Use the "
                   "\\\"tools\\\" when needed.\\nAnswer briefly.\"},{\"role\":\"user\",\"content\":\"Task %016llx: find the "
                   "population of the capital. %s\"}%s],%s,%s\"max_tokens\":256,\"temperature\":0.2,\"user\":\"bench-%.*s\"}",
                   option.model, (unsigned long long)c->conversation, user_pad, echo, tools_text,
                   option.stream ? "\"stream\":true,\"stream_options\":{\"include_usage\":true}," : "", NONCE_DIGITS, c->nonce);
  if (n >= (int)sizeof body) die("--body-bytes %ld is more than the generator's buffer", option.body_bytes);
  int h = snprintf(head, sizeof head,
                   "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\naccept: */*\r\n"
                   "user-agent: overhead-bench/1\r\n%s%scontent-length: %d\r\n\r\n",
                   option.port, option.headers, run, n);
  c->out.length = 0;
  bytes_add(&c->out, head, (size_t)h);
  bytes_add(&c->out, body, (size_t)n);
  c->sent = 0;
}
