/**
 * How vLLM (v1) forms a step: one token budget, no phases. Running requests first (a decode token, or the next chunk of
 * a prompt), then waiting ones while budget, `max_num_seqs` and blocks last; the head of the queue blocks. Nothing is
 * reserved for the answer: when a running request finds no block, the last of the running (with priorities: the least
 * urgent) is preempted, and that step admits nobody. A waiting request needs room for its whole prompt
 * (`scheduler_reserve_full_isl`), not for its first chunk only.
 * Source: vllm/v1/core/sched/scheduler.py as read in the research note, 1.2.
 */
import { unlockedAmong } from "./kv-pool.ts";
import {
  admit,
  blocksFor,
  cachedBlocks,
  compareUrgency,
  growTo,
  knownTokens,
  preempt,
  startStep,
} from "./sequences.ts";
import type { Engine, EngineEvent, Sequence, Step } from "./types.ts";

/** The next step of a vLLM engine, or undefined when there is nothing to do. */
export function planVllmStep(engine: Engine, nowMs: number, events: EngineEvent[]): Step | undefined {
  const scheduled: Sequence[] = [];
  for (;;) {
    const preemptions = engine.counters.preemptions;
    const budget = scheduleRunning(engine, scheduled, nowMs, events);
    const preempted = engine.counters.preemptions > preemptions;
    if (!preempted) admitWaiting(engine, scheduled, { budget, nowMs }, events);
    if (scheduled.length > 0) return startStep(engine, scheduled, nowMs);
    // A request that gave way to itself leaves an empty step behind, which takes the real engine no time either.
    if (!preempted) return undefined;
  }
}

function scheduleRunning(engine: Engine, scheduled: Sequence[], nowMs: number, events: EngineEvent[]): number {
  let budget = engine.params.chunkTokens;
  let at = 0;
  while (at < engine.running.length && budget > 0) {
    const sequence = engine.running[at];
    if (sequence === undefined) break;
    if (sequence.stalled) {
      at += 1;
      continue;
    }
    const tokens = Math.min(knownTokens(sequence) - sequence.computedTokens, budget);
    let kept = true;
    while (kept && !growTo(engine, sequence, sequence.computedTokens + tokens)) {
      const victim = takeVictim(engine);
      // A victim of higher rank in the list may already be part of this step: its tokens go back into the budget.
      const planned = scheduled.indexOf(victim);
      if (planned !== -1) {
        scheduled.splice(planned, 1);
        budget += victim.scheduledTokens;
      }
      preempt(engine, victim, { to: "head", nowMs }, events);
      kept = victim !== sequence;
    }
    if (!kept) break;
    sequence.scheduledTokens = tokens;
    budget -= tokens;
    scheduled.push(sequence);
    // Victims before this one have shifted the list.
    at = engine.running.indexOf(sequence) + 1;
  }
  return budget;
}

/** Takes the request that gives way out of the running ones: the last, or the least urgent where priorities count. */
function takeVictim(engine: Engine): Sequence {
  const { running } = engine;
  let worst = running.length - 1;
  if (engine.params.priorityScheduling) {
    for (let at = 0; at < running.length; at += 1) {
      const candidate = running[at];
      const current = running[worst];
      if (candidate !== undefined && current !== undefined && compareUrgency(engine, current, candidate) < 0)
        worst = at;
    }
  }
  const [victim] = running.splice(worst, 1);
  if (victim === undefined) throw new RangeError("preemption without a running request");
  return victim;
}

function admitWaiting(
  engine: Engine,
  scheduled: Sequence[],
  pass: { readonly budget: number; readonly nowMs: number },
  events: EngineEvent[],
): void {
  let { budget } = pass;
  let taken = 0;
  while (taken < engine.waiting.length && budget > 0 && engine.running.length < engine.params.maxRunning) {
    const sequence = engine.waiting[taken];
    if (sequence === undefined) break;
    const cached = cachedBlocks(engine, sequence);
    const newBlocks = blocksFor(knownTokens(sequence)) - cached;
    const fromFree = newBlocks + unlockedAmong(engine.kv, sequence.request.blockHashes, cached);
    if (fromFree > engine.kv.freeCount) break;
    taken += 1;
    admit(engine, sequence, cached, pass.nowMs, events);
    const tokens = Math.min(knownTokens(sequence) - sequence.computedTokens, budget);
    growTo(engine, sequence, sequence.computedTokens + tokens);
    sequence.scheduledTokens = tokens;
    budget -= tokens;
    engine.running.push(sequence);
    scheduled.push(sequence);
  }
  if (taken > 0) engine.waiting.splice(0, taken);
}
