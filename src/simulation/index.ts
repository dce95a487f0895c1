/** The scheduling core and the engine model under virtual time (spec 6 and 9): minutes of a saturated pool in a second. */
export { POLICIES, simulate } from "./simulate.ts";
export type { Simulation, SimulationPolicy } from "./simulate.ts";
export type { Dialect } from "./pool.ts";
export { readRecordings } from "./recorded-program.ts";
export { recordedWorld, SIMULATED_WORLDS } from "./worlds.ts";
export type { SimulatedWorld } from "./worlds.ts";
export { policyTable } from "./policy-table.ts";
export type { Estimate, PolicyRow, PolicyRun } from "./policy-table.ts";
