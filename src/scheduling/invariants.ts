/** The invariants of state.ts as predicates, for tests and the simulator: a pass over everything, never per event. */
import { invariant } from "../base/invariant.ts";
import { pinOf } from "./book.ts";
import { policyOf } from "./decide.ts";
import type { SchedulerState, Turn } from "./state.ts";

/** @throws InvariantViolation naming the invariant that does not hold. */
export function checkInvariants(state: SchedulerState): void {
  const turns = [...state.turns.values()];
  const inFlight = turns.filter((turn) => turn.state === "flight");
  const held = turns.filter((turn) => turn.state !== "flight");
  checkCounts(state, inFlight, held);
  for (const turn of held) checkHeld(state, turn);
  const kept = new Map<unknown, number>();
  for (const run of state.runs.values()) {
    invariant(!run.forgotten && state.expiry.has(run), `I6: run ${run.id} is not in the expiry list`);
    if (!state.room.has(run)) continue;
    const paused = run.last === "paused" && run.class === "interactive";
    invariant(paused && run.replica, `I5: room is kept for run ${run.id}, which is not paused`);
    kept.set(run.replica, (kept.get(run.replica) ?? 0) + 1);
  }
  invariant(state.expiry.size === state.runs.size, "I6: the expiry list holds a run that is not known");
  for (const replica of state.replicas.values()) {
    invariant(replica.keptRoom === (kept.get(replica) ?? 0), `I5: kept room of ${replica.config.replica}`);
  }
}

function checkCounts(state: SchedulerState, inFlight: readonly Turn[], held: readonly Turn[]): void {
  invariant(state.flightCount === inFlight.length && state.heldCount === held.length, "I2: totals");
  const of = (pick: (turn: Turn) => unknown, thing: unknown): number =>
    inFlight.filter((turn) => pick(turn) === thing).length;
  for (const replica of state.replicas.values()) {
    invariant(replica.inFlight === of((turn) => turn.replica, replica), `I2: replica ${replica.config.replica}`);
  }
  for (const principal of state.principals.values()) {
    invariant(principal.inFlight === of((turn) => turn.caller.principal, principal), `I2: principal ${principal.id}`);
    for (const caller of principal.callers.values()) {
      invariant(caller.inFlight === of((turn) => turn.caller, caller), `I2: caller ${caller.id}`);
      invariant(caller.held === held.filter((turn) => turn.caller === caller).length, `I2: held of ${caller.id}`);
    }
  }
  for (const run of state.runs.values()) {
    invariant(run.flights === of((turn) => turn.run, run), `I2: run ${run.id}`);
  }
}

function checkHeld(state: SchedulerState, turn: Turn): void {
  if (turn.state === "delayed") {
    invariant(turn.lane === undefined, `I1: delayed turn ${turn.id} stands in a group`);
    return;
  }
  const policy = policyOf(state);
  const pin = pinOf(turn);
  const group = turn.lane?.parent.group;
  const service = state.services.get(`${turn.api}\n${turn.model}`);
  const right = pin === undefined ? service?.groups[turn.class] : pin.pinned[turn.class];
  invariant(group !== undefined && group === right, `I4: turn ${turn.id} stands in the wrong group`);
  const candidates = pin === undefined ? (service?.replicas ?? []) : [pin];
  for (const replica of candidates) {
    const fits = policy.hasRoom(replica, turn.class);
    invariant(!fits, `I3: held turn ${turn.id} fits on ${replica.config.replica}`);
  }
}
