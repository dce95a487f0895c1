/** A run as `status` and `await` show it. */
import {
  exceededText,
  pendingApprovals,
  type Limits,
  type PendingApproval,
  type RunNode,
  type RunState,
} from "../runs/index.ts";
import { stateName } from "./commit.ts";

export type RunDetail = "turn-held" | "generating" | "tools";

export type ApprovalView = {
  readonly id: string;
  readonly tool: string;
  readonly server: string;
  readonly arguments: { readonly [name: string]: unknown };
  readonly reason: PendingApproval["reason"];
  /** ISO 8601. */
  readonly askedAt: string;
  readonly expiresAt: string;
  /** Approvals with the same question get one answer. */
  readonly question: string;
};

export type BudgetView = {
  readonly limits: Limits;
  readonly used: { readonly tokens: number; readonly toolCalls: number; readonly seconds: number };
  /** As in the error: `budget exceeded: tokens 1000/1000`. */
  readonly exceeded?: string | undefined;
};

export type RunView = {
  readonly handle: string;
  readonly principal: string;
  readonly caller: string;
  readonly session?: string | undefined;
  readonly state: ReturnType<typeof stateName>;
  readonly detail?: RunDetail | undefined;
  readonly reason?: string | undefined;
  readonly task: string;
  readonly answer?: string | undefined;
  readonly partial?: string | undefined;
  readonly error?: string | undefined;
  readonly model: string;
  readonly serviceClass: "interactive" | "batch";
  readonly turns: number;
  readonly toolCalls: number;
  readonly failedToolCalls: number;
  readonly usage: { readonly promptTokens: number; readonly completionTokens: number; readonly cachedTokens: number };
  readonly seconds: number;
  readonly parent?: string | undefined;
  readonly children: readonly string[];
  readonly budget?: BudgetView | undefined;
  readonly pendingApprovals: readonly ApprovalView[];
  /** What is wrong with its journal. */
  readonly damage?: string | undefined;
};

/** A run whose journal cannot be read to the end: nobody shall wait for it. */
export function damagedView(view: RunView, damage: string): RunView {
  const error = `the journal of this run is damaged (${damage}): it does not go on; \`luftpause journal verify\` says more`;
  return { ...view, state: "Failed", detail: undefined, reason: "failed", error, pendingApprovals: [], damage };
}

export function viewOf(
  run: RunState,
  around: {
    readonly node: Pick<RunNode, "limits" | "subtree" | "exceeded" | "spawnedAtMs" | "children">;
    readonly detail: RunDetail | undefined;
    readonly nowMs: number;
  },
): RunView {
  const { assignment, sums, end } = run;
  const { node, detail, nowMs } = around;
  const state = stateName(run);
  return {
    handle: run.id,
    principal: run.principal,
    caller: run.caller,
    session: run.session,
    state,
    detail: state === "Running" ? detail : undefined,
    reason: end?.reason,
    task: assignment.task,
    answer: end?.answer,
    partial: end?.partial,
    error: end?.error,
    model: assignment.model,
    serviceClass: assignment.serviceClass,
    turns: sums.turns,
    toolCalls: sums.toolCalls,
    failedToolCalls: sums.failedToolCalls,
    usage: {
      promptTokens: sums.promptTokens,
      completionTokens: sums.completionTokens,
      cachedTokens: sums.cachedTokens,
    },
    seconds: secondsBetween(run.spawnedAtMs, end?.at ?? nowMs),
    parent: run.parent,
    children: node.children,
    budget: budgetView(node, end?.at ?? nowMs),
    pendingApprovals: pendingApprovals(run).map(approvalView),
  };
}

/** The budget of a subtree, where it has one. */
export function budgetView(
  node: Pick<RunNode, "limits" | "subtree" | "exceeded" | "spawnedAtMs">,
  nowMs: number,
): BudgetView | undefined {
  const { limits, subtree, exceeded, spawnedAtMs } = node;
  if (limits.tokens === undefined && limits.toolCalls === undefined && limits.seconds === undefined) return undefined;
  return {
    limits,
    used: {
      tokens: subtree.promptTokens + subtree.completionTokens,
      toolCalls: subtree.callsStarted,
      seconds: secondsBetween(spawnedAtMs, nowMs),
    },
    exceeded: exceeded === undefined ? undefined : exceededText(exceeded),
  };
}

function approvalView(pending: PendingApproval): ApprovalView {
  const { id, tool, server, reason, question } = pending;
  return {
    id,
    tool,
    server,
    arguments: pending.arguments,
    reason,
    askedAt: new Date(pending.askedAt).toISOString(),
    expiresAt: new Date(pending.expiresAt).toISOString(),
    question,
  };
}

function secondsBetween(fromMs: number, toMs: number): number {
  return Math.round(Math.max(0, toMs - fromMs)) / 1000;
}
