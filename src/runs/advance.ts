/**
 * The runs core: takes what happened to a run of a tree, and gives the records that follow by the rules and what the host
 * has to do. Deterministic, without clock, IO or randomness; all control flow over a run's life is here.
 *
 * The host appends the entries of one call in one commit, and carries out the actions only when that is durable. Actions
 * are levels, not edges: `actionsOf` says what is wanted of a run as long as it is wanted, so that a host that has lost
 * everything but the journal asks again and gets the same.
 *
 * A1: a call begins only after its `call-intent` record, a turn only after its `turn-requested`.
 * A2: a turn is asked when every call of the round before is done, and not sooner.
 * A3: a call that must ask begins only after a decision that allows it.
 * A4: a run has at most maxToolCalls + 1 turns, and one more.
 * A5: after a cancel or an exceeded budget nothing begins in the subtree.
 */
import { invariant } from "../base/invariant.ts";
import { approvalId, decisionRecords, grantFor, grantRecord } from "./approval.ts";
import { budgetWarnings, callsExceeded, deadlineOf, exceededText, reserve, timeExceeded } from "./budget.ts";
import { needsResuming } from "./fold.ts";
import { apply, nodeOf, subtreeOf, upwards, type Entry, type TreeState } from "./tree.ts";
import { RECORD_VERSION } from "./types.ts";
import type {
  Action,
  AskReason,
  CallState,
  Decision,
  Exceeded,
  OpenTurn,
  RecordOf,
  Round,
  RunRecord,
  RunRules,
  RunState,
  TurnMode,
} from "./types.ts";

/** Attempts of one turn that reached an engine and failed. */
const TURN_ATTEMPTS_MAX = 5;
const RETRY_PAUSE_MS = 1_000;
const RETRY_PAUSE_MAX_MS = 8_000;

const NOTE = {
  noneLeft: "No tool calls are left: answer now with what you have, and do not call tools.",
} as const;

type Step = {
  readonly tree: TreeState;
  readonly rules: RunRules;
  readonly nowMs: number;
  readonly entries: Entry[];
  /** Runs to look at, in order. */
  readonly due: Set<string>;
};

type Context = { readonly rules: RunRules; readonly nowMs: number };

/**
 * Applies one record and everything that follows from it.
 * @param record of the host's own: what a model, a tool or a person answered, or a spawn.
 */
export function advance(tree: TreeState, run: string, record: RunRecord, rules: RunRules): readonly Entry[] {
  const step = begin(tree, { rules, nowMs: record.at });
  put(step, run, record);
  return follow(step);
}

/** A person's answer, with all that follows. Nothing when the approval is not open: the caller shows the first decision. */
export function decide(
  tree: TreeState,
  answer: { readonly run: string; readonly approval: string; readonly decision: Decision },
  context: Context,
): readonly Entry[] {
  const step = begin(tree, context);
  // First the time: an approval whose time is over cannot be given any more.
  step.due.add(answer.run);
  follow(step);
  for (const { run, record } of decisionRecords(tree, { ...answer, nowMs: context.nowMs })) put(step, run, record);
  return follow(step);
}

/** What is due by time: budgets in seconds, approvals that expire. Also looks at every live run again. */
export function passTime(tree: TreeState, context: Context): readonly Entry[] {
  const step = begin(tree, context);
  for (const node of tree.nodes.values()) if (node.live !== undefined) step.due.add(node.id);
  return follow(step);
}

/** Takes the tree over from a process that is gone; call it once, with all its runs restored. */
export function resume(tree: TreeState, context: Context): readonly Entry[] {
  const step = begin(tree, context);
  for (const node of tree.nodes.values()) {
    if (node.live === undefined) continue;
    step.due.add(node.id);
    if (needsResuming(node.live)) put(step, node.id, { v: RECORD_VERSION, at: context.nowMs, type: "resumed" });
  }
  return follow(step);
}

/** When `passTime` has something to do next; undefined: never. */
export function nextDeadlineMs(tree: TreeState): number | undefined {
  let next: number | undefined;
  for (const node of tree.nodes.values()) {
    if (node.live === undefined) continue;
    for (const at of deadlinesOf(tree, node.live)) next = Math.min(next ?? at, at);
  }
  return next;
}

function deadlinesOf(tree: TreeState, run: RunState): readonly number[] {
  const budgets = upwards(tree, run.id).map(deadlineOf);
  const approvals = (run.rounds.at(-1)?.calls ?? []).map(({ phase }) =>
    phase.kind === "asking" ? phase.approval.expiresAt : undefined,
  );
  return [...budgets, ...approvals].filter((at) => at !== undefined);
}

/** What is wanted of the host for a run, as long as it is in this list. */
export function actionsOf(run: RunState): readonly Action[] {
  if (run.end !== undefined) return [];
  const { turn } = run;
  if (turn !== undefined) {
    const key = `${run.id}/${turn.turn} turn ${turn.failures.length + 1}`;
    return [{ type: "ask-turn", key, run: run.id, turn, notBeforeMs: notBefore(turn) }];
  }
  const last = run.rounds.at(-1);
  return (last?.calls ?? []).flatMap((call): readonly Action[] => {
    const { phase, judgement, index, attempt } = call;
    if (last === undefined || phase.kind !== "running" || judgement.kind !== "callable") return [];
    const idempotencyKey = keyOf(run, last.turn, call);
    const key = `${idempotencyKey} call ${attempt}`;
    return [{ type: "call-tool", key, run: run.id, turn: last.turn, index, attempt, idempotencyKey, call: judgement }];
  });
}

function notBefore({ failures, requestedAtMs }: OpenTurn): number {
  const last = failures.at(-1);
  if (last === undefined) return requestedAtMs;
  return last.atMs + Math.min(RETRY_PAUSE_MAX_MS, RETRY_PAUSE_MS * 2 ** (failures.length - 1));
}

/** The same over attempts and restarts. */
const keyOf = (run: RunState, turn: number, call: CallState): string => `${run.id}/${turn}/${call.index}`;

function begin(tree: TreeState, { rules, nowMs }: Context): Step {
  return { tree, rules, nowMs, entries: [], due: new Set() };
}

function put(step: Step, run: string, record: RunRecord): void {
  const { tree } = step;
  const entry = apply(tree, run, record);
  step.entries.push(entry);
  step.due.add(run);
  const settled = (entry.after.turn?.reserved ?? 0) < (entry.before?.turn?.reserved ?? 0);
  if (settled) for (const waiting of tree.waiting) step.due.add(waiting);
}

function follow(step: Step): readonly Entry[] {
  for (const run of step.due) {
    step.due.delete(run);
    const live = step.tree.nodes.get(run)?.live;
    // A run that puts a record is due again: sets are walked in order of insertion, later ones included.
    if (live !== undefined) lookAt(step, live);
  }
  return step.entries;
}

function lookAt(step: Step, run: RunState): void {
  const { tree, nowMs } = step;
  if (run.cancelRequested) {
    endSubtree(step, run.id, { state: "Cancelled", reason: "cancelled" });
    return;
  }
  // A5: a store that tore the commit of a cancel leaves descendants behind.
  const above = upwards(tree, run.id).find(({ end }) => end?.state === "Cancelled");
  if (above?.end !== undefined) {
    endSubtree(step, run.id, { state: "Cancelled", reason: above.end.reason });
    return;
  }
  const late = timeExceeded(tree, run.id, nowMs);
  if (late !== undefined) {
    exceed(step, late);
    return;
  }
  if (run.turn !== undefined) {
    endFailed(step, run, run.turn);
    return;
  }
  const last = run.rounds.at(-1);
  if (last === undefined) requestTurn(step, run, run.assignment.tools.length === 0 ? "toolless" : firstMode(run));
  else if (last.calls.length === 0) complete(step, run, last);
  else if (last.calls.every(({ phase }) => phase.kind === "done")) requestTurn(step, run, nextMode(step, run, last));
  else lookAtCalls(step, run, last);
}

const firstMode = (run: RunState): TurnMode => (run.assignment.maxToolCalls === 0 ? "toolless" : "tools");

function nextMode({ rules }: Step, run: RunState, last: Round): TurnMode {
  if (last.mode !== "tools") return "extra";
  if (run.sums.toolCalls < run.assignment.maxToolCalls) return "tools";
  return rules.lastTurnOf(run.replica) === "none" ? "last-none" : "last-auto";
}

function requestTurn(step: Step, run: RunState, mode: TurnMode): void {
  const { tree, nowMs } = step;
  const reservation = reserve(tree, run);
  switch (reservation.kind) {
    case "waits":
      tree.waiting.add(run.id);
      return;
    case "exceeded":
      exceed(step, reservation.exceeded);
      return;
    case "granted": {
      tree.waiting.delete(run.id);
      const results = run.rounds.length > 0;
      const warnings = results ? budgetWarnings(tree, run, nowMs) : [];
      const notes = warnings.map(({ note }) => note);
      if (mode === "last-auto") notes.push(NOTE.noneLeft);
      const { maxTokens, reserved } = reservation;
      const warned = warnings.map((warning) => warning.warned);
      const turn = run.rounds.length + 1;
      put(step, run.id, { ...head(step), type: "turn-requested", turn, mode, maxTokens, reserved, notes, warned });
    }
  }
}

function lookAtCalls(step: Step, run: RunState, round: Round): void {
  const { nowMs } = step;
  for (const call of round.calls) {
    const { phase } = call;
    switch (phase.kind) {
      case "done":
        continue;
      case "ready":
        if (phase.allowed) begins(step, run, { round, call, approval: phase.approval });
        else ask(step, run, { round, call, reason: reasonOf(call) });
        return;
      case "indeterminate":
        ask(step, run, { round, call, reason: "indeterminate" });
        return;
      case "asking":
        if (phase.approval.expiresAt <= nowMs) {
          put(step, run.id, { ...head(step), type: "approval-expired", approval: phase.approval.id });
          return;
        }
        break;
      case "running":
        break;
    }
    // In order, one after the other.
    if (!run.assignment.parallelToolCalls) return;
  }
}

function reasonOf(call: CallState): AskReason {
  invariant(call.judgement.kind === "callable" && call.judgement.asks !== undefined, "a call asks without a reason");
  return call.judgement.asks;
}

type AtCall = { readonly round: Round; readonly call: CallState };

function begins(step: Step, run: RunState, { round, call, approval }: AtCall & { approval: string | undefined }): void {
  // Each call counts once: an attempt after a crash has been counted.
  const over = call.attempt === 0 ? callsExceeded(step.tree, run.id) : undefined;
  if (over !== undefined) {
    exceed(step, over);
    return;
  }
  invariant(call.judgement.kind === "callable", "a refused call begins");
  const { digest } = call.judgement;
  const place = { turn: round.turn, index: call.index, attempt: call.attempt + 1 };
  const key = keyOf(run, round.turn, call);
  put(step, run.id, { ...head(step), type: "call-intent", ...place, key, digest, approval });
}

function ask(step: Step, run: RunState, { round, call, reason }: AtCall & { reason: AskReason }): void {
  const { nowMs, rules, tree } = step;
  invariant(call.judgement.kind === "callable", "a refused call asks");
  const { digest } = call.judgement;
  const approval = approvalId(run.id, round.turn, call);
  const expiresAt = nowMs + rules.approvalExpireMs;
  const place = { turn: round.turn, index: call.index };
  put(step, run.id, { ...head(step), type: "approval-asked", approval, ...place, reason, digest, expiresAt });
  const grant = reason === "indeterminate" ? undefined : grantFor(tree, run, call, nowMs);
  if (grant !== undefined) put(step, run.id, grantRecord(run, { call, approval, grant, at: nowMs }));
}

function complete(step: Step, run: RunState, last: Round): void {
  const { maxToolCalls } = run.assignment;
  const usedUp = maxToolCalls > 0 && run.sums.toolCalls >= maxToolCalls;
  const reason = usedUp ? "max_tool_calls" : "completed";
  put(step, run.id, { ...head(step), type: "ended", state: "Completed", reason, answer: last.text });
}

function endFailed(step: Step, run: RunState, { failures, turn }: OpenTurn): void {
  const last = failures.at(-1);
  if (last === undefined) return;
  const { failure, message } = last;
  if (failure !== "refused" && failures.length < TURN_ATTEMPTS_MAX) return;
  const tries = failure === "refused" ? "" : `turn ${turn} failed ${failures.length} times, at last: `;
  const reason = failure === "engine-lost" ? "engine_unavailable" : "failed";
  const error = `${tries}${message}`;
  put(step, run.id, { ...head(step), type: "ended", state: "Failed", reason, partial: partialOf(step, run), error });
}

function exceed(step: Step, exceeded: Exceeded): void {
  endSubtree(step, exceeded.run, {
    state: "Cancelled",
    reason: "budget",
    error: exceededText(exceeded),
    exceeded,
  });
}

/** Ends a run and every descendant that lives, also below one that has ended. */
function endSubtree(
  step: Step,
  run: string,
  end: Pick<RecordOf<"ended">, "state" | "reason" | "error" | "exceeded">,
): void {
  for (const node of subtreeOf(step.tree, run)) {
    if (node.live === undefined) continue;
    put(step, node.id, { ...head(step), type: "ended", ...end, partial: partialOf(step, node.live) });
  }
}

/** The last thing that the model said. */
function partialOf({ rules }: Step, run: RunState): string | undefined {
  const begun = rules.partialOf?.(run.id);
  return begun !== undefined && begun !== "" ? begun : run.rounds.findLast(({ text }) => text !== "")?.text;
}

const head = ({ nowMs }: Step) => ({ v: RECORD_VERSION, at: nowMs }) as const;

/** The live run, for the host. */
export function liveRun(tree: TreeState, run: string): RunState | undefined {
  return tree.nodes.has(run) ? nodeOf(tree, run).live : undefined;
}
