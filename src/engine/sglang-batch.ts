/**
 * How SGLang forms a step: a prefill batch whenever one can be built, else one decode step of the whole batch.
 * Admission reserves memory for the longest answer (`max_new_tokens`, at most 4,096): fully for the request that is
 * being admitted, a falling share of the rest for the running ones. A request that does not fit sets `batchIsFull`:
 * nobody is admitted until the running batch shrinks, even if memory appears. When decoding finds no memory, the
 * requests with the fewest generated tokens are retracted.
 * Source: sglang/srt/managers/{scheduler,schedule_policy}.py as read in the research note, 1.1.
 */
import { BLOCK_TOKENS, touchPrefix, unlockedAmong } from "./kv-pool.ts";
import { reportDecode, reportPrefill } from "./sglang-gauges.ts";
import { admit, blocksFor, cachedBlocks, freeMemory, growTo, knownTokens, preempt, startStep } from "./sequences.ts";
import type { Engine, EngineEvent, Sequence, Step } from "./types.ts";

/** `CLIP_MAX_NEW_TOKENS`: no request reserves more than this for its answer. */
const RESERVED_ANSWER_TOKENS_MAX = 4_096;
/** `SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR`: the share of the first ratio that remains. */
const MIN_RATIO_FACTOR = 0.14;
/** `SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS`: decode steps in which the ratio falls to its least. */
const RATIO_DECAY_STEPS = 600;
/** `SGLANG_RETRACT_DECODE_STEPS`: after a retraction the ratio leaves room for this many tokens per request. */
const RETRACT_DECODE_STEPS = 20;

/** The next step of an SGLang engine, or undefined when there is nothing to do. */
export function planSglangStep(engine: Engine, nowMs: number, events: EngineEvent[]): Step | undefined {
  const prefill = planPrefill(engine, nowMs, events);
  if (prefill !== undefined) return prefill;
  return planDecode(engine, nowMs, events);
}

/** Called when the batch shrank: the only thing that opens admission again. */
export function batchShrank(engine: Engine): void {
  engine.sglang.batchIsFull = false;
}

/** Called when the last request left: an idle engine starts again with the first ratio. */
export function resetRatio(engine: Engine): void {
  engine.sglang.newTokenRatio = engine.params.newTokenRatio;
  engine.sglang.batchIsFull = false;
}

/** Tokens that a request may still generate, as admission counts them. */
function remainingAnswer(sequence: Sequence): number {
  return Math.min(sequence.maxTokens - sequence.generatedTokens, RESERVED_ANSWER_TOKENS_MAX);
}

/** Budgets of one prefill pass (`PrefillAdder`). */
type Pass = {
  /** Memory left after what the running batch and this pass reserve, in tokens. */
  freeTokens: number;
  inputTokens: number;
  chunkTokens: number;
  hitTokens: number;
  newTokens: number;
  readonly sequences: Sequence[];
};

function planPrefill(engine: Engine, nowMs: number, events: EngineEvent[]): Step | undefined {
  const state = engine.sglang;
  if (engine.running.length === 0) state.batchIsFull = false;
  const runningBefore = engine.running.length - (state.chunked === undefined ? 0 : 1);
  const closed = state.batchIsFull || engine.waiting.length === 0;
  if (closed && state.chunked === undefined) return undefined;
  const pass: Pass = {
    freeTokens: engine.kv.freeCount * BLOCK_TOKENS - reservedForRunning(engine),
    inputTokens: engine.params.maxPrefillTokens,
    chunkTokens: engine.params.chunkTokens,
    hitTokens: 0,
    newTokens: 0,
    sequences: [],
  };
  const chunked = state.chunked;
  if (chunked !== undefined) continueChunk(engine, chunked, pass);
  if (!closed) admitInto(engine, pass, nowMs, events);
  if (pass.sequences.length === 0) return undefined;
  reportPrefill(engine, { nowMs, runningBefore, hitTokens: pass.hitTokens, newTokens: pass.newTokens });
  return startStep(engine, pass.sequences, nowMs);
}

/** Share of the running requests' longest answers that admission keeps free. */
function reservedForRunning(engine: Engine): number {
  let tokens = 0;
  for (const sequence of engine.running) {
    if (sequence !== engine.sglang.chunked) tokens += remainingAnswer(sequence);
  }
  return tokens * engine.sglang.newTokenRatio;
}

function continueChunk(engine: Engine, sequence: Sequence, pass: Pass): void {
  const left = knownTokens(sequence) - sequence.computedTokens;
  // What is free at most: decoding may have taken memory since the first chunk was admitted.
  const room = engine.kv.freeCount * BLOCK_TOKENS + sequence.blocks.length * BLOCK_TOKENS - sequence.computedTokens;
  const tokens = Math.min(left, pass.chunkTokens, room);
  if (tokens <= 0) return;
  growTo(engine, sequence, sequence.computedTokens + tokens);
  sequence.scheduledTokens = tokens;
  pass.sequences.push(sequence);
  pass.chunkTokens -= tokens;
  pass.inputTokens -= tokens;
  pass.freeTokens -= tokens + (tokens === left ? remainingAnswer(sequence) : 0);
  pass.newTokens += tokens;
  if (tokens === left) engine.sglang.chunked = undefined;
}

function admitInto(engine: Engine, pass: Pass, nowMs: number, events: EngineEvent[]): void {
  // Every waiting request is matched in each pass, which keeps its prefix young: the prefixes of paused runs age.
  for (let at = engine.waiting.length - 1; at >= 0; at -= 1) {
    const sequence = engine.waiting[at];
    if (sequence !== undefined) {
      touchPrefix(engine.kv, sequence.request.blockHashes, cachedBlocks(engine, sequence));
    }
  }
  let taken = 0;
  for (const sequence of engine.waiting) {
    if (engine.running.length >= engine.params.maxRunning) {
      engine.sglang.batchIsFull = true;
      break;
    }
    const verdict = addOne(engine, sequence, pass, nowMs, events);
    if (verdict !== "no-budget" && verdict !== "no-memory") taken += 1;
    if (verdict === "no-memory") engine.sglang.batchIsFull = true;
    if (verdict !== "added") break;
  }
  if (taken > 0) engine.waiting.splice(0, taken);
}

/** `PrefillAdder.add_one_req`. `last`: added, and the budgets of this pass are spent. */
function addOne(
  engine: Engine,
  sequence: Sequence,
  pass: Pass,
  nowMs: number,
  events: EngineEvent[],
): "added" | "last" | "no-memory" | "no-budget" {
  const cached = cachedBlocks(engine, sequence);
  const newTokens = knownTokens(sequence) - cached * BLOCK_TOKENS;
  const needed = newTokens + remainingAnswer(sequence) + BLOCK_TOKENS;
  // Locking the cached part takes it out of the evictable memory before the request is judged.
  const locked = unlockedAmong(engine.kv, sequence.request.blockHashes, cached) * BLOCK_TOKENS;
  if (needed >= pass.freeTokens - locked) return "no-memory";
  if (newTokens >= pass.inputTokens && pass.sequences.length > 0) return "no-budget";
  const whole = newTokens <= pass.chunkTokens;
  const tokens = whole ? newTokens : Math.floor(pass.chunkTokens / BLOCK_TOKENS) * BLOCK_TOKENS;
  if (tokens <= 0 || (!whole && engine.sglang.chunked !== undefined)) return "no-budget";
  admit(engine, sequence, cached, nowMs, events);
  growTo(engine, sequence, sequence.computedTokens + tokens);
  sequence.scheduledTokens = tokens;
  engine.running.push(sequence);
  pass.sequences.push(sequence);
  if (!whole) engine.sglang.chunked = sequence;
  pass.freeTokens -= locked + tokens + (whole ? remainingAnswer(sequence) : 0);
  pass.inputTokens -= tokens;
  pass.chunkTokens -= tokens;
  pass.hitTokens += cached * BLOCK_TOKENS;
  pass.newTokens += tokens;
  return pass.freeTokens <= 0 || pass.inputTokens <= 0 || pass.chunkTokens <= 0 || !whole ? "last" : "added";
}

function planDecode(engine: Engine, nowMs: number, events: EngineEvent[]): Step | undefined {
  if (blocksForDecode(engine, engine.running) > engine.kv.freeCount) retract(engine, nowMs, events);
  else decayRatio(engine);
  const batch = engine.running.filter((sequence) => decodes(engine, sequence));
  if (batch.length === 0) return undefined;
  for (const sequence of batch) {
    growTo(engine, sequence, sequence.computedTokens + 1);
    sequence.scheduledTokens = 1;
  }
  const step = startStep(engine, batch, nowMs);
  reportDecode(engine, batch.length, step);
  return step;
}

/** Part of a decode step: neither partly prefilled nor stalled. */
function decodes(engine: Engine, sequence: Sequence): boolean {
  return sequence !== engine.sglang.chunked && !sequence.stalled;
}

/** Blocks that one more token for each decoding request takes. */
function blocksForDecode(engine: Engine, sequences: readonly Sequence[]): number {
  let blocks = 0;
  for (const sequence of sequences) {
    if (decodes(engine, sequence)) blocks += blocksFor(sequence.computedTokens + 1) - sequence.blocks.length;
  }
  return blocks;
}

function decayRatio(engine: Engine): void {
  const least = engine.params.newTokenRatio * MIN_RATIO_FACTOR;
  const perStep = (engine.params.newTokenRatio - least) / RATIO_DECAY_STEPS;
  engine.sglang.newTokenRatio = Math.max(least, engine.sglang.newTokenRatio - perStep);
}

/**
 * Takes requests out of the batch until one decode step fits: fewest generated tokens first, among equals the longest
 * prompt. Their generated KV is lost, the prompt stays in the cache; they keep their answer and go to the queue's end.
 */
function retract(engine: Engine, nowMs: number, events: EngineEvent[]): void {
  const { chunked } = engine.sglang;
  const kept = engine.running
    .filter((sequence) => sequence !== chunked)
    .sort(
      (left, right) =>
        right.generatedTokens - left.generatedTokens || left.request.promptTokens - right.request.promptTokens,
    );
  const gone: Sequence[] = [];
  while (kept.length > 1 && blocksForDecode(engine, kept) > engine.kv.freeCount) {
    const victim = kept.pop();
    if (victim === undefined) break;
    gone.push(victim);
    freeMemory(engine, victim);
  }
  // A lone request always fits by its `maxTokens`, unless the one partly prefilled holds the rest: that one gives way.
  if (chunked !== undefined && blocksForDecode(engine, kept) > engine.kv.freeCount) {
    gone.push(chunked);
    engine.sglang.chunked = undefined;
  }
  engine.running = engine.running.filter((sequence) => !gone.includes(sequence));
  for (const victim of gone) preempt(engine, victim, { to: "tail", nowMs }, events);
  let decoded = 0;
  let allowed = 0;
  for (const sequence of kept) {
    decoded += sequence.generatedTokens;
    allowed += sequence.maxTokens;
  }
  engine.sglang.newTokenRatio = Math.min(1, (decoded + RETRACT_DECODE_STEPS * kept.length) / (allowed + 1));
  batchShrank(engine);
}
