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
export { toolFaultsHelp } from "./fake-tools/faults.ts";
export { FAKE_TOOLS_FLAGS, toolsOptionsFromFlags } from "./fake-tools/flags.ts";
export type { FakeToolsOptions } from "./fake-tools/options.ts";
export type { FakeToolsServer } from "./fake-tools/over-http.ts";
export { serveFakeToolsOnStdio, startFakeTools } from "./fake-tools/start.ts";
