/** What the core shows of itself, and the same from the plain version: for comparison. */
import { asPrincipalId, asRunId } from "../../src/base/ids.ts";
import { explain, explainAll, runView, snapshot, type SchedulerState } from "../../src/scheduling/index.ts";
import type { RunPhase, ServiceClass } from "../../src/wire/admission.ts";
import type { PlainClassic } from "./plain-classic.ts";
import type { PlainRun, PlainTurn } from "./plain-rules.ts";

export type View = {
  readonly replicas: readonly unknown[];
  readonly runs: readonly unknown[];
  readonly runCounts: unknown;
  readonly held: readonly unknown[];
  readonly explanations: readonly unknown[];
  readonly explainedAlone: readonly unknown[];
};

export function viewOfPlain(plain: PlainClassic): View {
  const held = plain.turns.filter((turn) => turn.replica === undefined);
  return {
    replicas: plain.replicas.map((replica) => ({
      replica: replica.config.replica,
      healthy: replica.healthy,
      configured: replica.configured,
      models: replica.models,
      turnsInFlight: plain.inFlight(replica),
      heldPinned: held.filter((turn) => plain.isReady(turn) && plain.pin(turn) === replica).length,
      limit: plain.limit(replica) ?? null,
      cap: replica.cap ?? null,
      keptRoom: plain.keptRoom(replica),
      foreignLoad: plain.foreign(replica),
      reportsLoad: replica.load?.waiting !== undefined,
    })),
    runs: byName(plain.runs).map((run) => ({
      run: run.id,
      class: run.class,
      caller: run.caller,
      phase: phase(plain, run),
      replica: run.replica?.config.replica,
      heldTurns: held.filter((turn) => turn.run === run).length,
      turnsInFlight: flying(plain, run).length,
      turns: run.turns,
      quietMs: Math.round(plain.nowMs - run.lastMs),
    })),
    runCounts: { interactive: counts(plain, "interactive"), batch: counts(plain, "batch") },
    held: rows(plain, held),
    explanations: plain.ranked().map((turn) => plain.explain(turn)),
    explainedAlone: plain.ranked().map((turn) => plain.explain(turn)),
  };
}

export function viewOfCore(state: SchedulerState, plain: PlainClassic): View {
  const status = snapshot(state);
  return {
    replicas: status.replicas.map((replica) => ({
      replica: replica.replica,
      healthy: replica.healthy,
      configured: replica.configured,
      models: replica.models,
      turnsInFlight: replica.turnsInFlight,
      heldPinned: replica.heldPinned,
      limit: replica.limit,
      cap: replica.cap,
      keptRoom: replica.keptRoom,
      foreignLoad: replica.foreignLoad,
      reportsLoad: replica.reportsLoad,
    })),
    runs: byName(plain.runs).map((run) => runView(state, asPrincipalId(run.principal), asRunId(run.id))),
    runCounts: status.runCounts,
    held: status.held,
    explanations: explainAll(state),
    explainedAlone: explainAll(state).map((row) => explain(state, row.turn)),
  };
}

function byName(runs: readonly PlainRun[]): PlainRun[] {
  return runs.toSorted((a, b) => (`${a.principal} ${a.id}` < `${b.principal} ${b.id}` ? -1 : 1));
}

function flying(plain: PlainClassic, run: PlainRun): PlainTurn[] {
  return plain.turns.filter((turn) => turn.run === run && turn.replica !== undefined);
}

function phase(plain: PlainClassic, run: PlainRun): RunPhase {
  if (flying(plain, run).length > 0) return "generating";
  return plain.turns.some((turn) => turn.run === run) ? "held" : run.last;
}

function counts(plain: PlainClassic, serviceClass: ServiceClass): { [Phase in RunPhase]: number } {
  const of = (wanted: RunPhase): number =>
    plain.runs.filter((run) => run.class === serviceClass && phase(plain, run) === wanted).length;
  return { held: of("held"), generating: of("generating"), paused: of("paused"), idle: of("idle") };
}

function rows(plain: PlainClassic, held: readonly PlainTurn[]): unknown[] {
  const oldestFirst = held.toSorted((a, b) => a.arrivalMs - b.arrivalMs || a.sequence - b.sequence);
  const groups = Map.groupBy(oldestFirst, ({ event }) => `${event.class} ${event.principal} ${event.caller}`);
  return [...groups.values()].map((turns) => {
    const { event, arrivalMs } = turns[0]!;
    return {
      class: event.class,
      principal: event.principal,
      caller: event.caller,
      turns: turns.length,
      longestHeldMs: Math.round(plain.nowMs - arrivalMs),
      why: plain.reason(turns[0]!),
    };
  });
}
