/** State as people and dataplanes see it: status, views of replicas and runs. Plain JSON data, bounded in size. */
import type { PrincipalId, RunId, TurnId } from "../base/ids.ts";
import type { ReplicaView, RunPhase, RunSource, RunView, ServiceClass } from "../wire/admission.ts";
import { policyOf } from "./decide.ts";
import { holdReason } from "./explain.ts";
import { runKey, type Replica, type Run, type SchedulerState, type Turn } from "./state.ts";

/** Callers listed one by one in a status; the rest is summed. */
const CALLERS_LISTED_MAX = 50;

export type ReplicaStatus = {
  readonly replica: string;
  readonly kind: string;
  readonly engine: string;
  readonly healthy: boolean;
  readonly models: readonly string[];
  readonly turnsInFlight: number;
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
  readonly principal: string;
  readonly caller: string;
  readonly turns: number;
  readonly longestHeldMs: number;
  /** Why the longest held one is held. */
  readonly why: string;
};

export type SchedulerStatus = {
  readonly policy: string;
  readonly capRelease: string;
  readonly replicas: readonly ReplicaStatus[];
  readonly held: readonly HeldStatus[];
  /** Held turns of callers that are not listed. */
  readonly heldElsewhere: number;
  readonly turns: { readonly held: number; readonly inFlight: number };
  readonly runCounts: { readonly [Class in ServiceClass]: { readonly [Phase in RunPhase]: number } };
  readonly identityKeys: number;
  readonly dataplanes: readonly { readonly dataplane: string; readonly linked: boolean; readonly turns: number }[];
};

export function snapshot(state: SchedulerState): SchedulerStatus {
  const held = heldByCaller(state);
  const listed = held.slice(0, CALLERS_LISTED_MAX);
  return {
    policy: state.config.policy,
    capRelease: state.config.capRelease,
    replicas: [...state.replicas.values()].map((replica) => replicaStatus(state, replica)),
    held: listed,
    heldElsewhere: held.slice(CALLERS_LISTED_MAX).reduce((sum, row) => sum + row.turns, 0),
    turns: { held: state.heldCount, inFlight: state.flightCount },
    runCounts: countRuns(state),
    identityKeys: state.recognition.entries.size,
    dataplanes: [...state.dataplanes.values()].map(({ id, linked, turns }) => ({
      dataplane: id,
      linked,
      turns: turns.size,
    })),
  };
}

function replicaStatus(state: SchedulerState, replica: Replica): ReplicaStatus {
  const { config, load } = replica;
  return {
    replica: config.replica,
    kind: config.kind,
    engine: replica.engine,
    healthy: replica.healthy,
    models: replica.models,
    turnsInFlight: replica.inFlight,
    limit: policyOf(state).limit(replica) ?? null,
    cap: replica.cap ?? null,
    maxInFlight: config.maxInFlight ?? null,
    keptRoom: replica.keptRoom,
    foreignLoad: replica.foreign,
    reportsLoad: load !== undefined,
    engineRunning: load?.running ?? null,
    engineWaiting: load?.waiting ?? null,
    kvUsage: load?.kvUsage ?? null,
    cacheHitRate: load?.cacheHitRate ?? null,
  };
}

/** Rows by class, principal and caller, the longest held first. */
function heldByCaller(state: SchedulerState): HeldStatus[] {
  const rows = new Map<string, { turns: number; longest: Turn }>();
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
  return [...rows.values()]
    .sort((a, b) => a.longest.arrivalMs - b.longest.arrivalMs || a.longest.sequence - b.longest.sequence)
    .map(({ turns, longest }) => ({
      class: longest.class,
      principal: longest.caller.principal.id,
      caller: longest.caller.id,
      turns,
      longestHeldMs: Math.round(state.nowMs - longest.arrivalMs),
      why: holdReason(state, longest),
    }));
}

function countRuns(state: SchedulerState): SchedulerStatus["runCounts"] {
  const none = () => ({ held: 0, generating: 0, paused: 0, idle: 0 });
  const counts = { interactive: none(), batch: none() };
  for (const run of state.runs.values()) counts[run.class][phaseOf(run)] += 1;
  return counts;
}

/** What a run does now (spec 1, States). */
export function phaseOf(run: Run): RunPhase {
  if (run.flights > 0) return "generating";
  if (run.held.length > 0) return "held";
  return run.last;
}

/** Which run an open turn belongs to, and which rule said so; undefined when the turn is not open. */
export function runOfTurn(
  state: SchedulerState,
  turn: TurnId,
): { readonly run: RunId; readonly source: RunSource } | undefined {
  const open = state.turns.get(turn);
  return open === undefined ? undefined : { run: open.run.id, source: open.source };
}

/** What is known of a principal's run, or undefined. */
export function runView(state: SchedulerState, principal: PrincipalId, id: RunId): RunView | undefined {
  const run = state.runs.get(runKey(principal, id));
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

/** The pool as a dataplane needs it. */
export function replicaViews(state: SchedulerState): ReplicaView[] {
  return [...state.replicas.values()]
    .filter((replica) => replica.configured)
    .map((replica) => ({
      replica: replica.config.replica,
      kind: replica.config.kind,
      engine: replica.engine,
      healthy: replica.healthy,
      models: replica.models,
      speaks: replica.speaks ?? ["chat"],
      reportsLoad: replica.load !== undefined,
    }));
}
