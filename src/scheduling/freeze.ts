/**
 * The whole state as plain JSON and back: the start of an event log (spec 2, Event log). Derived structures (groups,
 * counts, lists, services) are not written: they follow from turns and runs.
 */
import { invariant } from "../base/invariant.ts";
import { asCallerId, asDataplaneId, type ReplicaId } from "../base/ids.ts";
import type { WireApi } from "../wire/endpoint.ts";
import { fly, hold, openHeld, type Step } from "./book.ts";
import { policyOf } from "./decide.ts";
import { createRun, dataplaneFor } from "./requests.ts";
import {
  callerFor,
  createReplica,
  createState,
  leaveGroup,
  linkServices,
  serviceFor,
  type Replica,
  type Run,
  type SchedulerState,
  type Turn,
} from "./state.ts";
import type { SchedulingConfig } from "./types.ts";

type FrozenReplica = Omit<Replica, "pinned" | "services" | "keptRoom" | "inFlight">;

type FrozenRun = Omit<
  Run,
  "key" | "replica" | "avoid" | "flights" | "held" | "forgotten" | "expiryLinks" | "roomLinks" | "keptArrivalMs"
> & {
  readonly replica: ReplicaId | null;
  readonly avoid: ReplicaId | null;
  readonly keptArrivalMs: number | null;
};

type FrozenTurn = Omit<Turn, "dataplane" | "run" | "caller" | "lane" | "heapIndex" | "replica"> & {
  readonly dataplane: string;
  /** Index in `runs`. */
  readonly run: number;
  readonly caller: string;
  readonly replica: ReplicaId | null;
};

export type FrozenState = {
  readonly config: SchedulingConfig;
  readonly nowMs: number;
  readonly sequence: number;
  readonly replicas: readonly FrozenReplica[];
  readonly known: readonly (readonly [string, readonly ReplicaId[]])[];
  readonly services: readonly (readonly [string, WireApi])[];
  /** In the order of their expiry. */
  readonly runs: readonly FrozenRun[];
  /** Indexes in `runs`, longest paused first. */
  readonly room: readonly number[];
  readonly turns: readonly FrozenTurn[];
  readonly dataplanes: readonly {
    readonly id: string;
    readonly linked: boolean;
    readonly lostMs: number;
    readonly namedMs: number;
  }[];
  readonly keys: readonly (readonly [string, readonly number[], number])[];
};

export function freeze(state: SchedulerState): FrozenState {
  const runs: Run[] = [];
  for (let run = state.expiry.first; run !== undefined; run = state.expiry.next(run)) runs.push(run);
  const index = new Map(runs.map((run, at) => [run, at]));
  const room: number[] = [];
  for (let run = state.room.first; run !== undefined; run = state.room.next(run)) room.push(index.get(run) ?? 0);
  return {
    config: state.config,
    nowMs: state.nowMs,
    sequence: state.sequence,
    replicas: [...state.replicas.values()].map(freezeReplica),
    known: [...state.knownModels].map(([model, set]) => [model, [...set].map((replica) => replica.config.replica)]),
    services: [...state.services.values()].map(({ model, api }) => [model, api]),
    runs: runs.map(freezeRun),
    room,
    turns: [...state.turns.values()].map((turn) => freezeTurn(turn, index.get(turn.run) ?? 0)),
    dataplanes: [...state.dataplanes.values()].map(({ id, linked, lostMs, namedMs }) => ({
      id,
      linked,
      lostMs,
      namedMs,
    })),
    keys: [...state.recognition.entries].map(([hash, { runs: owners, atMs }]) => [
      hash,
      owners.filter((run) => !run.forgotten).map((run) => index.get(run) ?? 0),
      atMs,
    ]),
  };
}

function freezeReplica(replica: Replica): FrozenReplica {
  const { pinned, services, keptRoom, inFlight, ...rest } = replica;
  return rest;
}

function freezeRun(run: Run): FrozenRun {
  const { key, replica, avoid, flights, held, forgotten, expiryLinks, roomLinks, keptArrivalMs, ...rest } = run;
  return {
    ...rest,
    replica: replica?.config.replica ?? null,
    avoid: avoid?.config.replica ?? null,
    keptArrivalMs: Number.isNaN(keptArrivalMs) ? null : keptArrivalMs,
  };
}

function freezeTurn(turn: Turn, run: number): FrozenTurn {
  const { dataplane, run: _run, caller, lane, heapIndex, replica, ...rest } = turn;
  return { ...rest, dataplane: dataplane.id, run, caller: caller.id, replica: replica?.config.replica ?? null };
}

/** Rebuilds a state; `freeze(thaw(x))` equals `x`. */
export function thaw(frozen: FrozenState): SchedulerState {
  const state = createState({ ...frozen.config, replicas: [] }, frozen.nowMs);
  state.config = frozen.config;
  for (const row of frozen.replicas) {
    const replica = Object.assign(createReplica(row.config, row.order), row);
    state.replicas.set(row.config.replica, replica);
  }
  const replicaOf = (id: ReplicaId | null): Replica | undefined => (id === null ? undefined : state.replicas.get(id));
  for (const [model, ids] of frozen.known) {
    state.knownModels.set(model, new Set(ids.map(replicaOf).filter((replica) => replica !== undefined)));
  }
  for (const [model, api] of frozen.services) serviceFor(state, model, api);
  linkServices(state);
  const step: Step = { state, policy: policyOf(state), effects: [], dirty: new Set() };
  const runs = frozen.runs.map((row) => {
    const run = createRun(state, row, row.id);
    Object.assign(run, row, {
      replica: replicaOf(row.replica),
      avoid: replicaOf(row.avoid),
      keptArrivalMs: row.keptArrivalMs ?? Number.NaN,
    });
    state.expiry.append(run);
    return run;
  });
  const runAt = (at: number): Run => {
    const run = runs[at];
    invariant(run, `frozen state names run ${at}`);
    return run;
  };
  for (const at of frozen.room) {
    const run = runAt(at);
    state.room.append(run);
    if (run.replica !== undefined) run.replica.keptRoom += 1;
  }
  for (const row of frozen.dataplanes) Object.assign(dataplaneFor(state, asDataplaneId(row.id)), row);
  for (const row of frozen.turns) thawTurn(step, row, runAt(row.run), replicaOf(row.replica));
  // Flying touched the runs: their times and their order are written again.
  for (const [at, row] of frozen.runs.entries()) {
    const run = runAt(at);
    run.lastMs = row.lastMs;
    state.expiry.touch(run);
  }
  for (const [hash, owners, atMs] of frozen.keys) {
    state.recognition.entries.set(hash, { runs: owners.map(runAt), atMs });
  }
  state.sequence = frozen.sequence;
  // Held turns were placed while some of their runs' flights were not counted yet.
  for (const turn of state.turns.values()) if (turn.state === "held") reseat(step, turn);
  return state;
}

function thawTurn(step: Step, row: FrozenTurn, run: Run, replica: Replica | undefined): void {
  const { state } = step;
  const turn: Turn = {
    ...row,
    dataplane: dataplaneFor(state, asDataplaneId(row.dataplane)),
    run,
    caller: callerFor(state, run.principal, asCallerId(row.caller)),
    lane: undefined,
    heapIndex: -1,
    replica: undefined,
  };
  state.turns.set(row.id, turn);
  turn.dataplane.turns.set(row.id, turn);
  if (row.state === "flight") {
    invariant(replica, "a turn in flight names its replica");
    fly(step, turn, replica);
    turn.admittedMs = row.admittedMs;
    return;
  }
  openHeld(step, turn);
  if (row.state !== "delayed") return;
  leaveGroup(turn);
  turn.state = "delayed";
  state.delayed.push(turn);
}

function reseat(step: Step, turn: Turn): void {
  leaveGroup(turn);
  hold(step, turn);
}
