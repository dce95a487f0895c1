/**
 * The scheduling core (spec 2): pure, deterministic, the same in the service, in tests and in replay.
 *
 * A host makes a state, feeds `decide` one event after the other and carries out the effects in order. Everything else
 * here reads: nothing but `decide` changes a state.
 */
export { createState } from "./state.ts";
export type { SchedulerState } from "./state.ts";
export { decide } from "./decide.ts";
export { explain, explainAll } from "./explain.ts";
export { replicaViews, runOfTurn, runView, snapshot } from "./snapshot.ts";
export type { HeldStatus, ReplicaStatus, SchedulerStatus } from "./snapshot.ts";
export { checkInvariants, checkJudged } from "./invariants.ts";
export { freeze, thaw } from "./freeze.ts";
export type { FrozenState } from "./freeze.ts";
export { createReplay, eventLine, headerLine, replay } from "./event-log.ts";
export type { Replay, ReplayOutcome } from "./event-log.ts";
export { ACTIVE_SET_DEFAULTS, ACTIVE_SET_PAUSED_ROOM_SECONDS } from "./active-set-config.ts";
export type {
  ActiveSetBound,
  ActiveSetConfig,
  CapRelease,
  HoldExplanation,
  ReplicaConfig,
  SchedulerEffect,
  SchedulerEvent,
  SchedulingConfig,
} from "./types.ts";
