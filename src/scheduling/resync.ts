/**
 * Resync: a dataplane hands over what it knows when its link is made (spec 2, Resync). Its report replaces everything
 * that the core knew of this dataplane; runs that several dataplanes know follow the latest report. After it, pins, kept
 * room and counts are what they were before a restart.
 */
import type { FlightReport, RunReport } from "../wire/admission.ts";
import { addTurn, createRun, drop, fly, recount, regroup, reviewRoom, setReplica, type Step } from "./book.ts";
import { regroupAll } from "./probes.ts";
import { remember, sortKeys } from "./recognition.ts";
import { knowModels, linkServices } from "./services.ts";
import {
  callerFor,
  createReplica,
  dataplaneFor,
  principalFor,
  runOf,
  type Dataplane,
  type Replica,
  type SchedulerState,
  type Turn,
} from "./state.ts";
import type { SchedulerEvent } from "./types.ts";

type Linked = Extract<SchedulerEvent, { readonly type: "dataplane-linked" }>;

export function linkDataplane(step: Step, event: Linked): void {
  const { state } = step;
  step.bulk = true;
  const dataplane = dataplaneFor(state, event.dataplane);
  dataplane.linked = true;
  dataplane.namedMs = state.nowMs;
  const reported = new Map(event.flights.map((flight) => [flight.turn, flight]));
  for (const turn of dataplane.turns.values()) {
    // Held ones are asked for again; one in flight that is not reported has ended meanwhile.
    if (turn.state !== "flight" || reported.get(turn.id)?.replica !== turn.replica?.config.replica) drop(step, turn);
  }
  takeModels(step, event.models);
  for (const report of event.runs) takeRun(step, report);
  for (const report of event.flights) takeFlight(step, dataplane, report);
  for (const report of event.keys) {
    const run = runOf(state, report.principal, report.run);
    if (run === undefined) continue;
    const atMs = state.nowMs - report.ageMs;
    remember(state.recognition, run, report.keys, { atMs, keysMax: state.config.identityKeysMax });
  }
  // Reports come in any order; the lists of the timers stand oldest first.
  state.expiry.sort((a, b) => a.lastMs - b.lastMs);
  state.room.sort((a, b) => a.pausedMs - b.pausedMs);
  sortKeys(state.recognition);
}

/** Models that were seen stay known over a restart, though their engine may not answer just now (spec 2, models). */
function takeModels(step: Step, reports: Linked["models"]): void {
  const { state } = step;
  let learned = false;
  for (const { replica: id, models } of reports) {
    const replica = state.replicas.get(id);
    // What a probe has found here is newer.
    if (replica?.configured !== true || replica.config.models.length > 0 || replica.models.length > 0) continue;
    replica.models = models;
    knowModels(state, replica);
    state.dirty.add(replica);
    learned = true;
  }
  if (!learned) return;
  linkServices(state);
  regroupAll(step);
}

function takeRun(step: Step, report: RunReport): void {
  const { state } = step;
  const lastMs = state.nowMs - report.quietMs;
  const known = runOf(state, report.principal, report.run);
  // Several dataplanes may have served it: the latest report wins, and what was seen here since then.
  if (known !== undefined && known.lastMs >= lastMs) return;
  const run = known ?? createRun(state, report, report.run);
  run.caller = report.caller;
  run.class = report.class;
  run.last = report.phase;
  run.pausedMs = state.nowMs - (report.pausedMs ?? report.quietMs);
  run.lastMs = lastMs;
  const replica = report.replica === undefined ? undefined : state.replicas.get(report.replica);
  setReplica(step, run, replica?.configured === true ? replica : undefined);
  reviewRoom(step, run);
  recount(state, run);
  step.policy.onReported(step, run);
  regroup(step, run);
}

function takeFlight(step: Step, dataplane: Dataplane, report: FlightReport): void {
  const { state } = step;
  if (state.turns.has(report.turn)) return;
  const run = runOf(state, report.principal, report.run) ?? createRun(state, report, report.run);
  const { lastMs } = run;
  const replica = state.replicas.get(report.replica) ?? replicaThatLeft(state, report);
  state.sequence += 1;
  const turn: Turn = {
    id: report.turn,
    dataplane,
    run,
    caller: callerFor(principalFor(state, report.principal), report.caller),
    class: report.class,
    model: report.model,
    api: report.api,
    side: report.side,
    source: report.source,
    arrivalMs: state.nowMs - report.ageMs,
    sequence: state.sequence,
    state: "flight",
    lane: undefined,
    heapIndex: -1,
    notBeforeMs: 0,
    replica: undefined,
    aliveMs: 0,
    promptBytes: undefined,
    prefixKey: undefined,
    streams: false,
    contextTokens: 0,
    admittedMs: 0,
    startedMs: -1,
    admission: 0,
    uncachedTokens: 0,
    withdrawals: 0,
    askedBack: false,
    charged: 0,
    unstartedLinks: undefined,
  };
  addTurn(state, turn);
  fly(step, turn, replica);
  // It began before this event: another dataplane's later report of the run still counts.
  run.lastMs = Math.max(lastMs, Math.min(run.lastMs, state.nowMs - report.ageMs));
  if (!report.side && replica.configured && run.replica === undefined) setReplica(step, run, replica);
  // Whether its answer has begun is not told: one that may have is not taken back.
  turn.startedMs = state.nowMs;
  step.policy.onFlying(step, turn);
  reviewRoom(step, run);
  regroup(step, run);
}

/** A replica that is not in the config any more still has this turn: it is counted until it ends. */
function replicaThatLeft(state: SchedulerState, report: FlightReport): Replica {
  const config = {
    replica: report.replica,
    kind: "generative",
    models: [],
    speaks: [],
    maxInFlight: undefined,
  } as const;
  const replica = { ...createReplica(state, config, state.replicas.size), configured: false };
  state.replicas.set(report.replica, replica);
  return replica;
}

/** The link is gone: its held turns are asked for again, its turns in flight stay counted for a while. */
export function loseDataplane(step: Step, dataplane: Dataplane): void {
  dataplane.linked = false;
  dataplane.lostMs = step.state.nowMs;
  for (const turn of dataplane.turns.values()) {
    if (turn.state !== "flight") drop(step, turn);
  }
}
