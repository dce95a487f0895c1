/** State as people and dataplanes see it: status, views of replicas, runs and turns. Plain JSON data, bounded in size. */
import type { DataplaneId, PrincipalId, ReplicaId, RunId, TurnId } from "../base/ids.ts";
import type { ReplicaView, RunPhase, RunSource, RunView, ServiceClass } from "../wire/admission.ts";
import { holdReason } from "./explain.ts";
import { policyNamed } from "./policies.ts";
import { keyCount } from "./recognition.ts";
import { CLASSES, PHASES, phaseOf, runOf, type Replica, type SchedulerState, type Turn } from "./state.ts";

/** Callers listed one by one in a status; the rest is summed. */
const CALLERS_LISTED_MAX = 50;

export type ReplicaStatus = {
  readonly replica: ReplicaId;
  readonly kind: string;
  readonly engine: string;
  readonly healthy: boolean;
  /** False: it left the config and only its turns in flight are still counted. */
  readonly configured: boolean;
  readonly models: readonly string[];
  readonly turnsInFlight: number;
  /** Held turns that may go only here. */
  readonly heldPinned: number;
  /** Bound that counts now; null: open. */
  readonly limit: number | null;
  readonly cap: number | null;
  readonly maxInFlight: number | null;
  readonly keptRoom: number;
  readonly foreignLoad: number;
  readonly reportsLoad: boolean;
  readonly engineRunning: number | null;
  readonly engineWaiting: number | null;
  readonly kvUsage: number | null;
  readonly cacheHitRate: number | null;
};

export type HeldStatus = {
  readonly class: ServiceClass;
  readonly principal: PrincipalId;
  readonly caller: string;
  readonly turns: number;
  readonly longestHeldMs: number;
  /** Why the longest held one is held. */
  readonly why: string;
};

export type HeldTotal = { readonly turns: number; readonly longestHeldMs: number };

export type SchedulerStatus = {
  readonly policy: string;
  readonly capRelease: string;
  readonly replicas: readonly ReplicaStatus[];
  /** By class, principal and caller, longest held first. */
  readonly held: readonly HeldStatus[];
  /** Held turns of callers that are not listed. */
  readonly heldElsewhere: number;
  /** All held turns, listed or not. */
  readonly heldByClass: { readonly [Class in ServiceClass]: HeldTotal };
  readonly turns: { readonly held: number; readonly inFlight: number };
  readonly runCounts: { readonly [Class in ServiceClass]: { readonly [Phase in RunPhase]: number } };
  readonly identityKeys: number;
  readonly dataplanes: readonly { readonly dataplane: DataplaneId; readonly linked: boolean; readonly turns: number }[];
};

/** The whole state for `GET /status`: costs a pass over the held turns, none over the runs. */
export function snapshot(state: SchedulerState): SchedulerStatus {
  const held = heldByCaller(state);
  return {
    policy: state.config.policy,
    capRelease: state.config.capRelease,
    replicas: [...state.replicas.values()].map((replica) => replicaStatus(state, replica)),
    held: held.slice(0, CALLERS_LISTED_MAX).map((row) => heldStatus(state, row)),
    heldElsewhere: held.slice(CALLERS_LISTED_MAX).reduce((sum, row) => sum + row.turns, 0),
    heldByClass: { interactive: totalOf(state, held, "interactive"), batch: totalOf(state, held, "batch") },
    turns: { held: state.heldCount, inFlight: state.flightCount },
    runCounts: { interactive: countsOf(state, "interactive"), batch: countsOf(state, "batch") },
    identityKeys: keyCount(state.recognition),
    dataplanes: [...state.dataplanes.values()].map(({ id, linked, turns }) => ({
      dataplane: id,
      linked,
      turns: turns.size,
    })),
  };
}

function replicaStatus(state: SchedulerState, replica: Replica): ReplicaStatus {
  const { config, load } = replica;
  let heldPinned = 0;
  for (const group of replica.pinned) {
    for (const principal of group.lanes.items) for (const lane of principal.lanes.items) heldPinned += lane.turns.size;
  }
  return {
    replica: config.replica,
    kind: config.kind,
    engine: replica.engine,
    healthy: replica.healthy,
    configured: replica.configured,
    models: replica.models,
    turnsInFlight: replica.inFlight,
    heldPinned,
    limit: policyNamed(state.config.policy).limit(replica) ?? null,
    cap: replica.cap ?? null,
    maxInFlight: config.maxInFlight ?? null,
    keptRoom: replica.keptRoom,
    foreignLoad: replica.foreign,
    reportsLoad: reportsLoad(replica),
    engineRunning: load?.running ?? null,
    engineWaiting: load?.waiting ?? null,
    kvUsage: load?.kvUsage ?? null,
    cacheHitRate: load?.cacheHitRate ?? null,
  };
}

/** What waits in the engine is the signal by which it is capped; without it there is no load to read. */
function reportsLoad(replica: Replica): boolean {
  return replica.load?.waiting !== undefined;
}

type HeldRow = { turns: number; longest: Turn };

/** Rows by class, principal and caller, the longest held first. */
function heldByCaller(state: SchedulerState): HeldRow[] {
  const rows = new Map<string, HeldRow>();
  for (const turn of state.turns.values()) {
    if (turn.state === "flight") continue;
    const key = `${turn.class}\n${turn.caller.principal.id}\n${turn.caller.id}`;
    const row = rows.get(key);
    if (row === undefined) rows.set(key, { turns: 1, longest: turn });
    else {
      row.turns += 1;
      if (turn.arrivalMs < row.longest.arrivalMs) row.longest = turn;
    }
  }
  return [...rows.values()].sort(
    (a, b) => a.longest.arrivalMs - b.longest.arrivalMs || a.longest.sequence - b.longest.sequence,
  );
}

/** Rows come with the longest held first. */
function totalOf(state: SchedulerState, rows: readonly HeldRow[], serviceClass: ServiceClass): HeldTotal {
  const mine = rows.filter((row) => row.longest.class === serviceClass);
  const first = mine[0]?.longest;
  return {
    turns: mine.reduce((sum, row) => sum + row.turns, 0),
    longestHeldMs: first === undefined ? 0 : Math.round(state.nowMs - first.arrivalMs),
  };
}

function heldStatus(state: SchedulerState, { turns, longest }: HeldRow): HeldStatus {
  return {
    class: longest.class,
    principal: longest.caller.principal.id,
    caller: longest.caller.id,
    turns,
    longestHeldMs: Math.round(state.nowMs - longest.arrivalMs),
    why: holdReason(state, longest),
  };
}

function countsOf(state: SchedulerState, serviceClass: ServiceClass): { [Phase in RunPhase]: number } {
  const counts = { held: 0, generating: 0, paused: 0, idle: 0 };
  const base = CLASSES.indexOf(serviceClass) * PHASES.length;
  for (const [at, phase] of PHASES.entries()) counts[phase] = state.runCounts[base + at] ?? 0;
  return counts;
}

/** What is known of a principal's run, or undefined: another principal's run is unknown. */
export function runView(state: SchedulerState, principal: PrincipalId, id: RunId): RunView | undefined {
  const run = runOf(state, principal, id);
  if (run === undefined) return undefined;
  return {
    run: run.id,
    class: run.class,
    caller: run.caller,
    phase: phaseOf(run),
    replica: run.replica?.config.replica,
    heldTurns: run.held.length,
    turnsInFlight: run.flights,
    turns: run.turns,
    quietMs: Math.round(state.nowMs - run.lastMs),
  };
}

/** As which run an open turn was recognised, and by which rule; undefined when the turn is not open. */
export function runOfTurn(
  state: SchedulerState,
  id: TurnId,
): { readonly run: RunId; readonly source: RunSource } | undefined {
  const turn = state.turns.get(id);
  return turn === undefined ? undefined : { run: turn.run.id, source: turn.source };
}

/** The pool as a dataplane needs it. */
export function replicaViews(state: SchedulerState): ReplicaView[] {
  return [...state.replicas.values()]
    .filter((replica) => replica.configured)
    .map((replica) => ({
      replica: replica.config.replica,
      kind: replica.config.kind,
      engine: replica.engine,
      healthy: replica.healthy,
      probed: replica.probed,
      models: replica.models,
      speaks: replica.speaks ?? ["chat"],
      reportsLoad: reportsLoad(replica),
    }));
}
