/** `/metrics` of each dialect with the names and labels of the real engines (research/proxy.md 1.2, engine-sim.md 1). */
import { BLOCK_TOKENS, load, readGauges } from "../engine/index.ts";
import type { Engine, SglangGauges } from "../engine/index.ts";
import type { WireDialect } from "./options.ts";
import { createPage } from "./prometheus.ts";
import type { Page, Sample } from "./prometheus.ts";

type FinishReasons = { readonly stop: number; readonly length: number };

export type MetricsInput = {
  readonly engine: Engine;
  readonly nowMs: number;
  readonly dialect: WireDialect;
  readonly model: string;
  readonly priority: boolean;
  readonly finishReasons: FinishReasons;
};

/** The page as a scrape at `nowMs` reads it. */
export function metricsPage(input: MetricsInput): string {
  switch (input.dialect) {
    case "sglang":
      return sglangPage(input);
    case "llama.cpp":
    case "ollama":
      return llamaPage(input.engine);
    default:
      return vllmPage(input);
  }
}

function vllmPage({ engine, model, finishReasons }: MetricsInput): string {
  const { counters } = engine;
  const now = load(engine);
  const page = createPage({ engine: "0", model_name: model });
  page.gauge("vllm:num_requests_running", "Number of requests in model execution batches.", [{ value: now.running }]);
  page.gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", [{ value: now.waiting }]);
  page.gauge("vllm:num_requests_waiting_by_reason", "Number of waiting requests by reason.", [
    { labels: { reason: "capacity" }, value: now.waiting },
    { labels: { reason: "deferred" }, value: 0 },
  ]);
  page.gauge("vllm:engine_sleep_state", "Engine sleep state.", [
    { labels: { sleep_state: "awake" }, value: 1 },
    { labels: { sleep_state: "weights_offloaded" }, value: 0 },
    { labels: { sleep_state: "discard_all" }, value: 0 },
  ]);
  const usage = now.kvTokens === 0 ? 0 : now.usedTokens / now.kvTokens;
  page.gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", [{ value: usage }]);
  counter(page, "vllm:prefix_cache_queries_total", "Prefix cache queries, in tokens.", counters.promptTokens);
  counter(page, "vllm:prefix_cache_hits_total", "Prefix cache hits, in tokens.", counters.cachedTokens);
  counter(page, "vllm:prompt_tokens_cached_total", "Number of cached prompt tokens.", counters.cachedTokens);
  counter(page, "vllm:num_preemptions_total", "Cumulative number of preemptions.", counters.preemptions);
  counter(page, "vllm:prompt_tokens_total", "Number of prefill tokens processed.", counters.promptTokens);
  counter(page, "vllm:generation_tokens_total", "Number of generation tokens processed.", counters.generatedTokens);
  page.counter("vllm:request_success_total", "Count of successfully processed requests.", [
    { labels: { finished_reason: "stop" }, value: finishReasons.stop },
    { labels: { finished_reason: "length" }, value: finishReasons.length },
    { labels: { finished_reason: "abort" }, value: counters.aborted },
  ]);
  page.histogramSeconds("vllm:time_to_first_token_seconds", "Time to first token.", engine.timeToFirstTokenMs);
  page.histogramSeconds("vllm:e2e_request_latency_seconds", "Time of a request.", engine.requestTimeMs);
  page.histogramSeconds("vllm:request_queue_time_seconds", "Time spent in the queue.", engine.queueTimeMs);
  return page.text() + vllmCacheConfig(engine);
}

/** The real one carries the whole cache config as labels, and `engine` but not `model_name`. */
function vllmCacheConfig(engine: Engine): string {
  const page = createPage({ engine: "0" });
  page.gauge("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", [
    {
      labels: {
        block_size: String(BLOCK_TOKENS),
        enable_prefix_caching: engine.params.prefixCaching ? "True" : "False",
        num_gpu_blocks: String(engine.kv.blockCount),
      },
      value: 1,
    },
  ]);
  return page.text();
}

function sglangPage({ engine, nowMs, model, priority }: MetricsInput): string {
  const { counters } = engine;
  const gauges = readGauges(engine, nowMs);
  const ranks = { engine_type: "unified", model_name: model, moe_ep_rank: "0", pp_rank: "0", tp_rank: "0" };
  // With priority scheduling every series carries the label; the total stands under the empty one.
  const page = createPage(priority ? { ...ranks, priority: "" } : ranks);
  const kvTokens = engine.kv.blockCount * BLOCK_TOKENS;
  page.gauge("sglang:num_running_reqs", "The number of running requests.", parts(gauges, priority, "running"));
  page.gauge(
    "sglang:num_queue_reqs",
    "The number of requests in the waiting queue.",
    parts(gauges, priority, "waiting"),
  );
  const gauge = (name: string, help: string, value: number): void => page.gauge(`sglang:${name}`, help, [{ value }]);
  gauge("num_grammar_queue_reqs", "The number of requests in the grammar waiting queue.", 0);
  gauge("num_used_tokens", "The number of used tokens.", gauges.usedTokens);
  gauge("token_usage", "The token usage.", kvTokens === 0 ? 0 : gauges.usedTokens / kvTokens);
  gauge("kv_used_tokens", "KV tokens in use.", gauges.usedTokens);
  gauge("kv_available_tokens", "KV tokens that hold nothing.", gauges.availableTokens);
  gauge("kv_evictable_tokens", "KV tokens that only the cache holds.", gauges.evictableTokens);
  gauge("gen_throughput", "The generation throughput (token/s).", gauges.genThroughput);
  gauge("cache_hit_rate", "The prefix cache hit rate.", gauges.cacheHitRate);
  gauge("num_retracted_reqs", "The number of retracted requests.", counters.preemptions);
  gauge("utilization", "The utilization.", 0);
  gauge("max_total_num_tokens", "Maximum total number of tokens.", kvTokens);
  gauge("page_size", "Tokens of a page.", BLOCK_TOKENS);
  gauge("num_pages", "Pages of the KV pool.", engine.kv.blockCount);
  gauge("context_len", "Context length.", engine.params.contextTokens);
  counter(page, "sglang:num_retracted_requests_total", "Retracted requests.", counters.preemptions);
  counter(page, "sglang:prompt_tokens_total", "Number of prefill tokens processed.", counters.promptTokens);
  counter(page, "sglang:generation_tokens_total", "Number of generation tokens processed.", counters.generatedTokens);
  page.counter("sglang:cached_tokens_total", "Number of cached prompt tokens.", [
    { labels: { cache_source: "device" }, value: counters.cachedTokens },
  ]);
  page.counter("sglang:realtime_tokens_total", "Tokens by mode.", [
    { labels: { mode: "prefill_compute" }, value: counters.prefilledTokens },
    { labels: { mode: "prefill_cache" }, value: counters.cachedTokens },
    { labels: { mode: "decode" }, value: counters.generatedTokens },
  ]);
  page.histogramSeconds("sglang:time_to_first_token_seconds", "Time to first token.", engine.timeToFirstTokenMs);
  page.histogramSeconds("sglang:e2e_request_latency_seconds", "Time of a request.", engine.requestTimeMs);
  page.histogramSeconds("sglang:queue_time_seconds", "Time spent in the queue.", engine.queueTimeMs);
  return page.text() + sglangCacheConfig(engine);
}

function sglangCacheConfig(engine: Engine): string {
  const page = createPage({});
  page.gauge("sglang:cache_config_info", "Cache configuration.", [
    { labels: { page_size: String(BLOCK_TOKENS), num_pages: String(engine.kv.blockCount) }, value: 1 },
  ]);
  return page.text();
}

function parts(gauges: SglangGauges, priority: boolean, which: "running" | "waiting"): Sample[] {
  const total = { value: gauges[which] };
  if (!priority) return [total];
  const byPriority = [...gauges.byPriority].map(([level, counts]) => ({
    labels: { priority: String(level) },
    value: counts[which],
  }));
  return [total, ...byPriority];
}

function llamaPage(engine: Engine): string {
  const { counters } = engine;
  const now = load(engine);
  const page = createPage({});
  const seconds = counters.busyMs / 1_000;
  counter(page, "llamacpp:prompt_tokens_total", "Number of prompt tokens processed.", counters.prefilledTokens);
  counter(page, "llamacpp:tokens_predicted_total", "Number of generation tokens processed.", counters.generatedTokens);
  counter(page, "llamacpp:n_decode_total", "Total number of llama_decode() calls", counters.steps);
  const busy = counters.steps === 0 ? 0 : counters.generatedTokens / counters.steps;
  page.gauge("llamacpp:n_busy_slots_per_decode", "Average number of busy slots per llama_decode() call", [
    { value: busy },
  ]);
  page.gauge("llamacpp:predicted_tokens_seconds", "Average generation throughput in tokens/s.", [
    { value: seconds === 0 ? 0 : counters.generatedTokens / seconds },
  ]);
  page.gauge("llamacpp:requests_processing", "Number of requests processing.", [{ value: now.running }]);
  page.gauge("llamacpp:requests_deferred", "Number of requests deferred.", [{ value: now.waiting }]);
  return page.text();
}

function counter(page: Page, name: string, help: string, value: number): void {
  page.counter(name, help, [{ value }]);
}
