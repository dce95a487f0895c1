/** The test kit's hosts (spec 6): the simulated engine over HTTP. Guide: docs/simulated-engine.md. */
export { startFakeEngine } from "./fake-engine.ts";
export type { FakeEngine } from "./fake-engine.ts";
export { DIALECTS } from "./options.ts";
export type { Dialect, FakeEngineOptions } from "./options.ts";
export { FAKE_ENGINE_FLAGS, optionsFromFlags } from "./flags.ts";
export type { FlagsOutcome } from "./flags.ts";
export { FAULTS, faultsHelp } from "./faults.ts";
