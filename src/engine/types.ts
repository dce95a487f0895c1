/**
 * Shapes of the engine model: what goes in (parameters, requests), what comes out (events), and the state between.
 * The state is changed in place by this layer alone: a step touches every running request, and copying them per step
 * would cost more than the step. Hosts treat it as opaque and read it by `load`, `gauges` and the events.
 */
import type { Histogram } from "./histogram.ts";
import type { KvPool } from "./kv-pool.ts";
import type { LatencyProfile, SharedGpu } from "./latency.ts";

/** How an engine forms its batches. `slots` is llama.cpp and Ollama; `single-pass` is an encoder behind vLLM's budget. */
export type Discipline = "vllm" | "sglang" | "slots" | "single-pass";

export type EngineParams = {
  readonly discipline: Discipline;
  readonly latency: LatencyProfile;
  /** Size of the KV pool in tokens; rounded down to whole blocks of 16. */
  readonly kvTokens: number;
  /** vLLM `max_num_seqs`, SGLang `max_running_requests`, llama.cpp `-np`. */
  readonly maxRunning: number;
  /** Requests that may wait; one more is refused. */
  readonly queueMax: number;
  /** Longest prompt and answer together, in tokens. */
  readonly contextTokens: number;
  /** vLLM `max_num_batched_tokens`, SGLang `--chunked-prefill-size`, llama.cpp `n_batch`. */
  readonly chunkTokens: number;
  /** SGLang `--max-prefill-tokens`: input tokens of one prefill batch. */
  readonly maxPrefillTokens: number;
  /** vLLM `--enable-prefix-caching`, SGLang's radix cache. */
  readonly prefixCaching: boolean;
  /** Requests are ordered by their priority: vLLM smaller first, SGLang larger first. */
  readonly priorityScheduling: boolean;
  /** SGLang `SGLANG_INIT_NEW_TOKEN_RATIO`: share of the running requests' longest answers kept free at first. */
  readonly newTokenRatio: number;
  /** An event for every generated token; without it only for the first of each request. */
  readonly tokenEvents: boolean;
  /** Engines that share a GPU slow one another down; undefined: a GPU of its own. */
  readonly gpu: SharedGpu | undefined;
};

/** One request, its answer decided beforehand: the model computes when, never what. */
export type EngineRequest = {
  readonly id: string;
  /** Chained hashes of the full 16-token blocks of prompt and answer together, from `hashBlocks`. */
  readonly blockHashes: ArrayLike<number>;
  readonly promptTokens: number;
  /** Tokens that the model will generate; 0 for a single-pass request. Cut to `maxTokens`. */
  readonly outputTokens: number;
  /** Longest answer that the client allows: what SGLang reserves for. */
  readonly maxTokens: number;
  /** As on the wire; its direction is the discipline's. 0 where the client sent none. */
  readonly priority: number;
  /** A fault: after this many tokens it generates nothing more, yet keeps its place and memory until it is aborted. */
  readonly stallAfterTokens?: number;
};

/** Why a request was not taken. */
export type Refusal =
  | { readonly kind: "queue-full"; readonly queueMax: number }
  | { readonly kind: "too-long"; readonly tokens: number; readonly tokensMax: number }
  | { readonly kind: "duplicate-id" };

export type EngineEvent =
  /** Left the queue for the batch; again after each preemption. `cachedTokens`: found in the prefix cache this time. */
  | { readonly kind: "admitted"; readonly atMs: number; readonly id: string; readonly cachedTokens: number }
  /** `generated` tokens of the answer exist. */
  | { readonly kind: "token"; readonly atMs: number; readonly id: string; readonly generated: number }
  /** Pushed out for lack of memory and back in the queue (vLLM preemption, SGLang retraction). */
  | { readonly kind: "preempted"; readonly atMs: number; readonly id: string }
  | { readonly kind: "finished"; readonly atMs: number; readonly id: string; readonly generated: number }
  | { readonly kind: "aborted"; readonly atMs: number; readonly id: string };

/** A request inside the engine. */
export type Sequence = {
  readonly request: EngineRequest;
  /** Cut so that prompt, answer and one block always fit the empty pool: no request can wait for ever. */
  readonly maxTokens: number;
  readonly outputTokens: number;
  readonly arrivedMs: number;
  /** Order of arrival, from 0. */
  readonly order: number;
  phase: "waiting" | "running";
  /** Tokens whose KV entries exist. */
  computedTokens: number;
  generatedTokens: number;
  /** Cached tokens at the first admission: what `usage` reports. */
  cachedTokens: number;
  /** Pool blocks in order (disciplines with a pool). */
  blocks: number[];
  /** Leading blocks that are in the prefix cache under their hash. */
  publishedBlocks: number;
  /** Tokens of the step in flight. */
  scheduledTokens: number;
  /** Slot index (`slots`), else -1. */
  slot: number;
  /** It has stalled: never scheduled again, its place and memory stay taken. */
  stalled: boolean;
  /** The client left while a step was in flight; released at its end. */
  aborted: boolean;
  admittedMs: number;
  firstTokenMs: number;
};

/** A step in flight: its results exist from `endMs` on. */
export type Step = {
  readonly startedMs: number;
  readonly endMs: number;
  readonly sequences: readonly Sequence[];
};

export type SlotState = {
  sequence: Sequence | undefined;
  /** Content that the slot's KV cache holds: block hashes and how many of them. */
  hashes: ArrayLike<number>;
  blocks: number;
  usedMs: number;
};

/** Running totals since the engine was made; all tokens and requests, never reset. */
export type Counters = {
  promptTokens: number;
  cachedTokens: number;
  generatedTokens: number;
  prefilledTokens: number;
  preemptions: number;
  finished: number;
  aborted: number;
  refused: number;
  steps: number;
  decodeSteps: number;
  busyMs: number;
};

/** What SGLang last wrote into its gauges (stale by design). */
export type SglangGauges = {
  writtenMs: number;
  running: number;
  waiting: number;
  usedTokens: number;
  availableTokens: number;
  evictableTokens: number;
  cacheHitRate: number;
  /** Tokens per second since the last decode report. */
  genThroughput: number;
  byPriority: ReadonlyMap<number, { readonly running: number; readonly waiting: number }>;
};

type SglangState = {
  /** A request that did not fit closed admission until the batch shrinks. */
  batchIsFull: boolean;
  /** The one request whose prompt is partly prefilled. */
  chunked: Sequence | undefined;
  newTokenRatio: number;
  decodeStepsSinceReport: number;
  tokensSinceReport: number;
  reportedDecodeMs: number;
  gauges: SglangGauges;
};

export type Engine = {
  readonly params: EngineParams;
  readonly kv: KvPool;
  readonly sequences: Map<string, Sequence>;
  waiting: Sequence[];
  running: Sequence[];
  readonly slots: readonly SlotState[];
  readonly sglang: SglangState;
  step: Step | undefined;
  /** Only stalled requests hold the engine: no step can be formed before the next arrival or abort. */
  blocked: boolean;
  /** When the next step may start: the end of the last one, or the arrival that woke the engine. */
  freeAtMs: number;
  /** Latest time seen. */
  nowMs: number;
  arrivals: number;
  readonly counters: Counters;
  readonly timeToFirstTokenMs: Histogram;
  readonly queueTimeMs: Histogram;
  readonly requestTimeMs: Histogram;
};
