/**
 * A journal whose n-th commit fails or waits, around any other one: for tests of what the host does then.
 */
import type { AppendOutcome, RunChange, RunStore, StoredRun } from "../../src/runtime/store/port.ts";

export type Fault =
  /** Nothing is written. */
  | { readonly kind: "fail"; readonly outcome: AppendOutcome }
  /** Written, but the answer says that nobody knows: a crash between the disk and the answer. */
  | { readonly kind: "lose-answer" }
  /** Written when `until` resolves. */
  | { readonly kind: "delay-before"; readonly until: Promise<unknown> }
  /** Written at once, answered when `until` resolves. */
  | { readonly kind: "delay-after"; readonly until: Promise<unknown> };

export const DISK_FULL: AppendOutcome = { kind: "unavailable", why: "disk-full", message: "the disk is full" };
export const ANSWER_LOST: AppendOutcome = { kind: "unavailable", why: "lost", message: "the answer was lost" };

export type FaultyStore = RunStore & {
  /** Commits so far, refused ones too. */
  readonly appends: () => number;
};

/**
 * @param faultOf what befalls the commit with this number (from 1); undefined: nothing.
 */
export function faultyStore(
  inner: RunStore,
  faultOf: (number: number, changes: readonly RunChange[]) => Fault | undefined,
): FaultyStore {
  let number = 0;
  const append: RunStore["append"] = async (changes, options) => {
    number += 1;
    const fault = faultOf(number, changes);
    if (fault === undefined) return inner.append(changes, options);
    switch (fault.kind) {
      case "fail":
        return fault.outcome;
      case "lose-answer":
        await inner.append(changes, options);
        return ANSWER_LOST;
      case "delay-before": {
        // As the store itself does, it keeps what was handed in, not what the caller makes of it afterwards.
        const kept = structuredClone(changes);
        await fault.until;
        return inner.append(kept, options);
      }
      case "delay-after": {
        const outcome = await inner.append(changes, options);
        await fault.until;
        return outcome;
      }
    }
  };
  return replacing<FaultyStore>(inner, { append, appends: () => number });
}

/** A journal around another one, in which from a moment on every run is damaged after its first record. */
export function damagedStore(inner: RunStore, isDamaged: () => boolean): RunStore {
  const spoilt = (run: StoredRun): StoredRun => {
    if (!isDamaged()) return run;
    const message = `record 2 of run ${run.row.id}: its checksum is wrong`;
    return { ...run, records: run.records.slice(0, 1), damage: { runId: run.row.id, seq: 2, message } };
  };
  return replacing<RunStore>(inner, {
    async *loadLive() {
      for await (const run of inner.loadLive()) yield spoilt(run);
    },
    async load(runId) {
      const run = await inner.load(runId);
      return run === undefined ? undefined : spoilt(run);
    },
  });
}

function replacing<Store extends RunStore>(inner: RunStore, replaced: Partial<Store>): Store {
  return new Proxy(inner, {
    get(target, name) {
      if (name in replaced) return replaced[name as keyof Store];
      const value: unknown = Reflect.get(target, name);
      return typeof value === "function" ? (value.bind(target) as unknown) : value;
    },
  }) as Store;
}
