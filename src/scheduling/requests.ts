/** A turn is asked for: which run it belongs to, whether it can ever be served, and its place among the held ones. */
import type { RunId } from "../base/ids.ts";
import type { RunSource } from "../wire/admission.ts";
import type { ErrorCode } from "../wire/errors.ts";
import {
  admission,
  createRun,
  fail,
  freshKept,
  hold,
  markFitting,
  openTurn,
  recount,
  reviewRoom,
  setReplica,
  touch,
  type Step,
} from "./book.ts";
import { recognise } from "./recognition.ts";
import { maySpeak } from "./services.ts";
import { admitWhereItFits } from "./settle.ts";
import { callerFor, dataplaneFor, principalFor, runOf, type Run, type SchedulerState, type Turn } from "./state.ts";
import type { SchedulerEvent } from "./types.ts";

type Requested = Extract<SchedulerEvent, { readonly type: "turn-requested" }>;

export function requestTurn(step: Step, event: Requested): void {
  const { state } = step;
  const known = state.turns.get(event.turn);
  if (known !== undefined) {
    askedAgain(step, known);
    return;
  }
  const { run: found, source, id, prefers } = findRun(state, event);
  const refusal = whyNever(state, event);
  if (refusal !== undefined) {
    const { dataplane, turn } = event;
    step.effects.push({ type: "reject-turn", dataplane, turn, run: id, source, ...refusal });
    return;
  }
  const run = found ?? createRun(state, event, id);
  if (found === undefined) setReplica(step, run, prefers?.replica);
  const turn = createTurn(state, event, run, source);
  run.class = event.class;
  run.caller = event.caller;
  run.turns += 1;
  touch(state, run);
  openTurn(state, turn);
  step.policy.onRequested(step, turn);
  reviewRoom(step, run);
  recount(state, run);
  // Nothing else fits anywhere (I3), so a turn that has just come need not be ranked, unless its coming freed kept room and
  // others are held too. Most turns fit at once: they never stand in a group.
  const ranked = state.dirty.size > 0 || step.policy.judges(step.policy.tierOf(turn));
  if (ranked) markFitting(step, turn);
  if ((!ranked || state.heldCount === 1) && admitWhereItFits(step, turn)) return;
  hold(step, turn);
}

/** The dataplane asks again under the same id: nothing changes; an admission that it may have missed is repeated. */
function askedAgain(step: Step, turn: Turn): void {
  if (turn.replica !== undefined) step.effects.push(admission(step, turn, turn.replica));
}

type FoundRun = {
  readonly run: Run | undefined;
  readonly id: RunId;
  readonly source: RunSource;
  /** A weak key led to this run: a preference for its replica. */
  readonly prefers: Run | undefined;
};

function findRun(state: SchedulerState, event: Requested): FoundRun {
  const { principal } = event;
  if (event.run !== undefined) {
    return { run: runOf(state, principal, event.run), id: event.run, source: "header", prefers: undefined };
  }
  const bounds = { principal, nowMs: state.nowMs, ttlMs: state.config.identityTtlMs };
  const { run, source, prefers } = recognise(state.recognition, event.keys, bounds);
  if (run !== undefined) return { run, id: run.id, source, prefers };
  // Asked again after an outage, a turn names the fresh run that it was given before.
  return { run: runOf(state, principal, event.freshRun), id: event.freshRun, source, prefers };
}

/** Why a turn can never be served, or undefined: such a turn is refused at once and never held. */
function whyNever(
  state: SchedulerState,
  asked: Pick<Requested, "model" | "api">,
): { readonly code: ErrorCode; readonly message: string } | undefined {
  const known = state.knownModels.get(asked.model);
  if (known === undefined) {
    if (mayStillAppear(state)) return undefined;
    return { code: "model_not_found", message: `no Generative replica serves model '${asked.model}'` };
  }
  for (const replica of known) if (maySpeak(replica, asked.api)) return undefined;
  const names = [...known].map((replica) => `${replica.config.replica} (${replica.speaks?.join(", ") ?? ""})`);
  return {
    code: "route_unknown",
    message: `no replica of model '${asked.model}' speaks ${asked.api}: ${names.join("; ")}; see \`speaks\` of the endpoint`,
  };
}

/** After a start or a reload: an endpoint that names its models itself has not been asked yet. Its first probe decides. */
function mayStillAppear(state: SchedulerState): boolean {
  for (const { configured, probed, config } of state.replicas.values()) {
    if (configured && !probed && config.kind === "generative" && config.models.length === 0) return true;
  }
  return false;
}

/** Held turns that nothing in the pool can ever serve would be held for ever: after models, APIs or the pool changed. */
export function rejectOrphans(step: Step): void {
  for (const turn of step.state.turns.values()) if (turn.state !== "flight") rejectOrphan(step, turn);
}

/** The same for one turn that is held again. */
export function rejectOrphan(step: Step, turn: Turn): void {
  const refusal = whyNever(step.state, turn);
  if (refusal === undefined) return;
  const { dataplane, id, run, source } = turn;
  step.effects.push({ type: "reject-turn", dataplane: dataplane.id, turn: id, run: run.id, source, ...refusal });
  fail(step, turn, "internal");
}

function createTurn(state: SchedulerState, event: Requested, run: Run, source: RunSource): Turn {
  state.sequence += 1;
  return {
    id: event.turn,
    dataplane: dataplaneFor(state, event.dataplane),
    run,
    caller: callerFor(principalFor(state, event.principal), event.caller),
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
    aliveMs: 0,
    promptBytes: event.promptBytes,
    prefixKey: event.prefixKey,
    streams: event.streams ?? false,
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
}

/** A retry takes over the arrival of its run's abandoned or failed turn, once (spec 2, Retry). */
function arrivalOf(state: SchedulerState, event: Requested, run: Run): number {
  const own = state.nowMs - Math.max(0, event.heldMs);
  const kept = freshKept(state, run);
  if (kept === undefined || kept.taken) return own;
  run.kept = { ...kept, taken: true };
  return Math.min(own, kept.arrivalMs);
}
