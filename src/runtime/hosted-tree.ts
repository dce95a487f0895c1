/**
 * One tree of runs in this process: takes what happens to its runs through the core, writes it, and does what is wanted.
 *
 * H1: nothing that a step decided is done, or shown to anybody, before its records are durable.
 * H2: what is done for a run is what its durable state wants; it ends when that state no longer wants it.
 * H3: when nobody knows whether the store wrote a step, the tree is given up here and read again from the store.
 * H4: the commits of a tree go to the store one after the other.
 */
import type { Clock } from "../base/clock.ts";
import {
  actionsOf,
  advance,
  decide,
  liveRun,
  nextDeadlineMs,
  passTime,
  RECORD_VERSION,
  resume,
  type Action,
  type Decision,
  type Entry,
  type RecordOf,
  type RunRecord,
  type RunRules,
  type RunState,
  type TreeState,
} from "../runs/index.ts";
import type { Log } from "../telemetry/index.ts";
import { changesOf, type RowExtras } from "./commit.ts";
import type { RunDetail } from "./run-view.ts";
import type { AppendOutcome, RunChange, RunStore } from "./store/port.ts";

/** Something that is being done for a run. */
export type Work = { abort(): void };

type DistributiveOmit<Union, Key extends PropertyKey> = Union extends unknown ? Omit<Union, Key> : never;
/** A record without what the tree adds. */
export type RecordBody = DistributiveOmit<RunRecord, "v" | "at">;

export type TreeDeps = {
  readonly store: RunStore;
  readonly clock: Clock;
  readonly wallMs: () => number;
  readonly log: Log;
  readonly rules: RunRules;
  /** Begins what an action wants; its result comes back by `tree.take`. */
  readonly begin: (tree: HostedTree, run: RunState, action: Action) => Work;
  /** A step is durable. */
  readonly onDurable: (entries: readonly Entry[]) => void;
  /** The durable state of a run has changed. */
  readonly onChange: (tree: HostedTree, run: RunState) => void;
  /** No run of the tree lives any more. */
  readonly onIdle: (tree: HostedTree) => void;
  readonly onLost: (tree: HostedTree, why: string) => void;
};

/** Timers of Node hold 31 bits of milliseconds. */
const TIMER_MS_MAX = 3_600_000;

const MAY_BE_TRIED_AGAIN: ReadonlySet<string> = new Set(["disk-full", "disk-error", "queue-full"]);
const APPEND_AGAIN_MS = 1_000;

/** A step that was taken, but is not written. */
export type Staged = {
  readonly changes: readonly RunChange[];
  settle(outcome: AppendOutcome): void;
};

/** A run that goes on, and what the spawn had put into its row. */
export type RestoredRun = { readonly run: RunState; readonly extras: RowExtras };

export class HostedTree {
  readonly tree: TreeState;
  readonly #deps: TreeDeps;
  readonly #seqs: Map<string, number>;
  readonly #extras = new Map<string, RowExtras>();
  /** Durable states, with the number of their last record. */
  readonly #durable = new Map<string, { readonly run: RunState; readonly seq: number }>();
  readonly #works = new Map<string, Map<string, Work>>();
  readonly #generating = new Set<string>();
  #stopTimer: () => void = () => undefined;
  #phase: "open" | "draining" | "gone" = "open";
  /** Steps that were taken and are not written. */
  #unsettled = 0;
  #lastWrite: Promise<unknown> = Promise.resolve();

  /** @param seqs number of the last record of each run that the store has. */
  constructor(tree: TreeState, seqs: Map<string, number>, deps: TreeDeps) {
    this.tree = tree;
    this.#seqs = seqs;
    this.#deps = deps;
  }

  get gone(): boolean {
    return this.#phase === "gone";
  }

  /** A run's state as anybody may see it; undefined before its spawn is durable. */
  durable(run: string): RunState | undefined {
    return this.#durable.get(run)?.run;
  }

  detailOf(run: string): RunDetail {
    const state = this.durable(run);
    if (state?.turn === undefined && state?.rounds.at(-1)?.calls.some(({ phase }) => phase.kind !== "done"))
      return "tools";
    return this.#generating.has(run) ? "generating" : "turn-held";
  }

  generating(run: string, is: boolean): void {
    if (is === this.#generating.has(run)) return;
    if (is) this.#generating.add(run);
    else this.#generating.delete(run);
    const state = this.durable(run);
    if (state !== undefined) this.#deps.onChange(this, state);
  }

  /** Takes over what a process that is gone has left: everything that the store has of the tree is restored. */
  async resume(restored: readonly RestoredRun[]): Promise<void> {
    for (const { run, extras } of restored) {
      this.#durable.set(run.id, { run, seq: this.#seqs.get(run.id) ?? 0 });
      this.#extras.set(run.id, extras);
    }
    await this.#write(resume(this.tree, this.#context()));
    for (const { run } of restored) this.#reconcile(run.id);
    this.#armTimer();
  }

  /** Adds a run. The caller writes the step, with those of other trees, and settles it. */
  spawn(record: Omit<RecordOf<"spawned">, "v" | "at">, extras: RowExtras): Staged {
    this.#extras.set(record.id, extras);
    return this.#stage(advance(this.tree, record.id, this.#stamp(record), this.#deps.rules));
  }

  /** Something has happened to a run. Nothing when it has ended meanwhile. */
  async take(run: string, record: RecordBody): Promise<readonly Entry[]> {
    if (this.gone || liveRun(this.tree, run) === undefined) return [];
    const entries = advance(this.tree, run, this.#stamp(record), this.#deps.rules);
    return (await this.#write(entries)) ? entries : [];
  }

  /** Resolves when everything that was taken so far is durable, or lost. */
  async written(): Promise<void> {
    await this.#lastWrite;
  }

  /** A person's answer. Nothing when the approval is not open any more. */
  async decide(run: string, approval: string, decision: Decision): Promise<readonly Entry[]> {
    if (this.gone) return [];
    const entries = decide(this.tree, { run, approval, decision }, this.#context());
    return (await this.#write(entries)) ? entries : [];
  }

  /** Begins nothing more; resolves when the tool calls that are under way have their outcomes written. */
  async drain(): Promise<void> {
    if (this.#phase === "open") this.#phase = "draining";
    while (!this.gone && this.#callsUnderWay()) {
      await new Promise<void>((resolve) => {
        this.#onSettled = resolve;
      });
    }
  }

  #onSettled: () => void = () => undefined;

  #callsUnderWay(): boolean {
    return [...this.#works.values()].some((works) => [...works.keys()].some((key) => key.includes(" call ")));
  }

  /** Stops everything at once; what was under way is taken up again from the journal. */
  close(): void {
    this.#phase = "gone";
    this.#stopTimer();
    for (const works of this.#works.values()) for (const work of works.values()) work.abort();
    this.#works.clear();
    this.#onSettled();
  }

  #stamp<Record extends object>(record: Record): Record & { v: typeof RECORD_VERSION; at: number } {
    return { v: RECORD_VERSION, at: this.#deps.wallMs(), ...record };
  }

  #context(): { readonly rules: RunRules; readonly nowMs: number } {
    return { rules: this.#deps.rules, nowMs: this.#deps.wallMs() };
  }

  #write(entries: readonly Entry[]): Promise<boolean> {
    if (entries.length === 0) {
      this.#armTimer();
      return Promise.resolve(true);
    }
    const staged = this.#stage(entries);
    return this.follow((write) => write(staged.changes)).then((outcome) => {
      staged.settle(outcome);
      return outcome.kind === "durable";
    });
  }

  /** H4: hands a commit to the store behind all commits of this tree that came before. */
  follow(write: (append: (changes: readonly RunChange[]) => Promise<AppendOutcome>) => Promise<AppendOutcome>) {
    const outcome = this.#lastWrite.then(() => write((changes) => this.#append(changes)));
    this.#lastWrite = outcome;
    return outcome;
  }

  /** Tries again what the store could not take; a full disk is waited for in the store itself. */
  async #append(changes: readonly RunChange[]): Promise<AppendOutcome> {
    const { store, clock, log } = this.#deps;
    for (;;) {
      if (this.gone) return { kind: "unavailable", why: "closed", message: "the tree was given up" };
      const outcome = await store.append(changes);
      const again = outcome.kind === "unavailable" && MAY_BE_TRIED_AGAIN.has(outcome.why);
      if (!again) return outcome;
      log("warn", "journal-commit-tried-again", { root: this.tree.root, why: outcome.why });
      await new Promise<void>((resolve) => {
        clock.after(APPEND_AGAIN_MS, resolve);
      });
    }
  }

  #stage(entries: readonly Entry[]): Staged {
    const changes = changesOf(this.tree, entries, this.#seqs, (run) => this.#extras.get(run) ?? {});
    this.#unsettled += 1;
    const seqs = new Map(changes.map(({ runId, expectedSeq, records }) => [runId, expectedSeq + records.length]));
    return {
      changes,
      settle: (outcome) => {
        this.#unsettled -= 1;
        if (this.gone) return;
        if (outcome.kind !== "durable") {
          this.close(); // H3
          this.#deps.onLost(this, outcome.message);
          return;
        }
        this.#deps.onDurable(entries);
        const after = new Map(entries.map((entry) => [entry.run, entry.after]));
        for (const [run, state] of after) this.#publish(run, state, seqs.get(run) ?? 0);
        if (this.idle) this.#deps.onIdle(this);
      },
    };
  }

  /** H1: from here on the state may be seen and acted on. */
  #publish(run: string, state: RunState, seq: number): void {
    if ((this.#durable.get(run)?.seq ?? 0) >= seq) return;
    this.#durable.set(run, { run: state, seq });
    if (state.turn === undefined || state.end !== undefined) this.#generating.delete(run);
    this.#reconcile(run);
    this.#armTimer();
    this.#deps.onChange(this, state);
  }

  /** What was taken is written, and no run lives. */
  get idle(): boolean {
    return this.#unsettled === 0 && [...this.tree.nodes.values()].every(({ live }) => live === undefined);
  }

  /** H2 */
  #reconcile(run: string): void {
    const state = this.durable(run);
    const wanted = state === undefined ? [] : actionsOf(state);
    const works = this.#works.get(run) ?? new Map<string, Work>();
    for (const [key, work] of works) {
      if (wanted.some((action) => action.key === key)) continue;
      works.delete(key);
      work.abort();
    }
    const live = liveRun(this.tree, run);
    const current = live === undefined ? [] : actionsOf(live);
    for (const action of this.#phase === "open" && state !== undefined ? wanted : []) {
      if (works.has(action.key) || !current.some(({ key }) => key === action.key)) continue;
      works.set(action.key, this.#deps.begin(this, state as RunState, action));
    }
    if (works.size === 0) this.#works.delete(run);
    else this.#works.set(run, works);
    this.#onSettled();
  }

  #armTimer(): void {
    this.#stopTimer();
    if (this.#phase !== "open") return;
    const dueMs = nextDeadlineMs(this.tree);
    if (dueMs === undefined) return;
    const inMs = Math.min(TIMER_MS_MAX, Math.max(0, dueMs - this.#deps.wallMs()));
    this.#stopTimer = this.#deps.clock.after(inMs, () => {
      // What cannot be written is told by `onLost`.
      void this.#write(passTime(this.tree, this.#context()));
    });
  }
}
