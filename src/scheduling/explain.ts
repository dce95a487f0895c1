/** Why a turn is held, in the words that status, trace and dashboard share (spec 2, Explaining itself; docs/scheduling.md). */
import type { TurnId } from "../base/ids.ts";
import { invariant } from "../base/invariant.ts";
import { pinOf } from "./book.ts";
import { ranksBefore } from "./groups.ts";
import type { Policy } from "./policy.ts";
import { policyNamed } from "./policies.ts";
import { serviceFor } from "./services.ts";
import type { Caller, Group, Replica, SchedulerState, Turn } from "./state.ts";
import type { HoldExplanation } from "./types.ts";

/**
 * Explains a held turn. Costs a pass over the held turns: for people and single questions.
 * @returns undefined when the turn is not held.
 */
export function explain(state: SchedulerState, turnId: TurnId): HoldExplanation | undefined {
  const turn = state.turns.get(turnId);
  if (turn === undefined || turn.state === "flight") return undefined;
  const policy = policyNamed(state.config.policy);
  let ahead = 0;
  let aheadOfCaller = 0;
  for (const other of state.turns.values()) {
    if (other === turn || other.state === "flight" || !goesBefore(policy, other, turn)) continue;
    ahead += 1;
    if (other.caller === turn.caller && other.class === turn.class) aheadOfCaller += 1;
  }
  return { turn: turnId, reason: holdReason(state, turn) + behind(aheadOfCaller), place: ahead + 1 };
}

/**
 * Explains every held turn at once, first in rank first: one sort instead of a pass per turn. A host with many held
 * streams asks for it once a second and answers their keep-alives from it.
 */
export function explainAll(state: SchedulerState): HoldExplanation[] {
  const policy = policyNamed(state.config.policy);
  const held = [...state.turns.values()].filter((turn) => turn.state !== "flight");
  held.sort((a, b) => (goesBefore(policy, a, b) ? -1 : 1));
  // Turns of one group can go to the same replicas and meet the same obstacle.
  const reasons = new Map<Group, string>();
  const seen = new Map<Caller, { interactive: number; batch: number }>();
  return held.map((turn, at) => {
    const counts = seen.get(turn.caller) ?? { interactive: 0, batch: 0 };
    const ahead = counts[turn.class];
    counts[turn.class] += 1;
    seen.set(turn.caller, counts);
    const group = turn.lane?.parent.group;
    const reason = (group === undefined ? undefined : reasons.get(group)) ?? holdReason(state, turn);
    if (group !== undefined) reasons.set(group, reason);
    return { turn: turn.id, reason: reason + behind(ahead), place: at + 1 };
  });
}

function goesBefore(policy: Policy, a: Turn, b: Turn): boolean {
  const tierA = policy.tierOf(a);
  const tierB = policy.tierOf(b);
  return tierA === tierB ? ranksBefore(a, b) : tierA < tierB;
}

function behind(turns: number): string {
  return turns === 0 ? "" : `, behind ${count(turns, "turn")} of its caller`;
}

/** The first obstacle, without the place among others. */
export function holdReason(state: SchedulerState, turn: Turn): string {
  const policy = policyNamed(state.config.policy);
  if (turn.state === "delayed") {
    const seconds = Math.ceil((turn.notBeforeMs - state.nowMs) / 1000);
    return `pushed back by its engine, held for ${count(Math.max(0, seconds), "more second")}`;
  }
  const pin = pinOf(policy, turn);
  if (pin !== undefined) {
    const shut = policy.shut(pin, policy.tierOf(turn));
    if (shut !== undefined) return shut;
    const kept = roomKept(policy, turn, [pin]);
    if (kept > 0) return `room kept for ${count(kept, "paused interactive run")} (pinned to ${occupancy(policy, pin)})`;
    if (policy.hasRoom(pin, policy.tierOf(turn))) return notTaken(policy, state, turn, [pin]);
    return `pinned to a full replica (${occupancy(policy, pin)})`;
  }
  const healthy = serviceFor(state, turn.model, turn.api).replicas.filter((replica) => replica.healthy);
  if (healthy.length === 0) return "no healthy replica";
  const shut = healthy.map((replica) => policy.shut(replica, policy.tierOf(turn))).find((words) => words !== undefined);
  if (shut !== undefined) return shut;
  const kept = roomKept(policy, turn, healthy);
  if (kept > 0) return `room kept for ${count(kept, "paused interactive run")}`;
  const roomy = healthy.filter((replica) => policy.hasRoom(replica, policy.tierOf(turn)));
  if (roomy.length > 0) return notTaken(policy, state, turn, roomy);
  const only = healthy.length === 1 ? healthy[0] : undefined;
  if (only !== undefined) return `the only replica is full (${occupancy(policy, only)})`;
  return `all ${healthy.length} replicas are full`;
}

/** There is room in flight, but the policy does not take this turn: the first replica in the order of the config says why. */
function notTaken(policy: Policy, state: SchedulerState, turn: Turn, roomy: readonly Replica[]): string {
  const [first] = roomy;
  invariant(first, "a replica with room is named");
  const others = roomy.length === 1 ? "" : `, nor on ${count(roomy.length - 1, "other replica")}`;
  return policy.obstacle(state, turn, first) + others;
}

/** Runs for which room is kept on replicas that would take the turn if it came before all others. */
function roomKept(policy: Policy, turn: Turn, replicas: readonly Replica[]): number {
  if (turn.class === "interactive") return 0;
  return replicas.filter((replica) => policy.hasRoom(replica, 0)).reduce((sum, replica) => sum + replica.keptRoom, 0);
}

function occupancy(policy: Policy, replica: Replica): string {
  const limit = policy.limit(replica) ?? "∞";
  const foreign = replica.foreign === 0 ? "" : `, foreign load ${replica.foreign}`;
  const { leaving } = replica.withdrawals;
  const withdrawn = leaving === 0 ? "" : `, ${leaving} withdrawn and not yet gone`;
  return `${replica.config.replica}: ${replica.inFlight} of ${limit} in flight${withdrawn}${foreign}`;
}

function count(number: number, noun: string): string {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}
