/**
 * One record into the state of its run.
 *
 * F1: nothing comes after the terminal record.
 * F2: a call begins only when it is allowed, and with the arguments that were judged and approved (equal digests).
 * F3: every approval is decided at most once, and its answer allows at most one beginning of its call.
 * F4: an outcome counts only for the attempt that is under way.
 * A record that breaks one of these is a damaged journal or a fault of the host: it throws.
 */
import { invariant, unreachable } from "../base/invariant.ts";
import type { Approval, CallPhase, CallState, Decision, RecordOf, Round, RunRecord, RunState, Sums } from "./types.ts";

export const REFUSAL = {
  callsUsedUp: "Error: tool call budget used up",
  noneLeft: "Error: no tool calls are left for this task. Do not call tools: answer now with what you have.",
  declined: "Error: the user declined this tool call",
  expired: "Error: the approval expired",
  otherArguments: "Error: the approval was given for other arguments",
  unknownOutcome: "Error: the outcome of this tool call is not known, and it was not run again",
} as const;

export const NO_SUMS: Sums = {
  turns: 0,
  toolCalls: 0,
  failedToolCalls: 0,
  callsStarted: 0,
  promptTokens: 0,
  completionTokens: 0,
  cachedTokens: 0,
  turnMs: 0,
  toolMs: 0,
};

/** The state after the run's next record; `undefined` before the first, which must be `spawned`. */
export function fold(run: RunState | undefined, record: RunRecord): RunState {
  if (record.type === "spawned") {
    invariant(run === undefined, `run ${record.id} is spawned a second time`);
    return spawned(record);
  }
  invariant(run !== undefined, `a journal begins with ${record.type} instead of spawned`);
  invariant(run.end === undefined, `run ${run.id} has ended, and yet a record ${record.type} follows`); // F1
  switch (record.type) {
    case "turn-requested":
      return turnRequested(run, record);
    case "turn-answered":
      return turnAnswered(run, record);
    case "turn-failed": {
      const turn = openTurn(run, record.turn);
      const failure = { failure: record.failure, message: record.message, atMs: record.at };
      return { ...run, turn: { ...turn, failures: [...turn.failures, failure] } };
    }
    case "call-intent":
      return callIntent(run, record);
    case "call-outcome": {
      const call = callAt(run, record);
      invariant(
        call.phase.kind === "running" && call.attempt === record.attempt,
        `${name(run, record)} is not running`,
      ); // F4
      const sums = { ...run.sums, toolMs: run.sums.toolMs + record.tookMs };
      return done({ ...run, sums }, call, record);
    }
    case "approval-asked": {
      const call = callAt(run, record);
      const { kind } = call.phase;
      const asks = (kind === "ready" && !call.phase.allowed) || kind === "indeterminate";
      invariant(asks && digestOf(call) === record.digest, `${name(run, record)} does not ask`);
      const { approval: id, reason, digest, at: askedAt, expiresAt } = record;
      return withPhase(run, call, { kind: "asking", approval: { id, reason, digest, askedAt, expiresAt } });
    }
    case "approval-decided":
      return approvalDecided(run, record);
    case "approval-expired": {
      const { call, approval } = asking(run, record.approval);
      const after = settle(run, { call, approval, decision: "expired", at: record.at });
      return done(after, call, { ok: false, text: REFUSAL.expired });
    }
    case "cancel-requested":
      return { ...run, cancelRequested: true };
    case "resumed":
      return resumed(run);
    case "ended": {
      const { at, state, reason, answer, partial, error, exceeded } = record;
      return { ...run, turn: undefined, end: { at, state, reason, answer, partial, error, exceeded } };
    }
    default:
      return unreachable(record);
  }
}

function spawned(record: RecordOf<"spawned">): RunState {
  const { id, parent, root, depth, principal, caller, session, assignment } = record;
  return {
    id,
    parent,
    root,
    depth,
    principal,
    caller,
    session,
    assignment,
    spawnedAtMs: record.at,
    rounds: [],
    turn: undefined,
    sums: NO_SUMS,
    replica: undefined,
    grants: [],
    settled: [],
    cancelRequested: false,
    warned: [],
    end: undefined,
  };
}

function turnRequested(run: RunState, record: RecordOf<"turn-requested">): RunState {
  invariant(run.turn === undefined, `run ${run.id} has a turn open`);
  invariant(record.turn === run.rounds.length + 1, `run ${run.id} skips a turn`);
  const last = run.rounds.at(-1);
  invariant(
    last === undefined || last.calls.every(({ phase }) => phase.kind === "done"),
    `run ${run.id} asks a turn before its calls are done`,
  );
  const { turn, mode, maxTokens, reserved, notes, warned } = record;
  const rounds = last === undefined || notes.length === 0 ? run.rounds : replaced(run.rounds, { ...last, notes });
  const open = { turn, mode, maxTokens, reserved, requestedAtMs: record.at, failures: [] };
  return { ...run, rounds, turn: open, warned: warned.length === 0 ? run.warned : [...run.warned, ...warned] };
}

function turnAnswered(run: RunState, record: RecordOf<"turn-answered">): RunState {
  const { mode } = openTurn(run, record.turn);
  const { maxToolCalls } = run.assignment;
  // Where no tools were sent there is nothing to call: what looks like a call is the answer.
  const made = mode === "extra" || mode === "toolless" ? [] : record.calls;
  const calls = made.map((call, index): CallState => {
    const refused = (text: string): CallState => ({
      ...call,
      index,
      attempt: 0,
      phase: { kind: "done", ok: false, text },
    });
    if (mode !== "tools") return refused(REFUSAL.noneLeft);
    if (run.sums.toolCalls + index >= maxToolCalls) return refused(REFUSAL.callsUsedUp);
    const { judgement } = call;
    if (judgement.kind === "refused") return refused(judgement.text);
    return { ...call, index, attempt: 0, phase: { kind: "ready", allowed: judgement.asks === undefined } };
  });
  const failed = calls.filter(({ phase }) => phase.kind === "done").length;
  const { turn, text, usage } = record;
  const { sums } = run;
  return {
    ...run,
    turn: undefined,
    replica: record.replica ?? run.replica,
    rounds: [...run.rounds, { turn, mode, text, calls, usage, notes: [] }],
    sums: {
      ...sums,
      turns: sums.turns + 1,
      toolCalls: sums.toolCalls + calls.length,
      failedToolCalls: sums.failedToolCalls + failed,
      promptTokens: sums.promptTokens + usage.promptTokens,
      completionTokens: sums.completionTokens + usage.completionTokens,
      cachedTokens: sums.cachedTokens + usage.cachedTokens,
      turnMs: sums.turnMs + record.tookMs,
    },
  };
}

function callIntent(run: RunState, record: RecordOf<"call-intent">): RunState {
  const call = callAt(run, record);
  const { phase } = call;
  // F2, F3: the phase leaves `ready` here, so that an answer is consumed once.
  invariant(phase.kind === "ready" && phase.allowed, `${name(run, record)} may not begin`);
  invariant(phase.approval === record.approval, `${name(run, record)} consumes another approval than its own`);
  invariant(digestOf(call) === record.digest, `${name(run, record)} begins with other arguments`);
  invariant(call.attempt + 1 === record.attempt, `${name(run, record)} skips an attempt`);
  const begun = record.attempt === 1 ? 1 : 0;
  const sums = { ...run.sums, callsStarted: run.sums.callsStarted + begun };
  const running: CallState = { ...call, attempt: record.attempt, phase: { kind: "running", sinceMs: record.at } };
  return withCall({ ...run, sums }, running);
}

function approvalDecided(run: RunState, record: RecordOf<"approval-decided">): RunState {
  const { call, approval } = asking(run, record.approval); // F3
  const { decision } = record;
  const after = settle(run, { call, approval, decision, at: record.at });
  if (approval.digest !== record.digest || digestOf(call) !== record.digest) {
    return done(after, call, { ok: false, text: REFUSAL.otherArguments }); // F2
  }
  if (approval.reason === "indeterminate") return resolved(after, call, { approval, decision });
  const allowed: CallPhase = { kind: "ready", allowed: true, approval: approval.id };
  const next = decision.allow
    ? withPhase(after, call, allowed)
    : done(after, call, { ok: false, text: REFUSAL.declined });
  const { scope, by, channel, allow } = decision;
  if (scope === "once" || decision.from !== undefined) return next;
  const { id, digest, expiresAt } = approval;
  return { ...next, grants: [...next.grants, { approval: id, digest, scope, allow, by, channel, expiresAt }] };
}

/** The way out of a call of which nobody knows whether it took effect. */
function resolved(
  run: RunState,
  call: CallState,
  { approval, decision }: { readonly approval: Approval; readonly decision: Decision },
): RunState {
  const resolution = decision.resolution ?? (decision.allow ? "rerun" : "fail");
  switch (resolution) {
    case "rerun":
      return withPhase(run, call, { kind: "ready", allowed: true, approval: approval.id });
    case "result":
      return done(run, call, { ok: true, text: decision.result ?? "" });
    case "fail":
      return done(run, call, { ok: false, text: REFUSAL.unknownOutcome });
    case "cancel":
      return done({ ...run, cancelRequested: true }, call, { ok: false, text: REFUSAL.unknownOutcome });
    default:
      return unreachable(resolution);
  }
}

/** What was under way in another process has no outcome: run again where that is harmless, else ask. */
function resumed(run: RunState): RunState {
  const last = run.rounds.at(-1);
  if (last === undefined) return run;
  const calls = last.calls.map((call): CallState => {
    if (call.phase.kind !== "running" || call.judgement.kind !== "callable") return call;
    const again = call.judgement.effect !== "unsafe" || call.judgement.onCrash === "rerun";
    return { ...call, phase: again ? { kind: "ready", allowed: true } : { kind: "indeterminate" } };
  });
  return { ...run, rounds: replaced(run.rounds, { ...last, calls }) };
}

/** Whether another process's death left something that a `resumed` record has to settle. */
export function needsResuming(run: RunState): boolean {
  return run.end === undefined && run.rounds.at(-1)?.calls.some(({ phase }) => phase.kind === "running") === true;
}

export function digestOf(call: CallState): string | undefined {
  return call.judgement.kind === "callable" ? call.judgement.digest : undefined;
}

export function openApproval(run: RunState, id: string): { call: CallState; approval: Approval } | undefined {
  for (const call of run.rounds.at(-1)?.calls ?? []) {
    if (call.phase.kind === "asking" && call.phase.approval.id === id) return { call, approval: call.phase.approval };
  }
  return undefined;
}

function asking(run: RunState, id: string): { readonly call: CallState; readonly approval: Approval } {
  const found = openApproval(run, id);
  invariant(found !== undefined, `run ${run.id} has no open approval ${id}`);
  return found;
}

function settle(
  run: RunState,
  settled: {
    readonly call: CallState;
    readonly approval: Approval;
    readonly decision: Decision | "expired";
    readonly at: number;
  },
): RunState {
  const { call, approval, decision, at } = settled;
  const tool = call.judgement.kind === "callable" ? `${call.judgement.server}/${call.judgement.tool}` : call.name;
  return { ...run, settled: [...run.settled, { ...approval, tool, decision, decidedAt: at }] };
}

function openTurn(run: RunState, turn: number) {
  invariant(run.turn?.turn === turn, `run ${run.id} has no open turn ${turn}`);
  return run.turn;
}

type Place = { readonly turn: number; readonly index: number };

function callAt(run: RunState, place: Place): CallState {
  const last = run.rounds.at(-1);
  const call = last?.turn === place.turn ? last.calls[place.index] : undefined;
  invariant(call !== undefined, `${name(run, place)} does not exist`);
  return call;
}

const name = (run: RunState, { turn, index }: Place): string => `call ${run.id}/${turn}/${index}`;

function done(run: RunState, call: CallState, outcome: { readonly ok: boolean; readonly text: string }): RunState {
  const { ok, text } = outcome;
  const sums = ok ? run.sums : { ...run.sums, failedToolCalls: run.sums.failedToolCalls + 1 };
  return withPhase({ ...run, sums }, call, { kind: "done", ok, text });
}

function withPhase(run: RunState, call: CallState, phase: CallPhase): RunState {
  return withCall(run, { ...call, phase });
}

function withCall(run: RunState, call: CallState): RunState {
  const last = run.rounds.at(-1);
  invariant(last !== undefined, `run ${run.id} has no round`);
  return { ...run, rounds: replaced(run.rounds, { ...last, calls: last.calls.with(call.index, call) }) };
}

/** The rounds with another last one. */
function replaced(rounds: readonly Round[], last: Round): readonly Round[] {
  return [...rounds.slice(0, -1), last];
}
