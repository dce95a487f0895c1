/**
 * Which run does a key belong to? (spec 8, Which run is this?; spec 2, Recognition is shared)
 *
 * Keys are hashes, already scoped to the principal. The table is bounded by count (oldest out first) and by time.
 * A key that two live runs have left answers nothing: the next key decides. A weak key (the conversation's prefix)
 * gives a placement preference only; the run that is made then is confirmed by the next weak match, because only its own
 * conversation continues with its own answers.
 */
import type { IdentityKey, RunSource } from "../wire/admission.ts";
import type { Run } from "./state.ts";

type Entry = {
  /** Distinct runs that left this key, newest last, at most two: a third only needs to know that it is ambiguous. */
  runs: Run[];
  atMs: number;
};

/** In order of the last time that a key was left: the first is the oldest. */
export type Recognition = { readonly entries: Map<string, Entry> };

export type Recognised = { readonly run: Run; readonly source: RunSource; readonly weak: boolean };

export function createRecognition(): Recognition {
  return { entries: new Map() };
}

/** The first key that leads to exactly one live run, or undefined. */
export function recognise(
  table: Recognition,
  keys: readonly IdentityKey[],
  bounds: { readonly nowMs: number; readonly ttlMs: number },
): Recognised | undefined {
  for (const key of keys) {
    const entry = table.entries.get(key.hash);
    if (entry === undefined || bounds.nowMs - entry.atMs > bounds.ttlMs) continue;
    let only: Run | undefined;
    let live = 0;
    for (const run of entry.runs) {
      if (run.forgotten) continue;
      live += 1;
      only = run;
    }
    if (live === 1 && only !== undefined) return { run: only, source: key.source, weak: key.weak === true };
  }
  return undefined;
}

/** Remembers the keys that an answer of a run left. */
export function remember(
  table: Recognition,
  run: Run,
  keys: readonly IdentityKey[],
  bounds: { readonly atMs: number; readonly keysMax: number },
): void {
  for (const key of keys) {
    const before = table.entries.get(key.hash);
    const others = before === undefined ? [] : before.runs.filter((other) => other !== run && !other.forgotten);
    // Deleting first moves the key to the end: insertion order is the order of age.
    if (before !== undefined) table.entries.delete(key.hash);
    table.entries.set(key.hash, {
      runs: [...others.slice(-1), run],
      atMs: Math.max(bounds.atMs, before?.atMs ?? -Infinity),
    });
  }
  for (const hash of table.entries.keys()) {
    if (table.entries.size <= bounds.keysMax) break;
    table.entries.delete(hash);
  }
}

/** Drops keys older than the time to live; they stand first. */
export function sweep(table: Recognition, nowMs: number, ttlMs: number): void {
  for (const [hash, entry] of table.entries) {
    if (nowMs - entry.atMs <= ttlMs) break;
    table.entries.delete(hash);
  }
}
