/**
 * What the simulated model answers. A scripted agent: how many tool calls come before the final answer, which tools,
 * which arguments and how long the answer is are drawn from a seed that the conversation's own beginning gives, so that
 * every policy and every replica sees the same work. How far the agent is, it reads from the tool results that are
 * already among the messages: the model keeps no state.
 */
import { createRandom, hashText } from "../base/random.ts";
import type { Random } from "../base/random.ts";
import { placeholderText } from "./placeholder.ts";
import type { Answer, ToolCall } from "./prompt.ts";
import { valueForSchema } from "./schema-value.ts";
import { CHARS_PER_TOKEN } from "./tokens.ts";

/** The agents of one world: means and shares from which each conversation draws. */
export type AgentWorld = {
  /** Weight of 0, 1, 2, … tool calls before the final answer. */
  readonly callWeights: readonly number[];
  /** Mean length of a turn that calls a tool, in tokens; drawn between half and one and a half of it. */
  readonly callTokens: number;
  /** Mean length of the final answer, in tokens; drawn likewise. */
  readonly answerTokens: number;
};

/** The calibrated own-loop testbed (research note, 3.1): 0 to 3 calls, 114 tokens a tool turn, 120 an answer. */
export const TESTBED_WORLD: AgentWorld = { callWeights: [31, 27, 23, 20], callTokens: 114, answerTokens: 120 };

/** Overrides of the draws for one request. */
export type AgentOverrides = {
  /** Tool calls before the final answer. */
  readonly calls?: number;
  /** Calls per turn. */
  readonly parallel?: number;
  /** Exact length of the final answer, in tokens. */
  readonly answerTokens?: number;
  /** Name of the tool to call; else drawn from the offered ones. */
  readonly tool?: string;
};

export type ChatScript = {
  readonly messages: readonly unknown[];
  /** Tools that may be called in this turn; empty where there are none or `tool_choice` is `none`. */
  readonly tools: readonly unknown[];
  /** `required`: a call whatever the script says. A name: that tool. */
  readonly toolChoice: "auto" | "required" | { readonly name: string };
  readonly parallelCalls: boolean;
  /** Schema of `response_format`; undefined: free text. */
  readonly answerSchema: unknown;
  readonly seed: number;
  readonly world: AgentWorld;
  readonly overrides: AgentOverrides;
};

/** The answer of one chat turn. */
export function scriptChatAnswer(script: ChatScript): Answer {
  const { messages, tools, toolChoice, overrides, world } = script;
  const run = createRandom(hashText(openerOf(messages), script.seed));
  const results = messages.filter((message) => roleOf(message) === "tool").length;
  const calls = overrides.calls ?? weighted(run.split("calls"), world.callWeights);
  const turn = run.split(`turn ${results}`);
  const callable = tools.map(toolOf).filter((tool) => tool !== undefined);
  const forced = toolChoice !== "auto";
  if (callable.length > 0 && (forced || results < calls)) {
    const wanted = overrides.parallel ?? (turn.split("parallel").next() < 0.2 ? 2 : 1);
    const count = !script.parallelCalls ? 1 : forced ? (overrides.parallel ?? 1) : Math.min(wanted, calls - results);
    return {
      content: "",
      calls: Array.from({ length: count }, (_, at) => makeCall(script, callable, turn.split(`call ${at}`))),
    };
  }
  if (script.answerSchema !== undefined) {
    const value = valueForSchema(script.answerSchema, turn.split("schema"), around(turn, world.answerTokens));
    return { content: JSON.stringify(value), calls: [] };
  }
  const tokens = overrides.answerTokens ?? around(turn, world.answerTokens);
  return { content: answerText(turn.split("text"), tokens, results), calls: [] };
}

/** The continuation of a raw prompt. */
export function scriptCompletion(options: {
  readonly prompt: string;
  readonly seed: number;
  readonly world: AgentWorld;
  readonly overrides: AgentOverrides;
}): string {
  const random = createRandom(hashText(options.prompt, options.seed));
  const tokens = options.overrides.answerTokens ?? around(random, options.world.answerTokens);
  return answerText(random.split("text"), tokens, 0);
}

/** Text of exactly `tokens` tokens, the end mark included. */
function answerText(random: Random, tokens: number, results: number): string {
  const characters = Math.max(1, tokens - 1) * CHARS_PER_TOKEN;
  const opening =
    results === 0
      ? "Placeholder text from the simulated engine. "
      : `Placeholder text after ${results} tool ${results === 1 ? "result" : "results"}. `;
  const text =
    characters <= opening.length + 8
      ? placeholderText(random, characters)
      : opening + placeholderText(random, characters - opening.length);
  // Sentences end where a word does; blanks fill the last tokens up.
  return text.slice(0, characters).padEnd(characters - CHARS_PER_TOKEN + 1);
}

type Tool = { readonly name: string; readonly parameters: unknown };

function makeCall(script: ChatScript, tools: readonly Tool[], random: Random): ToolCall {
  const { toolChoice, overrides } = script;
  const name = typeof toolChoice === "object" ? toolChoice.name : overrides.tool;
  const tool = tools.find((candidate) => candidate.name === name) ?? tools[random.integer(0, tools.length - 1)];
  if (tool === undefined) throw new RangeError("a call needs a tool");
  // About 12 tokens of a call are its frame; the first string argument carries the rest.
  const characters = Math.max(8, (around(random, script.world.callTokens) - 12) * CHARS_PER_TOKEN);
  const value = valueForSchema(
    tool.parameters,
    random.split("arguments"),
    Math.round(characters / strings(tool.parameters)),
  );
  return { name: tool.name, arguments: JSON.stringify(value) };
}

/** String properties of a schema's top level, at least 1: the argument length is spread over them. */
function strings(schema: unknown): number {
  const properties = field(schema, "properties");
  if (typeof properties !== "object" || properties === null) return 1;
  const count = Object.values(properties).filter((property) => field(property, "type") === "string").length;
  return Math.max(1, count);
}

function around(random: Random, mean: number): number {
  return Math.max(2, Math.round(mean * (0.5 + random.split("length").next())));
}

function weighted(random: Random, weights: readonly number[]): number {
  let left = random.next() * weights.reduce((sum, weight) => sum + weight, 0);
  for (let at = 0; at < weights.length; at += 1) {
    left -= weights[at] ?? 0;
    if (left < 0) return at;
  }
  return Math.max(0, weights.length - 1);
}

/** The beginning of a conversation, which stays the same over all its turns: all up to the first message of the user. */
function openerOf(messages: readonly unknown[]): string {
  const first = messages.findIndex((message) => roleOf(message) === "user");
  return JSON.stringify(messages.slice(0, first + 1 || 1));
}

function roleOf(message: unknown): unknown {
  return field(message, "role");
}

function toolOf(tool: unknown): Tool | undefined {
  const described = field(tool, "function");
  const name = field(described, "name");
  return typeof name === "string" ? { name, parameters: field(described, "parameters") } : undefined;
}

function field(value: unknown, name: string): unknown {
  return typeof value === "object" && value !== null ? (value as Readonly<Record<string, unknown>>)[name] : undefined;
}
