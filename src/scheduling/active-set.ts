/**
 * Policy `active-set` (spec 9): admit runs, not turns.
 *
 * The first turn of a batch run waits until the run's prefix fits beside those of the live runs; its further turns go at
 * once, for as long as it holds its place. Interactive runs are never held back by that; they are counted first. Where an
 * engine orders what waits in it by our priorities, there is neither a turn cap nor kept room; elsewhere both are as in `classic`.
 *
 * What is known of prompts stands in prompts.ts, places in places.ts, what a live set fills in live-set.ts.
 */
import { invariant } from "../base/invariant.ts";
import { activeSetOf } from "./active-set-config.ts";
import { pinOf, type Step } from "./book.ts";
import { avoiding, classic, emptier } from "./classic.ts";
import { forgetShown, liveRuns, tokensNeeded, usedTokens, type Place } from "./live-set.ts";
import { busyPlace, grantPlace, passPlaces, recountPlace, releasePlace, restPlace } from "./places.ts";
import type { Usage } from "../wire/admission.ts";
import type { Policy } from "./policy.ts";
import { contextOf, learnFromAnswer, learnReturn, mayTurnBack, prefixKeyOf } from "./prompts.ts";
import { serviceFor } from "./services.ts";
import type { Replica, Run, SchedulerState, Turn } from "./state.ts";
import { TIERS } from "./tiers.ts";
import { charge } from "./token-shares.ts";
import { p95Of } from "./tool-gaps.ts";
import type { PriorityOrder } from "../wire/endpoint.ts";
import type { ActiveSetConfig } from "./types.ts";
import { keepQuiet, noLongerUnstarted, passUrgent, seeLeaving, withdrawNewest } from "./withdrawals.ts";

const INTERACTIVE = 0;
/** Turns of batch runs that hold a place, and side calls. */
const CONTINUING = 1;
/** Turns of batch runs that have lost their place. */
const RETURNING = 2;
const FIRST = 3;

export const activeSet: Policy = {
  name: "active-set",
  tiers: TIERS["active-set"],

  tierOf(turn) {
    if (turn.class === "interactive") return INTERACTIVE;
    if (turn.side || turn.run.place !== undefined) return CONTINUING;
    return turn.run.prompts === undefined ? FIRST : RETURNING;
  },

  hasRoom(replica, tier) {
    if (!replica.configured || !replica.healthy || activeSet.shut(replica, tier) !== undefined) return false;
    const bound = limitOf(replica);
    if (bound === undefined) return true;
    const inFlight = replica.inFlight + replica.withdrawals.leaving;
    if (takesPriority(replica)) return inFlight < bound;
    // As in classic: foreign load counts, but never closes a replica to us; batch leaves a slot for each paused run.
    const ours = Math.max(1, bound - replica.foreign);
    return tier === INTERACTIVE ? inFlight < ours : inFlight + 1 + replica.keptRoom <= ours;
  },

  shut(replica, tier) {
    if (tier === INTERACTIVE || replica.withdrawals.urgent === undefined) return undefined;
    return `an interactive turn waits for its first byte on ${replica.config.replica}`;
  },

  judges(tier) {
    return tier > CONTINUING;
  },

  takes(state, turn, replica) {
    return activeSet.tierOf(turn) <= CONTINUING || obstacleOf(state, turn, replica) === undefined;
  },

  makeRoom(step, turn, replica) {
    const { yieldable } = replica.live;
    for (let place = yieldable.first; place !== undefined; place = yieldable.first) {
      releasePlace(step, place);
      if (activeSet.takes(step.state, turn, replica)) return true;
    }
    return false;
  },

  obstacle(state, turn, replica) {
    const { live, config } = replica;
    const name = config.replica;
    switch (obstacleOf(state, turn, replica)) {
      case undefined:
        // Nobody overtakes the first of its tier (policy.ts).
        return `no place on ${name} before a run that needs more room`;
      case "pool": {
        const needed = tokens(tokensNeeded(live, turn.contextTokens, prefixKeyOf(turn)));
        const filled = `${tokens(usedTokens(live))} of ${tokens(ceilingOf(state, live.poolTokens ?? 0))} tokens`;
        return `no place in the pool of ${name} (${liveRuns(live)} live runs fill ${filled}, this one needs ${needed})`;
      }
      case "limit":
        return `no place on ${name} (${live.batchRuns} live batch runs, limit ${live.limit.toFixed(1)} by the survival of prefixes)`;
    }
  },

  limit(replica) {
    return limitOf(replica);
  },

  priority(turn, replica) {
    const order = priorityOrder(replica);
    if (order === "off") return undefined;
    return (turn.class === "interactive") === (order === "higher-first") ? 1 : 0;
  },

  binds(run) {
    return classic.binds(run);
  },

  onProbeSent(replica) {
    replica.withdrawals.leavingAtProbe = replica.withdrawals.leaving;
  },

  onSample(replica, sample, config) {
    if (sample?.kvCapacityTokens !== undefined) replica.live.poolTokens = sample.kvCapacityTokens;
    seeLeaving(replica, sample?.running);
    classic.onSample(replica, sample, config);
  },

  onLoadLost(replica) {
    classic.onLoadLost(replica);
  },

  onReplaced(replica, config) {
    forgetShown(replica.live, activeSetOf(config).limitAtFirst);
  },

  onPushedBack(replica) {
    classic.onPushedBack(replica);
  },

  place(run, fitting) {
    const candidates = avoiding(run, fitting);
    if (run.replica !== undefined && candidates.includes(run.replica)) return run.replica;
    let best = candidates[0];
    invariant(best, "placement needs a replica with room");
    for (const candidate of candidates) {
      if (better(run, candidate, best)) best = candidate;
    }
    return best;
  },

  onRequested(step, turn) {
    const { run } = turn;
    turn.contextTokens = contextOf(step.state, turn);
    if (turn.side) return;
    const { place } = run;
    learnReturn(step.state, run);
    if (place === undefined) return;
    busyPlace(step, place);
    place.prefixKey = prefixKeyOf(turn);
    recountPlace(step, place, turn.contextTokens);
    if (activeSetOf(step.state.config).growth) makeUpForGrowth(step, place);
  },

  onFlying(step, turn) {
    if (turn.side) turn.uncachedTokens = turn.contextTokens;
    else takePlace(step, turn);
    chargeAhead(step.state, turn);
    if (turn.startedMs < 0 && turn.replica !== undefined) preempt(step, turn, turn.replica);
  },

  onHeld(step, turn) {
    if (turn.class === "batch" || !activeSetOf(step.state.config).preempt) return;
    const pin = pinOf(activeSet, turn);
    const candidates = pin === undefined ? serviceFor(step.state, turn.model, turn.api).replicas : [pin];
    for (const replica of candidates) if (replica.healthy && withdrawNewest(step, replica, prefillMs)) return;
  },

  onStarted(step, turn) {
    noLongerUnstarted(step, turn);
  },

  onLanding(step, turn) {
    noLongerUnstarted(step, turn);
  },

  onWithdrawn(step, turn, replica) {
    turn.withdrawals += 1;
    replica.withdrawals.leaving += 1;
    charge(step.state, turn.caller, -turn.charged);
    turn.charged = 0;
  },

  onFinished(step, turn, event) {
    chargeUsage(step.state, turn, event.usage);
    if (turn.side) return;
    learnFromAnswer(step, turn, event);
    const { place, prompts } = turn.run;
    if (place !== undefined && prompts !== undefined) recountPlace(step, place, prompts.contextTokens);
  },

  onEnded(step, run) {
    const { place } = run;
    if (place === undefined || run.mainOpen > 0 || place.phase !== "busy") return;
    if (run.last === "idle") {
      // After a failure its client may ask again at once: the place stays until somebody waits for it.
      if (run.kept?.taken === false && place.class === "batch") restPlace(step, place, step.state.nowMs);
      else releasePlace(step, place);
    } else if (place.class === "batch") {
      restPlace(step, place, dueOf(step.state, place));
    } else if (!step.state.room.has(run)) releasePlace(step, place);
  },

  onMoving(step, run) {
    if (run.place !== undefined) releasePlace(step, run.place);
  },

  onRoomExpired(step, run) {
    if (run.place !== undefined && run.mainOpen === 0) releasePlace(step, run.place);
  },

  onForgotten(step, run) {
    if (run.place !== undefined) releasePlace(step, run.place);
  },

  onReported(step, run) {
    if (run.mainOpen > 0) return;
    // The report says more than what was known here: its place begins anew, if it has one.
    if (run.place !== undefined) releasePlace(step, run.place);
    if (run.last === "idle" || run.replica === undefined || !mayTurnBack(step.state, run)) return;
    const { contextTokens = step.state.firstPromptTokens, prefixKey } = run.prompts ?? {};
    grantPlace(step, run, run.replica, { contextTokens, prefixKey });
    activeSet.onEnded(step, run);
  },

  onTime(step) {
    passPlaces(step);
    passUrgent(step);
  },
};

/** A main turn goes: its run has a place from here on. */
function takePlace(step: Step, turn: Turn): void {
  const { run } = turn;
  turn.uncachedTokens = turn.contextTokens;
  if (run.place !== undefined) {
    busyPlace(step, run.place);
    turn.uncachedTokens -= Math.min(turn.contextTokens, run.prompts?.contextTokens ?? 0);
    return;
  }
  // A dataplane may report a turn that runs elsewhere than its run's home, or where nothing is configured any more.
  const home = run.replica;
  if (home === undefined) return;
  const place = grantPlace(step, run, home, { contextTokens: turn.contextTokens, prefixKey: prefixKeyOf(turn) });
  turn.uncachedTokens -= place.sharedTokens;
  if (activeSetOf(step.state.config).growth) shrinkToCeiling(step, home);
}

/** Books what a turn will probably cost, so that a caller cannot have a hundred turns in flight before the first is counted. */
function chargeAhead(state: SchedulerState, turn: Turn): void {
  turn.charged = turn.uncachedTokens + activeSetOf(state.config).outputWeight * state.answerTokens;
  charge(state, turn.caller, turn.charged);
}

/** The engine has counted: what was booked ahead is put right. */
function chargeUsage(state: SchedulerState, turn: Turn, usage: Usage): void {
  const { promptTokens = turn.contextTokens, cachedTokens = promptTokens - turn.uncachedTokens } = usage;
  const { completionTokens = state.answerTokens } = usage;
  const spent = promptTokens - cachedTokens + activeSetOf(state.config).outputWeight * completionTokens;
  charge(state, turn.caller, spent - turn.charged);
  turn.charged = spent;
}

/** An interactive turn goes to a replica, or a batch turn that could be taken back for one. */
function preempt(step: Step, turn: Turn, replica: Replica): void {
  if (turn.class === "batch") replica.withdrawals.unstarted.append(turn);
  else if (activeSetOf(step.state.config).preempt && withdrawNewest(step, replica, prefillMs)) {
    keepQuiet(step, replica, turn);
  }
}

function prefillMs({ uncachedTokens, replica }: Turn): number {
  return replica === undefined ? 0 : uncachedTokens / replica.live.prefillRate;
}

/** The engine orders what waits in it by the priority of a request. */
function takesPriority(replica: Replica): boolean {
  return priorityOrder(replica) !== "off";
}

/** SGLang shows in its metrics that it accepts the field, and puts larger ones first; of others one has to be told. */
function priorityOrder(replica: Replica): Exclude<PriorityOrder, "auto"> {
  const { priority = "auto" } = replica.config;
  if (priority !== "auto") return priority;
  return replica.load?.takesPriority === true ? "higher-first" : "off";
}

function limitOf(replica: Replica): number | undefined {
  return takesPriority(replica) ? replica.config.maxInFlight : classic.limit(replica);
}

/** The bound that keeps a batch run without a place from getting one, or undefined. */
function obstacleOf(state: SchedulerState, turn: Turn, replica: Replica): "pool" | "limit" | undefined {
  const config = activeSetOf(state.config);
  const { live } = replica;
  // A replica with little to do takes what waits, and a run that is alone always fits: nothing is ever too large.
  if (replica.inFlight < config.workConservingBelow || liveRuns(live) === 0) return undefined;
  const bounds = boundsOf(config, replica);
  if (bounds.pool !== undefined) {
    const needed = tokensNeeded(live, turn.contextTokens, prefixKeyOf(turn));
    if (usedTokens(live) + needed > config.ceiling * bounds.pool) return "pool";
  }
  return bounds.survival && live.batchRuns + 1 > live.limit ? "limit" : undefined;
}

/** Which bounds count on a replica, by what it shows and what the configuration prefers (spec 9, Which bound). */
function boundsOf(
  { bound }: ActiveSetConfig,
  { live }: Replica,
): { readonly pool: number | undefined; readonly survival: boolean } {
  if (bound === "none") return { pool: undefined, survival: false };
  const { poolTokens, seesCached } = live;
  if (poolTokens === undefined) return { pool: undefined, survival: seesCached };
  if (!seesCached || bound === "pool") return { pool: poolTokens, survival: false };
  return { pool: bound === "both" ? poolTokens : undefined, survival: true };
}

function ceilingOf(state: SchedulerState, poolTokens: number): number {
  return activeSetOf(state.config).ceiling * poolTokens;
}

function overCeiling(state: SchedulerState, replica: Replica): boolean {
  const { pool } = boundsOf(activeSetOf(state.config), replica);
  return pool !== undefined && usedTokens(replica.live) > ceilingOf(state, pool);
}

/** Batch runs between turns make room for those that have grown, the longest away first: its prefix is evicted next anyway. */
function shrinkToCeiling(step: Step, replica: Replica): void {
  const { between } = replica.live;
  for (let place = between.first; place !== undefined && overCeiling(step.state, replica); place = between.first) {
    releasePlace(step, place);
  }
}

/** A run comes back larger. Where all others are at work, it is the one that waits, unless it is alone. */
function makeUpForGrowth(step: Step, place: Place): void {
  const { replica } = place;
  shrinkToCeiling(step, replica);
  const mayLose = place.class === "batch" && place.run.mainOpen === 1 && place.run.flights === 0;
  if (mayLose && liveRuns(replica.live) > 1 && overCeiling(step.state, replica)) releasePlace(step, place);
}

/** When the place of a run between turns can be taken: its slice is spent, or it has not come back in time. */
function dueOf(state: SchedulerState, place: Place): number {
  const config = activeSetOf(state.config);
  const { run, replica } = place;
  const ownTokens = place.contextTokens - place.sharedTokens;
  const sliceMs = config.sliceFactor === 0 ? FOREVER_MS : (config.sliceFactor * ownTokens) / replica.live.prefillRate;
  const usualMs = config.placeFactor * p95Of(state.gaps, run.prompts?.tool);
  const awayMs = Math.min(Math.max(usualMs, config.placeLeastMs), config.placeMostMs);
  return Math.min(place.grantedMs + sliceMs, run.pausedMs + awayMs);
}

/** A time that does not come, and that JSON can write. */
const FOREVER_MS = Number.MAX_SAFE_INTEGER / 2;

/** For a run without a home. Interactive runs are spread; batch goes where most of the pool is free. */
function better(run: Run, a: Replica, b: Replica): boolean {
  if (run.class === "interactive") {
    if (a.live.interactiveRuns !== b.live.interactiveRuns) return a.live.interactiveRuns < b.live.interactiveRuns;
    return emptier(a, b, limitOf);
  }
  const poolA = a.live.poolTokens;
  const poolB = b.live.poolTokens;
  if (poolA === undefined || poolB === undefined) return emptier(a, b, limitOf);
  const difference = usedTokens(a.live) / poolA - usedTokens(b.live) / poolB;
  return difference === 0 ? a.inFlight < b.inFlight : difference < 0;
}

function tokens(count: number): string {
  return Math.round(count).toLocaleString("en");
}
