/**
 * The engine model: requests go in, events come out, time is told to it.
 *
 * It does continuous batching by the rules of its discipline over one KV pool, and knows when each token exists. It does
 * not know text, sockets or clocks: a virtual clock and real timers drive the same functions and get the same events,
 * since a step begins where the last one ended, however late the driver looks (E2).
 *
 * E1: time never runs back; a request is seen by the first step that starts at or after its arrival.
 * E2: events depend on the requests, aborts and their times alone, not on how often or how late `step` is called;
 *     what is submitted at one moment counts as one arrival if no `step` with that moment comes in between.
 * E3: every request that was taken ends in exactly one `finished` or `aborted` event.
 * E4: a request that was taken always fits the empty pool, so an engine with work always has a next step, unless
 *     stalled requests (a fault) hold what the others need.
 */
import { invariant, unreachable } from "../base/invariant.ts";
import { createHistogram, observe } from "./histogram.ts";
import { BLOCK_TOKENS, createKvPool } from "./kv-pool.ts";
import { enqueue, freeMemory, knownTokens, publish } from "./sequences.ts";
import { batchShrank, planSglangStep, resetRatio } from "./sglang-batch.ts";
import { emptyGauges } from "./sglang-gauges.ts";
import { leaveSlot, planSlotsStep, slotTokensInUse } from "./slots-batch.ts";
import type { Counters, Engine, EngineEvent, EngineParams, EngineRequest, Refusal, Sequence, Step } from "./types.ts";
import { planVllmStep } from "./vllm-batch.ts";

/** A new, idle engine whose time starts at `nowMs`. */
export function createEngine(params: EngineParams, nowMs: number): Engine {
  const slotted = params.discipline === "slots";
  const blocks = slotted ? 0 : Math.floor(params.kvTokens / BLOCK_TOKENS);
  invariant(slotted || blocks >= 4, "a KV pool needs at least 4 blocks of 16 tokens");
  return {
    params,
    kv: createKvPool(blocks),
    sequences: new Map(),
    waiting: [],
    running: [],
    slots: Array.from({ length: slotted ? params.maxRunning : 0 }, () => ({
      sequence: undefined,
      hashes: [],
      blocks: 0,
      usedMs: 0,
    })),
    sglang: {
      batchIsFull: false,
      chunked: undefined,
      newTokenRatio: params.newTokenRatio,
      decodeStepsSinceReport: 0,
      tokensSinceReport: 0,
      reportedDecodeMs: nowMs,
      gauges: emptyGauges(blocks * BLOCK_TOKENS),
    },
    step: undefined,
    blocked: false,
    freeAtMs: nowMs,
    nowMs,
    arrivals: 0,
    counters: zeroCounters(),
    timeToFirstTokenMs: createHistogram(),
    queueTimeMs: createHistogram(),
    requestTimeMs: createHistogram(),
  };
}

/**
 * Hands a request to the engine. Call `step` with the same time first, so that the queue is as it is at that moment,
 * and once more after the last request of that moment.
 * @returns undefined when it was taken, else why not: nothing has changed then, except the count of refusals.
 */
export function submit(engine: Engine, request: EngineRequest, nowMs: number): Refusal | undefined {
  moveTo(engine, nowMs);
  const refusal = refusalOf(engine, request);
  if (refusal !== undefined) {
    engine.counters.refused += 1;
    return refusal;
  }
  const maxTokens = clampedAnswer(engine, request);
  const sequence: Sequence = {
    request,
    maxTokens,
    outputTokens: Math.min(request.outputTokens, maxTokens),
    arrivedMs: nowMs,
    order: engine.arrivals,
    phase: "waiting",
    computedTokens: 0,
    generatedTokens: 0,
    cachedTokens: 0,
    blocks: [],
    publishedBlocks: 0,
    scheduledTokens: 0,
    slot: -1,
    stalled: false,
    aborted: false,
    admittedMs: -1,
    firstTokenMs: -1,
  };
  engine.arrivals += 1;
  if (engine.sequences.size === 0 && engine.params.gpu !== undefined) engine.params.gpu.working += 1;
  wake(engine, nowMs);
  engine.sequences.set(request.id, sequence);
  enqueue(engine, sequence, "tail");
  return undefined;
}

/**
 * Takes a request out: a waiting one at once, a running one at the end of the step in flight. Unknown ids are ignored:
 * an abort often crosses the end of its request.
 */
export function abort(engine: Engine, id: string, nowMs: number): readonly EngineEvent[] {
  moveTo(engine, nowMs);
  const sequence = engine.sequences.get(id);
  if (sequence === undefined) return [];
  sequence.aborted = true;
  if (sequence.phase === "running" && engine.step !== undefined) return [];
  const events: EngineEvent[] = [];
  if (sequence.phase === "waiting") engine.waiting = engine.waiting.filter((other) => other !== sequence);
  else engine.running = engine.running.filter((other) => other !== sequence);
  const shrank = sequence.phase === "running";
  end(engine, sequence, nowMs, events);
  wake(engine, nowMs);
  settle(engine, shrank);
  return events;
}

/**
 * Everything that happens up to `nowMs`, in order. A driver calls it at `nextEventAtMs`; calling it later or more often changes nothing (E2).
 */
export function step(engine: Engine, nowMs: number): readonly EngineEvent[] {
  moveTo(engine, nowMs);
  const events: EngineEvent[] = [];
  for (;;) {
    if (engine.step === undefined) {
      if (engine.sequences.size === 0 || engine.blocked || engine.freeAtMs > nowMs) break;
      engine.step = plan(engine, engine.freeAtMs, events);
    }
    if (engine.step === undefined) {
      engine.blocked = true;
      invariant(
        engine.running.some((sequence) => sequence.stalled),
        "E4: requests are there and no step can be formed",
      );
      break;
    }
    if (engine.step.endMs > nowMs) break;
    complete(engine, engine.step, events);
  }
  return events;
}

/** When `step` will next have something to do; undefined: not before the next request. */
export function nextEventAtMs(engine: Engine): number | undefined {
  if (engine.step !== undefined) return engine.step.endMs;
  return engine.sequences.size === 0 || engine.blocked ? undefined : Math.max(engine.freeAtMs, engine.nowMs);
}

/** The load of this moment, as an engine with live gauges reports it. */
export function load(engine: Engine): {
  readonly running: number;
  readonly waiting: number;
  readonly usedTokens: number;
  readonly kvTokens: number;
} {
  const pool = engine.params.discipline !== "slots";
  return {
    running: engine.running.length,
    waiting: engine.waiting.length,
    usedTokens: pool ? (engine.kv.blockCount - engine.kv.freeCount) * BLOCK_TOKENS : slotTokensInUse(engine),
    kvTokens: pool ? engine.kv.blockCount * BLOCK_TOKENS : engine.params.contextTokens * engine.slots.length,
  };
}

/** A resting engine may form a step again, from `nowMs` on. */
function wake(engine: Engine, nowMs: number): void {
  engine.blocked = false;
  if (engine.step === undefined) engine.freeAtMs = Math.max(engine.freeAtMs, nowMs);
}

function moveTo(engine: Engine, nowMs: number): void {
  invariant(nowMs >= engine.nowMs, "E1: time ran back");
  engine.nowMs = nowMs;
}

/** Longest prompt that a request may have here: the model's context and the pool bound it. */
export function promptTokensMax(engine: Engine): number {
  return Math.min(engine.params.contextTokens, poolTokensPerRequest(engine)) - 1;
}

// Two blocks are kept off: one that a reservation adds, one for rounding up.
function poolTokensPerRequest(engine: Engine): number {
  if (engine.params.discipline === "slots") return engine.params.contextTokens;
  return (engine.kv.blockCount - 2) * BLOCK_TOKENS;
}

function clampedAnswer(engine: Engine, request: EngineRequest): number {
  const room = Math.min(engine.params.contextTokens, poolTokensPerRequest(engine)) - request.promptTokens;
  return Math.min(request.maxTokens, room);
}

function refusalOf(engine: Engine, request: EngineRequest): Refusal | undefined {
  invariant(request.promptTokens >= 1, "a prompt has at least one token");
  if (engine.sequences.has(request.id)) return { kind: "duplicate-id" };
  const tokensMax = promptTokensMax(engine);
  if (request.promptTokens > tokensMax) return { kind: "too-long", tokens: request.promptTokens, tokensMax };
  const { queueMax } = engine.params;
  return engine.waiting.length >= queueMax ? { kind: "queue-full", queueMax } : undefined;
}

function plan(engine: Engine, nowMs: number, events: EngineEvent[]): Step | undefined {
  const { discipline } = engine.params;
  switch (discipline) {
    case "vllm":
    case "single-pass":
      return planVllmStep(engine, nowMs, events);
    case "sglang":
      return planSglangStep(engine, nowMs, events);
    case "slots":
      return planSlotsStep(engine, nowMs, events);
    default:
      return unreachable(discipline);
  }
}

function complete(engine: Engine, finished: Step, events: EngineEvent[]): void {
  engine.step = undefined;
  engine.freeAtMs = finished.endMs;
  const before = engine.sequences.size;
  for (const sequence of finished.sequences) {
    if (!sequence.aborted) credit(engine, sequence, finished.endMs, events);
  }
  for (const sequence of engine.running) {
    if (sequence.aborted) end(engine, sequence, finished.endMs, events);
  }
  if (engine.sequences.size === before) return;
  engine.running = engine.running.filter((sequence) => engine.sequences.get(sequence.request.id) === sequence);
  settle(engine, true);
}

/** Books what a step computed for one request. */
function credit(engine: Engine, sequence: Sequence, atMs: number, events: EngineEvent[]): void {
  const prefill = sequence.generatedTokens === 0 || sequence.scheduledTokens > 1;
  sequence.computedTokens += sequence.scheduledTokens;
  sequence.scheduledTokens = 0;
  // SGLang inserts a prompt after each of its chunks, the answer when it is whole; vLLM every block once it is full.
  if (prefill || engine.params.discipline !== "sglang") publish(engine, sequence, sequence.computedTokens);
  if (sequence.computedTokens < knownTokens(sequence)) return;
  sequence.stalled = sequence.generatedTokens >= (sequence.request.stallAfterTokens ?? Infinity);
  if (sequence.stalled) return;
  if (sequence.generatedTokens < sequence.outputTokens) {
    sequence.generatedTokens += 1;
    engine.counters.generatedTokens += 1;
    const first = sequence.firstTokenMs < 0;
    if (first) {
      sequence.firstTokenMs = atMs;
      observe(engine.timeToFirstTokenMs, atMs - sequence.arrivedMs);
    }
    if (first || engine.params.tokenEvents) {
      events.push({ kind: "token", atMs, id: sequence.request.id, generated: sequence.generatedTokens });
    }
  }
  if (sequence.generatedTokens >= sequence.outputTokens) end(engine, sequence, atMs, events);
}

/** Ends a request, finished or aborted. The caller takes it out of `running`. */
function end(engine: Engine, sequence: Sequence, atMs: number, events: EngineEvent[]): void {
  const { id } = sequence.request;
  if (engine.params.discipline === "slots") leaveSlot(engine, sequence, atMs);
  else {
    publish(engine, sequence, sequence.computedTokens);
    freeMemory(engine, sequence);
  }
  if (engine.sglang.chunked === sequence) engine.sglang.chunked = undefined;
  engine.sequences.delete(id);
  if (!sequence.aborted) {
    engine.counters.finished += 1;
    observe(engine.requestTimeMs, atMs - sequence.arrivedMs);
    events.push({ kind: "finished", atMs, id, generated: sequence.generatedTokens });
  } else {
    engine.counters.aborted += 1;
    events.push({ kind: "aborted", atMs, id });
  }
}

/** After requests left: opens SGLang's admission if the batch shrank, and notes an engine that fell idle. */
function settle(engine: Engine, shrank: boolean): void {
  if (shrank) batchShrank(engine);
  if (engine.sequences.size > 0) return;
  resetRatio(engine);
  if (engine.params.gpu !== undefined) engine.params.gpu.working -= 1;
}

function zeroCounters(): Counters {
  return {
    promptTokens: 0,
    cachedTokens: 0,
    generatedTokens: 0,
    prefilledTokens: 0,
    preemptions: 0,
    finished: 0,
    aborted: 0,
    refused: 0,
    steps: 0,
    decodeSteps: 0,
    busyMs: 0,
  };
}
