/**
 * Prometheus text of an engine → LoadSample (spec 2, Load signals). Names are matched exactly, in both spellings
 * (`vllm:x`, `vllm_x`); what is missing is undefined, never 0.
 *
 * M1: never throws, whatever the text.
 * M2: one pass without backtracking, and limits on text, line and series: work is linear in at most TEXT_MAX characters.
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
  "sglang:cache_config_info",
  "sglang:cache_hit_rate",
  "llamacpp:requests_processing",
  "llamacpp:requests_deferred",
  "llamacpp:kv_cache_usage_ratio",
  "process_start_time_seconds",
]);

/** What is longer is cut off: pages of the largest deployments have some hundred kilobytes. */
const TEXT_MAX = 4 * 1024 * 1024;
/** A longer line is no sample of ours; `cache_config_info`, the longest, has about 2,000 characters. */
const LINE_MAX = 16 * 1024;
/** Of one metric: ranks times data-parallel engines times priorities. */
const SERIES_MAX = 4_096;

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

type Page = ReadonlyMap<string, readonly Series[]>;

function parsePage(text: string): Page {
  const page = new Map<string, Series[]>();
  const textEnd = Math.min(text.length, TEXT_MAX);
  let from = 0;
  while (from < textEnd) {
    const at = text.indexOf("\n", from);
    // A line that was cut off at the limit could have lost digits: it does not count.
    if (at === -1 && text.length > TEXT_MAX) break;
    const end = at === -1 ? textEnd : at;
    const start = from;
    from = end + 1;
    if (end - start > LINE_MAX || !mayBeOurs(text.charCodeAt(start))) continue;
    const line = text.slice(start, end);
    const nameEnd = lengthOfName(line);
    const name = canonicalName(line.slice(0, nameEnd));
    if (name === undefined) continue;
    const sample = parseSample(line, nameEnd);
    if (sample === undefined) continue;
    const series = page.get(name);
    if (series === undefined) page.set(name, [sample]);
    else if (series.length < SERIES_MAX) series.push(sample);
  }
  return page;
}

/** First letters of NAMES: nearly all lines of a page are dropped here. */
function mayBeOurs(code: number): boolean {
  return code === 0x76 || code === 0x73 || code === 0x6c || code === 0x70;
}

/** The name of a metric in the spelling of NAMES, when it is one of them. */
function canonicalName(name: string): string | undefined {
  if (NAMES.has(name)) return name;
  const spelled = name.replace(/^(vllm|sglang|llamacpp)_/, "$1:");
  if (NAMES.has(spelled)) return spelled;
  // Counters lose their suffix in some exporters.
  return NAMES.has(`${spelled}_total`) ? `${spelled}_total` : undefined;
}

function lengthOfName(line: string): number {
  let at = 0;
  while (at < line.length && !isSpace(line.charCodeAt(at)) && line[at] !== "{") at += 1;
  return at;
}

/** Labels and value behind the name; undefined when the line is malformed or its value is no finite, positive number. */
function parseSample(line: string, nameEnd: number): Series | undefined {
  const labels = new Map<string, string>();
  const valueFrom = line[nameEnd] === "{" ? parseLabels(line, nameEnd + 1, labels) : nameEnd;
  if (valueFrom === undefined || valueFrom >= line.length) return undefined;
  // The value, and perhaps a time stamp.
  const words = line
    .slice(valueFrom)
    .trim()
    .split(/[ \t]+/, 3);
  if (words.length > 2 || words[0] === undefined || words[0] === "") return undefined;
  const value = Number(words[0]);
  return Number.isFinite(value) && value >= 0 ? { labels, value } : undefined;
}

/** Reads `name="value",…}`; returns the position behind the brace, undefined when malformed. */
function parseLabels(line: string, from: number, labels: Map<string, string>): number | undefined {
  let at = from;
  for (;;) {
    while (isSpace(line.charCodeAt(at)) || line[at] === ",") at += 1;
    if (line[at] === "}") return at + 1;
    const equals = line.indexOf("=", at);
    if (equals === -1) return undefined;
    const key = line.slice(at, equals).trim();
    let quote = equals + 1;
    while (isSpace(line.charCodeAt(quote))) quote += 1;
    if (line[quote] !== '"') return undefined;
    const end = endOfString(line, quote + 1);
    if (end === undefined) return undefined;
    labels.set(key, line.slice(quote + 1, end));
    at = end + 1;
  }
}

/** Position of the closing quote; escaped characters are passed over (none of the labels that count has any). */
function endOfString(line: string, from: number): number | undefined {
  for (let at = from; at < line.length; at += 1) {
    if (line[at] === "\\") at += 1;
    else if (line[at] === '"') return at;
  }
  return undefined;
}

function isSpace(code: number): boolean {
  return code === 0x20 || code === 0x09 || code === 0x0d;
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

function vllm(page: Page): LoadSample {
  // Deferred long prefills are counted as waiting too; only what waits for capacity says that the engine is full.
  const forCapacity = page
    .get("vllm:num_requests_waiting_by_reason")
    ?.filter(({ labels }) => labels.get("reason") === "capacity");
  const waiting =
    forCapacity !== undefined && forCapacity.length > 0 ? forCapacity : page.get("vllm:num_requests_waiting");
  return {
    running: total(page.get("vllm:num_requests_running")),
    waiting: total(waiting),
    kvUsage: largest(page.get("vllm:kv_cache_usage_perc") ?? page.get("vllm:gpu_cache_usage_perc")),
    kvCapacityTokens: capacity(page.get("vllm:cache_config_info"), "num_gpu_blocks", "block_size"),
    cacheHitRate: ratio(
      total(page.get("vllm:prefix_cache_hits_total")),
      total(page.get("vllm:prefix_cache_queries_total")),
    ),
    takesPriority: false,
  };
}

/** Size of a KV pool that is told in labels, as so many pieces of so many tokens; one series for each engine. */
function capacity(series: readonly Series[] | undefined, pieces: string, tokensEach: string): number | undefined {
  const byShard: Series[] = [];
  for (const { labels } of series ?? []) {
    const value = Number(labels.get(pieces)) * Number(labels.get(tokensEach));
    if (!Number.isFinite(value) || value <= 0) return undefined;
    byShard.push({ labels, value });
  }
  return total(byShard);
}

function sglang(page: Page): LoadSample {
  // With priorities every series comes once more per priority: only the total, without one, counts.
  const whole = (name: string): readonly Series[] | undefined =>
    page.get(name)?.filter(({ labels }) => (labels.get("priority") ?? "") === "");
  const takesPriority = (page.get("sglang:num_running_reqs") ?? []).some(({ labels }) => labels.has("priority"));
  return {
    running: total(whole("sglang:num_running_reqs")),
    waiting: total(whole("sglang:num_queue_reqs")),
    kvUsage: largest(whole("sglang:token_usage")),
    kvCapacityTokens:
      total(whole("sglang:max_total_num_tokens")) ??
      capacity(whole("sglang:cache_config_info"), "num_pages", "page_size"),
    cacheHitRate: largest(whole("sglang:cache_hit_rate")),
    takesPriority,
  };
}

function llamaCpp(page: Page): LoadSample {
  return {
    running: total(page.get("llamacpp:requests_processing")),
    waiting: total(page.get("llamacpp:requests_deferred")),
    kvUsage: largest(page.get("llamacpp:kv_cache_usage_ratio")),
    kvCapacityTokens: undefined,
    cacheHitRate: undefined,
    takesPriority: false,
  };
}
