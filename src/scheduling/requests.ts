/** A turn is asked for: which run it belongs to, whether it can ever be served, and its place among the held ones. */
import type { DataplaneId, RunId } from "../base/ids.ts";
import type { RunSource } from "../wire/admission.ts";
import type { ErrorCode } from "../wire/errors.ts";
import { dropRoom, openHeld, touch, type Step } from "./book.ts";
import { recognise } from "./recognition.ts";
import { admitWhereItFits } from "./settle.ts";
import { callerFor, runKey, type Dataplane, type Run, type SchedulerState, type Turn } from "./state.ts";
import type { SchedulerEvent } from "./types.ts";

type Requested = Extract<SchedulerEvent, { readonly type: "turn-requested" }>;

export function requestTurn(step: Step, event: Requested): void {
  const { state } = step;
  const known = state.turns.get(event.turn);
  if (known !== undefined) {
    askedAgain(step, known);
    return;
  }
  const { run: found, source, id, weaklyTo } = findRun(state, event);
  const refusal = refuse(state, event);
  if (refusal !== undefined) {
    const { dataplane, turn } = event;
    step.effects.push({ type: "reject-turn", dataplane, turn, run: id, source, ...refusal });
    return;
  }
  const run = found ?? createRun(state, event, id);
  if (weaklyTo !== undefined) {
    run.weaklyLinked = true;
    run.replica = weaklyTo.replica;
  }
  const turn = createTurn(state, event, run, source);
  if (!event.side) dropRoom(step, run);
  run.class = event.class;
  run.caller = event.caller;
  run.turns += 1;
  touch(state, run);
  openHeld(step, turn);
  admitWhereItFits(step, turn);
}

/** The dataplane asks again under the same id: nothing changes; an admission that it may have missed is repeated. */
function askedAgain(step: Step, turn: Turn): void {
  if (turn.replica === undefined) return;
  step.effects.push({
    type: "admit-turn",
    dataplane: turn.dataplane.id,
    turn: turn.id,
    replica: turn.replica.config.replica,
    run: turn.run.id,
    source: turn.source,
  });
}

type FoundRun = {
  readonly run: Run | undefined;
  readonly id: RunId;
  readonly source: RunSource;
  /** A weak key led to this run: a preference for its replica. */
  readonly weaklyTo: Run | undefined;
};

function findRun(state: SchedulerState, event: Requested): FoundRun {
  if (event.run !== undefined) {
    const run = state.runs.get(runKey(event.principal, event.run));
    return { run, id: event.run, source: "header", weaklyTo: undefined };
  }
  const hit = recognise(state.recognition, event.keys, { nowMs: state.nowMs, ttlMs: state.config.identityTtlMs });
  const fresh: FoundRun = { run: undefined, id: event.freshRun, source: "new", weaklyTo: undefined };
  if (hit === undefined || hit.run.principal !== event.principal) return fresh;
  // A weak key alone does not make it the same run: identical fan-out runs share their opening. A second one does.
  if (hit.weak && !hit.run.weaklyLinked) return { ...fresh, weaklyTo: hit.run };
  return { run: hit.run, id: hit.run.id, source: hit.source, weaklyTo: undefined };
}

/** Why a turn can never be served, or undefined: such a turn is refused at once and never held. */
function refuse(
  state: SchedulerState,
  event: Requested,
): { readonly code: ErrorCode; readonly message: string } | undefined {
  const known = state.knownModels.get(event.model);
  if (known === undefined || known.size === 0) {
    return { code: "model_not_found", message: `no Generative replica serves model '${event.model}'` };
  }
  for (const replica of known) {
    if (replica.speaks === undefined || replica.speaks.includes(event.api)) return undefined;
  }
  return {
    code: "route_unknown",
    message: `no Generative replica of model '${event.model}' speaks ${event.api}; see \`speaks\` of its endpoint`,
  };
}

/** Makes a run known. Its expiry begins with the first `touch`. */
export function createRun(state: SchedulerState, owner: Pick<Run, "principal" | "caller" | "class">, id: RunId): Run {
  const run: Run = {
    key: runKey(owner.principal, id),
    id,
    principal: owner.principal,
    caller: owner.caller,
    class: owner.class,
    last: "idle",
    replica: undefined,
    flights: 0,
    held: [],
    turns: 0,
    lastMs: state.nowMs,
    pausedMs: 0,
    keptArrivalMs: Number.NaN,
    keptSinceMs: 0,
    avoid: undefined,
    weaklyLinked: false,
    ended: false,
    forgotten: false,
    expiryLinks: undefined,
    roomLinks: undefined,
  };
  state.runs.set(run.key, run);
  return run;
}

function createTurn(state: SchedulerState, event: Requested, run: Run, source: RunSource): Turn {
  const dataplane = dataplaneFor(state, event.dataplane);
  state.sequence += 1;
  const turn: Turn = {
    id: event.turn,
    dataplane,
    run,
    caller: callerFor(state, event.principal, event.caller),
    class: event.class,
    model: event.model,
    api: event.api,
    side: event.side,
    source,
    arrivalMs: arrivalOf(state, event, run),
    sequence: state.sequence,
    state: "held",
    lane: undefined,
    heapIndex: -1,
    notBeforeMs: 0,
    replica: undefined,
    admittedMs: 0,
    startedMs: 0,
  };
  state.turns.set(turn.id, turn);
  dataplane.turns.set(turn.id, turn);
  return turn;
}

/** A retry takes over the arrival of its run's abandoned or failed turn, once (spec 2, Retry). */
function arrivalOf(state: SchedulerState, event: Requested, run: Run): number {
  const own = state.nowMs - Math.max(0, event.heldMs);
  const kept = run.keptArrivalMs;
  run.keptArrivalMs = Number.NaN;
  if (Number.isNaN(kept) || state.nowMs - run.keptSinceMs >= state.config.arrivalKeptMs) {
    run.avoid = undefined;
    return own;
  }
  return Math.min(own, kept);
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
