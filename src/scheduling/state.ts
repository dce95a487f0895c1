/**
 * The state of the scheduling core: replicas, runs, turns, callers and the groups of held turns.
 *
 * It is mutated in place, inside this folder only, behind the type of `decide`: at 100,000 runs a copy per event would
 * cost milliseconds. `test/scheduling/plain-classic.ts` is a plain version that is compared with it.
 *
 * Invariants (checked by invariants.ts):
 * I1: a turn is held, delayed or in flight, in exactly one place; what ended is nowhere.
 * I2: the counts in flight of replica, caller, principal and run are the number of their turns in flight.
 * I3: after every event no held turn fits anywhere.
 * I4: a turn held by a run that is generating or paused on a healthy replica stands in that replica's group.
 * I5: room is kept only for paused interactive runs, on the replica of their pin.
 * I6: every run without open turns is in the expiry list exactly once, oldest first.
 */
import { IndexedHeap } from "../base/heap.ts";
import type { CallerId, DataplaneId, PrincipalId, ReplicaId, RunId, TurnId } from "../base/ids.ts";
import { LinkedList, type ListLinks } from "../base/linked-list.ts";
import type { RunSource, ServiceClass } from "../wire/admission.ts";
import type { EngineKind, WireApi } from "../wire/endpoint.ts";
import type { LoadSample } from "../wire/load.ts";
import { createRecognition, type Recognition } from "./recognition.ts";
import type { ReplicaConfig, SchedulingConfig } from "./types.ts";

export const CLASSES: readonly ServiceClass[] = ["interactive", "batch"];

export type Replica = {
  config: ReplicaConfig;
  /** Order in the config: the last tie-break of placement. */
  order: number;
  /** Still in the config. A replica that left is kept only by the turns in flight there. */
  configured: boolean;
  healthy: boolean;
  /** A first probe has come. */
  probed: boolean;
  engine: EngineKind;
  models: readonly string[];
  /** Undefined until learned: then it serves chat only. */
  speaks: readonly WireApi[] | undefined;
  inFlight: number;
  /** Measured cap; undefined: open. */
  cap: number | undefined;
  /** Good probes in a row with fewer than `cap` turns in flight. */
  quietProbes: number;
  inFlightAtProbe: number;
  /** Last good sample; undefined: reports no load. */
  load: LoadSample | undefined;
  loadFailures: number;
  /** Requests in the engine that are not ours, and the last surpluses from which they follow. */
  foreign: number;
  surpluses: number[];
  /** Paused interactive runs for which room is kept here. */
  keptRoom: number;
  /** What it serves, of the services that were asked for. */
  services: Service[];
  /** Held turns that may go only here, by class. */
  pinned: { readonly [Class in ServiceClass]: Group };
};

/** Held turns of one class that can go to the same replicas. */
export type Group = {
  readonly class: ServiceClass;
  readonly lanes: IndexedHeap<PrincipalLane>;
  readonly byPrincipal: Map<Principal, PrincipalLane>;
};

export type PrincipalLane = {
  readonly group: Group;
  readonly principal: Principal;
  readonly lanes: IndexedHeap<CallerLane>;
  readonly byCaller: Map<Caller, CallerLane>;
  heapIndex: number;
};

export type CallerLane = {
  readonly parent: PrincipalLane;
  readonly caller: Caller;
  readonly turns: IndexedHeap<Turn>;
  heapIndex: number;
};

/** The turns that ask for one model by one API, and the replicas that can serve them. */
export type Service = {
  readonly model: string;
  readonly api: WireApi;
  replicas: Replica[];
  readonly groups: { readonly [Class in ServiceClass]: Group };
};

export type Principal = {
  readonly id: PrincipalId;
  weight: number;
  inFlight: number;
  /** Callers with open turns. */
  readonly callers: Map<CallerId, Caller>;
  readonly lanes: Set<PrincipalLane>;
};

export type Caller = {
  readonly id: CallerId;
  readonly principal: Principal;
  inFlight: number;
  held: number;
  readonly lanes: Set<CallerLane>;
};

export type Run = {
  readonly key: string;
  readonly id: RunId;
  readonly principal: PrincipalId;
  caller: CallerId;
  class: ServiceClass;
  /** What its last main turn left. */
  last: "paused" | "idle";
  /** Replica of the last admitted main turn; for a run that a weak key led here, a preference from the start. */
  replica: Replica | undefined;
  flights: number;
  held: Turn[];
  turns: number;
  /** When a turn of it last began or ended. */
  lastMs: number;
  pausedMs: number;
  /** Arrival of a turn that was abandoned or failed, for the retry; NaN: none. */
  keptArrivalMs: number;
  keptSinceMs: number;
  /** Replica whose connection failed at `keptSinceMs`. */
  avoid: Replica | undefined;
  /** Made because a weak key matched another run: the next weak match confirms it. */
  weaklyLinked: boolean;
  /** The runtime said that it ended; forgotten when the last open turn ends. */
  ended: boolean;
  forgotten: boolean;
  expiryLinks: ListLinks<Run> | undefined;
  roomLinks: ListLinks<Run> | undefined;
};

export type TurnState = "held" | "delayed" | "flight";

export type Turn = {
  readonly id: TurnId;
  readonly dataplane: Dataplane;
  readonly run: Run;
  readonly caller: Caller;
  readonly class: ServiceClass;
  readonly model: string;
  readonly api: WireApi;
  readonly side: boolean;
  readonly source: RunSource;
  readonly arrivalMs: number;
  /** Order of requests: breaks ties of arrival. */
  readonly sequence: number;
  state: TurnState;
  /** While held: where it stands. */
  lane: CallerLane | undefined;
  heapIndex: number;
  /** While delayed: when it is held again. */
  notBeforeMs: number;
  /** In flight there. */
  replica: Replica | undefined;
  admittedMs: number;
  startedMs: number;
};

export type Dataplane = {
  readonly id: DataplaneId;
  linked: boolean;
  lostMs: number;
  /** When it last named its open turns, or linked. */
  namedMs: number;
  readonly turns: Map<TurnId, Turn>;
};

export type SchedulerState = {
  config: SchedulingConfig;
  nowMs: number;
  sequence: number;
  readonly replicas: Map<ReplicaId, Replica>;
  readonly services: Map<string, Service>;
  /** Models seen or configured, with the replicas that ever served them. */
  readonly knownModels: Map<string, Set<Replica>>;
  readonly runs: Map<string, Run>;
  readonly turns: Map<TurnId, Turn>;
  readonly principals: Map<PrincipalId, Principal>;
  readonly dataplanes: Map<DataplaneId, Dataplane>;
  /** Pushed-back turns, by the time at which they are held again. */
  readonly delayed: IndexedHeap<Turn>;
  /** Runs by their last turn, quietest first. */
  readonly expiry: LinkedList<"expiryLinks", Run>;
  /** Paused interactive runs for which room is kept, longest paused first. */
  readonly room: LinkedList<"roomLinks", Run>;
  readonly recognition: Recognition;
  heldCount: number;
  flightCount: number;
};

export function createState(config: SchedulingConfig, nowMs: number): SchedulerState {
  const state: SchedulerState = {
    config,
    nowMs,
    sequence: 0,
    replicas: new Map(),
    services: new Map(),
    knownModels: new Map(),
    runs: new Map(),
    turns: new Map(),
    principals: new Map(),
    dataplanes: new Map(),
    delayed: new IndexedHeap<Turn>(
      (a, b) => a.notBeforeMs < b.notBeforeMs || (a.notBeforeMs === b.notBeforeMs && a.sequence < b.sequence),
    ),
    expiry: new LinkedList<"expiryLinks", Run>("expiryLinks"),
    room: new LinkedList<"roomLinks", Run>("roomLinks"),
    recognition: createRecognition(),
    heldCount: 0,
    flightCount: 0,
  };
  for (const replica of config.replicas)
    state.replicas.set(replica.replica, createReplica(replica, state.replicas.size));
  for (const replica of state.replicas.values()) knowModels(state, replica);
  return state;
}

export function createReplica(config: ReplicaConfig, order: number): Replica {
  return {
    config,
    order,
    configured: true,
    healthy: false,
    probed: false,
    engine: "unknown",
    models: config.models,
    speaks: config.speaks,
    inFlight: 0,
    cap: undefined,
    quietProbes: 0,
    inFlightAtProbe: 0,
    load: undefined,
    loadFailures: 0,
    foreign: 0,
    surpluses: [],
    keptRoom: 0,
    services: [],
    pinned: { interactive: createGroup("interactive"), batch: createGroup("batch") },
  };
}

export function runKey(principal: PrincipalId, run: RunId): string {
  return `${principal}\n${run}`;
}

/** Share of a principal: turns in flight over the whole pool, both classes, by its weight. */
export function share(principal: Principal): number {
  return principal.inFlight / principal.weight;
}

/** Whether held turn `a` goes before `b` in the same class: principal's share, caller's turns, arrival (spec 2, Rank). */
export function ranksBefore(a: Turn, b: Turn): boolean {
  if (a.caller.principal !== b.caller.principal) {
    const difference = share(a.caller.principal) - share(b.caller.principal);
    if (difference !== 0) return difference < 0;
  }
  if (a.caller !== b.caller && a.caller.inFlight !== b.caller.inFlight) return a.caller.inFlight < b.caller.inFlight;
  return arrivesBefore(a, b);
}

function arrivesBefore(a: Turn, b: Turn): boolean {
  return a.arrivalMs === b.arrivalMs ? a.sequence < b.sequence : a.arrivalMs < b.arrivalMs;
}

export function createGroup(serviceClass: ServiceClass): Group {
  return {
    class: serviceClass,
    lanes: new IndexedHeap<PrincipalLane>((a, b) => ranksBefore(firstOfPrincipal(a), firstOfPrincipal(b))),
    byPrincipal: new Map(),
  };
}

// A lane in a heap always holds a turn: empty lanes are removed at once.
function firstOfPrincipal(lane: PrincipalLane): Turn {
  return firstOfCaller(lane.lanes.top as CallerLane);
}

function firstOfCaller(lane: CallerLane): Turn {
  return lane.turns.top as Turn;
}

/** The turn of a group that goes first, or undefined. */
export function firstOf(group: Group): Turn | undefined {
  const lane = group.lanes.top;
  return lane === undefined ? undefined : firstOfPrincipal(lane);
}

/** Puts a held turn into a group. */
export function joinGroup(group: Group, turn: Turn): void {
  const { caller } = turn;
  const { principal } = caller;
  let principalLane = group.byPrincipal.get(principal);
  if (principalLane === undefined) {
    principalLane = {
      group,
      principal,
      lanes: new IndexedHeap<CallerLane>((a, b) => ranksBefore(firstOfCaller(a), firstOfCaller(b))),
      byCaller: new Map(),
      heapIndex: -1,
    };
    group.byPrincipal.set(principal, principalLane);
    principal.lanes.add(principalLane);
  }
  let lane = principalLane.byCaller.get(caller);
  if (lane === undefined) {
    lane = { parent: principalLane, caller, turns: new IndexedHeap<Turn>(arrivesBefore), heapIndex: -1 };
    principalLane.byCaller.set(caller, lane);
    caller.lanes.add(lane);
  }
  turn.lane = lane;
  lane.turns.push(turn);
  if (lane.heapIndex === -1) principalLane.lanes.push(lane);
  else principalLane.lanes.fix(lane);
  if (principalLane.heapIndex === -1) group.lanes.push(principalLane);
  else group.lanes.fix(principalLane);
}

/** Takes a held turn out of its group. */
export function leaveGroup(turn: Turn): void {
  const { lane } = turn;
  if (lane === undefined) return;
  const { parent } = lane;
  const { group } = parent;
  turn.lane = undefined;
  lane.turns.remove(turn);
  if (lane.turns.size === 0) {
    // The comparison looks at the first turn, which is gone: the empty lane is moved out by position alone.
    removeEmptyLane(lane);
  } else {
    parent.lanes.fix(lane);
    group.lanes.fix(parent);
  }
}

function removeEmptyLane(lane: CallerLane): void {
  const { parent, caller } = lane;
  const { group, principal } = parent;
  parent.lanes.remove(lane);
  parent.byCaller.delete(caller);
  caller.lanes.delete(lane);
  if (parent.lanes.size > 0) {
    group.lanes.fix(parent);
    return;
  }
  group.lanes.remove(parent);
  group.byPrincipal.delete(principal);
  principal.lanes.delete(parent);
}

/** Moves the lanes of a caller and its principal after their turns in flight changed. */
export function reorderLanes(caller: Caller): void {
  for (const lane of caller.lanes) lane.parent.lanes.fix(lane);
  for (const lane of caller.principal.lanes) lane.group.lanes.fix(lane);
}

/** Remembers the models of a replica, and which replicas a service may use. */
export function knowModels(state: SchedulerState, replica: Replica): void {
  for (const model of replica.models) {
    let known = state.knownModels.get(model);
    if (known === undefined) {
      known = new Set();
      state.knownModels.set(model, known);
    }
    known.add(replica);
  }
  linkServices(state);
}

/** Recomputes which replicas serve what, after models, APIs or the pool changed. */
export function linkServices(state: SchedulerState): void {
  const services = [...state.services.values()];
  for (const service of services) service.replicas = replicasOf(state, service);
  for (const replica of state.replicas.values()) {
    replica.services = services.filter((service) => service.replicas.includes(replica));
  }
}

/** Configured replicas that serve a model by an API, in the order of the config, healthy or not. */
function replicasOf(state: SchedulerState, service: { readonly model: string; readonly api: WireApi }): Replica[] {
  return [...state.replicas.values()].filter((replica) => serves(replica, service.model, service.api));
}

export function serves(replica: Replica, model: string, api: WireApi): boolean {
  if (!replica.configured || replica.config.kind !== "generative") return false;
  // Until its APIs are learned a replica counts as speaking chat only: every engine does.
  const speaks = replica.speaks === undefined ? api === "chat" : replica.speaks.includes(api);
  return speaks && replica.models.includes(model);
}

export function serviceFor(state: SchedulerState, model: string, api: WireApi): Service {
  const key = `${api}\n${model}`;
  let service = state.services.get(key);
  if (service === undefined) {
    service = {
      model,
      api,
      replicas: replicasOf(state, { model, api }),
      groups: { interactive: createGroup("interactive"), batch: createGroup("batch") },
    };
    state.services.set(key, service);
    for (const replica of service.replicas) replica.services.push(service);
  }
  return service;
}

/** The caller's record; made when it has no open turns. */
export function callerFor(state: SchedulerState, principalId: PrincipalId, callerId: CallerId): Caller {
  let principal = state.principals.get(principalId);
  if (principal === undefined) {
    const weight = state.config.principalWeights.find((row) => row.principal === principalId)?.weight ?? 1;
    principal = { id: principalId, weight, inFlight: 0, callers: new Map(), lanes: new Set() };
    state.principals.set(principalId, principal);
  }
  let caller = principal.callers.get(callerId);
  if (caller === undefined) {
    caller = { id: callerId, principal, inFlight: 0, held: 0, lanes: new Set() };
    principal.callers.set(callerId, caller);
  }
  return caller;
}

/** Forgets a caller without open turns: callers come and go, their number must not grow for ever. */
export function dropIdleCaller(state: SchedulerState, caller: Caller): void {
  if (caller.inFlight > 0 || caller.held > 0) return;
  caller.principal.callers.delete(caller.id);
  if (caller.principal.callers.size === 0) state.principals.delete(caller.principal.id);
}
