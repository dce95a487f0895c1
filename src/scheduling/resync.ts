/**
 * Resync: a dataplane hands over what it knows when its link is made (spec 2, Resync). Its report replaces everything
 * that the core knew of this dataplane; runs that several dataplanes know follow the latest report. After it, pins, kept
 * room and counts are what they were before a restart.
 */
import { dropFlight, dropHeld, dropRoom, fail, fly, keepRoom, regroup, type Step } from "./book.ts";
import { remember } from "./recognition.ts";
import { createRun, dataplaneFor } from "./requests.ts";
import { callerFor, createReplica, runKey, type Dataplane, type Run, type SchedulerState, type Turn } from "./state.ts";
import type { FlightReport, RunReport } from "../wire/admission.ts";
import type { SchedulerEvent } from "./types.ts";

type Linked = Extract<SchedulerEvent, { readonly type: "dataplane-linked" }>;

export function linkDataplane(step: Step, event: Linked): void {
  const { state } = step;
  const dataplane = dataplaneFor(state, event.dataplane);
  dataplane.linked = true;
  dataplane.namedMs = state.nowMs;
  const reported = new Map(event.flights.map((flight) => [flight.turn, flight]));
  for (const turn of dataplane.turns.values()) {
    if (turn.state !== "flight") dropHeld(step, turn);
    else if (reported.get(turn.id)?.replica !== turn.replica?.config.replica) dropFlight(step, turn);
  }
  for (const report of event.runs) takeRun(step, report);
  for (const report of event.flights) takeFlight(step, dataplane, report);
  for (const report of event.keys) {
    const run = state.runs.get(runKey(report.principal, report.run));
    if (run === undefined) continue;
    const atMs = state.nowMs - report.ageMs;
    remember(state.recognition, run, report.keys, { atMs, keysMax: state.config.identityKeysMax });
  }
  sortByTime(state);
}

function takeRun(step: Step, report: RunReport): void {
  const { state } = step;
  const known = state.runs.get(runKey(report.principal, report.run));
  const lastMs = state.nowMs - report.quietMs;
  if (known !== undefined && (known.lastMs >= lastMs || known.flights > 0)) return;
  const run = known ?? emptyRun(state, report);
  dropRoom(step, run);
  run.caller = report.caller;
  run.class = report.class;
  run.last = report.phase;
  run.replica = report.replica === undefined ? undefined : state.replicas.get(report.replica);
  run.pausedMs = state.nowMs - (report.pausedMs ?? 0);
  run.lastMs = lastMs;
  if (!state.expiry.has(run)) state.expiry.append(run);
  if (run.last === "paused") keepRoom(step, run);
  regroup(step, run);
}

function takeFlight(step: Step, dataplane: Dataplane, report: FlightReport): void {
  const { state } = step;
  if (state.turns.has(report.turn)) return;
  const run = state.runs.get(runKey(report.principal, report.run)) ?? emptyRun(state, report);
  // A replica that left the config still has this turn: it is counted until it ends.
  let replica = state.replicas.get(report.replica);
  if (replica === undefined) {
    const config = {
      replica: report.replica,
      kind: "generative",
      models: [],
      speaks: [],
      maxInFlight: undefined,
    } as const;
    replica = { ...createReplica(config, state.replicas.size), configured: false };
    state.replicas.set(report.replica, replica);
  }
  state.sequence += 1;
  const turn: Turn = {
    id: report.turn,
    dataplane,
    run,
    caller: callerFor(state, report.principal, report.caller),
    class: report.class,
    model: "",
    api: "chat",
    side: report.side,
    source: "header",
    arrivalMs: state.nowMs - report.ageMs,
    sequence: state.sequence,
    state: "flight",
    lane: undefined,
    heapIndex: -1,
    notBeforeMs: 0,
    replica: undefined,
    admittedMs: 0,
    startedMs: 0,
  };
  state.turns.set(turn.id, turn);
  dataplane.turns.set(turn.id, turn);
  if (!report.side) {
    dropRoom(step, run);
    run.replica = replica;
  }
  fly(step, turn, replica);
  regroup(step, run);
}

function emptyRun(state: SchedulerState, report: RunReport | FlightReport): Run {
  const { principal, caller } = report;
  return createRun(state, { principal, caller, class: report.class }, report.run);
}

/** The two timer queues expect the oldest first; reports come in any order. */
function sortByTime(state: SchedulerState): void {
  const runs = [...state.runs.values()].sort((a, b) => a.lastMs - b.lastMs);
  for (const run of runs) state.expiry.remove(run);
  for (const run of runs) state.expiry.append(run);
  const waiting = runs.filter((run) => state.room.has(run)).sort((a, b) => a.pausedMs - b.pausedMs);
  for (const run of waiting) state.room.remove(run);
  for (const run of waiting) state.room.append(run);
}

/** The link is gone: its held turns are asked for again, its turns in flight stay counted for a while. */
export function loseDataplane(step: Step, dataplane: Dataplane): void {
  dataplane.linked = false;
  dataplane.lostMs = step.state.nowMs;
  for (const turn of dataplane.turns.values()) {
    if (turn.state !== "flight") dropHeld(step, turn);
  }
}

/** A dataplane that did not come back: its turns in flight have failed. */
export function dropDataplane(step: Step, dataplane: Dataplane): void {
  for (const turn of dataplane.turns.values()) fail(step, turn, "internal");
  step.state.dataplanes.delete(dataplane.id);
}
