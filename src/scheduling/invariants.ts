/** The invariants of state.ts as predicates, for tests and the simulator: a pass over everything, never per event. */
import { invariant } from "../base/invariant.ts";
import { pinOf } from "./book.ts";
import { firstOf, ranksBefore } from "./groups.ts";
import type { Place } from "./live-set.ts";
import { policyNamed } from "./policies.ts";
import { principalShare } from "./token-shares.ts";
import { firstFor } from "./settle.ts";
import { CLASSES, PHASES, allRuns, phaseOf, type Group, type Run, type SchedulerState, type Turn } from "./state.ts";

/** @throws InvariantViolation naming the invariant that does not hold. */
export function checkInvariants(state: SchedulerState): void {
  const turns = [...state.turns.values()];
  const inFlight = turns.filter((turn) => turn.state === "flight");
  const held = turns.filter((turn) => turn.state !== "flight");
  checkPlaces(state, turns);
  checkCounts(state, inFlight, held);
  for (const turn of held) checkHeld(state, turn);
  for (const replica of state.replicas.values()) for (const group of replica.pinned) checkOrder(group);
  for (const service of state.services.values()) for (const group of service.groups) checkOrder(group);
  checkRoom(state);
  checkPlacesOfRuns(state);
  if (state.config.policy === "active-set") checkWithdrawals(state, inFlight);
  checkExpiry(state);
  checkBounds(state, turns);
}

function checkPlaces(state: SchedulerState, turns: readonly Turn[]): void {
  for (const turn of turns) {
    const places = {
      held: turn.lane !== undefined && turn.replica === undefined && turn.run.held.includes(turn),
      delayed: turn.lane === undefined && turn.replica === undefined && turn.run.held.includes(turn),
      flight: turn.lane === undefined && turn.replica !== undefined && !turn.run.held.includes(turn),
    };
    invariant(places[turn.state], `I1: turn ${turn.id} is ${turn.state} and stands elsewhere`);
    invariant(turn.dataplane.turns.get(turn.id) === turn, `I1: the dataplane of turn ${turn.id} does not know it`);
    invariant(!turn.run.forgotten, `I1: run ${turn.run.id} of open turn ${turn.id} is forgotten`);
  }
  let ofDataplanes = 0;
  for (const dataplane of state.dataplanes.values()) ofDataplanes += dataplane.turns.size;
  invariant(ofDataplanes === turns.length, "I1: a dataplane has a turn that is not known");
}

function checkCounts(state: SchedulerState, inFlight: readonly Turn[], held: readonly Turn[]): void {
  invariant(state.flightCount === inFlight.length && state.heldCount === held.length, "I2: totals");
  const of = (pick: (turn: Turn) => unknown, thing: unknown): number =>
    inFlight.filter((turn) => pick(turn) === thing).length;
  for (const replica of state.replicas.values()) {
    invariant(replica.inFlight === of((turn) => turn.replica, replica), `I2: replica ${replica.config.replica}`);
  }
  for (const principal of state.principals.values()) {
    invariant(principal.inFlight === of((turn) => turn.caller.principal, principal), `I2: principal ${principal.id}`);
    invariant(principal.share === principalShare(state.config, principal), `I2: share of ${principal.id}`);
    const heldOfIt = held.filter((turn) => turn.caller.principal === principal).length;
    invariant(principal.held === heldOfIt, `I2: held of ${principal.id}`);
    for (const caller of principal.callers.values()) {
      invariant(caller.inFlight === of((turn) => turn.caller, caller), `I2: caller ${caller.id}`);
      invariant(caller.held === held.filter((turn) => turn.caller === caller).length, `I2: held of ${caller.id}`);
    }
  }
  const counts = state.runCounts.map(() => 0);
  for (const run of allRuns(state)) {
    invariant(run.flights === of((turn) => turn.run, run), `I2: run ${run.id}`);
    invariant(run.held.length === held.filter((turn) => turn.run === run).length, `I2: held of run ${run.id}`);
    const main = [...inFlight, ...held].filter((turn) => turn.run === run && !turn.side).length;
    invariant(run.mainOpen === main, `I2: main turns of run ${run.id}`);
    const at = CLASSES.indexOf(run.class) * PHASES.length + PHASES.indexOf(phaseOf(run));
    counts[at] = (counts[at] ?? 0) + 1;
  }
  invariant(
    counts.join(" ") === state.runCounts.join(" "),
    `I2: runs by class and phase are ${counts.join(" ")}, counted ${state.runCounts.join(" ")}`,
  );
}

function checkHeld(state: SchedulerState, turn: Turn): void {
  if (turn.state === "delayed") return;
  const policy = policyNamed(state.config.policy);
  const pin = pinOf(policy, turn);
  const service = state.services.get(`${turn.api}\n${turn.model}`);
  const tier = policy.tierOf(turn);
  const right = pin === undefined ? service?.groups[tier] : pin.pinned[tier];
  invariant(turn.lane?.parent.group === right, `I4: turn ${turn.id} stands in the wrong group`);
  const candidates = pin === undefined ? (service?.replicas ?? []) : [pin];
  for (const replica of candidates) {
    if (!policy.hasRoom(replica, tier)) continue;
    if (policy.judges(tier)) continue;
    invariant(!policy.takes(state, turn, replica), `I3: held turn ${turn.id} fits on ${replica.config.replica}`);
  }
}

/**
 * I3 where turns are judged one by one. Shares change with every turn, and with them who stands first in a tier at a replica;
 * that one is looked at when the replica is, at the latest with the next tick. So this holds after a tick.
 */
export function checkJudged(state: SchedulerState): void {
  const policy = policyNamed(state.config.policy);
  for (const replica of state.replicas.values()) {
    for (let tier = 0; tier < policy.tiers; tier += 1) {
      if (!policy.judges(tier) || !policy.hasRoom(replica, tier)) continue;
      const turn = firstFor(replica, tier);
      if (turn === undefined) continue;
      const name = replica.config.replica;
      invariant(!policy.takes(state, turn, replica), `I3: held turn ${turn.id} fits on ${name}`);
      invariant(replica.live.yieldable.size === 0, `I3: a place on ${name} could be taken for turn ${turn.id}`);
    }
  }
}

/** The heaps offer what a plain search finds. */
function checkOrder(group: Group): void {
  const turns = group.lanes.items.flatMap((lane) => lane.lanes.items.flatMap((callers) => callers.turns.items));
  const first = firstOf(group);
  for (const turn of turns) {
    invariant(first !== undefined && !ranksBefore(turn, first), `I4: turn ${turn.id} should stand first in its group`);
  }
}

function checkRoom(state: SchedulerState): void {
  const kept = new Map<unknown, number>();
  for (const run of allRuns(state)) {
    const paused = run.last === "paused" && run.class === "interactive" && run.mainOpen === 0;
    const inTime = state.nowMs - run.pausedMs < state.config.pausedRoomMs;
    const has = state.room.has(run);
    invariant(!has || (paused && run.replica), `I5: room is kept for run ${run.id}, which is not paused`);
    invariant(has || !(paused && run.replica && inTime), `I5: no room is kept for paused run ${run.id}`);
    if (has) kept.set(run.replica, (kept.get(run.replica) ?? 0) + 1);
  }
  for (const replica of state.replicas.values()) {
    invariant(replica.keptRoom === (kept.get(replica) ?? 0), `I5: kept room of ${replica.config.replica}`);
  }
  let before = Number.NEGATIVE_INFINITY;
  for (let run = state.room.first; run !== undefined; run = state.room.next(run)) {
    invariant(run.pausedMs >= before, "I5: room is kept out of the order of the pauses");
    before = run.pausedMs;
  }
}

/** A1 to A4 (live-set.ts, places.ts). */
function checkPlacesOfRuns(state: SchedulerState): void {
  const places = [...allRuns(state)].map(({ place }) => place).filter((place) => place !== undefined);
  for (const place of places) {
    const { run, replica } = place;
    invariant(run.place === place && run.replica === replica, `A1: run ${run.id} has its place elsewhere than its pin`);
    const rests = place.class === "batch" && run.mainOpen === 0;
    invariant((place.phase !== "busy") === rests, `A2: the place of run ${run.id} is ${place.phase}`);
    const listed = replica.live.between.has(place);
    invariant(listed === rests, `A2: the place of run ${run.id} is not listed as it is`);
    const offered = replica.live.yieldable.has(place);
    invariant(offered === (place.phase === "yieldable"), `A3: the place of run ${run.id} is offered wrongly`);
    invariant(place.heapIndex >= 0 === (place.phase === "between"), `A4: the place of run ${run.id} waits wrongly`);
  }
  const sum = (of: readonly Place[], pick: (place: Place) => number): number =>
    of.reduce((total, place) => total + pick(place), 0);
  for (const { live, config } of state.replicas.values()) {
    const here = places.filter(({ replica }) => replica.live === live);
    const name = config.replica;
    const batch = here.filter((place) => place.class === "batch");
    invariant(live.batchRuns === batch.length, `A1: live batch runs of ${name}`);
    invariant(live.interactiveRuns === here.length - batch.length, `A1: live interactive runs of ${name}`);
    const own = sum(here, (place) => place.contextTokens - place.sharedTokens);
    invariant(live.privateTokens === own, `A1: tokens of the live runs of ${name}`);
    let common = 0;
    for (const [key, { tokens, runs }] of live.shared) {
      invariant(runs === here.filter((place) => place.sharedKey === key).length, `A1: who shares a prefix on ${name}`);
      if (runs > 0) common += tokens;
    }
    invariant(live.sharedTokens === common, `A1: shared tokens of the live runs of ${name}`);
  }
}

/** W1 to W3 (withdrawals.ts). */
function checkWithdrawals(state: SchedulerState, inFlight: readonly Turn[]): void {
  for (const turn of inFlight) {
    const listed = turn.replica?.withdrawals.unstarted.has(turn) === true;
    const unstarted = turn.class === "batch" && turn.startedMs < 0;
    invariant(
      listed === unstarted,
      `W1: turn ${turn.id} has ${listed ? "begun" : "not begun"} and is listed otherwise`,
    );
    invariant(turn.withdrawals >= 0, `W2: turn ${turn.id}`);
  }
  let urgent = 0;
  for (const { withdrawals, config } of state.replicas.values()) {
    const { unstarted, leaving, leavingAtProbe } = withdrawals;
    for (let turn = unstarted.first; turn !== undefined; turn = unstarted.next(turn)) {
      invariant(inFlight.includes(turn), `W1: turn ${turn.id} is not in flight`);
    }
    invariant(leavingAtProbe >= 0 && leaving >= leavingAtProbe, `W3: withdrawn attempts at ${config.replica}`);
    if (withdrawals.urgent === undefined) continue;
    urgent += 1;
    const { turn } = withdrawals.urgent;
    invariant(turn.state === "flight" && turn.startedMs < 0, `W1: urgent turn ${turn.id} has its first byte`);
  }
  invariant(state.urgent.size === urgent, "W1: a replica is kept quiet and not listed");
}

function checkExpiry(state: SchedulerState): void {
  const listed = new Set<Run>();
  let before = Number.NEGATIVE_INFINITY;
  for (let run = state.expiry.first; run !== undefined; run = state.expiry.next(run)) {
    invariant(run.lastMs >= before, "I6: the expiry list is out of order");
    before = run.lastMs;
    listed.add(run);
  }
  let known = 0;
  for (const run of allRuns(state)) {
    known += 1;
    invariant(!run.forgotten && listed.has(run), `I6: run ${run.id} is not in the expiry list`);
  }
  invariant(listed.size === known && state.expiry.size === known, "I6: the expiry list holds a run that is not known");
}

function checkBounds(state: SchedulerState, turns: readonly Turn[]): void {
  for (const principal of state.principals.values()) {
    invariant(principal.callers.size + principal.runs.size > 0, `I7: principal ${principal.id} is kept without need`);
    for (const caller of principal.callers.values()) {
      const open = caller.inFlight + caller.held > 0;
      const remembered = caller.tokens > 0 && state.quietCallers.has(caller);
      invariant(open || remembered, `I7: caller ${caller.id} is kept without turns`);
      invariant(!open || !state.quietCallers.has(caller), `T2: caller ${caller.id} has open turns and counts as quiet`);
      invariant(caller.tokens >= 0 && principal.tokens >= 0, `T1: tokens of caller ${caller.id}`);
    }
  }
  for (const turn of turns) {
    const { principal } = turn.caller;
    invariant(
      state.principals.get(principal.id) === principal,
      `I7: principal ${principal.id} of turn ${turn.id} is gone`,
    );
    invariant(principal.callers.get(turn.caller.id) === turn.caller, `I7: caller of turn ${turn.id} is gone`);
  }
  const { strong, weak } = state.recognition;
  for (const table of [strong, weak]) {
    invariant(table.byHash.size === table.byAge.size, "I7: a key is in the table and not in its list");
    invariant(table.byHash.size <= state.config.identityKeysMax, "I7: more keys than the limit");
  }
  invariant(state.dirty.size === 0, "I3: a replica was marked and not looked at");
}
