/**
 * Places in the live sets (spec 9, A place): granted with an admission, taken only between turns.
 *
 * A batch place between turns is due when its slice is spent or its run has not come back in time. A due place stays with
 * its run until somebody waits for it: then the policy takes due places one by one until who waits fits.
 *
 * Invariants: A1 to A3 (live-set.ts).
 * A4: `due` holds exactly the places that are between turns and not yet yieldable.
 */
import { IndexedHeap } from "../base/heap.ts";
import { invariant } from "../base/invariant.ts";
import type { Step } from "./book.ts";
import { countIn, countOut, type Place } from "./live-set.ts";
import type { Replica, Run } from "./state.ts";

/** What the places of the whole pool have in common. */
export type Places = {
  granted: number;
  stamps: number;
  readonly due: IndexedHeap<Place>;
};

export function createPlaces(): Places {
  return {
    granted: 0,
    stamps: 0,
    due: new IndexedHeap<Place>((a, b) => (a.dueMs === b.dueMs ? a.sequence < b.sequence : a.dueMs < b.dueMs)),
  };
}

/** Gives a run a place on the replica to which one of its turns goes. */
export function grantPlace(
  step: Step,
  run: Run,
  replica: Replica,
  prompt: { readonly contextTokens: number; readonly prefixKey: string | undefined },
): Place {
  invariant(run.place === undefined, "A1: a run has one place");
  const { places, nowMs } = step.state;
  places.granted += 1;
  const place: Place = {
    run,
    replica,
    class: run.class,
    sequence: places.granted,
    grantedMs: nowMs,
    contextTokens: prompt.contextTokens,
    prefixKey: prompt.prefixKey,
    sharedKey: undefined,
    sharedTokens: 0,
    phase: "busy",
    dueMs: 0,
    heapIndex: -1,
    restedStamp: 0,
    yieldStamp: 0,
    betweenLinks: undefined,
    yieldLinks: undefined,
  };
  run.place = place;
  countIn(place);
  return place;
}

/** Takes a place: its room is free at once. The engine keeps the prefix for as long as nobody needs the memory. */
export function releasePlace(step: Step, place: Place): void {
  leaveLists(step, place);
  countOut(place);
  place.run.place = undefined;
  step.state.dirty.add(place.replica);
}

/** Counts a place anew: its run has grown, shrunk, or changed its class. */
export function recountPlace(step: Step, place: Place, contextTokens: number): void {
  const shrinks = contextTokens < place.contextTokens;
  countOut(place);
  place.contextTokens = contextTokens;
  place.class = place.run.class;
  countIn(place);
  if (shrinks) step.state.dirty.add(place.replica);
}

/** A turn of the run opens: its place cannot be taken until it ends. */
export function busyPlace(step: Step, place: Place): void {
  if (place.phase === "busy") return;
  leaveLists(step, place);
  place.phase = "busy";
}

/**
 * The last open turn of a batch run has ended, and the run will come back.
 * @param dueMs when its place can be taken for who waits; a moment that has passed: at once.
 */
export function restPlace(step: Step, place: Place, dueMs: number): void {
  const { places, nowMs } = step.state;
  place.dueMs = dueMs;
  places.stamps += 1;
  place.restedStamp = places.stamps;
  place.replica.live.between.append(place);
  if (dueMs > nowMs) {
    place.phase = "between";
    places.due.push(place);
  } else offer(step, place);
}

/** Places whose time is over can be taken from here on. */
export function passPlaces(step: Step): void {
  const { places, nowMs } = step.state;
  for (let place = places.due.top; place !== undefined && place.dueMs <= nowMs; place = places.due.top) {
    places.due.remove(place);
    offer(step, place);
  }
}

function offer(step: Step, place: Place): void {
  const { places, dirty } = step.state;
  place.phase = "yieldable";
  places.stamps += 1;
  place.yieldStamp = places.stamps;
  place.replica.live.yieldable.append(place);
  dirty.add(place.replica);
}

function leaveLists(step: Step, place: Place): void {
  const { live } = place.replica;
  live.between.remove(place);
  if (place.phase === "between") step.state.places.due.remove(place);
  live.yieldable.remove(place);
}
