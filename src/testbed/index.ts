/** The test kit's hosts (spec 6): the simulated engine over HTTP. */
export { startFakeEngine } from "./fake-engine.ts";
export type { FakeEngine, FakeEngineStats } from "./fake-engine.ts";
export { DIALECTS } from "./options.ts";
export type { Dialect, FakeEngineOptions } from "./options.ts";
export { FAKE_ENGINE_FLAGS, optionsFromFlags } from "./flags.ts";
export type { FakeEngineFlag, FlagsOutcome, GivenFlags } from "./flags.ts";
export { FAULTS, faultsHelp, parseFaults } from "./faults.ts";
export type { FaultName, FaultSet, FaultSpec, ParsedFaults } from "./faults.ts";
export type { RequestCounts, RequestOutcome, RequestRecord } from "./recorder.ts";
