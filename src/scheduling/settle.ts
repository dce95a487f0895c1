/**
 * Admission: after an event, admits held turns in rank until none fits any more (I3).
 *
 * Only replicas that gained room, and those where a turn may fit that has just come, have to be looked at: everything
 * else did not fit before and does not fit now. A turn that fits nowhere does not block those behind it, since every
 * group offers its own first turn. Interactive turns are exhausted before batch turns, so that no batch turn goes to a
 * replica on which a held interactive turn would fit.
 */
import { invariant } from "../base/invariant.ts";
import { admit, pinOf, type Step } from "./book.ts";
import { firstOf, groupAt, ranksBefore } from "./groups.ts";
import { serviceFor } from "./services.ts";
import type { Replica, Turn } from "./state.ts";

export function settle(step: Step): void {
  const { dirty } = step.state;
  if (dirty.size === 0) return;
  // Every admission may move other turns of its run, also of a lower tier, and mark further replicas: all is looked at again.
  for (let next = firstThatFits(step); next !== undefined; next = firstThatFits(step)) {
    invariant(admitWhereItFits(step, next), "a turn that fits on a marked replica can be admitted");
  }
  dirty.clear();
}

/** The first turn in rank that fits on one of the marked replicas. */
function firstThatFits(step: Step): Turn | undefined {
  const { policy, state } = step;
  if (state.heldCount === 0) return undefined;
  for (let tier = 0; tier < policy.tiers; tier += 1) {
    let best: Turn | undefined;
    let refused = false;
    for (const replica of state.dirty) {
      if (!policy.hasRoom(replica, tier)) continue;
      const turn = firstFor(replica, tier);
      if (turn === undefined) continue;
      if (!policy.takes(state, turn, replica)) refused = true;
      else if (best === undefined || ranksBefore(turn, best)) best = turn;
    }
    if (best === undefined && refused) best = firstWithRoomMade(step, tier);
    if (best !== undefined) return best;
  }
  return undefined;
}

/** The first turn of a tier for which the policy makes room. */
function firstWithRoomMade(step: Step, tier: number): Turn | undefined {
  const { policy, state } = step;
  for (const replica of state.dirty) {
    if (!policy.hasRoom(replica, tier)) continue;
    const turn = firstFor(replica, tier);
    if (turn !== undefined && policy.makeRoom(step, turn, replica)) return turn;
  }
  return undefined;
}

/** The held turn of a tier that goes first on a replica. */
export function firstFor(replica: Replica, tier: number): Turn | undefined {
  let first = firstOf(groupAt(replica.pinned, tier));
  for (const service of replica.services) {
    const turn = firstOf(groupAt(service.groups, tier));
    if (turn !== undefined && (first === undefined || ranksBefore(turn, first))) first = turn;
  }
  return first;
}

/** Admits one held turn if a replica has room for it. */
export function admitWhereItFits(step: Step, turn: Turn): boolean {
  const { policy } = step;
  const tier = policy.tierOf(turn);
  const pin = pinOf(policy, turn);
  if (pin !== undefined) {
    if (!fits(step, turn, pin, tier)) return false;
    admit(step, turn, pin);
    return true;
  }
  const fitting = candidates(step, turn).filter((replica) => fits(step, turn, replica, tier));
  if (fitting.length === 0) return false;
  admit(step, turn, policy.place(turn.run, fitting));
  return true;
}

function fits({ policy, state }: Step, turn: Turn, replica: Replica, tier: number): boolean {
  return policy.hasRoom(replica, tier) && policy.takes(state, turn, replica);
}

/** Replicas that serve a free turn, in the order of the config, without those that had no room and gained none (I3). */
function candidates(step: Step, turn: Turn): readonly Replica[] {
  const { dirty } = step.state;
  const service = serviceFor(step.state, turn.model, turn.api);
  if (dirty.size === 0 || dirty.size >= service.replicas.length) return service.replicas;
  return [...dirty].filter((replica) => replica.services.includes(service)).sort((a, b) => a.order - b.order);
}
