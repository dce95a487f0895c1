/** The numbers of `policy: active-set` where the configuration names none (spec 9, Numbers). */
import type { ActiveSetConfig, SchedulingConfig } from "./types.ts";

export const ACTIVE_SET_DEFAULTS: ActiveSetConfig = {
  bound: "pool",
  ceiling: 0.85,
  growth: true,
  limitAtFirst: 6,
  limitCut: 0.9,
  lostBelow: 0.8,
  limitRaise: 0.5,
  sliceFactor: 100,
  workConservingBelow: 5,
  preempt: true,
  tokenShares: true,
  outputWeight: 2,
  shareHalfLifeMs: 60_000,
  placeFactor: 4,
  placeLeastMs: 10_000,
  placeMostMs: 120_000,
};

/** Room for a paused interactive run, on replicas that take no priority. */
export const ACTIVE_SET_PAUSED_ROOM_SECONDS = 120;

export function activeSetOf(config: SchedulingConfig): ActiveSetConfig {
  return config.activeSet ?? ACTIVE_SET_DEFAULTS;
}
