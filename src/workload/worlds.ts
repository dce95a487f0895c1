/** What the agents of a load look like: how long their prompts are, what their tools take. Times are simulated. */
import { createRandom, hashText } from "../base/random.ts";
import type { Random } from "../base/random.ts";

export type LoadWorld = {
  readonly name: WorldName;
  /** One line for `--help`. */
  readonly summary: string;
  /** System prompt and tools, the same in every run. */
  readonly sharedTokens: number;
  /** The document that a run begins with: drawn between the two. */
  readonly contextTokens: { readonly least: number; readonly most: number };
  readonly resultTokens: number;
  /** A tool call takes this long on average, drawn between half and one and a half of it. */
  readonly toolMs: number;
  /** Longest answer of a turn, as the client asks for it. */
  readonly maxTokens: number;
};

export type WorldName = "own-loop" | "light" | "own-loop-x2" | "tool-bound";

// The calibrated testbed: contexts up to 8,000 characters, tools of 3.7 s. How often an agent calls its tool and how long
// it answers is drawn by the simulated model, from the conversation's own beginning.
const OWN_LOOP: LoadWorld = {
  name: "own-loop",
  summary: "agents with documents of up to 2,052 tokens and a tool of 3.7 s",
  sharedTokens: 159,
  contextTokens: { least: 136, most: 2_052 },
  resultTokens: 100,
  toolMs: 3_700,
  maxTokens: 256,
};

export const WORLDS: { readonly [Name in WorldName]: LoadWorld } = {
  "own-loop": OWN_LOOP,
  light: {
    ...OWN_LOOP,
    name: "light",
    summary: "the same with documents of up to 500 tokens",
    contextTokens: { least: 136, most: 500 },
  },
  "own-loop-x2": {
    ...OWN_LOOP,
    name: "own-loop-x2",
    summary: "own-loop with documents twice as long",
    contextTokens: { least: 272, most: 4_104 },
  },
  "tool-bound": { ...OWN_LOOP, name: "tool-bound", summary: "own-loop with tools of 22 s", toolMs: 22_200 },
};

/** Four characters count as a token in the simulated engine. */
const TOKEN_CHARS = 4;

/** The message that every run of a world begins with. */
export function systemPrompt(world: LoadWorld): string {
  const opening =
    "You answer questions about documents. Use the tool to look facts up, then answer in a few sentences. ";
  return padded(opening, world.sharedTokens - TOOL_TOKENS, createRandom(hashText("system", 0)));
}

export const LOOKUP_TOOL = {
  type: "function",
  function: {
    name: "lookup",
    description: "Looks a fact up.",
    parameters: { type: "object", properties: { query: { type: "string" } }, required: ["query"] },
  },
} as const;
const TOOL_TOKENS = Math.ceil(JSON.stringify(LOOKUP_TOOL).length / TOKEN_CHARS);

/** What the user of one run asks; no two runs of one seed begin alike. */
export function question(world: LoadWorld, random: Random): string {
  const { least, most } = world.contextTokens;
  const document = random.split("document");
  const opening = `Document ${document.integer(0, 999_999_999)}. Summarise it and look up what is missing. `;
  return padded(opening, random.split("context").integer(least, most), document);
}

export function toolResult(world: LoadWorld, random: Random): string {
  return padded("Found: ", world.resultTokens, random);
}

/** How long one tool call takes, in simulated milliseconds. */
export function toolTimeMs(world: LoadWorld, random: Random): number {
  return Math.round(world.toolMs * (0.5 + random.split("duration").next()));
}

/** A text of so many tokens that begins with `opening`. */
function padded(opening: string, tokens: number, random: Random): string {
  let text = opening;
  while (text.length < tokens * TOKEN_CHARS) text += `${random.integer(0, 4_294_967_295).toString(36)} `;
  return text.slice(0, Math.max(1, tokens) * TOKEN_CHARS);
}
