/**
 * The state of the scheduling core: replicas, runs, turns, callers and the groups of held turns.
 *
 * It is mutated in place, inside this folder only, behind the type of `decide`: at 100,000 runs a copy per event would
 * cost milliseconds. `test/scheduling/plain-classic.ts` is a plain version that is compared with it event by event.
 *
 * Invariants (docs/invariants.md; checked by invariants.ts):
 * I1: a turn is held, delayed or in flight, in exactly one place; what ended is nowhere.
 * I2: the counts in flight of replica, caller, principal and run are the number of their turns in flight.
 * I3: after every event no held turn fits anywhere.
 * I4: a held turn of a run that its policy binds to a replica stands in that replica's group, else in its service's.
 * I5: room is kept for exactly the interactive runs that are paused, without an open main turn, for less than the limit.
 * I6: every run is in the expiry list exactly once, quietest first.
 * I7: what is remembered is bounded: callers and principals without turns and runs are gone, keys are counted.
 */
import { IndexedHeap } from "../base/heap.ts";
import type { CallerId, DataplaneId, PrincipalId, ReplicaId, RunId, TurnId } from "../base/ids.ts";
import { invariant } from "../base/invariant.ts";
import { LinkedList, type ListLinks } from "../base/linked-list.ts";
import type { RunPhase, RunSource, ServiceClass } from "../wire/admission.ts";
import type { EngineKind, WireApi } from "../wire/endpoint.ts";
import type { LoadSample } from "../wire/load.ts";
import { createGroups } from "./groups.ts";
import { activeSetOf } from "./active-set-config.ts";
import { createLiveSet, type LiveSet, type Place } from "./live-set.ts";
import { createPlaces, type Places } from "./places.ts";
import { createRecognition, type Recognition } from "./recognition.ts";
import { knowModels } from "./services.ts";
import { inTokens, rest } from "./token-shares.ts";
import { TIERS } from "./tiers.ts";
import type { GapTable } from "./tool-gaps.ts";
import type { ReplicaConfig, SchedulingConfig } from "./types.ts";
import { createWithdrawals, type Urgent, type Withdrawals } from "./withdrawals.ts";

/** Until an engine has counted a prompt. English in JSON is near it. */
const BYTES_PER_TOKEN_AT_FIRST = 4;

export const CLASSES: readonly ServiceClass[] = ["interactive", "batch"];
export const PHASES: readonly RunPhase[] = ["held", "generating", "paused", "idle"];

export type Replica = {
  config: ReplicaConfig;
  /** Order in the config: the last tie-break of placement. */
  order: number;
  /** Still in the config. A replica that left is kept only by the turns in flight there. */
  configured: boolean;
  healthy: boolean;
  /** A probe of it has ended, well or not, since it was configured. Before, nobody can say which models it has. */
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
  /** In flight when the last poll was sent: the moment for which its sample speaks. */
  inFlightAtProbe: number;
  /** Last good sample; undefined: reports no load. */
  load: LoadSample | undefined;
  /** Probes in a row that told nothing about what waits in the engine. */
  loadFailures: number;
  /** Requests in the engine that are not ours, and the last surpluses from which they follow. */
  foreign: number;
  surpluses: readonly number[];
  /** Paused interactive runs for which room is kept here. */
  keptRoom: number;
  /** What it serves, of the services that were asked for. */
  services: Service[];
  /** Held turns that may go only here, by tier. */
  pinned: readonly Group[];
  /** Runs that hold a place here (policies with places), and what their prefixes fill. */
  live: LiveSet;
  /** Batch turns that can be taken back from here (policies that preempt). */
  withdrawals: Withdrawals;
};

/** Held turns of one tier that can go to the same replicas (groups.ts). */
export type Group = {
  readonly tier: number;
  readonly lanes: IndexedHeap<PrincipalLane>;
  readonly byPrincipal: Map<Principal, PrincipalLane>;
  readonly byCaller: Map<Caller, CallerLane>;
  /** Lanes whose keys are old. */
  readonly marked: PrincipalLane[];
};

export type PrincipalLane = {
  readonly group: Group;
  readonly principal: Principal;
  /** Key: the principal's share when the lane was put in its place. */
  share: number;
  /** Key, as of the principal. */
  waitingSince: number;
  readonly lanes: IndexedHeap<CallerLane>;
  readonly marked: CallerLane[];
  heapIndex: number;
};

export type CallerLane = {
  readonly parent: PrincipalLane;
  readonly caller: Caller;
  /** Key: the caller's share when the lane was put in its place. */
  share: number;
  /** Key, as of the caller. */
  waitingSince: number;
  readonly turns: IndexedHeap<Turn>;
  heapIndex: number;
};

/** The turns that ask for one model by one API, and the replicas that can serve them. */
export type Service = {
  readonly model: string;
  readonly api: WireApi;
  /** Configured replicas that serve it, healthy or not, in the order of the config. */
  replicas: readonly Replica[];
  /** Held turns that may go to any of them, by tier. */
  groups: readonly Group[];
};

export type Principal = {
  readonly id: PrincipalId;
  weight: number;
  inFlight: number;
  /** Turns in flight ÷ weight, or tokens ÷ weight (token-shares.ts). */
  share: number;
  /** What it was served, as worth at the epoch. */
  tokens: number;
  held: number;
  /** Number of admissions (in the whole pool) when it was last admitted, or when its held turns began. */
  waitingSince: number;
  /** Callers with open turns. */
  readonly callers: Map<CallerId, Caller>;
  readonly runs: Map<RunId, Run>;
  /** Number of its lanes, and those whose keys are of now. */
  lanes: number;
  readonly fresh: PrincipalLane[];
};

export type Caller = {
  readonly id: CallerId;
  readonly principal: Principal;
  inFlight: number;
  /** Turns in flight, or tokens. */
  share: number;
  /** As of the principal. */
  tokens: number;
  /** Since when it has no open turns, while it is remembered for its tokens. */
  quietMs: number;
  quietLinks: ListLinks<Caller> | undefined;
  held: number;
  /** As of the principal. */
  waitingSince: number;
  /** Number of its lanes, and those whose keys are of now. */
  lanes: number;
  readonly fresh: CallerLane[];
};

/** One object per run, kept small: there may be a million. */
export type Run = {
  readonly id: RunId;
  readonly principal: Principal;
  caller: CallerId;
  class: ServiceClass;
  /** What its last main turn left. */
  last: "paused" | "idle";
  /** Replica of the last admitted main turn; for a run that a weak key led here, a preference from the start. */
  replica: Replica | undefined;
  /** Turns in flight, side calls included. */
  flights: number;
  /** Held and delayed turns; replaced, never changed. */
  held: readonly Turn[];
  /** Main turns that are held, delayed or in flight. */
  mainOpen: number;
  turns: number;
  /** When a turn of it last began or ended. */
  lastMs: number;
  pausedMs: number;
  /** What a retry inherits from a turn that was abandoned or failed. */
  kept: KeptForRetry | undefined;
  /** What is known of its prompts; undefined: nothing, or the policy does not ask. */
  prompts: PromptMemory | undefined;
  place: Place | undefined;
  /** The runtime said that it ended; forgotten when the last open turn ends. */
  ended: boolean;
  forgotten: boolean;
  /** Where it is counted in `runCounts`; -1: not yet. */
  counted: number;
  expiryLinks: ListLinks<Run> | undefined;
  roomLinks: ListLinks<Run> | undefined;
};

/** What the last main turn of a run told of its prompts. */
export type PromptMemory = {
  /** Tokens of its last prompt, as its engine counted them. */
  promptTokens: number;
  /** Its last prompt and the answer to it: what its next prompt begins with. */
  contextTokens: number;
  promptBytes: number | undefined;
  prefixKey: string | undefined;
  /** The tool for whose result it is paused. */
  tool: string | undefined;
};

export type KeptForRetry = {
  readonly arrivalMs: number;
  readonly sinceMs: number;
  /** Its connection failed: another one first, if another fits. */
  readonly avoid: Replica | undefined;
  /** The arrival was taken over: only `avoid` still counts, for the turn that took it. */
  readonly taken: boolean;
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
  /** When it was admitted or its answer began: a sign of life besides being named. */
  aliveMs: number;
  /** Of its request; undefined where the dataplane does not tell. */
  readonly promptBytes: number | undefined;
  readonly prefixKey: string | undefined;
  readonly streams: boolean;
  /** Its prompt as estimated when it came (policies with places). */
  contextTokens: number;
  /** In flight: since when, and when its answer began; -1: not yet. */
  admittedMs: number;
  startedMs: number;
  /** Number of its admission, in the whole pool. */
  admission: number;
  /** What its engine probably has to compute of its prompt. */
  uncachedTokens: number;
  /** Times that it was taken back, and whether it is being asked back. */
  withdrawals: number;
  askedBack: boolean;
  /** Tokens that its caller was charged for it. */
  charged: number;
  unstartedLinks: ListLinks<Turn> | undefined;
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
  /** Turns that were admitted so far. */
  admissions: number;
  readonly replicas: Map<ReplicaId, Replica>;
  readonly services: Map<string, Service>;
  /** Models seen or configured, with the configured replicas that ever served them. */
  readonly knownModels: Map<string, Set<Replica>>;
  readonly turns: Map<TurnId, Turn>;
  /** Those with turns or runs. */
  readonly principals: Map<PrincipalId, Principal>;
  readonly dataplanes: Map<DataplaneId, Dataplane>;
  /** Pushed-back turns, by the time at which they are held again. */
  readonly delayed: IndexedHeap<Turn>;
  /** Every run by its last turn, quietest first. */
  readonly expiry: LinkedList<"expiryLinks", Run>;
  /** Paused interactive runs for which room is kept, longest paused first. */
  readonly room: LinkedList<"roomLinks", Run>;
  readonly recognition: Recognition;
  readonly places: Places;
  readonly gaps: GapTable;
  /** Interactive turns for which batch is kept off their replicas, the first one first. */
  /** Callers without open turns that are remembered for their tokens, quiet longest first. */
  readonly quietCallers: LinkedList<"quietLinks", Caller>;
  /** At which tokens are worth what was served. */
  epochMs: number;
  /** Mean length of an answer; 0: none was seen. */
  answerTokens: number;
  readonly urgent: LinkedList<"urgentLinks", Urgent>;
  /** What a token of a prompt weighs in a request's body, as learned. */
  bytesPerToken: number;
  /** Mean length of a run's first prompt; 0: none was seen. */
  firstPromptTokens: number;
  /** Runs by class and phase: index = class × 4 + phase. */
  readonly runCounts: number[];
  heldCount: number;
  flightCount: number;
  /** Replicas where a held turn may fit that did not fit before; empty between events. */
  readonly dirty: Set<Replica>;
};

/**
 * An empty scheduler: nothing is known of the replicas yet, all are unhealthy until their first good probe.
 * @param nowMs the host's monotonic clock, as in every event that follows.
 */
export function createState(config: SchedulingConfig, nowMs: number): SchedulerState {
  checkWeights(config);
  const state: SchedulerState = {
    config,
    nowMs,
    sequence: 0,
    admissions: 0,
    replicas: new Map(),
    services: new Map(),
    knownModels: new Map(),
    turns: new Map(),
    principals: new Map(),
    dataplanes: new Map(),
    delayed: new IndexedHeap<Turn>((a, b) =>
      a.notBeforeMs === b.notBeforeMs ? a.sequence < b.sequence : a.notBeforeMs < b.notBeforeMs,
    ),
    expiry: new LinkedList<"expiryLinks", Run>("expiryLinks"),
    room: new LinkedList<"roomLinks", Run>("roomLinks"),
    recognition: createRecognition(),
    places: createPlaces(),
    gaps: new Map(),
    quietCallers: new LinkedList<"quietLinks", Caller>("quietLinks"),
    epochMs: nowMs,
    answerTokens: 0,
    urgent: new LinkedList<"urgentLinks", Urgent>("urgentLinks"),
    bytesPerToken: BYTES_PER_TOKEN_AT_FIRST,
    firstPromptTokens: 0,
    runCounts: Array.from({ length: CLASSES.length * PHASES.length }, () => 0),
    heldCount: 0,
    flightCount: 0,
    dirty: new Set(),
  };
  for (const row of config.replicas) state.replicas.set(row.replica, createReplica(state, row, state.replicas.size));
  for (const replica of state.replicas.values()) knowModels(state, replica);
  return state;
}

/** The config's border checks weights with words; here they are a precondition of every comparison of shares. */
export function checkWeights(config: SchedulingConfig): void {
  for (const { principal, weight } of config.principalWeights) {
    invariant(
      weight > 0 && Number.isFinite(weight),
      `the weight of principal ${principal} must be above 0, not ${weight}`,
    );
  }
}

export function createReplica(
  state: { readonly config: SchedulingConfig },
  config: ReplicaConfig,
  order: number,
): Replica {
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
    pinned: createGroups(TIERS[state.config.policy]),
    live: createLiveSet(activeSetOf(state.config).limitAtFirst),
    withdrawals: createWithdrawals(),
  };
}

/** A principal's run, or undefined: another principal's run is simply unknown. */
export function runOf(state: SchedulerState, principal: PrincipalId, run: RunId): Run | undefined {
  return state.principals.get(principal)?.runs.get(run);
}

/** Every run, in no order that a decision may depend on. */
export function* allRuns(state: SchedulerState): Generator<Run> {
  for (const principal of state.principals.values()) yield* principal.runs.values();
}

export function principalFor(state: SchedulerState, id: PrincipalId): Principal {
  let principal = state.principals.get(id);
  if (principal === undefined) {
    principal = {
      id,
      weight: weightOf(state.config, id),
      inFlight: 0,
      share: 0,
      tokens: 0,
      held: 0,
      waitingSince: 0,
      callers: new Map(),
      runs: new Map(),
      lanes: 0,
      fresh: [],
    };
    state.principals.set(id, principal);
  }
  return principal;
}

export function weightOf(config: SchedulingConfig, id: PrincipalId): number {
  return config.principalWeights.find((row) => row.principal === id)?.weight ?? 1;
}

/** The caller's record; made when it has no open turns. */
export function callerFor(principal: Principal, id: CallerId): Caller {
  let caller = principal.callers.get(id);
  if (caller === undefined) {
    caller = {
      id,
      principal,
      inFlight: 0,
      share: 0,
      tokens: 0,
      quietMs: 0,
      quietLinks: undefined,
      held: 0,
      waitingSince: 0,
      lanes: 0,
      fresh: [],
    };
    principal.callers.set(id, caller);
  }
  return caller;
}

/** Forgets a caller without open turns: callers come and go, their number must not grow for ever (I7). */
export function dropIdleCaller(state: SchedulerState, caller: Caller): void {
  if (caller.inFlight > 0 || caller.held > 0) return;
  if (caller.tokens > 0 && inTokens(state.config)) {
    if (!state.quietCallers.has(caller)) rest(state, caller);
    return;
  }
  caller.principal.callers.delete(caller.id);
  dropIdlePrincipal(state, caller.principal);
}

export function dropIdlePrincipal(state: SchedulerState, principal: Principal): void {
  if (principal.callers.size === 0 && principal.runs.size === 0) state.principals.delete(principal.id);
}

/** The dataplane's record; one that speaks before its hello counts as linked. */
export function dataplaneFor(state: SchedulerState, id: DataplaneId): Dataplane {
  let dataplane = state.dataplanes.get(id);
  if (dataplane === undefined) {
    dataplane = { id, linked: true, lostMs: 0, namedMs: state.nowMs, turns: new Map() };
    state.dataplanes.set(id, dataplane);
  }
  return dataplane;
}

/** What a run does now (spec 1, States). */
export function phaseOf(run: Run): RunPhase {
  if (run.flights > 0) return "generating";
  if (run.held.length > 0) return "held";
  return run.last;
}
