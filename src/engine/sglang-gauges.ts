/**
 * SGLang's gauges, as stale as the real ones: written when a prefill batch is formed, on every 40th decode step, and
 * once 30 s after the last report when idle (research note, 1.1). Between those moments they show the past: a queue
 * gauge of 0 says nothing about the queue of this moment.
 */
import { BLOCK_TOKENS } from "./kv-pool.ts";
import type { Engine, Sequence, SglangGauges, Step } from "./types.ts";

/** `--decode-log-interval`. */
const DECODE_REPORT_STEPS = 40;
/** An idle engine refreshes its gauges this long after the last report. */
const IDLE_REPORT_MS = 30_000;

/** Gauges of an engine that has reported nothing yet. */
export function emptyGauges(kvTokens: number): SglangGauges {
  return {
    writtenMs: 0,
    running: 0,
    waiting: 0,
    usedTokens: 0,
    availableTokens: kvTokens,
    evictableTokens: 0,
    cacheHitRate: 0,
    genThroughput: 0,
    byPriority: new Map(),
  };
}

/** Report of a prefill batch: `running` is the batch before it, as in the real one. */
export function reportPrefill(
  engine: Engine,
  batch: {
    readonly nowMs: number;
    readonly runningBefore: number;
    readonly hitTokens: number;
    readonly newTokens: number;
  },
): void {
  const total = batch.hitTokens + batch.newTokens;
  write(engine, batch.nowMs, {
    running: batch.runningBefore,
    cacheHitRate: total === 0 ? 0 : batch.hitTokens / total,
    genThroughput: engine.sglang.gauges.genThroughput,
  });
}

/** Counts a decode step and reports on every 40th. */
export function reportDecode(engine: Engine, requests: number, step: Step): void {
  const state = engine.sglang;
  state.decodeStepsSinceReport += 1;
  state.tokensSinceReport += requests;
  if (state.decodeStepsSinceReport < DECODE_REPORT_STEPS) return;
  const seconds = (step.endMs - state.reportedDecodeMs) / 1_000;
  write(engine, step.startedMs, {
    running: requests,
    cacheHitRate: 0,
    genThroughput: seconds > 0 ? state.tokensSinceReport / seconds : 0,
  });
  state.decodeStepsSinceReport = 0;
  state.tokensSinceReport = 0;
  state.reportedDecodeMs = step.endMs;
}

/** The gauges as a scrape at `nowMs` finds them. */
export function readGauges(engine: Engine, nowMs: number): SglangGauges {
  const idle = engine.sequences.size === 0;
  if (idle && nowMs >= Math.max(engine.sglang.gauges.writtenMs + IDLE_REPORT_MS, engine.freeAtMs)) {
    write(engine, nowMs, { running: 0, cacheHitRate: 0, genThroughput: 0 });
  }
  return engine.sglang.gauges;
}

function write(
  engine: Engine,
  nowMs: number,
  values: Pick<SglangGauges, "running" | "cacheHitRate" | "genThroughput">,
): void {
  const { kv, waiting } = engine;
  engine.sglang.gauges = {
    ...values,
    writtenMs: nowMs,
    waiting: waiting.length,
    usedTokens: (kv.blockCount - kv.freeCount) * BLOCK_TOKENS,
    availableTokens: (kv.freeCount - kv.freeCachedCount) * BLOCK_TOKENS,
    evictableTokens: kv.freeCachedCount * BLOCK_TOKENS,
    byPriority: countByPriority(engine.running, waiting),
  };
}

function countByPriority(
  running: readonly Sequence[],
  waiting: readonly Sequence[],
): ReadonlyMap<number, { readonly running: number; readonly waiting: number }> {
  const counts = new Map<number, { running: number; waiting: number }>();
  const at = (sequence: Sequence): { running: number; waiting: number } => {
    const present = counts.get(sequence.request.priority);
    if (present !== undefined) return present;
    const fresh = { running: 0, waiting: 0 };
    counts.set(sequence.request.priority, fresh);
    return fresh;
  };
  for (const sequence of running) at(sequence).running += 1;
  for (const sequence of waiting) at(sequence).waiting += 1;
  return counts;
}
