/** The test kit's hosts (spec 6): the simulated engine over HTTP (docs/simulated-engine.md) and the load generator. */
export { startFakeEngine } from "./fake-engine.ts";
export { startRouter } from "./router.ts";
export type { FakeRouter, RouterOptions } from "./router.ts";
export type { FakeEngine } from "./fake-engine.ts";
export { DIALECTS } from "./options.ts";
export type { Dialect, FakeEngineOptions } from "./options.ts";
export { FAKE_ENGINE_FLAGS, optionsFromFlags } from "./flags.ts";
export type { FlagsOutcome } from "./flags.ts";
export { FAULTS, faultsHelp } from "./faults.ts";
export { runClosedLoop } from "./loadgen/closed-loop.ts";
export type { AgentName, ClosedLoop } from "./loadgen/closed-loop.ts";
export type { ClassReport, LoadReport } from "./loadgen/measure.ts";
export { WORLDS } from "./loadgen/worlds.ts";
export type { LoadWorld, WorldName } from "./loadgen/worlds.ts";
