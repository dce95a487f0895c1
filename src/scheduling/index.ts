/** The scheduling core (spec 2): pure, deterministic, the same in the service, in tests and in replay. */
export { createState } from "./state.ts";
export type { SchedulerState } from "./state.ts";
export { decide } from "./decide.ts";
export { explain } from "./explain.ts";
export { replicaViews, runOfTurn, runView, snapshot } from "./snapshot.ts";
export type { HeldStatus, ReplicaStatus, SchedulerStatus } from "./snapshot.ts";
export { checkInvariants } from "./invariants.ts";
export { freeze, thaw } from "./freeze.ts";
export { eventLine, headerLine, replay } from "./event-log.ts";
export type { ReplayOutcome } from "./event-log.ts";
export type {
  CapRelease,
  HoldExplanation,
  ReplicaConfig,
  SchedulerEffect,
  SchedulerEvent,
  SchedulingConfig,
} from "./types.ts";
