/**
 * Workloads (spec 6, Load): what agents ask for and what they saw, as data. The load generator plays them over sockets, the
 * simulation under virtual time; both are measured by the same code.
 */
export { measure } from "./measure.ts";
export type { ClassReport, LoadReport, RunSample, Spread, TurnSample } from "./measure.ts";
export { LOOKUP_TOOL, question, systemPrompt, toolResult, toolTimeMs, WORLDS } from "./worlds.ts";
export type { LoadWorld, WorldName } from "./worlds.ts";
