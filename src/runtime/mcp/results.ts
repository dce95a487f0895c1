/** What the face's tools answer: the object of spec 4 as structured content, and the same as text. */
import type { CallToolResult } from "@modelcontextprotocol/server";
import type { ApprovalView, AwaitEntry, RunSummary } from "../run-service.ts";
import type { RunView } from "../run-view.ts";

export type Structured = { readonly [field: string]: unknown };

/** @param isError whether the model has to see it as a failed call. */
export function answered(structured: Structured, isError = false): CallToolResult {
  const content = [{ type: "text" as const, text: JSON.stringify(structured) }];
  return { content, structuredContent: structured, ...(isError ? { isError } : {}) };
}

export function failed(message: string): CallToolResult {
  return { content: [{ type: "text", text: message }], isError: true };
}

/** One entry of `results` of `await`; the answer of `run`. */
export function resultOf(entry: AwaitEntry): Structured {
  if (!("state" in entry)) return entry;
  const { handle, state, detail, reason, answer, partial, error } = entry;
  return { handle, state, detail, reason, answer, partial, error, ...figuresOf(entry), ...approvalsOf(entry) };
}

/** A run in `status`. */
export function statusOf(run: RunSummary): Structured {
  const { handle, state, detail, reason, parent, children } = run;
  return { handle, state, detail, reason, parent, children, ...figuresOf(run), ...approvalsOf(run) };
}

function figuresOf(run: RunSummary): Structured {
  const { model, turns, toolCalls, failedToolCalls, usage, seconds, budget } = run;
  return { model, turns, toolCalls, failedToolCalls, usage, seconds, budget };
}

/** The first one also alone, for older readers. */
function approvalsOf({ pendingApprovals }: Pick<RunSummary, "pendingApprovals">): Structured {
  const shown = pendingApprovals.map(approvalOf);
  return shown.length === 0 ? {} : { pendingApprovals: shown, pendingApproval: shown[0] };
}

function approvalOf({ question: _question, ...shown }: ApprovalView): Structured {
  return shown;
}

export function endedBadly(entry: AwaitEntry): boolean {
  return "state" in entry && entry.state === "Failed";
}

export function isOver(entry: AwaitEntry): boolean {
  return !("state" in entry) || OVER.has(entry.state);
}

const OVER: ReadonlySet<RunView["state"]> = new Set(["Completed", "Failed", "Cancelled"]);

/** The next call to make while runs go on; undefined when all have ended. */
export function nextOf(entries: readonly AwaitEntry[]): string | undefined {
  const going = entries.filter((entry) => !isOver(entry));
  if (going.length === 0) return undefined;
  const handles = JSON.stringify(going.map(({ handle }) => handle));
  const pending = going.flatMap((entry) =>
    "state" in entry ? entry.pendingApprovals.map(({ id }) => [entry.handle, id]) : [],
  );
  const [first] = pending;
  if (first === undefined) return `still running: call await with handles ${handles}`;
  const [handle, id] = first;
  const more = pending.length === 1 ? "" : `, and so on for all ${pending.length} pendingApprovals`;
  return `a person has to decide: ask them about the pendingApprovals, then call approve with {"handle":"${handle}","id":"${id}","allow":true or false}${more}; then await with handles ${handles}`;
}
