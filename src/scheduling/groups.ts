/**
 * Held turns in rank. A group holds the turns of one tier that can go to the same replicas, as a heap of principals, in
 * each a heap of callers, in each a heap of turns by arrival.
 *
 * A principal or caller may have held turns in hundreds of groups, and its share changes with every turn of it. The heaps
 * therefore compare by shares as they were when a lane was last put in its place; a change only marks the lanes, and the
 * marked ones of a group are put in their places when that group is asked for its first turn. Since a marked lane need not
 * be marked again, a change looks only at the lanes that were put in their places since the change before (`fresh`).
 *
 * Not here: who may be admitted (settle.ts) and to which group a turn belongs (book.ts).
 *
 * Invariants:
 * G1: a lane in a heap holds a turn; an empty lane is removed at once.
 * G2: a principal has at most one lane in a group, a caller at most one in each lane of its principal.
 * G3: keys of a lane change only together with its place in its heap.
 * G4: a lane in a heap is either fresh, and its keys are those of now, or marked.
 */
import { IndexedHeap } from "../base/heap.ts";
import { invariant } from "../base/invariant.ts";
import type { Caller, CallerLane, Group, Principal, PrincipalLane, Turn } from "./state.ts";

/** Lists name lanes that have left until they are next looked at, but no more than so many beside those that are there. */
const LEFT_MAX = 64;

function createGroup(tier: number): Group {
  return {
    tier,
    lanes: new IndexedHeap<PrincipalLane>(principalBefore),
    byPrincipal: new Map(),
    byCaller: new Map(),
    marked: [],
  };
}

/** One group for each tier of a policy. */
export function createGroups(tiers: number): readonly Group[] {
  return Array.from({ length: tiers }, (_, tier) => createGroup(tier));
}

export function groupAt(groups: readonly Group[], tier: number): Group {
  const group = groups[tier];
  invariant(group, "every tier has a group");
  return group;
}

/**
 * Whether held turn `a` goes before `b` in the same tier (spec 2, Rank): the principal's turns in flight ÷ its weight (or
 * tokens, see token-shares.ts), then the caller's, then arrival, then the order of the requests.
 *
 * Between two principals, and between two callers, with equal shares the one goes first that has waited longer, counted in
 * admissions since its last one or since its held turns began. Without it the bound of spec 2 ("with k backlogged callers
 * none waits for more than k admissions") does not hold: where slots are fewer than callers, equal shares are the rule, and
 * by arrival alone the caller that came first with a thousand turns would be served a thousand times in a row.
 */
export function ranksBefore(a: Turn, b: Turn): boolean {
  const callerA = a.caller;
  const callerB = b.caller;
  if (callerA !== callerB) {
    const principalA = callerA.principal;
    const principalB = callerB.principal;
    if (principalA.share !== principalB.share) return principalA.share < principalB.share;
    if (principalA.waitingSince !== principalB.waitingSince) return principalA.waitingSince < principalB.waitingSince;
    if (callerA.share !== callerB.share) return callerA.share < callerB.share;
    if (callerA.waitingSince !== callerB.waitingSince) return callerA.waitingSince < callerB.waitingSince;
  }
  return arrivesBefore(a, b);
}

function arrivesBefore(a: Turn, b: Turn): boolean {
  return a.arrivalMs === b.arrivalMs ? a.sequence < b.sequence : a.arrivalMs < b.arrivalMs;
}

function callerBefore(a: CallerLane, b: CallerLane): boolean {
  if (a.share !== b.share) return a.share < b.share;
  if (a.waitingSince !== b.waitingSince) return a.waitingSince < b.waitingSince;
  return arrivesBefore(firstOfCaller(a), firstOfCaller(b));
}

function principalBefore(a: PrincipalLane, b: PrincipalLane): boolean {
  if (a.share !== b.share) return a.share < b.share;
  if (a.waitingSince !== b.waitingSince) return a.waitingSince < b.waitingSince;
  return callerBefore(firstLane(a), firstLane(b));
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
  if (group.marked.length > 0) refresh(group);
  const lane = group.lanes.top;
  return lane === undefined ? undefined : firstOfCaller(firstLane(lane));
}

/** Puts a held turn into a group. */
export function joinGroup(group: Group, turn: Turn): void {
  const { caller } = turn;
  const principalLane = laneOfPrincipal(group, caller);
  const lane = laneOfCaller(principalLane, caller);
  turn.lane = lane;
  lane.turns.push(turn);
  // A turn more can only bring a lane forward.
  if (lane.heapIndex === -1) principalLane.lanes.push(lane);
  else principalLane.lanes.raise(lane);
  if (principalLane.heapIndex === -1) group.lanes.push(principalLane);
  else group.lanes.raise(principalLane);
}

function laneOfPrincipal(group: Group, { principal }: Caller): PrincipalLane {
  let lane = group.byPrincipal.get(principal);
  if (lane === undefined) {
    lane = {
      group,
      principal,
      share: principal.share,
      waitingSince: principal.waitingSince,
      lanes: new IndexedHeap<CallerLane>(callerBefore),
      marked: [],
      heapIndex: -1,
    };
    group.byPrincipal.set(principal, lane);
    principal.lanes += 1;
    addFresh(principal, lane);
  }
  return lane;
}

function laneOfCaller(parent: PrincipalLane, caller: Caller): CallerLane {
  const { byCaller } = parent.group;
  let lane = byCaller.get(caller);
  if (lane === undefined) {
    const turns = new IndexedHeap<Turn>(arrivesBefore);
    const { share, waitingSince } = caller;
    lane = { parent, caller, share, waitingSince, turns, heapIndex: -1 };
    byCaller.set(caller, lane);
    caller.lanes += 1;
    addFresh(caller, lane);
  }
  return lane;
}

/** Takes a held turn out of its group. */
export function leaveGroup(turn: Turn): void {
  const { lane } = turn;
  if (lane === undefined) return;
  const { parent, caller } = lane;
  const { group, principal } = parent;
  turn.lane = undefined;
  if (lane.turns.size > 1) {
    lane.turns.remove(turn);
    parent.lanes.lower(lane);
    group.lanes.lower(parent);
    return;
  }
  // G1: the heaps compare by first turns, so lanes leave while they still have one.
  if (parent.lanes.size === 1) {
    group.lanes.remove(parent);
    group.byPrincipal.delete(principal);
    principal.lanes -= 1;
  }
  parent.lanes.remove(lane);
  group.byCaller.delete(caller);
  caller.lanes -= 1;
  lane.turns.remove(turn);
  if (parent.lanes.size > 0) group.lanes.lower(parent);
}

/** The share of a caller, and with it that of its principal, has changed. */
export function markCaller(caller: Caller): void {
  for (const lane of caller.fresh) {
    const { marked, lanes } = lane.parent;
    marked.push(lane);
    if (marked.length > lanes.size + LEFT_MAX) dropLeft(marked);
  }
  caller.fresh.length = 0;
  markPrincipal(caller.principal);
}

/** The share of a principal has changed. */
export function markPrincipal(principal: Principal): void {
  for (const lane of principal.fresh) {
    const { marked, lanes } = lane.group;
    marked.push(lane);
    if (marked.length > lanes.size + LEFT_MAX) dropLeft(marked);
  }
  principal.fresh.length = 0;
}

function addFresh<Lane extends PrincipalLane | CallerLane>(
  owner: { readonly fresh: Lane[]; readonly lanes: number },
  lane: Lane,
): void {
  owner.fresh.push(lane);
  if (owner.fresh.length > owner.lanes + LEFT_MAX) dropLeft(owner.fresh);
}

/** Lanes that left must not pile up where nothing changes or nobody asks. The one added last may not be in its heap yet. */
function dropLeft<Lane extends PrincipalLane | CallerLane>(list: Lane[]): void {
  const last = list.at(-1);
  const there = list.filter((lane) => lane.heapIndex !== -1 || lane === last);
  list.length = 0;
  list.push(...there);
}

/** Gives marked lanes the keys of now and their places, one after the other (G3). */
function refresh(group: Group): void {
  for (const lane of group.marked) {
    if (lane.heapIndex === -1) continue;
    for (const callerLane of lane.marked) {
      if (callerLane.heapIndex === -1) continue;
      callerLane.share = callerLane.caller.share;
      callerLane.waitingSince = callerLane.caller.waitingSince;
      lane.lanes.fix(callerLane);
      addFresh(callerLane.caller, callerLane);
    }
    lane.marked.length = 0;
    lane.share = lane.principal.share;
    lane.waitingSince = lane.principal.waitingSince;
    group.lanes.fix(lane);
    addFresh(lane.principal, lane);
  }
  group.marked.length = 0;
}
