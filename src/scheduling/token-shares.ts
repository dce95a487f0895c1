/**
 * Shares in tokens (spec 9, Fair in tokens): what a principal and each of its callers was served, uncached prompt plus
 * weighted output, with a half-life. Who was served least, by its weight, goes first.
 *
 * Everything decays by the same half-life, so an order never changes by time alone. Tokens are therefore kept as worth at
 * one epoch: later ones are multiplied instead of earlier ones divided, and nothing has to be counted anew as time passes.
 *
 * Invariants:
 * T1: a principal's tokens are at least zero, like each caller's; without the switch all stay zero.
 * T2: a caller without open turns is remembered for as long as its tokens matter, and no longer (`quietCallers`).
 */
import { activeSetOf } from "./active-set-config.ts";
import { markCaller, markPrincipal } from "./groups.ts";
import type { Caller, Principal, SchedulerState } from "./state.ts";
import type { SchedulingConfig } from "./types.ts";

/** The epoch is moved when a token of now is worth 2^this: far below the largest number. */
const EPOCH_HALF_LIVES = 500;
/** After so many half-lives a thousandth is left of what was served: the caller is like a new one. */
const MATTERS_HALF_LIVES = 10;

/** Whether shares are counted in tokens; else they are turns in flight. */
export function inTokens(config: SchedulingConfig): boolean {
  return config.policy === "active-set" && activeSetOf(config).tokenShares;
}

/** Books tokens that a caller is served, or gives back those that it was not: then the number is negative. */
export function charge(state: SchedulerState, caller: Caller, tokens: number): void {
  if (tokens === 0 || !inTokens(state.config)) return;
  const worth = tokens * worthNow(state);
  const { principal } = caller;
  caller.tokens = Math.max(0, caller.tokens + worth);
  principal.tokens = Math.max(0, principal.tokens + worth);
  setShares(state.config, caller);
}

/** Puts the shares of a caller and its principal where their tokens or turns in flight are. */
export function setShares(config: SchedulingConfig, caller: Caller): void {
  const { principal } = caller;
  caller.share = inTokens(config) ? caller.tokens : caller.inFlight;
  principal.share = principalShare(config, principal);
  markCaller(caller);
}

export function principalShare(config: SchedulingConfig, principal: Principal): number {
  return (inTokens(config) ? principal.tokens : principal.inFlight) / principal.weight;
}

/** Everybody's shares, after weights or the way of counting have changed. */
export function setAllShares(state: SchedulerState): void {
  for (const principal of state.principals.values()) {
    principal.share = principalShare(state.config, principal);
    markPrincipal(principal);
    for (const caller of principal.callers.values()) setShares(state.config, caller);
  }
}

/** A caller has no open turns any more: it is remembered for as long as its tokens matter (T2). */
export function rest(state: SchedulerState, caller: Caller): void {
  caller.quietMs = state.nowMs;
  state.quietCallers.append(caller);
}

/** Callers whose tokens matter no more. */
export function* noLongerMatter(state: SchedulerState): Generator<Caller> {
  const { nowMs, quietCallers, config } = state;
  const forMs = MATTERS_HALF_LIVES * activeSetOf(config).shareHalfLifeMs;
  for (let caller = quietCallers.first; caller !== undefined; caller = quietCallers.first) {
    if (nowMs - caller.quietMs < forMs && inTokens(config)) return;
    quietCallers.remove(caller);
    yield caller;
  }
}

/** What a token of now is worth at the epoch. */
function worthNow(state: SchedulerState): number {
  const { shareHalfLifeMs } = activeSetOf(state.config);
  if (state.nowMs - state.epochMs >= EPOCH_HALF_LIVES * shareHalfLifeMs) moveEpoch(state, shareHalfLifeMs);
  return 2 ** ((state.nowMs - state.epochMs) / shareHalfLifeMs);
}

/**
 * Makes this moment the epoch: a pass over everybody, once in hundreds of half-lives, and when the half-life changes.
 * @param shareHalfLifeMs by which tokens decayed until now.
 */
export function moveEpoch(state: SchedulerState, shareHalfLifeMs: number): void {
  // After a long rest the power is zero, which is what is left then.
  const scale = 2 ** ((state.epochMs - state.nowMs) / shareHalfLifeMs);
  state.epochMs = state.nowMs;
  for (const principal of state.principals.values()) {
    principal.tokens *= scale;
    for (const caller of principal.callers.values()) caller.tokens *= scale;
  }
  setAllShares(state);
}
