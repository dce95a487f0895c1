/**
 * Bookkeeping that is the same in every policy: where a turn stands, what its run remembers, what is counted.
 * Nothing here decides who is admitted: see settle.ts.
 */
import { invariant } from "../base/invariant.ts";
import type { RunId } from "../base/ids.ts";
import type { FailureReason } from "../wire/admission.ts";
import { groupAt, joinGroup, leaveGroup } from "./groups.ts";
import type { Policy } from "./policy.ts";
import { serves, serviceFor } from "./services.ts";
import {
  CLASSES,
  PHASES,
  dropIdleCaller,
  dropIdlePrincipal,
  phaseOf,
  principalFor,
  type Caller,
  type Group,
  type KeptForRetry,
  type Replica,
  type Run,
  type SchedulerState,
  type Turn,
} from "./state.ts";
import { setShares } from "./token-shares.ts";
import type { RunReport } from "../wire/admission.ts";
import type { SchedulerEffect } from "./types.ts";

/** One event being worked on. */
export type Step = {
  readonly state: SchedulerState;
  /** Changes only when a reload names another one. */
  policy: Policy;
  readonly effects: SchedulerEffect[];
  /** A resync is being worked in: lists by time are put in order once, at its end. */
  bulk: boolean;
};

const NO_TURNS: readonly Turn[] = [];

/**
 * The one replica that a turn may go to, or undefined when it may go anywhere: a bound run (classic: generating or paused)
 * stays where its last main turn was, unless that replica is unhealthy, gone, or does not serve what the turn asks for.
 */
export function pinOf(policy: Policy, turn: Turn): Replica | undefined {
  const { replica } = turn.run;
  if (replica === undefined || !policy.binds(turn.run)) return undefined;
  return replica.healthy && serves(replica, turn.model, turn.api) ? replica : undefined;
}

/** The group where a held turn belongs (I4). */
function groupOf(step: Step, turn: Turn): Group {
  const pin = pinOf(step.policy, turn);
  const groups = pin === undefined ? serviceFor(step.state, turn.model, turn.api).groups : pin.pinned;
  return groupAt(groups, step.policy.tierOf(turn));
}

// --- runs -------------------------------------------------------------------------------------------------------------

/** Makes a run known. */
export function createRun(
  state: SchedulerState,
  about: Pick<RunReport, "principal" | "caller" | "class">,
  id: RunId,
): Run {
  const principal = principalFor(state, about.principal);
  const run: Run = {
    id,
    principal,
    caller: about.caller,
    class: about.class,
    last: "idle",
    replica: undefined,
    flights: 0,
    held: NO_TURNS,
    mainOpen: 0,
    turns: 0,
    lastMs: state.nowMs,
    pausedMs: 0,
    kept: undefined,
    prompts: undefined,
    place: undefined,
    ended: false,
    forgotten: false,
    counted: -1,
    expiryLinks: undefined,
    roomLinks: undefined,
  };
  principal.runs.set(id, run);
  state.expiry.append(run);
  recount(state, run);
  return run;
}

/** A turn of the run began or ended: its expiry starts again. */
export function touch(state: SchedulerState, run: Run): void {
  run.lastMs = state.nowMs;
  state.expiry.touch(run);
}

/** Counts the run where its class and phase say. Called after everything that may change them. */
export function recount(state: SchedulerState, run: Run): void {
  const at = run.forgotten ? -1 : CLASSES.indexOf(run.class) * PHASES.length + PHASES.indexOf(phaseOf(run));
  if (at === run.counted) return;
  const { runCounts } = state;
  if (run.counted >= 0) runCounts[run.counted] = (runCounts[run.counted] ?? 0) - 1;
  if (at >= 0) runCounts[at] = (runCounts[at] ?? 0) + 1;
  run.counted = at;
}

/**
 * Keeps or gives up the room on the run's replica for its next main turn (I5). Called after everything that may change
 * whether the run is a paused interactive one.
 */
export function reviewRoom(step: Step, run: Run): void {
  const { state } = step;
  const wanted =
    run.last === "paused" &&
    run.class === "interactive" &&
    run.mainOpen === 0 &&
    run.replica !== undefined &&
    !run.forgotten &&
    state.nowMs - run.pausedMs < state.config.pausedRoomMs;
  if (wanted === state.room.has(run)) return;
  invariant(run.replica, "room is kept on the replica of the pin");
  if (wanted) {
    if (step.bulk) state.room.append(run);
    else state.room.insertSorted(run, (other) => other.pausedMs <= run.pausedMs);
    run.replica.keptRoom += 1;
  } else {
    state.room.remove(run);
    run.replica.keptRoom -= 1;
    state.dirty.add(run.replica);
  }
}

/** Sets where the run's prefix is; the room that is kept for it moves along. */
export function setReplica(step: Step, run: Run, replica: Replica | undefined): void {
  if (run.replica === replica) return;
  const { state } = step;
  step.policy.onMoving(step, run);
  if (state.room.has(run)) {
    invariant(run.replica, "room is kept on the replica of the pin");
    state.room.remove(run);
    run.replica.keptRoom -= 1;
    state.dirty.add(run.replica);
  }
  run.replica = replica;
  reviewRoom(step, run);
}

/** Forgets a run without open turns. */
export function forgetRun(step: Step, run: Run): void {
  const { state } = step;
  run.forgotten = true;
  step.policy.onForgotten(step, run);
  reviewRoom(step, run);
  recount(state, run);
  state.expiry.remove(run);
  run.principal.runs.delete(run.id);
  dropIdlePrincipal(state, run.principal);
}

// --- held turns -------------------------------------------------------------------------------------------------------

/** A turn is asked for: it counts among the held ones, until it is admitted or leaves. It stands in no group so far. */
export function openTurn(state: SchedulerState, turn: Turn): void {
  addTurn(state, turn);
  countHeld(state, turn);
}

/** Makes a turn known: one that is held, or one that a dataplane reports in flight. */
export function addTurn(state: SchedulerState, turn: Turn): void {
  state.turns.set(turn.id, turn);
  turn.dataplane.turns.set(turn.id, turn);
  if (!turn.side) turn.run.mainOpen += 1;
}

export function countHeld(state: SchedulerState, turn: Turn): void {
  const { caller } = turn;
  state.quietCallers.remove(caller);
  const { principal } = caller;
  if (caller.held === 0) caller.waitingSince = state.admissions;
  if (principal.held === 0) principal.waitingSince = state.admissions;
  caller.held += 1;
  principal.held += 1;
  turn.run.held = turn.run.held.length === 0 ? [turn] : [...turn.run.held, turn];
  state.heldCount += 1;
}

/** Puts a turn into the group where it belongs. */
export function hold(step: Step, turn: Turn): void {
  turn.state = "held";
  joinGroup(groupOf(step, turn), turn);
}

/** Takes a turn from among the held ones. */
function closeHeld(step: Step, turn: Turn): void {
  const { policy, state } = step;
  const { run } = turn;
  // Where turns are judged one by one, who stood behind it may fit where it did not.
  if (policy.judges(policy.tierOf(turn))) markFitting(step, turn);
  if (turn.state === "delayed") state.delayed.remove(turn);
  else leaveGroup(turn);
  turn.caller.held -= 1;
  turn.caller.principal.held -= 1;
  run.held = run.held.length === 1 ? NO_TURNS : run.held.filter((other) => other !== turn);
  state.heldCount -= 1;
}

/** Moves held turns of a run to the group where they belong after its phase or pin changed (I4). */
export function regroup(step: Step, run: Run): void {
  for (const turn of run.held) {
    if (turn.state !== "held") continue;
    const group = groupOf(step, turn);
    if (turn.lane?.parent.group === group) continue;
    leaveGroup(turn);
    joinGroup(group, turn);
    markFitting(step, turn);
  }
}

/** A turn that stands in a new group may fit where it did not before. */
export function markFitting(step: Step, turn: Turn): void {
  const { state } = step;
  const pin = pinOf(step.policy, turn);
  if (pin !== undefined) state.dirty.add(pin);
  else for (const replica of serviceFor(state, turn.model, turn.api).replicas) state.dirty.add(replica);
}

// --- turns in flight --------------------------------------------------------------------------------------------------

/** Admits a held turn to a replica. */
export function admit(step: Step, turn: Turn, replica: Replica): void {
  const { run } = turn;
  closeHeld(step, turn);
  countAdmission(step.state, turn.caller);
  fly(step, turn, replica);
  if (!turn.side) {
    setReplica(step, run, replica);
    // The retry found another way; on the same replica again, the next one still avoids it.
    if (run.kept?.taken === true && run.kept.avoid !== replica) run.kept = undefined;
  }
  step.policy.onFlying(step, turn);
  step.effects.push(admission(step, turn, replica));
  if (run.held.length > 0) regroup(step, run);
}

/** Others with equal shares go before it from here on (groups.ts). Marked by `fly`. */
function countAdmission(state: SchedulerState, caller: Caller): void {
  state.admissions += 1;
  caller.waitingSince = state.admissions;
  caller.principal.waitingSince = state.admissions;
}

export function admission({ policy }: Step, turn: Turn, replica: Replica): SchedulerEffect {
  const priority = policy.priority(turn, replica);
  return {
    type: "admit-turn",
    dataplane: turn.dataplane.id,
    turn: turn.id,
    replica: replica.config.replica,
    run: turn.run.id,
    source: turn.source,
    ...(priority === undefined ? {} : { priority }),
  };
}

/** Counts a turn as in flight. */
export function fly(step: Step, turn: Turn, replica: Replica): void {
  const { caller, run } = turn;
  turn.state = "flight";
  turn.replica = replica;
  turn.aliveMs = step.state.nowMs;
  turn.admittedMs = step.state.nowMs;
  turn.startedMs = -1;
  turn.admission = step.state.admissions;
  step.state.quietCallers.remove(caller);
  replica.inFlight += 1;
  run.flights += 1;
  step.state.flightCount += 1;
  countCaller(step.state, caller, 1);
  touch(step.state, run);
  recount(step.state, run);
}

/** Gives back what a turn in flight took. */
function land(step: Step, turn: Turn): Replica {
  const { caller, run, replica } = turn;
  const { state } = step;
  invariant(turn.state === "flight" && replica, "only a turn in flight can end on a replica");
  step.policy.onLanding(step, turn);
  turn.askedBack = false;
  turn.replica = undefined;
  replica.inFlight -= 1;
  run.flights -= 1;
  state.flightCount -= 1;
  countCaller(state, caller, -1);
  state.dirty.add(replica);
  if (!replica.configured && replica.inFlight === 0) state.replicas.delete(replica.config.replica);
  return replica;
}

function countCaller(state: SchedulerState, caller: Caller, change: 1 | -1): void {
  const { principal } = caller;
  caller.inFlight += change;
  principal.inFlight += change;
  setShares(state.config, caller);
}

/** A turn has ended well. */
export function finish(step: Step, turn: Turn, paused: boolean): void {
  const { run } = turn;
  land(step, turn);
  forgetTurn(step, turn);
  if (!turn.side) {
    run.last = paused ? "paused" : "idle";
    run.pausedMs = step.state.nowMs;
    if (run.kept?.taken === true) run.kept = undefined;
  }
  touch(step.state, run);
  turnEnded(step, run);
}

/** A turn in flight has failed, or a held one was given up: the run is idle and its arrival is kept for a retry. */
export function fail(step: Step, turn: Turn, reason: FailureReason): void {
  const { run } = turn;
  let avoid: Replica | undefined;
  if (turn.state === "flight") {
    const replica = land(step, turn);
    const connectionFailed = reason === "engine-unreachable" || reason === "engine-lost";
    if (connectionFailed && replica.configured) avoid = replica;
  } else {
    closeHeld(step, turn);
    avoid = freshKept(step.state, run)?.avoid;
  }
  forgetTurn(step, turn);
  run.kept = { arrivalMs: turn.arrivalMs, sinceMs: step.state.nowMs, avoid, taken: false };
  if (!turn.side) run.last = "idle";
  touch(step.state, run);
  turnEnded(step, run);
}

/** What a retry inherits at this moment, or undefined when nothing was kept or it is too old. */
export function freshKept(state: SchedulerState, run: Run): KeptForRetry | undefined {
  if (run.kept === undefined) return undefined;
  if (state.nowMs - run.kept.sinceMs >= state.config.arrivalKeptMs) run.kept = undefined;
  return run.kept;
}

/**
 * A turn leaves without a mark on its run: a held one whose dataplane is lost and will ask for it again, or one in flight
 * that its dataplane no longer reports. What became of the run, its dataplane's report says.
 */
export function drop(step: Step, turn: Turn): void {
  if (turn.state === "flight") land(step, turn);
  else closeHeld(step, turn);
  forgetTurn(step, turn);
  turnEnded(step, turn.run);
}

/** The engine gave the turn back before a byte of an answer: held again with its old arrival, perhaps only later. */
export function holdAgain(step: Step, turn: Turn, notBeforeMs: number): Replica {
  const { state } = step;
  const { run } = turn;
  const replica = land(step, turn);
  countHeld(state, turn);
  if (notBeforeMs > state.nowMs) {
    turn.state = "delayed";
    turn.notBeforeMs = notBeforeMs;
    state.delayed.push(turn);
  } else {
    hold(step, turn);
    markFitting(step, turn);
  }
  touch(state, run);
  recount(state, run);
  step.policy.onEnded(step, run);
  if (run.held.length > 1) regroup(step, run);
  return replica;
}

function forgetTurn(step: Step, turn: Turn): void {
  step.state.turns.delete(turn.id);
  turn.dataplane.turns.delete(turn.id);
  if (!turn.side) turn.run.mainOpen -= 1;
  dropIdleCaller(step.state, turn.caller);
}

function turnEnded(step: Step, run: Run): void {
  reviewRoom(step, run);
  recount(step.state, run);
  step.policy.onEnded(step, run);
  if (run.held.length > 0) regroup(step, run);
  else if (run.ended && run.flights === 0) forgetRun(step, run);
}
