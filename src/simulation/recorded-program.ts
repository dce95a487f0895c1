/** Runs as they were recorded: one JSON object a line, `{id, turns: [[inputTokens, outputTokens, toolSeconds, …], …]}`. */
import type { Random } from "../base/random.ts";
import type { ServiceClass } from "../wire/admission.ts";
import type { Program, RunProgram } from "./program.ts";
import { TokenPrefixes } from "./token-program.ts";

type RecordedTurn = {
  readonly promptTokens: number;
  readonly outputTokens: number;
  readonly toolMs: number;
  readonly tool: string;
};
export type Recording = { readonly id: string; readonly turns: readonly RecordedTurn[] };

/** Somebody waits for an interactive run: it is as long as a request to an agent, not as a whole session. */
const INTERACTIVE_TURNS = 10;
/** Of the first prompts of all runs, the share that they have in common: the system prompt and the tools. */
const SHARED_OF_SHORTEST = 0.9;
/** What agents of coding tools allow an answer to be. */
const MAX_TOKENS = 8_192;

/**
 * Reads a recording.
 * @returns the runs, or what is wrong with which line.
 */
export function readRecordings(text: string): readonly Recording[] | string {
  const recordings: Recording[] = [];
  for (const [at, line] of text.split("\n").entries()) {
    if (line.trim() === "") continue;
    const recording = readLine(line);
    if (typeof recording === "string") return `line ${at + 1}: ${recording}`;
    recordings.push(recording);
  }
  return recordings.length === 0 ? "there is no run in it" : recordings;
}

function readLine(line: string): Recording | string {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch {
    return "not valid JSON";
  }
  const { id, turns } = (value ?? {}) as { readonly id?: unknown; readonly turns?: unknown };
  if (typeof id !== "string" || !Array.isArray(turns) || turns.length === 0) return "needs an id and a list of turns";
  const read: RecordedTurn[] = [];
  for (const [at, turn] of turns.entries()) {
    const [input, output, seconds, , tool] = (Array.isArray(turn) ? turn : []) as readonly unknown[];
    if (!isCount(input, 1) || !isCount(output, 0) || !isCount(seconds, 0)) {
      return `turn ${at + 1} needs input tokens, output tokens and seconds, as numbers`;
    }
    const toolMs = Math.round(seconds * 1_000);
    read.push({
      promptTokens: Math.round(input),
      outputTokens: Math.max(1, Math.round(output)),
      toolMs,
      tool: typeof tool === "string" ? tool : "tool",
    });
  }
  return { id, turns: read };
}

function isCount(value: unknown, least: number): value is number {
  return typeof value === "number" && Number.isFinite(value) && value >= least;
}

export function recordedProgram(recordings: readonly Recording[]): Program {
  const shortest = Math.min(...recordings.map(({ turns }) => turns[0]?.promptTokens ?? 0));
  const sharedTokens = Math.floor(shortest * SHARED_OF_SHORTEST);
  return {
    prefixKey: "recorded",
    tellsEnd: false,
    begin: (serviceClass, random) => recordedRun(recordings, sharedTokens, serviceClass, random),
  };
}

function recordedRun(
  recordings: readonly Recording[],
  sharedTokens: number,
  serviceClass: ServiceClass,
  random: Random,
): RunProgram {
  const { turns } = recordings[random.split("which").integer(0, recordings.length - 1)] ?? { turns: [] };
  const count = serviceClass === "interactive" ? Math.min(turns.length, INTERACTIVE_TURNS) : turns.length;
  const prefixes = new TokenPrefixes({ name: "recorded", tokens: sharedTokens }, String(random.split("name").next()));
  let at = 0;
  return {
    next() {
      const turn = turns[at] ?? { promptTokens: 1, outputTokens: 1, toolMs: 0, tool: "tool" };
      at += 1;
      const { promptTokens, outputTokens, toolMs, tool } = turn;
      const called = at < count ? { name: tool, ms: toolMs } : undefined;
      return prefixes.plan({ promptTokens, outputTokens, tool: called }, MAX_TOKENS);
    },
  };
}
