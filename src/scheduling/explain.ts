/** Why a turn is held, in the words that status, trace and dashboard share (spec 2, Explaining itself). */
import type { TurnId } from "../base/ids.ts";
import { pinOf } from "./book.ts";
import { policyOf } from "./decide.ts";
import { ranksBefore, type Replica, type SchedulerState, type Turn } from "./state.ts";
import type { HoldExplanation } from "./types.ts";

/**
 * Explains a held turn. Costs a pass over the held turns: asked for by people and keep-alives, not per event.
 * @returns undefined when the turn is not held.
 */
export function explain(state: SchedulerState, turnId: TurnId): HoldExplanation | undefined {
  const turn = state.turns.get(turnId);
  if (turn === undefined || turn.state === "flight") return undefined;
  let ahead = 0;
  let aheadOfCaller = 0;
  for (const other of state.turns.values()) {
    if (other === turn || other.state === "flight" || !goesBefore(other, turn)) continue;
    ahead += 1;
    if (other.caller === turn.caller && other.class === turn.class) aheadOfCaller += 1;
  }
  const reason = holdReason(state, turn);
  const behind = aheadOfCaller === 0 ? "" : `, behind ${count(aheadOfCaller, "turn")} of its caller`;
  return { turn: turnId, reason: reason + behind, place: ahead + 1 };
}

function goesBefore(a: Turn, b: Turn): boolean {
  if (a.class !== b.class) return a.class === "interactive";
  return ranksBefore(a, b);
}

/** The first obstacle, without the place among others. */
export function holdReason(state: SchedulerState, turn: Turn): string {
  if (turn.state === "delayed") {
    const seconds = Math.ceil((turn.notBeforeMs - state.nowMs) / 1000);
    return `pushed back by its engine, held for ${count(seconds, "more second")}`;
  }
  const pin = pinOf(turn);
  if (pin !== undefined) return `pinned to a full replica (${describeFull(state, turn, pin)})`;
  const service = state.services.get(`${turn.api}\n${turn.model}`);
  const healthy = service?.replicas.filter((replica) => replica.healthy) ?? [];
  if (healthy.length === 0) return "no healthy replica";
  const kept = roomKept(state, turn, healthy);
  if (kept > 0) return `room kept for ${count(kept, "paused interactive run")}`;
  const only = healthy.length === 1 ? healthy[0] : undefined;
  if (only !== undefined) return `the only replica is full (${describeFull(state, turn, only)})`;
  return `all ${healthy.length} replicas are full`;
}

/** Runs for which room is kept on replicas that would take the turn if it were interactive. */
function roomKept(state: SchedulerState, turn: Turn, replicas: readonly Replica[]): number {
  if (turn.class === "interactive") return 0;
  const policy = policyOf(state);
  return replicas
    .filter((replica) => policy.hasRoom(replica, "interactive"))
    .reduce((sum, replica) => sum + replica.keptRoom, 0);
}

function describeFull(state: SchedulerState, turn: Turn, replica: Replica): string {
  const kept = roomKept(state, turn, [replica]);
  const limit = policyOf(state).limit(replica);
  const foreign = replica.foreign === 0 ? "" : `, foreign load ${replica.foreign}`;
  const room = kept === 0 ? "" : `, room kept for ${count(kept, "paused interactive run")}`;
  return `${replica.config.replica}: ${replica.inFlight} of ${limit ?? "∞"} in flight${foreign}${room}`;
}

function count(number: number, noun: string): string {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}
