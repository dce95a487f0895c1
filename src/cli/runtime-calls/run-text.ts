/** Runs as a person reads them in the shell. */
import { table } from "../table.ts";
import type { TreeNode } from "./caller.ts";

/** A run as the face shows it in `await` and `status`. */
export type ShownRun = {
  readonly handle: string;
  readonly state?: string;
  readonly detail?: string;
  readonly reason?: string;
  readonly answer?: string;
  readonly partial?: string;
  readonly error?: string;
  readonly model?: string;
  readonly turns?: number;
  readonly toolCalls?: number;
  readonly failedToolCalls?: number;
  readonly usage?: { readonly promptTokens: number; readonly completionTokens: number; readonly cachedTokens: number };
  readonly seconds?: number;
  readonly parent?: string;
  readonly children?: readonly string[];
  readonly budget?: {
    readonly limits: { readonly tokens?: number; readonly toolCalls?: number; readonly seconds?: number };
    readonly used: { readonly tokens: number; readonly toolCalls: number; readonly seconds: number };
    readonly exceeded?: string;
  };
  readonly pendingApprovals?: readonly ShownApproval[];
};

export type ShownApproval = {
  readonly id: string;
  readonly tool: string;
  readonly server: string;
  readonly arguments: { readonly [name: string]: unknown };
  readonly reason: string;
  readonly askedAt: string;
  readonly expiresAt: string;
};

const OVER: ReadonlySet<string | undefined> = new Set(["Completed", "Failed", "Cancelled"]);
/** Characters of arguments in one line. */
const ARGUMENTS_MAX = 200;

/** An unknown handle never ends. */
export function isOver(run: ShownRun): boolean {
  return run.state === undefined || OVER.has(run.state);
}

/** `Completed · 3 turns · 2 tool calls (1 failed) · 812 tokens, 640 of them cached · 1.2 s`. */
export function headline(run: ShownRun): string {
  if (run.state === undefined) return run.error ?? "unknown";
  const { turns = 0, toolCalls = 0, failedToolCalls = 0, usage, seconds = 0 } = run;
  const isPlain = run.reason === undefined || run.reason === "completed" || run.reason === run.state.toLowerCase();
  const more = run.detail ?? (isPlain ? undefined : run.reason);
  const failed = failedToolCalls === 0 ? "" : ` (${failedToolCalls} failed)`;
  return [
    more === undefined ? run.state : `${run.state} (${more})`,
    counted(turns, "turn"),
    `${counted(toolCalls, "tool call")}${failed}`,
    ...(usage === undefined
      ? []
      : [`${usage.promptTokens + usage.completionTokens} tokens, ${usage.cachedTokens} of them cached`]),
    `${seconds.toFixed(1)} s`,
  ].join(" · ");
}

/** What a run answered, or why it did not and what it had. */
export function outcome(run: ShownRun): string {
  if (run.answer !== undefined) return run.answer;
  return [
    ...(run.error === undefined ? [] : [run.error]),
    ...(run.partial === undefined || run.partial === "" ? [] : [`Its text so far:\n${run.partial}`]),
  ].join("\n");
}

/** All that `status` knows of one run. */
export function details(run: ShownRun): string {
  const { parent, children = [], budget, pendingApprovals = [] } = run;
  const rows: readonly (readonly [string, string | undefined])[] = [
    ["state", headline(run)],
    ["model", run.model],
    ["parent", parent],
    ["children", children.length === 0 ? undefined : children.join(", ")],
    ["budget", budget === undefined ? undefined : budgetText(budget)],
  ];
  return [
    run.handle,
    ...rows.flatMap(([name, value]) => (value === undefined ? [] : [`  ${name.padEnd(9)} ${value}`])),
    ...pendingApprovals.map((approval) => `  asks      ${approval.id}: ${question(approval)}`),
  ].join("\n");
}

export function runTable(runs: readonly ShownRun[], width: number | undefined): string {
  return table(
    [
      { title: "RUN" },
      { title: "STATE" },
      { title: "TURNS", right: true },
      { title: "TOOL CALLS", right: true },
      { title: "FAILED", right: true },
      { title: "TIME", right: true },
      { title: "MODEL" },
    ],
    runs.map((run) => [
      run.handle,
      run.detail ??
        (run.reason === undefined || run.reason === "completed" ? (run.state ?? "") : `${run.state} (${run.reason})`),
      String(run.turns ?? 0),
      String(run.toolCalls ?? 0),
      String(run.failedToolCalls ?? 0),
      `${(run.seconds ?? 0).toFixed(1)} s`,
      run.model ?? "",
    ]),
    width,
  );
}

/** Trees with their own figures and, where there are descendants, the sums below them. */
export function treeText(roots: readonly TreeNode[]): string {
  const lines: string[] = [];
  const walk = (node: TreeNode, lead: string, mark: string): void => {
    const sums = node.children.length === 0 ? "" : `   whole tree: ${figures(node.subtree)}`;
    const asks = node.pendingApprovals === 0 ? "" : `, ${counted(node.pendingApprovals, "pending approval")}`;
    const state = node.detail ?? node.reason ?? node.state;
    lines.push(`${lead}${mark}${node.handle}  ${state}${asks}  ${figures(node.own)}${sums}`);
    const below = mark === "" ? lead : `${lead}${mark === "└─ " ? "   " : "│  "}`;
    for (const [at, child] of node.children.entries()) {
      walk(child, below, at === node.children.length - 1 ? "└─ " : "├─ ");
    }
  };
  for (const root of roots) walk(root, "", "");
  return lines.join("\n");
}

/** The call that a person has to decide about, in one line. */
export function question({ server, tool, arguments: given, reason }: ShownApproval): string {
  const text = visible(JSON.stringify(given));
  const shown = text.length > ARGUMENTS_MAX ? `${text.slice(0, ARGUMENTS_MAX)}…` : text;
  const why = reason === "indeterminate" ? "indeterminate: it may have happened before a crash" : reason;
  return `${server}/${tool} ${shown} (${why})`;
}

/**
 * Text of models and tools with what would move the cursor, colour or reorder the line made visible: a person decides by
 * what they read.
 */
export function visible(text: string): string {
  return text.replaceAll(
    /(?![\n\t])[\p{Cc}\p{Bidi_Control}]/gu,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

export function counted(count: number, noun: string): string {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}

function figures({ turns, toolCalls, failedToolCalls, promptTokens, completionTokens }: TreeNode["own"]): string {
  const failed = failedToolCalls === 0 ? "" : ` (${failedToolCalls} failed)`;
  return `${counted(turns, "turn")}, ${counted(toolCalls, "tool call")}${failed}, ${promptTokens + completionTokens} tokens`;
}

function budgetText({ limits, used, exceeded }: NonNullable<ShownRun["budget"]>): string {
  const parts = (["tokens", "toolCalls", "seconds"] as const).flatMap((name) => {
    const limit = limits[name];
    return limit === undefined ? [] : [`${name} ${Math.round(used[name])}/${limit}`];
  });
  return `${parts.join(", ")}${exceeded === undefined ? "" : ` – ${exceeded}`}`;
}
