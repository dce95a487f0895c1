/** Worlds of token-level runs, drawn from distributions. */
import type { Random } from "../base/random.ts";
import type { Program, RunProgram } from "./program.ts";
import { TokenPrefixes, type TokenTurn } from "./token-program.ts";

export type DrawnWorld = {
  readonly name: string;
  /** System prompt and tools. */
  readonly sharedTokens: number;
  /** What a run begins with beside that. */
  readonly contextTokens: { readonly least: number; readonly most: number };
  /** Weight of each number of tool turns before the answer. */
  readonly toolTurns: readonly { readonly turns: number; readonly weight: number }[];
  /** Median and the standard deviation of the logarithm; the mean is above the median. */
  readonly callTokens: LogNormal;
  readonly answerTokens: LogNormal;
  readonly resultTokens: LogNormal;
  readonly toolMs: LogNormal;
  readonly maxTokens: number;
  readonly tellsEnd: boolean;
};

export type LogNormal = { readonly median: number; readonly sigma: number };

export function drawnProgram(world: DrawnWorld): Program {
  return {
    prefixKey: world.name,
    tellsEnd: world.tellsEnd,
    begin: (_class, random) => drawnRun(world, random),
  };
}

function drawnRun(world: DrawnWorld, random: Random): RunProgram {
  const { sharedTokens, contextTokens, maxTokens } = world;
  const prefixes = new TokenPrefixes({ name: world.name, tokens: sharedTokens }, String(random.split("name").next()));
  const toolTurns = drawnTurns(world, random.split("turns"));
  let promptTokens = sharedTokens + random.split("context").integer(contextTokens.least, contextTokens.most);
  let number = 0;
  return {
    next() {
      const draws = random.split(`turn ${number}`);
      const isLast = number >= toolTurns;
      number += 1;
      const wanted = logNormal(isLast ? world.answerTokens : world.callTokens, draws.split("output"));
      const outputTokens = Math.max(1, Math.min(maxTokens, Math.round(wanted)));
      const tool = isLast ? undefined : { name: "tool", ms: Math.round(logNormal(world.toolMs, draws.split("tool"))) };
      const turn: TokenTurn = { promptTokens, outputTokens, tool };
      promptTokens += outputTokens + Math.max(1, Math.round(logNormal(world.resultTokens, draws.split("result"))));
      return prefixes.plan(turn, maxTokens);
    },
  };
}

function drawnTurns({ toolTurns }: DrawnWorld, random: Random): number {
  let left = random.next() * toolTurns.reduce((sum, { weight }) => sum + weight, 0);
  for (const { turns, weight } of toolTurns) {
    left -= weight;
    if (left < 0) return turns;
  }
  return toolTurns.at(-1)?.turns ?? 0;
}

function logNormal({ median, sigma }: LogNormal, random: Random): number {
  // Box–Muller; 1 − u is never 0.
  const normal =
    Math.sqrt(-2 * Math.log(1 - random.split("a").next())) * Math.cos(2 * Math.PI * random.split("b").next());
  return median * Math.exp(sigma * normal);
}
