/**
 * How llama.cpp (and Ollama, which runs it) forms a step: a request takes one of n slots or is deferred; all slots
 * decode in one batch, and prompts fill the rest of it in chunks. Each slot keeps the KV of its last request: a new
 * one takes the free slot with the longest common prefix, else the one unused for longest.
 * The prompt cache in RAM (`--cache-ram`), which saves idle slots, is not modelled.
 */
import { BLOCK_TOKENS } from "./kv-pool.ts";
import { knownTokens, startRunning, startStep } from "./sequences.ts";
import type { Engine, EngineEvent, Sequence, SlotState, Step } from "./types.ts";

/** The next step of an engine with slots, or undefined when there is nothing to do. */
export function planSlotsStep(engine: Engine, nowMs: number, events: EngineEvent[]): Step | undefined {
  while (engine.waiting.length > 0 && engine.running.length < engine.slots.length) {
    const sequence = engine.waiting.shift();
    if (sequence === undefined) break;
    takeSlot(engine, sequence, nowMs, events);
  }
  const scheduled: Sequence[] = [];
  let budget = engine.params.chunkTokens;
  for (const sequence of engine.running) {
    const tokens = Math.min(knownTokens(sequence) - sequence.computedTokens, budget);
    if (tokens <= 0 || sequence.stalled) continue;
    sequence.scheduledTokens = tokens;
    budget -= tokens;
    scheduled.push(sequence);
  }
  return scheduled.length === 0 ? undefined : startStep(engine, scheduled, nowMs);
}

/** Gives the slot of a request back; its content stays for the next one. */
export function leaveSlot(engine: Engine, sequence: Sequence, nowMs: number): void {
  const slot = engine.slots[sequence.slot];
  if (slot === undefined) return;
  const blocks = Math.min(Math.floor(sequence.computedTokens / BLOCK_TOKENS), sequence.request.blockHashes.length);
  slot.sequence = undefined;
  slot.hashes = sequence.request.blockHashes;
  slot.blocks = blocks;
  slot.usedMs = nowMs;
  sequence.slot = -1;
}

/** KV tokens that the slots hold for requests of this moment. */
export function slotTokensInUse(engine: Engine): number {
  return engine.running.reduce((sum, sequence) => sum + sequence.computedTokens, 0);
}

function takeSlot(engine: Engine, sequence: Sequence, nowMs: number, events: EngineEvent[]): void {
  let best = -1;
  let bestCommon = -1;
  let bestUsedMs = Infinity;
  for (let at = 0; at < engine.slots.length; at += 1) {
    const slot = engine.slots[at];
    if (slot === undefined || slot.sequence !== undefined) continue;
    const common = engine.params.prefixCaching ? commonBlocks(slot, sequence) : 0;
    if (common > bestCommon || (common === bestCommon && slot.usedMs < bestUsedMs)) {
      best = at;
      bestCommon = common;
      bestUsedMs = slot.usedMs;
    }
  }
  const slot = engine.slots[best];
  if (slot === undefined) throw new RangeError("a slot was promised and none is free");
  slot.sequence = sequence;
  sequence.slot = best;
  engine.running.push(sequence);
  startRunning(engine, sequence, bestCommon * BLOCK_TOKENS, nowMs, events);
}

function commonBlocks(slot: SlotState, sequence: Sequence): number {
  const { blockHashes, promptTokens } = sequence.request;
  const limit = Math.min(slot.blocks, blockHashes.length, Math.floor((promptTokens - 1) / BLOCK_TOKENS));
  let common = 0;
  while (common < limit && slot.hashes[common] === blockHashes[common]) common += 1;
  return common;
}
