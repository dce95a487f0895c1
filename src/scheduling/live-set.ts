/**
 * The live set of a replica (spec 9, Admit runs, not turns): which runs hold a place there, and how much of the KV pool
 * their prefixes fill. A run's context counts without what it shares with others; that part counts once.
 *
 * Not here: who gets or loses a place (places.ts), and which bound counts (active-set.ts).
 *
 * Invariants:
 * A1: a run has at most one place, on the replica of its pin; the sums are those of the places.
 * A2: a place is `between` turns exactly while its batch run has no open main turn and nothing in flight.
 * A3: a place whose time is over and that is still held (nobody has waited for it) is `yieldable`, first one first.
 */
import { LinkedList, type ListLinks } from "../base/linked-list.ts";
import { invariant } from "../base/invariant.ts";
import type { ServiceClass } from "../wire/admission.ts";
import type { Replica, Run } from "./state.ts";

/** A run's place in the live set of a replica. */
export type Place = {
  readonly run: Run;
  readonly replica: Replica;
  /** As counted: a run may change its class between turns. */
  class: ServiceClass;
  /** Order of the grants. */
  readonly sequence: number;
  /** The slice began. */
  readonly grantedMs: number;
  /** Context of the run, tokens. */
  contextTokens: number;
  /** What its prompts begin with. */
  prefixKey: string | undefined;
  /** Under which a part of its context is counted as shared; undefined: none is. */
  sharedKey: string | undefined;
  /** The part of its context that is counted once for all who share it. */
  sharedTokens: number;
  phase: "busy" | "between" | "yieldable";
  /** While between turns: when it can be taken for who waits. */
  dueMs: number;
  heapIndex: number;
  /** Orders of the two lists of the live set. */
  restedStamp: number;
  yieldStamp: number;
  betweenLinks: ListLinks<Place> | undefined;
  yieldLinks: ListLinks<Place> | undefined;
};

/** A prefix that first prompts were found to share. */
export type SharedPrefix = {
  /** Cached tokens of the last first prompt with this key. */
  tokens: number;
  /** Live runs that share it. */
  runs: number;
};

export type LiveSet = {
  /** Size of the KV pool, as last reported; undefined: never. */
  poolTokens: number | undefined;
  /** Answers here said how much of their prompt was cached. */
  seesCached: boolean;
  interactiveRuns: number;
  batchRuns: number;
  /** What the live runs fill by themselves, without what is shared. */
  privateTokens: number;
  /** What they share, each prefix once. */
  sharedTokens: number;
  readonly shared: Map<string, SharedPrefix>;
  /** Limit of live batch runs by the survival of prefixes. */
  limit: number;
  limitCutMs: number;
  /** Prompt tokens computed per millisecond, as learned from answers that began. */
  prefillRate: number;
  /** Batch places between turns, the longest first. */
  readonly between: LinkedList<"betweenLinks", Place>;
  /** Those that can be taken for who waits. */
  readonly yieldable: LinkedList<"yieldLinks", Place>;
};

/** Until an answer has told: a small GPU. Only slices are measured by it. */
const PREFILL_RATE_AT_FIRST = 10;
/** Prefixes remembered without a live run. Names come from clients, so their number is bounded. */
const SHARED_MAX = 64;

export function createLiveSet(limit: number): LiveSet {
  return {
    ...nothingShown(limit),
    interactiveRuns: 0,
    batchRuns: 0,
    privateTokens: 0,
    sharedTokens: 0,
    shared: new Map(),
    between: new LinkedList<"betweenLinks", Place>("betweenLinks"),
    yieldable: new LinkedList<"yieldLinks", Place>("yieldLinks"),
  };
}

/** Another engine answers there, and no run has a place any more: what the old one has shown is void. */
export function forgetShown(live: LiveSet, limit: number): void {
  invariant(liveRuns(live) === 0, "A1: no run has its prefix in an engine that is gone");
  Object.assign(live, nothingShown(limit));
  live.shared.clear();
}

function nothingShown(
  limit: number,
): Pick<LiveSet, "poolTokens" | "seesCached" | "limit" | "limitCutMs" | "prefillRate"> {
  return {
    poolTokens: undefined,
    seesCached: false,
    limit,
    limitCutMs: Number.MIN_SAFE_INTEGER,
    prefillRate: PREFILL_RATE_AT_FIRST,
  };
}

/** What the live runs fill of the pool. */
export function usedTokens(live: LiveSet): number {
  return live.privateTokens + live.sharedTokens;
}

export function liveRuns(live: LiveSet): number {
  return live.interactiveRuns + live.batchRuns;
}

/** How much more a run with this context would fill. */
export function tokensNeeded(live: LiveSet, contextTokens: number, prefixKey: string | undefined): number {
  const shared = prefixKey === undefined ? undefined : live.shared.get(prefixKey);
  if (shared === undefined) return contextTokens;
  const inCommon = Math.min(contextTokens, shared.tokens);
  return contextTokens - inCommon + (shared.runs > 0 ? 0 : inCommon);
}

/** Counts a place in (A1). */
export function countIn(place: Place): void {
  const { prefixKey } = place;
  const shared = prefixKey === undefined ? undefined : place.replica.live.shared.get(prefixKey);
  place.sharedKey = shared === undefined ? undefined : prefixKey;
  place.sharedTokens = shared === undefined ? 0 : Math.min(place.contextTokens, shared.tokens);
  addToSums(place);
}

/** What a place adds to the sums, by what it says that it shares (A1). */
export function addToSums(place: Place): void {
  const { live } = place.replica;
  if (place.class === "interactive") live.interactiveRuns += 1;
  else live.batchRuns += 1;
  live.privateTokens += place.contextTokens - place.sharedTokens;
  if (place.sharedKey === undefined) return;
  const shared = live.shared.get(place.sharedKey);
  invariant(shared, "A1: a shared prefix is known while a live run shares it");
  shared.runs += 1;
  if (shared.runs === 1) live.sharedTokens += shared.tokens;
}

/** Counts a place out (A1). */
export function countOut(place: Place): void {
  const { live } = place.replica;
  if (place.class === "interactive") live.interactiveRuns -= 1;
  else live.batchRuns -= 1;
  live.privateTokens -= place.contextTokens - place.sharedTokens;
  if (place.sharedKey === undefined) return;
  const shared = live.shared.get(place.sharedKey);
  invariant(shared && shared.runs > 0, "A1: a shared prefix is known while a live run shares it");
  shared.runs -= 1;
  if (shared.runs === 0) live.sharedTokens -= shared.tokens;
}

/** A first prompt came back with so many cached tokens: that many it shares with others of its kind. */
export function learnShared(live: LiveSet, prefixKey: string, tokens: number): void {
  const known = live.shared.get(prefixKey);
  if (known === undefined) {
    // Nothing in common is not worth remembering.
    if (tokens === 0) return;
    live.shared.set(prefixKey, { tokens, runs: 0 });
    forgetShared(live);
    return;
  }
  // A prefix that was evicted comes back cold once and is then shared again: a zero says nothing about its size.
  if (tokens === 0) return;
  if (known.runs > 0) live.sharedTokens += tokens - known.tokens;
  known.tokens = tokens;
}

/** Those that nobody shares any more leave first, oldest first. */
function forgetShared(live: LiveSet): void {
  if (live.shared.size <= SHARED_MAX) return;
  for (const [key, { runs }] of live.shared) {
    if (runs > 0) continue;
    live.shared.delete(key);
    return;
  }
}
