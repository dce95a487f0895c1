/**
 * Budgets of subtrees (spec 4, Run tree and budgets): reservation before a turn, settlement after it.
 *
 * B1: before a turn, prompt estimate + longest answer fit into what every budget above has left beside what others reserved.
 * B2: a run waits only for reservations of others; when there are none, it goes on with a shorter answer, or ends.
 */
import { upwards, type RunNode, type TreeState } from "./tree.ts";
import type { BudgetName, Exceeded, RunState, Usage } from "./types.ts";

/** Reserved for an answer whose length nobody bounded. */
const UNBOUNDED_ANSWER_TOKENS = 4_096;
/** An answer shorter than this is no use: the budget counts as exceeded. */
const LEAST_ANSWER_TOKENS = 16;
const WARN_FROM = 0.8;
/** Rather too few bytes per token than too many: an estimate that is too high settles after the turn. */
const BYTES_PER_TOKEN = 3;

export type Reservation =
  | { readonly kind: "granted"; readonly maxTokens: number; readonly reserved: number }
  | { readonly kind: "waits" }
  | { readonly kind: "exceeded"; readonly exceeded: Exceeded };

/** What a run's next turn may cost. */
export function reserve(tree: TreeState, run: RunState): Reservation {
  const { maxTokens } = run.assignment;
  const budgets = upwards(tree, run.id).filter(({ limits }) => limits.tokens !== undefined);
  if (budgets.length === 0) return { kind: "granted", maxTokens, reserved: 0 };
  const prompt = estimatePrompt(run);
  let answer = maxTokens === 0 ? UNBOUNDED_ANSWER_TOKENS : maxTokens;
  let waits = false;
  for (const node of budgets) {
    const limit = node.limits.tokens ?? 0;
    const used = usedOf(node, "tokens");
    const left = limit - used - prompt;
    if (left < LEAST_ANSWER_TOKENS && node.reservedTokens === 0) {
      const amount = used >= limit ? used : used + prompt + LEAST_ANSWER_TOKENS;
      return { kind: "exceeded", exceeded: { run: node.id, name: "tokens", amount, limit } };
    }
    if (left - node.reservedTokens >= answer) continue; // B1
    if (node.reservedTokens > 0) waits = true; // B2
    else answer = Math.min(answer, left);
  }
  if (waits) return { kind: "waits" };
  const lowered = maxTokens === 0 || answer < maxTokens;
  // Without a bound of its own the engine could run past any reservation: inside a budget an answer is always bounded.
  return { kind: "granted", maxTokens: lowered ? answer : maxTokens, reserved: prompt + answer };
}

/** The budget that one more tool call would exceed. */
export function callsExceeded(tree: TreeState, run: string): Exceeded | undefined {
  for (const node of upwards(tree, run)) {
    const limit = node.limits.toolCalls;
    const amount = usedOf(node, "toolCalls") + 1;
    if (limit !== undefined && amount > limit) return { run: node.id, name: "toolCalls", amount, limit };
  }
  return undefined;
}

/** The budget whose time is over. */
export function timeExceeded(tree: TreeState, run: string, nowMs: number): Exceeded | undefined {
  for (const node of upwards(tree, run)) {
    const deadline = deadlineOf(node);
    if (deadline === undefined || nowMs < deadline) continue;
    const amount = Math.floor((nowMs - node.spawnedAtMs) / 1000);
    return { run: node.id, name: "seconds", amount, limit: node.limits.seconds ?? 0 };
  }
  return undefined;
}

/** Absolute, so that it goes on through a restart. */
export function deadlineOf(node: RunNode): number | undefined {
  const { seconds } = node.limits;
  return seconds === undefined ? undefined : node.spawnedAtMs + seconds * 1000;
}

/** What the model is told about budgets above it that run out, each once. */
export function budgetWarnings(
  tree: TreeState,
  run: RunState,
  nowMs: number,
): readonly { readonly warned: string; readonly note: string }[] {
  const warnings: { warned: string; note: string }[] = [];
  for (const node of upwards(tree, run.id)) {
    for (const name of ["tokens", "toolCalls", "seconds"] as const) {
      const limit = node.limits[name];
      if (limit === undefined) continue;
      const used = name === "seconds" ? Math.floor((nowMs - node.spawnedAtMs) / 1000) : usedOf(node, name);
      const warned = `${node.id} ${name}`;
      if (used < WARN_FROM * limit || run.warned.includes(warned)) continue;
      warnings.push({
        warned,
        note: `Note: ${used} of ${limit} ${UNIT[name]} of this task's budget are used: finish soon.`,
      });
    }
  }
  return warnings;
}

const UNIT: { readonly [Name in BudgetName]: string } = {
  tokens: "tokens",
  toolCalls: "tool calls",
  seconds: "seconds",
};

function usedOf(node: RunNode, name: "tokens" | "toolCalls"): number {
  const { promptTokens, completionTokens, callsStarted } = node.subtree;
  return name === "tokens" ? promptTokens + completionTokens : callsStarted;
}

export function exceededText({ name, amount, limit }: Exceeded): string {
  return `budget exceeded: ${name} ${amount}/${limit}`;
}

/** Tokens of the next turn's prompt: what the last one had, and what has come since. */
function estimatePrompt(run: RunState): number {
  const last = run.rounds.at(-1);
  const { task, system, toolsBytes } = run.assignment;
  if (last === undefined) return tokensOf(utf8Bytes(task) + utf8Bytes(system ?? "") + toolsBytes);
  const results = last.calls.map(({ phase }) => (phase.kind === "done" ? utf8Bytes(phase.text) : 0));
  const since = results.reduce((total, bytes) => total + bytes, 0);
  return last.usage.promptTokens + last.usage.completionTokens + tokensOf(since);
}

/** For an engine that reports no usage: from the bytes that went out and came back. */
export function estimateUsage(run: RunState, answer: string): Usage {
  return {
    promptTokens: estimatePrompt(run),
    completionTokens: tokensOf(utf8Bytes(answer)),
    cachedTokens: 0,
    estimated: true,
  };
}

function tokensOf(bytes: number): number {
  return Math.ceil(bytes / BYTES_PER_TOKEN);
}

function utf8Bytes(text: string): number {
  let bytes = 0;
  for (let at = 0; at < text.length; at += 1) {
    const unit = text.charCodeAt(at);
    // Each half of a surrogate pair counts two of the pair's four bytes.
    bytes += unit < 0x80 ? 1 : unit < 0x800 || (unit >= 0xd800 && unit <= 0xdfff) ? 2 : 3;
  }
  return bytes;
}
