/**
 * Admission: after an event, admits held turns in rank until none fits any more (I3).
 *
 * Only replicas that gained room, and those where a turn may fit that has just come, have to be looked at: everything
 * else did not fit before and does not fit now. A turn that fits nowhere does not block those behind it, since every
 * group offers its own first turn. Interactive turns are exhausted before batch turns, so that no batch turn goes to a
 * replica on which a held interactive turn would fit.
 */
import { admit, pinOf, type Step } from "./book.ts";
import { CLASSES, firstOf, ranksBefore, type Replica, type Turn } from "./state.ts";
import type { ServiceClass } from "../wire/admission.ts";

export function settle(step: Step): void {
  const { dirty, policy, state } = step;
  if (dirty.size === 0 || state.heldCount === 0) return;
  for (const serviceClass of CLASSES) {
    for (;;) {
      // Admitting can mark further replicas dirty (a run's other turns move): the set is read again each time.
      let best: Turn | undefined;
      for (const replica of dirty) {
        if (!policy.hasRoom(replica, serviceClass)) continue;
        const turn = firstFor(replica, serviceClass);
        if (turn !== undefined && (best === undefined || ranksBefore(turn, best))) best = turn;
      }
      if (best === undefined) break;
      admitWhereItFits(step, best);
    }
  }
}

/** The held turn of a class that goes first on a replica. */
function firstFor(replica: Replica, serviceClass: ServiceClass): Turn | undefined {
  let first = firstOf(replica.pinned[serviceClass]);
  for (const service of replica.services) {
    const turn = firstOf(service.groups[serviceClass]);
    if (turn !== undefined && (first === undefined || ranksBefore(turn, first))) first = turn;
  }
  return first;
}

/** Admits one held turn if a replica has room for it. Correct for a turn that has just come, since no other fits (I3). */
export function admitWhereItFits(step: Step, turn: Turn): boolean {
  const { policy } = step;
  const pin = pinOf(turn);
  if (pin !== undefined) {
    if (!policy.hasRoom(pin, turn.class)) return false;
    admit(step, turn, pin);
    return true;
  }
  const service = step.state.services.get(`${turn.api}\n${turn.model}`);
  const fitting = service?.replicas.filter((replica) => policy.hasRoom(replica, turn.class)) ?? [];
  if (fitting.length === 0) return false;
  admit(step, turn, policy.place(turn.run, fitting));
  return true;
}
