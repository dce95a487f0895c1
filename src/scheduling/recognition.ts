/**
 * Which run does a key belong to? (spec 8, Which run is this?; spec 2, Recognition is shared)
 *
 * Keys are hashes, already scoped to the principal by whoever made them. Strong and weak keys stand in tables of their own,
 * so that the many prefixes never push out a tool call's id; each is bounded by count (oldest out first) and by time.
 *
 * - A key that two live runs have left answers nothing, and with it its whole rule: the next rule decides.
 * - A strong key of one live run is that run.
 * - A prefix key (rule 9) of one live run is that run too, unless a main turn of it is open. Every run leaves the prefix of
 *   its own turns when they end, so a second turn that shows a prefix can only belong to a run that has left it: as long as
 *   only one has, it is that one. Sixteen identical fan-out runs all leave the same first prefix, which then answers
 *   nothing; from the first answer that differs on, each has prefixes of its own. Several turns that go on from one prefix
 *   at the same time are a fan-out, not one conversation: the first continues the run, the others become runs of their own.
 * - Hashes are scoped to the principal where they are made. All the same a key never leads to another principal's run.
 * - Any other weak key (rule 8) can be shown by the first turn of another conversation: it never says which run it is. The
 *   turn becomes a run of its own that prefers the replica where the key's run was, and is recognised from its second turn
 *   on by its own prefix: that is what confirms it.
 *
 * Invariants:
 * R1: an entry names at most two runs; once a third has left the key it stays ambiguous until it is dropped.
 * R2: the list of a table is ordered by the time at which keys were last left, oldest first.
 */
import type { PrincipalId } from "../base/ids.ts";
import { LinkedList, type ListLinks } from "../base/linked-list.ts";
import type { IdentityKey, RunSource } from "../wire/admission.ts";
import type { Run } from "./state.ts";

type Entry = {
  readonly hash: string;
  first: Run | undefined;
  second: Run | undefined;
  /** More than two runs have left it. */
  many: boolean;
  atMs: number;
  links: ListLinks<Entry> | undefined;
};

export type KeyTable = {
  readonly byHash: Map<string, Entry>;
  readonly byAge: LinkedList<"links", Entry>;
};

export type Recognition = { readonly strong: KeyTable; readonly weak: KeyTable };

export type Recognised = {
  /** The run to which the turn belongs, or undefined: it is a new one. */
  readonly run: Run | undefined;
  readonly source: RunSource;
  /** For a new run: a run whose replica may hold a part of its prefix. */
  readonly prefers: Run | undefined;
};

export function createRecognition(): Recognition {
  return { strong: createTable(), weak: createTable() };
}

function createTable(): KeyTable {
  return { byHash: new Map(), byAge: new LinkedList<"links", Entry>("links") };
}

/** Number of keys that are remembered. */
export function keyCount(recognition: Recognition): number {
  return recognition.strong.byHash.size + recognition.weak.byHash.size;
}

/**
 * @param keys in the order of the rules: first hit wins.
 */
export function recognise(
  recognition: Recognition,
  keys: readonly IdentityKey[],
  bounds: { readonly principal: PrincipalId; readonly nowMs: number; readonly ttlMs: number },
): Recognised {
  let prefers: Run | undefined;
  let silenced: RunSource | undefined;
  for (const key of keys) {
    if (key.source === silenced) continue;
    const entry = tableOf(recognition, key).byHash.get(key.hash);
    if (entry === undefined || bounds.nowMs - entry.atMs > bounds.ttlMs) continue;
    const owner = onlyLive(entry);
    if (owner === "ambiguous") silenced = key.source;
    else if (owner?.principal.id === bounds.principal) {
      const itself = key.weak !== true || (key.source === "prefix" && owner.mainOpen === 0);
      if (itself) return { run: owner, source: key.source, prefers: undefined };
      prefers ??= owner;
      // A shorter prefix of the same run says no more.
      silenced = key.source;
    }
  }
  return { run: undefined, source: "new", prefers };
}

function onlyLive(entry: Entry): Run | "ambiguous" | undefined {
  if (entry.many) return "ambiguous";
  const first = live(entry.first);
  const second = live(entry.second);
  return first !== undefined && second !== undefined ? "ambiguous" : (first ?? second);
}

function live(run: Run | undefined): Run | undefined {
  return run?.forgotten === true ? undefined : run;
}

/** Remembers the keys that an answer of a run left. */
export function remember(
  recognition: Recognition,
  run: Run,
  keys: readonly IdentityKey[],
  bounds: { readonly atMs: number; readonly keysMax: number },
): void {
  for (const key of keys) {
    const table = tableOf(recognition, key);
    const entry = table.byHash.get(key.hash);
    if (entry === undefined)
      addEntry(table, { hash: key.hash, first: run, second: undefined, many: false, atMs: bounds.atMs });
    else leaveAgain(table, entry, run, bounds.atMs);
    for (
      let oldest = table.byAge.first;
      oldest !== undefined && table.byHash.size > bounds.keysMax;
      oldest = table.byAge.first
    ) {
      dropEntry(table, oldest);
    }
  }
}

/** Also used by thaw. The entry is the newest; where it is not, `sortKeys` follows (R2). */
export function addEntry(table: KeyTable, about: Omit<Entry, "links">): void {
  const entry: Entry = { ...about, links: undefined };
  table.byHash.set(entry.hash, entry);
  table.byAge.append(entry);
}

/** Restores R2 after keys of any age came in at once (resync). */
export function sortKeys(recognition: Recognition): void {
  recognition.strong.byAge.sort((a, b) => a.atMs - b.atMs);
  recognition.weak.byAge.sort((a, b) => a.atMs - b.atMs);
}

function leaveAgain(table: KeyTable, entry: Entry, run: Run, atMs: number): void {
  const first = live(entry.first);
  const second = live(entry.second);
  if (first !== run && second !== run) {
    if (first !== undefined && second !== undefined) entry.many = true;
    entry.first = first ?? second ?? run;
    entry.second = first === undefined && second === undefined ? undefined : run;
  }
  if (atMs < entry.atMs) return;
  entry.atMs = atMs;
  table.byAge.touch(entry);
}

/** Drops keys older than the time to live. */
export function sweep(recognition: Recognition, nowMs: number, ttlMs: number): void {
  for (const table of [recognition.strong, recognition.weak]) {
    for (
      let oldest = table.byAge.first;
      oldest !== undefined && nowMs - oldest.atMs > ttlMs;
      oldest = table.byAge.first
    ) {
      dropEntry(table, oldest);
    }
  }
}

function dropEntry(table: KeyTable, entry: Entry): void {
  table.byHash.delete(entry.hash);
  table.byAge.remove(entry);
}

function tableOf(recognition: Recognition, key: IdentityKey): KeyTable {
  return key.weak === true ? recognition.weak : recognition.strong;
}
