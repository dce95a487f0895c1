/**
 * Approvals of a tree: equal pending calls are one question, and an answer may cover later equal calls.
 *
 * "Equal" means the same digest, which is of server, tool and exact arguments: changed arguments always ask again.
 * What a call without an outcome asks (`indeterminate`) is its own question: one answer says nothing about another call.
 */
import { digestOf, openApproval } from "./fold.ts";
import { nodeOf, type TreeState } from "./tree.ts";
import type { Approval, CallState, Decision, Grant, RecordOf, RunState, SettledApproval } from "./types.ts";
import { RECORD_VERSION } from "./types.ts";

export type PendingApproval = Approval & {
  readonly run: string;
  readonly server: string;
  readonly tool: string;
  readonly arguments: { readonly [key: string]: unknown };
  /** Approvals with the same question are answered together. */
  readonly question: string;
};

/** The open approvals of one run, in the order of its calls. */
export function pendingApprovals(run: RunState): readonly PendingApproval[] {
  if (run.end !== undefined) return [];
  return (run.rounds.at(-1)?.calls ?? []).flatMap((call) => {
    const { phase, judgement } = call;
    if (phase.kind !== "asking" || judgement.kind !== "callable") return [];
    const { server, tool } = judgement;
    const question = phase.approval.reason === "indeterminate" ? phase.approval.id : `${run.root} ${judgement.digest}`;
    return [{ ...phase.approval, run: run.id, server, tool, arguments: judgement.arguments, question }];
  });
}

/** The id of the approval that a call asks for next. Unique over all runs, the same after a restart. */
export function approvalId(run: string, turn: number, call: CallState): string {
  return `${run}.${turn}.${call.index}${call.attempt === 0 ? "" : `.${call.attempt}`}`;
}

/** The records of a person's answer: for the approval itself, and for every equal pending call of the tree. */
export function decisionRecords(
  tree: TreeState,
  answered: { readonly run: string; readonly approval: string; readonly decision: Decision; readonly nowMs: number },
): readonly { readonly run: string; readonly record: RecordOf<"approval-decided"> }[] {
  const { run, approval, decision, nowMs } = answered;
  const live = nodeOf(tree, run).live;
  const open = live === undefined ? undefined : openApproval(live, approval);
  if (live === undefined || open === undefined) return [];
  const first = { run, record: decided(live, { call: open.call, approval, decision, at: nowMs }) };
  if (open.approval.reason === "indeterminate") return [first];
  const equal = [...tree.nodes.values()].flatMap((node) => {
    const other = node.live;
    if (other === undefined) return [];
    return (other.rounds.at(-1)?.calls ?? []).flatMap((call) => {
      if (call.phase.kind !== "asking" || call.phase.approval.reason === "indeterminate") return [];
      const { id, digest, expiresAt } = call.phase.approval;
      if (digest !== open.approval.digest || id === approval || expiresAt <= nowMs) return [];
      const copy: Decision = { ...decision, scope: "once", from: approval };
      return [{ run: other.id, record: decided(other, { call, approval: id, decision: copy, at: nowMs }) }];
    });
  });
  return [first, ...equal];
}

/** The answer, given earlier for a wider scope, that covers this call. */
export function grantFor(tree: TreeState, run: RunState, call: CallState, nowMs: number): Grant | undefined {
  const digest = digestOf(call);
  const covers = (grant: Grant): boolean => grant.digest === digest && grant.expiresAt > nowMs;
  const own = run.grants.find(covers);
  if (own !== undefined) return own;
  for (const node of tree.nodes.values()) {
    const found = node.grants.find((grant) => grant.scope === "tree" && covers(grant));
    if (found !== undefined) return found;
  }
  return undefined;
}

/** The record by which an earlier answer is applied to a call that asks. */
export function grantRecord(
  run: RunState,
  granted: { readonly call: CallState; readonly approval: string; readonly grant: Grant; readonly at: number },
): RecordOf<"approval-decided"> {
  const { call, approval, grant, at } = granted;
  const { allow, by, channel } = grant;
  return decided(run, { call, approval, decision: { allow, by, channel, scope: "once", from: grant.approval }, at });
}

function decided(
  run: RunState,
  answer: { readonly call: CallState; readonly approval: string; readonly decision: Decision; readonly at: number },
): RecordOf<"approval-decided"> {
  const { call, approval, decision, at } = answer;
  const turn = run.rounds.at(-1)?.turn ?? 0;
  const digest = digestOf(call) ?? "";
  return { v: RECORD_VERSION, at, type: "approval-decided", approval, turn, index: call.index, digest, decision };
}

/** The decision that counts for an approval that is not open any more. */
export function settledApproval(run: RunState, approval: string): SettledApproval | undefined {
  return run.settled.find(({ id }) => id === approval);
}
