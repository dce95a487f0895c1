/**
 * The whole state as plain JSON and back: the start of an event log (spec 2, Event log). Derived structures (groups,
 * counts, services' replicas) are not written: they follow from turns and runs. What stands at its default is left out,
 * since most runs are quiet.
 *
 * Order counts where decisions may depend on it: replicas as in the config, turns as asked for, runs by their expiry, kept
 * room by its pauses, keys by their age.
 */
import { asCallerId, asDataplaneId, asPrincipalId, asRunId, type ReplicaId, type TurnId } from "../base/ids.ts";
import { invariant } from "../base/invariant.ts";
import type { RunSource, ServiceClass } from "../wire/admission.ts";
import type { EngineKind, WireApi } from "../wire/endpoint.ts";
import type { LoadSample } from "../wire/load.ts";
import { addTurn, countHeld, createRun, fly, hold, recount, type Step } from "./book.ts";
import { addToSums, type LiveSet, type Place } from "./live-set.ts";
import { policyNamed } from "./policies.ts";
import { addEntry, type KeyTable } from "./recognition.ts";
import { linkServices, serviceFor } from "./services.ts";
import {
  callerFor,
  createReplica,
  createState,
  dataplaneFor,
  principalFor,
  type Caller,
  type PromptMemory,
  type Replica,
  type Run,
  type SchedulerState,
  type Turn,
  type TurnState,
} from "./state.ts";
import { setAllShares } from "./token-shares.ts";
import type { ToolGaps } from "./tool-gaps.ts";
import type { ReplicaConfig, SchedulingConfig } from "./types.ts";
import type { Urgent, Withdrawals } from "./withdrawals.ts";

type FrozenReplica = {
  readonly config: ReplicaConfig;
  readonly order: number;
  readonly configured: boolean;
  readonly healthy: boolean;
  readonly probed: boolean;
  readonly engine: EngineKind;
  readonly models: readonly string[];
  readonly speaks?: readonly WireApi[];
  readonly cap?: number;
  readonly quietProbes: number;
  readonly inFlightAtProbe: number;
  readonly load?: LoadSample;
  readonly loadFailures: number;
  readonly foreign: number;
  readonly surpluses: readonly number[];
  readonly live: FrozenLiveSet;
  readonly withdrawals: Pick<Withdrawals, "leaving" | "leavingAtProbe" | "probesUnheeded" | "ignoresAborts">;
};

/** What a replica has shown; who is live follows from the places. */
type FrozenLiveSet = {
  readonly poolTokens?: number;
  readonly seesCached: boolean;
  readonly limit: number;
  readonly limitCutMs: number;
  readonly prefillRate: number;
  readonly shared: readonly (readonly [string, number])[];
};

type FrozenPlace = Omit<
  Place,
  "run" | "replica" | "heapIndex" | "betweenLinks" | "yieldLinks" | "prefixKey" | "sharedKey"
> & {
  /** Index in `runs`. */
  readonly run: number;
  readonly replica: ReplicaId;
  readonly prefixKey?: string;
  readonly sharedKey?: string;
};

type FrozenRun = {
  readonly id: string;
  readonly principal: string;
  readonly caller: string;
  readonly class: ServiceClass;
  readonly last?: "paused";
  readonly replica?: ReplicaId;
  readonly turns: number;
  readonly lastMs: number;
  readonly pausedMs?: number;
  readonly kept?: {
    readonly arrivalMs: number;
    readonly sinceMs: number;
    readonly avoid?: ReplicaId;
    readonly taken: boolean;
  };
  readonly prompts?: PromptMemory;
  readonly ended?: true;
};

type FrozenTurn = {
  readonly id: TurnId;
  readonly dataplane: string;
  /** Index in `runs`. */
  readonly run: number;
  readonly caller: string;
  readonly class: ServiceClass;
  readonly model: string;
  readonly api: WireApi;
  readonly side: boolean;
  readonly source: RunSource;
  readonly arrivalMs: number;
  readonly sequence: number;
  readonly state: TurnState;
  readonly notBeforeMs: number;
  readonly replica?: ReplicaId;
  readonly aliveMs: number;
  readonly promptBytes?: number;
  readonly prefixKey?: string;
  readonly streams: boolean;
  readonly contextTokens: number;
  readonly admittedMs: number;
  readonly startedMs: number;
  readonly admission: number;
  readonly uncachedTokens: number;
  readonly withdrawals: number;
  readonly askedBack: boolean;
  readonly charged: number;
};

/** Hash, the runs that left it (indexes in `runs`; a forgotten one is left out), whether more did, when. */
type FrozenKey = readonly [string, readonly number[], boolean, number];

export type FrozenState = {
  readonly config: SchedulingConfig;
  readonly nowMs: number;
  readonly sequence: number;
  readonly admissions: number;
  /** Who has held turns, and since when: principal, its number of admissions, its callers with theirs. */
  readonly waiting: readonly (readonly [string, number, readonly (readonly [string, number])[]])[];
  readonly replicas: readonly FrozenReplica[];
  readonly known: readonly (readonly [string, readonly ReplicaId[]])[];
  readonly services: readonly (readonly [string, WireApi])[];
  readonly runs: readonly FrozenRun[];
  /** Indexes in `runs`. */
  readonly room: readonly number[];
  readonly turns: readonly FrozenTurn[];
  readonly dataplanes: readonly {
    readonly id: string;
    readonly linked: boolean;
    readonly lostMs: number;
    readonly namedMs: number;
  }[];
  /** By their grants. */
  readonly places: readonly FrozenPlace[];
  readonly granted: number;
  readonly stamps: number;
  readonly gaps: readonly (readonly [string, ToolGaps])[];
  /** What was served: principal, its tokens, its callers with theirs; those with none are left out. */
  readonly served: readonly (readonly [string, number, readonly (readonly [string, number])[]])[];
  /** Callers without open turns that are remembered: principal, caller, since when. */
  readonly quiet: readonly (readonly [string, string, number])[];
  readonly epochMs: number;
  readonly answerTokens: number;
  /** Turn, and until when batch is kept off its replica for it. */
  readonly urgent: readonly (readonly [TurnId, number])[];
  readonly bytesPerToken: number;
  readonly firstPromptTokens: number;
  readonly keys: { readonly strong: readonly FrozenKey[]; readonly weak: readonly FrozenKey[] };
};

export function freeze(state: SchedulerState): FrozenState {
  const runs: Run[] = [];
  for (let run = state.expiry.first; run !== undefined; run = state.expiry.next(run)) runs.push(run);
  const index = new Map(runs.map((run, at) => [run, at]));
  const indexOf = (run: Run): number => {
    const at = index.get(run);
    invariant(at !== undefined, `run ${run.id} is in the expiry list`);
    return at;
  };
  const room: number[] = [];
  for (let run = state.room.first; run !== undefined; run = state.room.next(run)) room.push(indexOf(run));
  return {
    config: state.config,
    nowMs: state.nowMs,
    sequence: state.sequence,
    admissions: state.admissions,
    waiting: freezeWaiting(state),
    replicas: [...state.replicas.values()].map(freezeReplica),
    known: [...state.knownModels].map(([model, set]) => [model, [...set].map((replica) => replica.config.replica)]),
    services: [...state.services.values()].map(({ model, api }) => [model, api]),
    runs: runs.map(freezeRun),
    room,
    turns: [...state.turns.values()].map((turn) => freezeTurn(turn, indexOf(turn.run))),
    dataplanes: [...state.dataplanes.values()].map(({ turns, ...rest }) => rest),
    places: placesOf(runs).map((place) => freezePlace(place, indexOf(place.run))),
    granted: state.places.granted,
    stamps: state.places.stamps,
    gaps: [...state.gaps].map(([tool, gaps]) => [tool, { ...gaps, lastMs: [...gaps.lastMs] }]),
    served: freezeServed(state),
    quiet: quietOnes(state).map(({ principal, id, quietMs }) => [principal.id, id, quietMs]),
    epochMs: state.epochMs,
    answerTokens: state.answerTokens,
    urgent: listed(state.urgent).map(({ turn, untilMs }) => [turn.id, untilMs]),
    bytesPerToken: state.bytesPerToken,
    firstPromptTokens: state.firstPromptTokens,
    keys: {
      strong: freezeKeys(state.recognition.strong, indexOf),
      weak: freezeKeys(state.recognition.weak, indexOf),
    },
  };
}

function freezeWaiting(state: SchedulerState): FrozenState["waiting"] {
  return byId(state.principals.values()).map(({ id, waitingSince, callers }) => [
    id,
    waitingSince,
    byId(callers.values()).map((caller) => [caller.id, caller.waitingSince]),
  ]);
}

/** Those with held turns; sorted, since the order in which they came into being is not kept. */
function byId<Waiting extends { readonly id: string; readonly held: number }>(all: Iterable<Waiting>): Waiting[] {
  return sortById([...all].filter(({ held }) => held > 0));
}

function freezeServed(state: SchedulerState): FrozenState["served"] {
  const served = [...state.principals.values()].filter(({ tokens }) => tokens > 0);
  return sortById(served).map(({ id, tokens, callers }) => [
    id,
    tokens,
    sortById([...callers.values()].filter((caller) => caller.tokens > 0)).map((caller) => [caller.id, caller.tokens]),
  ]);
}

function sortById<Named extends { readonly id: string }>(all: Named[]): Named[] {
  return all.sort((a, b) => (a.id < b.id ? -1 : 1));
}

function quietOnes({ quietCallers }: SchedulerState): Caller[] {
  const all: Caller[] = [];
  for (let caller = quietCallers.first; caller !== undefined; caller = quietCallers.next(caller)) all.push(caller);
  return all;
}

function listed(list: SchedulerState["urgent"]): Urgent[] {
  const all: Urgent[] = [];
  for (let urgent = list.first; urgent !== undefined; urgent = list.next(urgent)) all.push(urgent);
  return all;
}

function placesOf(runs: readonly Run[]): Place[] {
  const places = runs.map((run) => run.place).filter((place) => place !== undefined);
  return places.sort((a, b) => a.sequence - b.sequence);
}

function freezePlace(place: Place, run: number): FrozenPlace {
  const { run: _run, replica, heapIndex, betweenLinks, yieldLinks, prefixKey, sharedKey, ...rest } = place;
  return {
    ...rest,
    run,
    replica: replica.config.replica,
    ...(prefixKey === undefined ? {} : { prefixKey }),
    ...(sharedKey === undefined ? {} : { sharedKey }),
  };
}

function freezeLiveSet(live: LiveSet): FrozenLiveSet {
  const { poolTokens, seesCached, limit, limitCutMs, prefillRate, shared } = live;
  return {
    ...(poolTokens === undefined ? {} : { poolTokens }),
    seesCached,
    limit,
    limitCutMs,
    prefillRate,
    shared: [...shared].map(([key, { tokens }]) => [key, tokens]),
  };
}

function freezeReplica(replica: Replica): FrozenReplica {
  const { pinned, services, keptRoom, inFlight, speaks, cap, load, live, withdrawals, ...rest } = replica;
  const { unstarted, urgent, ...counted } = withdrawals;
  return {
    ...rest,
    live: freezeLiveSet(live),
    withdrawals: counted,
    ...(speaks === undefined ? {} : { speaks }),
    ...(cap === undefined ? {} : { cap }),
    ...(load === undefined ? {} : { load }),
  };
}

function freezeRun(run: Run): FrozenRun {
  const { kept, replica, prompts } = run;
  return {
    id: run.id,
    principal: run.principal.id,
    caller: run.caller,
    class: run.class,
    ...(run.last === "paused" ? { last: run.last } : {}),
    ...(replica === undefined ? {} : { replica: replica.config.replica }),
    turns: run.turns,
    lastMs: run.lastMs,
    ...(run.pausedMs === 0 ? {} : { pausedMs: run.pausedMs }),
    ...(kept === undefined
      ? {}
      : {
          kept: {
            arrivalMs: kept.arrivalMs,
            sinceMs: kept.sinceMs,
            ...(kept.avoid === undefined ? {} : { avoid: kept.avoid.config.replica }),
            taken: kept.taken,
          },
        }),
    ...(prompts === undefined ? {} : { prompts: { ...prompts } }),
    ...(run.ended ? { ended: true } : {}),
  };
}

function freezeTurn(turn: Turn, run: number): FrozenTurn {
  const { dataplane, run: _run, caller, lane, heapIndex, replica, promptBytes, prefixKey, ...others } = turn;
  const { unstartedLinks, ...rest } = others;
  return {
    ...rest,
    ...(promptBytes === undefined ? {} : { promptBytes }),
    ...(prefixKey === undefined ? {} : { prefixKey }),
    dataplane: dataplane.id,
    run,
    caller: caller.id,
    ...(replica === undefined ? {} : { replica: replica.config.replica }),
  };
}

function freezeKeys(table: KeyTable, indexOf: (run: Run) => number): FrozenKey[] {
  const keys: FrozenKey[] = [];
  for (let entry = table.byAge.first; entry !== undefined; entry = table.byAge.next(entry)) {
    const owners = [entry.first, entry.second].filter((run) => run !== undefined && !run.forgotten);
    // A key of forgotten runs answers nothing and is only waiting to be dropped, but it counts towards the bound.
    keys.push([entry.hash, owners.map((run) => indexOf(run as Run)), entry.many, entry.atMs]);
  }
  return keys;
}

/**
 * Rebuilds a state that decides exactly as the frozen one; `freeze(thaw(x))` equals `x`.
 * @throws InvariantViolation when the text was not made by `freeze`.
 */
export function thaw(frozen: FrozenState): SchedulerState {
  const state = createState({ ...frozen.config, replicas: [] }, frozen.nowMs);
  state.config = frozen.config;
  thawPool(state, frozen);
  const replicaOf = (id: ReplicaId | undefined): Replica | undefined =>
    id === undefined ? undefined : state.replicas.get(id);
  const step: Step = { state, policy: policyNamed(state.config.policy), effects: [], bulk: true };
  const runs = frozen.runs.map((row) => thawRun(state, row, replicaOf));
  const runAt = (at: number): Run => {
    const run = runs[at];
    invariant(run, `frozen state names run ${at} of ${runs.length}`);
    return run;
  };
  for (const row of frozen.dataplanes) Object.assign(dataplaneFor(state, asDataplaneId(row.id)), row);
  // Those in flight first: they decide to which groups held turns of their runs belong.
  const turns = frozen.turns.map((row) => thawTurn(state, row, runAt(row.run)));
  for (const turn of turns) addTurn(state, turn);
  for (const [at, row] of frozen.turns.entries()) {
    const replica = replicaOf(row.replica);
    const turn = turns[at];
    if (turn?.state !== "flight") continue;
    invariant(replica, `turn ${row.id} in flight names its replica`);
    fly(step, turn, replica);
    turn.aliveMs = row.aliveMs;
    turn.admittedMs = row.admittedMs;
    turn.startedMs = row.startedMs;
    turn.admission = row.admission;
  }
  // Before the held turns: a place decides in which tier they stand.
  thawServed(state, frozen);
  thawPlaces(state, frozen, { runAt, replicaOf });
  thawWithdrawals(state, frozen);
  for (const turn of turns) if (turn.state !== "flight") countHeld(state, turn);
  thawWaiting(state, frozen.waiting);
  // Only when all keys are those of then, turns take their places by them.
  for (const turn of turns) if (turn.state !== "flight") thawHeld(step, turn);
  for (const at of frozen.room) {
    const run = runAt(at);
    state.room.append(run);
    if (run.replica !== undefined) run.replica.keptRoom += 1;
  }
  // Flying touched the runs: their times and their order are written again.
  for (const [at, row] of frozen.runs.entries()) {
    const run = runAt(at);
    run.lastMs = row.lastMs;
    state.expiry.touch(run);
  }
  thawKeys(state.recognition.strong, frozen.keys.strong, runAt);
  thawKeys(state.recognition.weak, frozen.keys.weak, runAt);
  for (const [tool, gaps] of frozen.gaps) state.gaps.set(tool, { ...gaps, lastMs: [...gaps.lastMs] });
  state.bytesPerToken = frozen.bytesPerToken;
  state.firstPromptTokens = frozen.firstPromptTokens;
  state.sequence = frozen.sequence;
  state.admissions = frozen.admissions;
  state.dirty.clear();
  return state;
}

function thawPool(state: SchedulerState, frozen: FrozenState): void {
  for (const row of frozen.replicas) {
    const replica = createReplica(state, row.config, row.order);
    const { live, withdrawals, ...rest } = row;
    Object.assign(replica, rest, { speaks: row.speaks, cap: row.cap, load: row.load });
    Object.assign(replica.withdrawals, withdrawals);
    const { shared, ...shown } = live;
    Object.assign(replica.live, shown);
    for (const [key, tokens] of shared) replica.live.shared.set(key, { tokens, runs: 0 });
    state.replicas.set(row.config.replica, replica);
  }
  for (const [model, ids] of frozen.known) {
    const replicas = ids.map((id) => state.replicas.get(id)).filter((replica) => replica !== undefined);
    state.knownModels.set(model, new Set(replicas));
  }
  for (const [model, api] of frozen.services) serviceFor(state, model, api);
  linkServices(state);
}

function thawRun(
  state: SchedulerState,
  row: FrozenRun,
  replicaOf: (id: ReplicaId | undefined) => Replica | undefined,
): Run {
  const about = { principal: asPrincipalId(row.principal), caller: asCallerId(row.caller), class: row.class };
  const run = createRun(state, about, asRunId(row.id));
  run.last = row.last ?? "idle";
  run.replica = replicaOf(row.replica);
  run.turns = row.turns;
  run.lastMs = row.lastMs;
  run.pausedMs = row.pausedMs ?? 0;
  run.kept = row.kept === undefined ? undefined : { ...row.kept, avoid: replicaOf(row.kept.avoid) };
  run.prompts = row.prompts === undefined ? undefined : thawPrompts(row.prompts);
  run.ended = row.ended ?? false;
  recount(state, run);
  return run;
}

function thawTurn(state: SchedulerState, row: FrozenTurn, run: Run): Turn {
  return {
    id: row.id,
    dataplane: dataplaneFor(state, asDataplaneId(row.dataplane)),
    run,
    caller: callerFor(principalFor(state, run.principal.id), asCallerId(row.caller)),
    class: row.class,
    model: row.model,
    api: row.api,
    side: row.side,
    source: row.source,
    arrivalMs: row.arrivalMs,
    sequence: row.sequence,
    state: row.state,
    lane: undefined,
    heapIndex: -1,
    notBeforeMs: row.notBeforeMs,
    replica: undefined,
    aliveMs: row.aliveMs,
    promptBytes: row.promptBytes,
    prefixKey: row.prefixKey,
    streams: row.streams,
    contextTokens: row.contextTokens,
    admittedMs: row.admittedMs,
    startedMs: row.startedMs,
    admission: row.admission,
    uncachedTokens: row.uncachedTokens,
    withdrawals: row.withdrawals,
    askedBack: row.askedBack,
    charged: row.charged,
    unstartedLinks: undefined,
  };
}

/** Before turns take their places by the shares. */
function thawServed(state: SchedulerState, frozen: FrozenState): void {
  for (const [id, tokens, callers] of frozen.served) {
    const principal = principalFor(state, asPrincipalId(id));
    principal.tokens = tokens;
    for (const [caller, of] of callers) callerFor(principal, asCallerId(caller)).tokens = of;
  }
  for (const [principal, id, quietMs] of frozen.quiet) {
    const caller = callerFor(principalFor(state, asPrincipalId(principal)), asCallerId(id));
    caller.quietMs = quietMs;
    state.quietCallers.append(caller);
  }
  state.epochMs = frozen.epochMs;
  state.answerTokens = frozen.answerTokens;
  setAllShares(state);
}

function thawWithdrawals(state: SchedulerState, frozen: FrozenState): void {
  const { policy } = state.config;
  const waiting = [...state.turns.values()].filter(
    ({ state: where, class: served, startedMs }) => where === "flight" && served === "batch" && startedMs < 0,
  );
  waiting.sort((a, b) => a.admission - b.admission || a.sequence - b.sequence);
  for (const turn of policy === "active-set" ? waiting : []) turn.replica?.withdrawals.unstarted.append(turn);
  for (const [id, untilMs] of frozen.urgent) {
    const turn = state.turns.get(id);
    invariant(turn?.replica, `urgent turn ${id} is in flight`);
    const urgent: Urgent = { replica: turn.replica, turn, untilMs, urgentLinks: undefined };
    turn.replica.withdrawals.urgent = urgent;
    state.urgent.append(urgent);
  }
}

/** JSON leaves out what is undefined. */
function thawPrompts({ promptTokens, contextTokens, promptBytes, prefixKey, tool }: PromptMemory): PromptMemory {
  return { promptTokens, contextTokens, promptBytes, prefixKey, tool };
}

type Lookup = {
  readonly runAt: (at: number) => Run;
  readonly replicaOf: (id: ReplicaId | undefined) => Replica | undefined;
};

function thawPlaces(state: SchedulerState, frozen: FrozenState, { runAt, replicaOf }: Lookup): void {
  const thawed = frozen.places.map((row) => {
    const replica = replicaOf(row.replica);
    invariant(replica, `a place names its replica ${row.replica}`);
    const run = runAt(row.run);
    const links = { heapIndex: -1, betweenLinks: undefined, yieldLinks: undefined };
    const place: Place = { ...row, run, replica, prefixKey: row.prefixKey, sharedKey: row.sharedKey, ...links };
    run.place = place;
    addToSums(place);
    return place;
  });
  const resting = thawed.filter((place) => place.phase !== "busy");
  for (const place of resting.toSorted((a, b) => a.restedStamp - b.restedStamp)) {
    place.replica.live.between.append(place);
    if (place.phase === "between") state.places.due.push(place);
  }
  for (const place of resting.toSorted((a, b) => a.yieldStamp - b.yieldStamp)) {
    if (place.phase === "yieldable") place.replica.live.yieldable.append(place);
  }
  state.places.granted = frozen.granted;
  state.places.stamps = frozen.stamps;
}

function thawWaiting(state: SchedulerState, waiting: FrozenState["waiting"]): void {
  for (const [id, waitingSince, callers] of waiting) {
    const principal = principalFor(state, asPrincipalId(id));
    principal.waitingSince = waitingSince;
    for (const [caller, since] of callers) callerFor(principal, asCallerId(caller)).waitingSince = since;
  }
}

function thawHeld(step: Step, turn: Turn): void {
  recount(step.state, turn.run);
  if (turn.state === "delayed") step.state.delayed.push(turn);
  else hold(step, turn);
}

function thawKeys(table: KeyTable, keys: readonly FrozenKey[], runAt: (at: number) => Run): void {
  for (const [hash, owners, many, atMs] of keys) {
    const [first, second] = owners.map(runAt);
    addEntry(table, { hash, first, second, many, atMs });
  }
}
