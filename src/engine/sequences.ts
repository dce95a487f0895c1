/** What every discipline does with one request: order it, lock and free its memory, publish what it computed. */
import { allocateBlock, BLOCK_TOKENS, lockPrefix, matchPrefix, publishBlock, releaseBlocks } from "./kv-pool.ts";
import { observe } from "./histogram.ts";
import type { StepWork } from "./latency.ts";
import { stepMs } from "./latency.ts";
import type { Engine, EngineEvent, Sequence, Step } from "./types.ts";

/** Tokens whose content is known: the prompt and what was generated. The newest one has no KV entry yet. */
export function knownTokens(sequence: Sequence): number {
  return sequence.request.promptTokens + sequence.generatedTokens;
}

/** Blocks that hold `tokens`. */
export function blocksFor(tokens: number): number {
  return Math.ceil(tokens / BLOCK_TOKENS);
}

/** Negative: `left` goes first. vLLM: smaller priority, SGLang: larger; then order of arrival. */
export function compareUrgency(engine: Engine, left: Sequence, right: Sequence): number {
  if (engine.params.priorityScheduling && left.request.priority !== right.request.priority) {
    const ascending = left.request.priority - right.request.priority;
    return engine.params.discipline === "sglang" ? -ascending : ascending;
  }
  return left.order - right.order;
}

/** Puts a request into the queue: by urgency where priorities count, else at its `end`. */
export function enqueue(engine: Engine, sequence: Sequence, end: "head" | "tail"): void {
  sequence.phase = "waiting";
  if (!engine.params.priorityScheduling) {
    if (end === "head") engine.waiting.unshift(sequence);
    else engine.waiting.push(sequence);
    return;
  }
  let low = 0;
  let high = engine.waiting.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    const other = engine.waiting[middle];
    if (other !== undefined && compareUrgency(engine, other, sequence) < 0) low = middle + 1;
    else high = middle;
  }
  engine.waiting.splice(low, 0, sequence);
}

/** Leading blocks of a request that the cache holds. The last known token is always computed, never taken from it. */
export function cachedBlocks(engine: Engine, sequence: Sequence): number {
  if (!engine.params.prefixCaching) return 0;
  const limit = Math.floor((knownTokens(sequence) - 1) / BLOCK_TOKENS);
  return matchPrefix(engine.kv, sequence.request.blockHashes, limit);
}

/** Moves a waiting request into the batch with the first `cached` blocks of its prompt from the cache. */
export function admit(engine: Engine, sequence: Sequence, cached: number, nowMs: number, events: EngineEvent[]): void {
  sequence.blocks = lockPrefix(engine.kv, sequence.request.blockHashes, cached);
  startRunning(engine, sequence, cached * BLOCK_TOKENS, nowMs, events);
  sequence.publishedBlocks = cached;
}

/** The part of admission that needs no pool. */
export function startRunning(
  engine: Engine,
  sequence: Sequence,
  cachedTokens: number,
  nowMs: number,
  events: EngineEvent[],
): void {
  sequence.phase = "running";
  sequence.computedTokens = cachedTokens;
  if (sequence.admittedMs < 0) {
    sequence.admittedMs = nowMs;
    sequence.cachedTokens = cachedTokens;
    engine.counters.cachedTokens += cachedTokens;
    engine.counters.promptTokens += sequence.request.promptTokens;
    observe(engine.queueTimeMs, nowMs - sequence.arrivedMs);
  }
  events.push({ kind: "admitted", atMs: nowMs, id: sequence.request.id, cachedTokens });
}

/** Gives a request memory for its first `tokens` tokens. False: not enough; what it got so far it keeps. */
export function growTo(engine: Engine, sequence: Sequence, tokens: number): boolean {
  const needed = blocksFor(tokens);
  while (sequence.blocks.length < needed) {
    const block = allocateBlock(engine.kv);
    if (block === -1) return false;
    sequence.blocks.push(block);
  }
  return true;
}

/** Puts the full blocks among the first `tokens` into the prefix cache. */
export function publish(engine: Engine, sequence: Sequence, tokens: number): void {
  if (!engine.params.prefixCaching) return;
  const { blockHashes } = sequence.request;
  const full = Math.min(Math.floor(tokens / BLOCK_TOKENS), sequence.blocks.length, blockHashes.length);
  const share = engine.params.discipline === "sglang";
  for (let at = sequence.publishedBlocks; at < full; at += 1) {
    sequence.blocks[at] = publishBlock(engine.kv, sequence.blocks[at] ?? 0, blockHashes[at] ?? 0, share);
  }
  if (full > sequence.publishedBlocks) sequence.publishedBlocks = full;
}

/** Unlocks all memory of a request; what was published stays in the cache until it is evicted. */
export function freeMemory(engine: Engine, sequence: Sequence): void {
  releaseBlocks(engine.kv, sequence.blocks);
  sequence.blocks = [];
  sequence.publishedBlocks = 0;
  sequence.computedTokens = 0;
  sequence.scheduledTokens = 0;
  sequence.stalled = false;
}

/** Pushes a running request back into the queue for lack of memory. The caller has taken it out of `running`. */
export function preempt(
  engine: Engine,
  sequence: Sequence,
  options: { readonly to: "head" | "tail"; readonly nowMs: number },
  events: EngineEvent[],
): void {
  freeMemory(engine, sequence);
  enqueue(engine, sequence, options.to);
  engine.counters.preemptions += 1;
  events.push({ kind: "preempted", atMs: options.nowMs, id: sequence.request.id });
}

/** Adds up what a step computes and gives it its end. Every sequence has its `scheduledTokens`. */
export function startStep(engine: Engine, sequences: readonly Sequence[], nowMs: number): Step {
  let decodeRequests = 0;
  let decodeKvTokens = 0;
  let prefillTokens = 0;
  let prefillPairs = 0;
  for (const sequence of sequences) {
    const scheduled = sequence.scheduledTokens;
    if (scheduled === 1 && sequence.generatedTokens > 0) {
      decodeRequests += 1;
      decodeKvTokens += sequence.computedTokens;
    } else {
      prefillTokens += scheduled;
      prefillPairs += scheduled * (sequence.computedTokens + scheduled / 2);
    }
  }
  const work: StepWork = { decodeRequests, decodeKvTokens, prefillTokens, prefillPairs };
  const durationMs = stepMs(engine.params.latency, work, engine.params.gpu);
  engine.counters.steps += 1;
  engine.counters.prefilledTokens += prefillTokens;
  if (prefillTokens === 0) engine.counters.decodeSteps += 1;
  engine.counters.busyMs += durationMs;
  return { startedMs: nowMs, endMs: nowMs + durationMs, sequences };
}
