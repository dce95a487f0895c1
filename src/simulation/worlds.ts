/** The worlds of the policy table: who asks for what, on which machine. */
import type { ProfileName } from "../engine/index.ts";
import type { ServiceClass } from "../wire/admission.ts";
import { WORLDS, type LoadWorld } from "../workload/index.ts";
import { drawnProgram, type DrawnWorld } from "./drawn-program.ts";
import type { Program } from "./program.ts";
import { recordedProgram, type Recording } from "./recorded-program.ts";
import { textProgram } from "./text-program.ts";

export type SimulatedWorld = {
  readonly name: string;
  /** One line for `--help`. */
  readonly summary: string;
  readonly program: Program;
  readonly profile: ProfileName;
  readonly agents: { readonly [Class in ServiceClass]: number };
};

const FLOOD = { batch: 48, interactive: 4 } as const;

// The published sub-agent testbed as it was calibrated (docs/simulated-engine.md): long contexts, short tool turns.
const SUB_AGENTS: DrawnWorld = {
  name: "sub-agents",
  sharedTokens: 316,
  contextTokens: { least: 2_717, most: 2_717 },
  toolTurns: [
    { turns: 0, weight: 36 },
    { turns: 1, weight: 27 },
    { turns: 2, weight: 21 },
    { turns: 3, weight: 16 },
  ],
  callTokens: { median: 64, sigma: 0.25 },
  answerTokens: { median: 245, sigma: 0.15 },
  resultTokens: { median: 95, sigma: 0.3 },
  toolMs: { median: 3_900, sigma: 0.47 },
  maxTokens: 256,
  tellsEnd: true,
};

// Many tools, growing contexts: between the published statistics of recorded coding agents.
const CODING: DrawnWorld = {
  name: "coding",
  sharedTokens: 6_000,
  contextTokens: { least: 2_000, most: 12_000 },
  toolTurns: Array.from({ length: 15 }, (_, at) => ({ turns: 6 + at, weight: 1 })),
  callTokens: { median: 120, sigma: 0.8 },
  answerTokens: { median: 300, sigma: 0.6 },
  resultTokens: { median: 500, sigma: 1.2 },
  toolMs: { median: 1_000, sigma: 1.5 },
  maxTokens: 4_096,
  tellsEnd: false,
};

const ofText = (world: LoadWorld): SimulatedWorld => ({
  name: world.name,
  summary: world.summary,
  program: textProgram(world),
  profile: "laptop-1b-x2",
  agents: world.name === "light" ? { batch: 4, interactive: 2 } : FLOOD,
});

export const SIMULATED_WORLDS: readonly SimulatedWorld[] = [
  ...Object.values(WORLDS).map(ofText),
  {
    name: "sub-agents",
    summary: "sub-agents with 3,000 tokens of context and a tool of 4.4 s, whose end is told",
    program: drawnProgram(SUB_AGENTS),
    profile: "laptop-1b-x2",
    agents: FLOOD,
  },
  {
    name: "coding",
    summary: "coding agents with 6 to 20 tool calls, contexts of 8,000 to 30,000 tokens",
    program: drawnProgram(CODING),
    profile: "h100-8b",
    agents: { batch: 96, interactive: 8 },
  },
];

/** Recorded runs; the interactive ones are their first ten turns. */
export function recordedWorld(name: string, recordings: readonly Recording[]): SimulatedWorld {
  return {
    name,
    summary: `${recordings.length} recorded runs`,
    program: recordedProgram(recordings),
    profile: "h100-8b",
    agents: FLOOD,
  };
}
