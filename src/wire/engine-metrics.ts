/**
 * Prometheus text of an engine → LoadSample (spec 2, Load signals). Names are matched exactly, in both spellings
 * (`vllm:x`, `vllm_x`); what is missing is undefined, never 0. Never throws; the work is bounded by the caller's text.
 */
import type { EngineKind } from "./endpoint.ts";
import type { LoadSample } from "./load.ts";

type Series = { readonly labels: ReadonlyMap<string, string>; readonly value: number };

/** What one page says: which engine wrote it, its load, and when its process started. */
export type EngineMetrics = {
  readonly engine: EngineKind;
  readonly load: LoadSample | undefined;
  /** Seconds since the epoch, where the page has it: a change means another process behind the same address. */
  readonly startedAtSeconds: number | undefined;
};

const NAMES = new Set([
  "vllm:num_requests_running",
  "vllm:num_requests_waiting",
  "vllm:num_requests_waiting_by_reason",
  "vllm:kv_cache_usage_perc",
  "vllm:gpu_cache_usage_perc",
  "vllm:cache_config_info",
  "vllm:prefix_cache_queries_total",
  "vllm:prefix_cache_hits_total",
  "sglang:num_running_reqs",
  "sglang:num_queue_reqs",
  "sglang:token_usage",
  "sglang:max_total_num_tokens",
  "sglang:cache_hit_rate",
  "llamacpp:requests_processing",
  "llamacpp:requests_deferred",
  "llamacpp:kv_cache_usage_ratio",
  "process_start_time_seconds",
]);

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;

/** Reads one page. */
export function readEngineMetrics(text: string): EngineMetrics {
  const page = parsePage(text);
  const started = page.get("process_start_time_seconds")?.[0]?.value;
  const about = { startedAtSeconds: started };
  if (page.has("vllm:num_requests_running") || page.has("vllm:num_requests_waiting")) {
    return { engine: "vllm", load: vllm(page), ...about };
  }
  if (page.has("sglang:num_running_reqs") || page.has("sglang:num_queue_reqs")) {
    return { engine: "sglang", load: sglang(page), ...about };
  }
  if (page.has("llamacpp:requests_processing") || page.has("llamacpp:requests_deferred")) {
    return { engine: "llama.cpp", load: llamaCpp(page), ...about };
  }
  return { engine: "unknown", load: undefined, ...about };
}

/** The load of a router: the sum over the engines behind it; unknown as soon as one of them is. */
export function sumLoads(samples: readonly (LoadSample | undefined)[]): LoadSample | undefined {
  if (samples.length === 0) return undefined;
  const known = samples.filter((sample) => sample !== undefined);
  if (known.length < samples.length) return undefined;
  const sum = (pick: (sample: LoadSample) => number | undefined): number | undefined =>
    known.reduce<number | undefined>((total, sample) => {
      const value = pick(sample);
      return total === undefined || value === undefined ? undefined : total + value;
    }, 0);
  const mean = (pick: (sample: LoadSample) => number | undefined): number | undefined => {
    const total = sum(pick);
    return total === undefined ? undefined : total / known.length;
  };
  return {
    running: sum((sample) => sample.running),
    waiting: sum((sample) => sample.waiting),
    kvUsage: mean((sample) => sample.kvUsage),
    kvCapacityTokens: sum((sample) => sample.kvCapacityTokens),
    cacheHitRate: mean((sample) => sample.cacheHitRate),
    takesPriority: known.every((sample) => sample.takesPriority),
  };
}

function parsePage(text: string): Map<string, Series[]> {
  const page = new Map<string, Series[]>();
  let from = 0;
  while (from < text.length) {
    const end = text.indexOf("\n", from);
    const line = text.slice(from, end === -1 ? text.length : end);
    from = end === -1 ? text.length : end + 1;
    if (line.length === 0 || line.startsWith("#")) continue;
    const name = canonicalName(line);
    if (name === undefined) continue;
    const match = SAMPLE.exec(line);
    const value = Number(match?.[3]);
    if (match === null || !Number.isFinite(value) || value < 0) continue;
    const labels = new Map<string, string>();
    for (const [, key, quoted] of (match[2] ?? "").matchAll(LABEL)) labels.set(key ?? "", quoted ?? "");
    const series = page.get(name);
    if (series === undefined) page.set(name, [{ labels, value }]);
    else series.push({ labels, value });
  }
  return page;
}

/** The name of a line's metric in the spelling of NAMES, when it is one of them; cheap, since pages are long. */
function canonicalName(line: string): string | undefined {
  const end = line.search(/[{\s]/);
  if (end === -1) return undefined;
  const name = line.slice(0, end);
  if (NAMES.has(name)) return name;
  const spelled = name.replace(/^(vllm|sglang|llamacpp)_/, "$1:");
  return NAMES.has(spelled) ? spelled : undefined;
}

/** Sums over engines and data-parallel ranks; ranks that share one batch repeat the same value: their maximum counts. */
function total(series: readonly Series[] | undefined): number | undefined {
  if (series === undefined || series.length === 0) return undefined;
  const byShard = new Map<string, number>();
  for (const { labels, value } of series) {
    const shard = `${labels.get("model_name") ?? ""}\n${labels.get("engine") ?? ""}\n${labels.get("dp_rank") ?? ""}`;
    byShard.set(shard, Math.max(byShard.get(shard) ?? 0, value));
  }
  let sum = 0;
  for (const value of byShard.values()) sum += value;
  return sum;
}

/** The largest of the shards: a share, which must not be summed. */
function largest(series: readonly Series[] | undefined): number | undefined {
  return series === undefined || series.length === 0 ? undefined : Math.max(...series.map(({ value }) => value));
}

function ratio(part: number | undefined, whole: number | undefined): number | undefined {
  return part === undefined || whole === undefined || whole === 0 ? undefined : part / whole;
}

function vllm(page: ReadonlyMap<string, Series[]>): LoadSample {
  // Deferred long prefills are counted as waiting too; only what waits for capacity says that the engine is full.
  const capacity = page
    .get("vllm:num_requests_waiting_by_reason")
    ?.filter(({ labels }) => labels.get("reason") === "capacity");
  const waiting = capacity !== undefined && capacity.length > 0 ? capacity : page.get("vllm:num_requests_waiting");
  return {
    running: total(page.get("vllm:num_requests_running")),
    waiting: total(waiting),
    kvUsage: largest(page.get("vllm:kv_cache_usage_perc") ?? page.get("vllm:gpu_cache_usage_perc")),
    kvCapacityTokens: vllmCapacity(page.get("vllm:cache_config_info")),
    cacheHitRate: ratio(
      total(page.get("vllm:prefix_cache_hits_total")),
      total(page.get("vllm:prefix_cache_queries_total")),
    ),
    takesPriority: false,
  };
}

function vllmCapacity(series: readonly Series[] | undefined): number | undefined {
  let tokens = 0;
  for (const { labels } of series ?? []) {
    const product = Number(labels.get("num_gpu_blocks")) * Number(labels.get("block_size"));
    if (!Number.isFinite(product) || product <= 0) return undefined;
    tokens += product;
  }
  return tokens === 0 ? undefined : tokens;
}

function sglang(page: ReadonlyMap<string, Series[]>): LoadSample {
  // With priorities every series comes once more per priority: only the total, without one, counts.
  const whole = (name: string): Series[] | undefined =>
    page.get(name)?.filter(({ labels }) => (labels.get("priority") ?? "") === "");
  const takesPriority = (page.get("sglang:num_running_reqs") ?? []).some(({ labels }) => labels.has("priority"));
  return {
    running: total(whole("sglang:num_running_reqs")),
    waiting: total(whole("sglang:num_queue_reqs")),
    kvUsage: largest(whole("sglang:token_usage")),
    kvCapacityTokens: total(whole("sglang:max_total_num_tokens")),
    cacheHitRate: largest(whole("sglang:cache_hit_rate")),
    takesPriority,
  };
}

function llamaCpp(page: ReadonlyMap<string, Series[]>): LoadSample {
  return {
    running: total(page.get("llamacpp:requests_processing")),
    waiting: total(page.get("llamacpp:requests_deferred")),
    kvUsage: largest(page.get("llamacpp:kv_cache_usage_ratio")),
    kvCapacityTokens: undefined,
    cacheHitRate: undefined,
    takesPriority: false,
  };
}
