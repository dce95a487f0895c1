/**
 * Held turns in rank. A group holds the turns of one tier that can go to the same replicas, as a heap of principals, in
 * each a heap of callers, in each a heap of turns by arrival. The first turn of a group is found at once; a change of a
 * share moves one element per group where the principal or caller has held turns.
 *
 * Not here: who may be admitted (settle.ts) and to which group a turn belongs (book.ts).
 *
 * Invariants:
 * G1: a lane in a heap holds a turn; an empty lane is removed at once.
 * G2: a principal has at most one lane in a group, a caller at most one in each lane of its principal.
 */
import { IndexedHeap } from "../base/heap.ts";
import { invariant } from "../base/invariant.ts";
import type { Caller, CallerLane, Group, PrincipalLane, Turn } from "./state.ts";

export function createGroup(tier: number): Group {
  return { tier, lanes: new IndexedHeap<PrincipalLane>(principalBefore), byPrincipal: new Map() };
}

/** One group for each tier of a policy. */
export function createGroups(tiers: number): readonly Group[] {
  return Array.from({ length: tiers }, (_, tier) => createGroup(tier));
}

export function groupAt(groups: readonly Group[], tier: number): Group {
  const group = groups[tier];
  invariant(group, `tier ${tier} has a group`);
  return group;
}

/**
 * Whether held turn `a` goes before `b` in the same tier (spec 2, Rank): the principal's turns in flight ÷ its weight,
 * then the caller's turns in flight, then arrival, then the order of the requests.
 */
export function ranksBefore(a: Turn, b: Turn): boolean {
  const callerA = a.caller;
  const callerB = b.caller;
  if (callerA !== callerB) {
    if (callerA.principal.share !== callerB.principal.share) return callerA.principal.share < callerB.principal.share;
    if (callerA.inFlight !== callerB.inFlight) return callerA.inFlight < callerB.inFlight;
  }
  return arrivesBefore(a, b);
}

function arrivesBefore(a: Turn, b: Turn): boolean {
  return a.arrivalMs === b.arrivalMs ? a.sequence < b.sequence : a.arrivalMs < b.arrivalMs;
}

function callerBefore(a: CallerLane, b: CallerLane): boolean {
  return a.caller.inFlight === b.caller.inFlight
    ? arrivesBefore(firstOfCaller(a), firstOfCaller(b))
    : a.caller.inFlight < b.caller.inFlight;
}

function principalBefore(a: PrincipalLane, b: PrincipalLane): boolean {
  return a.principal.share === b.principal.share
    ? callerBefore(firstLane(a), firstLane(b))
    : a.principal.share < b.principal.share;
}

// G1 makes both safe.
function firstOfCaller(lane: CallerLane): Turn {
  return lane.turns.top as Turn;
}

function firstLane(lane: PrincipalLane): CallerLane {
  return lane.lanes.top as CallerLane;
}

/** The turn of a group that goes first, or undefined. */
export function firstOf(group: Group): Turn | undefined {
  const lane = group.lanes.top;
  return lane === undefined ? undefined : firstOfCaller(firstLane(lane));
}

/** Puts a held turn into a group. */
export function joinGroup(group: Group, turn: Turn): void {
  const { caller } = turn;
  const { principal } = caller;
  let principalLane = group.byPrincipal.get(principal);
  if (principalLane === undefined) {
    const lanes = new IndexedHeap<CallerLane>(callerBefore);
    principalLane = { group, principal, lanes, byCaller: new Map(), heapIndex: -1 };
    group.byPrincipal.set(principal, principalLane);
    principal.lanes.add(principalLane);
  }
  let lane = principalLane.byCaller.get(caller);
  if (lane === undefined) {
    lane = { parent: principalLane, caller, turns: new IndexedHeap<Turn>(arrivesBefore), heapIndex: -1 };
    principalLane.byCaller.set(caller, lane);
    caller.lanes.add(lane);
  }
  turn.lane = lane;
  lane.turns.push(turn);
  if (lane.heapIndex === -1) principalLane.lanes.push(lane);
  else principalLane.lanes.raise(lane);
  if (principalLane.heapIndex === -1) group.lanes.push(principalLane);
  else group.lanes.raise(principalLane);
}

/** Takes a held turn out of its group. */
export function leaveGroup(turn: Turn): void {
  const { lane } = turn;
  if (lane === undefined) return;
  const { parent, caller } = lane;
  const { group, principal } = parent;
  turn.lane = undefined;
  if (lane.turns.size === 1) {
    // G1: the heaps compare by first turns, so lanes leave while they still have one.
    if (parent.lanes.size === 1) {
      group.lanes.remove(parent);
      group.byPrincipal.delete(principal);
      principal.lanes.delete(parent);
    }
    parent.lanes.remove(lane);
    parent.byCaller.delete(caller);
    caller.lanes.delete(lane);
    lane.turns.remove(turn);
    if (parent.lanes.size > 0) group.lanes.lower(parent);
    return;
  }
  lane.turns.remove(turn);
  parent.lanes.lower(lane);
  group.lanes.lower(parent);
}

/** Moves the lanes of a caller and its principal back after they got one more turn in flight. */
export function lowerLanes(caller: Caller): void {
  for (const lane of caller.lanes) lane.parent.lanes.lower(lane);
  for (const lane of caller.principal.lanes) lane.group.lanes.lower(lane);
}

/** Moves them forward after a turn in flight has ended. */
export function raiseLanes(caller: Caller): void {
  for (const lane of caller.lanes) lane.parent.lanes.raise(lane);
  for (const lane of caller.principal.lanes) lane.group.lanes.raise(lane);
}
