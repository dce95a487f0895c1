/**
 * Bookkeeping that is the same in every policy: where a turn stands, what its run remembers, what is counted.
 * Nothing here decides who is admitted: see settle.ts.
 */
import { invariant } from "../base/invariant.ts";
import type { FailureReason } from "../wire/admission.ts";
import type { Policy } from "./policy.ts";
import {
  dropIdleCaller,
  joinGroup,
  leaveGroup,
  reorderLanes,
  runKey,
  serves,
  serviceFor,
  type Group,
  type Replica,
  type Run,
  type SchedulerState,
  type Turn,
} from "./state.ts";
import type { SchedulerEffect } from "./types.ts";

/** One event being worked on. */
export type Step = {
  readonly state: SchedulerState;
  readonly policy: Policy;
  readonly effects: SchedulerEffect[];
  /** Replicas where a held turn may fit that did not fit before: the only ones that settle has to look at. */
  readonly dirty: Set<Replica>;
};

/**
 * The one replica that a turn may go to, or undefined when it may go anywhere: a run that is generating or paused stays
 * where its last main turn was, unless that replica is unhealthy, gone, or does not serve what the turn asks for.
 */
export function pinOf(turn: Turn): Replica | undefined {
  const { run } = turn;
  const { replica } = run;
  if (replica === undefined || (run.flights === 0 && run.last === "idle")) return undefined;
  return replica.healthy && serves(replica, turn.model, turn.api) ? replica : undefined;
}

/** The group where a held turn belongs (I4). */
function groupOf(state: SchedulerState, turn: Turn): Group {
  const pin = pinOf(turn);
  return pin === undefined ? serviceFor(state, turn.model, turn.api).groups[turn.class] : pin.pinned[turn.class];
}

/** Puts a turn among the held ones. */
export function hold(step: Step, turn: Turn): void {
  turn.state = "held";
  joinGroup(groupOf(step.state, turn), turn);
}

/** Holds a turn again, or for the first time, and counts it. */
export function openHeld(step: Step, turn: Turn): void {
  const { state } = step;
  turn.caller.held += 1;
  turn.run.held.push(turn);
  state.heldCount += 1;
  hold(step, turn);
}

function closeHeld(step: Step, turn: Turn): void {
  const { state } = step;
  if (turn.state === "delayed") state.delayed.remove(turn);
  else leaveGroup(turn);
  turn.caller.held -= 1;
  turn.run.held.splice(turn.run.held.indexOf(turn), 1);
  state.heldCount -= 1;
}

/** Moves held turns of a run to the group where they belong after its phase or pin changed. */
export function regroup(step: Step, run: Run): void {
  for (const turn of run.held) {
    if (turn.state !== "held") continue;
    const group = groupOf(step.state, turn);
    if (turn.lane?.parent.group === group) continue;
    leaveGroup(turn);
    joinGroup(group, turn);
    markFitting(step, turn);
  }
}

/** A turn that stands in a new group may fit where it did not before. */
export function markFitting(step: Step, turn: Turn): void {
  const pin = pinOf(turn);
  if (pin !== undefined) step.dirty.add(pin);
  else for (const replica of serviceFor(step.state, turn.model, turn.api).replicas) step.dirty.add(replica);
}

/** Admits a held turn to a replica. */
export function admit(step: Step, turn: Turn, replica: Replica): void {
  const { state } = step;
  const { run } = turn;
  closeHeld(step, turn);
  fly(step, turn, replica);
  if (!turn.side) {
    run.replica = replica;
    if (run.avoid !== replica) run.avoid = undefined;
  }
  step.effects.push({
    type: "admit-turn",
    dataplane: turn.dataplane.id,
    turn: turn.id,
    replica: replica.config.replica,
    run: run.id,
    source: turn.source,
  });
  invariant(state.turns.get(turn.id) === turn, "an admitted turn is known");
  if (run.held.length > 0) regroup(step, run);
}

/** Counts a turn as in flight. */
export function fly(step: Step, turn: Turn, replica: Replica): void {
  const { caller, run } = turn;
  turn.state = "flight";
  turn.replica = replica;
  turn.admittedMs = step.state.nowMs;
  replica.inFlight += 1;
  caller.inFlight += 1;
  caller.principal.inFlight += 1;
  run.flights += 1;
  step.state.flightCount += 1;
  reorderLanes(caller);
  touch(step.state, run);
}

/** Gives back what a turn in flight took. */
function land(step: Step, turn: Turn): Replica {
  const { caller, run, replica } = turn;
  invariant(turn.state === "flight" && replica, "only a turn in flight can end on a replica");
  replica.inFlight -= 1;
  caller.inFlight -= 1;
  caller.principal.inFlight -= 1;
  run.flights -= 1;
  step.state.flightCount -= 1;
  turn.replica = undefined;
  reorderLanes(caller);
  step.dirty.add(replica);
  if (!replica.configured && replica.inFlight === 0) step.state.replicas.delete(replica.config.replica);
  return replica;
}

/** The turn of a run has ended well. */
export function finish(step: Step, turn: Turn, paused: boolean): void {
  const { run } = turn;
  land(step, turn);
  forgetTurn(step, turn);
  if (!turn.side) {
    run.last = paused ? "paused" : "idle";
    run.pausedMs = step.state.nowMs;
    run.avoid = undefined;
    if (paused) keepRoom(step, run);
  }
  runTurnEnded(step, run);
}

/** A turn in flight has failed, or a held one was given up: the run is idle and its arrival is kept for a retry. */
export function fail(step: Step, turn: Turn, reason: FailureReason): void {
  const { run } = turn;
  const { nowMs } = step.state;
  if (turn.state === "flight") {
    const replica = land(step, turn);
    if (reason === "engine-unreachable" || reason === "engine-lost") run.avoid = replica;
  } else {
    closeHeld(step, turn);
  }
  forgetTurn(step, turn);
  run.keptArrivalMs = turn.arrivalMs;
  run.keptSinceMs = nowMs;
  if (!turn.side) run.last = "idle";
  runTurnEnded(step, run);
}

/** A held turn leaves without a mark on its run: its dataplane is lost and will ask for it again. */
export function dropHeld(step: Step, turn: Turn): void {
  closeHeld(step, turn);
  forgetTurn(step, turn);
  runTurnEnded(step, turn.run);
}

/** A turn in flight leaves without a mark on its run: its dataplane never got to know of the admission. */
export function dropFlight(step: Step, turn: Turn): void {
  land(step, turn);
  forgetTurn(step, turn);
  runTurnEnded(step, turn.run);
}

/** The engine gave the turn back before a byte of an answer: held again with its old arrival, perhaps only later. */
export function holdAgain(step: Step, turn: Turn, notBeforeMs: number): Replica {
  const { state } = step;
  const replica = land(step, turn);
  turn.caller.held += 1;
  turn.run.held.push(turn);
  state.heldCount += 1;
  if (notBeforeMs > state.nowMs) {
    turn.state = "delayed";
    turn.notBeforeMs = notBeforeMs;
    state.delayed.push(turn);
  } else {
    hold(step, turn);
    markFitting(step, turn);
  }
  regroup(step, turn.run);
  return replica;
}

function forgetTurn(step: Step, turn: Turn): void {
  step.state.turns.delete(turn.id);
  turn.dataplane.turns.delete(turn.id);
  dropIdleCaller(step.state, turn.caller);
}

function runTurnEnded(step: Step, run: Run): void {
  touch(step.state, run);
  if (run.held.length > 0) regroup(step, run);
  if (run.ended && run.flights === 0 && run.held.length === 0) forgetRun(step, run);
}

/** A turn of the run began or ended: its expiry starts again. */
export function touch(state: SchedulerState, run: Run): void {
  run.lastMs = state.nowMs;
  state.expiry.touch(run);
}

/** Keeps room on the run's replica for its next turn (I5). */
export function keepRoom(step: Step, run: Run): void {
  const { replica } = run;
  if (run.class !== "interactive" || replica === undefined || step.state.room.has(run)) return;
  if (step.state.nowMs - run.pausedMs >= step.state.config.pausedRoomMs) return;
  step.state.room.append(run);
  replica.keptRoom += 1;
}

/** The run is back, gone, or was away for too long. */
export function dropRoom(step: Step, run: Run): void {
  if (!step.state.room.has(run)) return;
  step.state.room.remove(run);
  invariant(run.replica, "room is kept on the replica of the pin");
  run.replica.keptRoom -= 1;
  step.dirty.add(run.replica);
}

/** Forgets a run without open turns. */
export function forgetRun(step: Step, run: Run): void {
  dropRoom(step, run);
  run.forgotten = true;
  step.state.expiry.remove(run);
  step.state.runs.delete(runKey(run.principal, run.id));
}
