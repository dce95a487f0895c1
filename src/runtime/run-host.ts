/**
 * The runs that this process owns: takes them over from the store at its start, keeps their trees while a run in them
 * lives, and finds any run, ended ones from the store.
 *
 * R1: a handle is given out only when its spawn is durable.
 * R2: all runs of a list are written in one commit, or none.
 */
import { randomUUID } from "node:crypto";
import type { Clock } from "../base/clock.ts";
import {
  createTree,
  refusesChild,
  replayRun,
  restoreEnded,
  restoreLive,
  type Assignment,
  type EndReason,
  type RunRecord,
  type RunRules,
  type RunState,
  type SpawnRefusal,
} from "../runs/index.ts";
import type { Log } from "../telemetry/index.ts";
import { fromCounters, type RowDetail, type RowExtras } from "./commit.ts";
import { HostedTree, type RestoredRun, type Staged, type Work } from "./hosted-tree.ts";
import type { ModelClient } from "./model-client.ts";
import { damagedView, viewOf, type RunView } from "./run-view.ts";
import { beginWork, partialOfWork } from "./run-work.ts";
import type { AppendOutcome, RunEntry, RunStore, StoredRun } from "./store/port.ts";
import type { ToolServers } from "./tool-servers/port.ts";

export type RunHostOptions = {
  readonly store: RunStore;
  readonly model: ModelClient;
  readonly tools: ToolServers;
  readonly clock: Clock;
  readonly wallMs: () => number;
  readonly log: Log;
  readonly rules: Omit<RunRules, "partialOf">;
  readonly maxDepth: number;
  readonly maxChildren: number;
  /** Called for each record that is durable. */
  readonly count: (record: RunRecord) => void;
};

export type Spawn = {
  readonly parent?: string | undefined;
  readonly principal: string;
  readonly caller: string;
  readonly session?: string | undefined;
  readonly assignment: Assignment;
} & RowExtras;

export type SpawnOutcome =
  | { readonly kind: "spawned"; readonly handles: readonly string[] }
  | { readonly kind: "refused"; readonly why: SpawnRefusal; readonly parent: string }
  /** Another run has the key; the caller compares the arguments. */
  | { readonly kind: "key-taken"; readonly handle: string }
  | { readonly kind: "unavailable"; readonly message: string };

/** A run that was found, and the tree that it lives in, if that is in this process. */
export type Found = {
  readonly run: RunState;
  readonly tree: HostedTree | undefined;
  /** Its journal cannot be read to the end, so it does not go on. */
  readonly damage?: string | undefined;
};

/** Trees without a live run that are kept, for the status page and for those who still wait. */
const IDLE_TREES_KEPT = 100;
/** Ended runs of other trees that are kept for those who still wait for them. */
const ENDED_KEPT = 512;
/** Trees that are restored at once at the start. */
const RESTORE_AT_ONCE = 64;
const LIST_PAGE = 500;
const REOPEN_AFTER_MS = 1_000;

export class RunHost {
  readonly #options: RunHostOptions;
  readonly #trees = new Map<string, HostedTree>();
  /** Trees that are being read from the store. */
  readonly #opening = new Map<string, Promise<HostedTree>>();
  /** Roots of kept trees without a live run, longest first. */
  readonly #idle = new Set<string>();
  readonly #rootOf = new Map<string, string>();
  readonly #ended = new Map<string, RunState>();
  readonly #turns = new Map<string, Work>();
  readonly #listeners = new Set<(run: string) => void>();
  #phase: "open" | "draining" | "closed" = "open";

  constructor(options: RunHostOptions) {
    this.#options = options;
  }

  get bounds(): { readonly maxDepth: number; readonly maxChildren: number } {
    return this.#options;
  }

  /** Takes over every run that has not ended. */
  async start(): Promise<{ readonly live: number; readonly damaged: number }> {
    const { store, log } = this.#options;
    const byRoot = new Map<string, StoredRun[]>();
    let live = 0;
    let damaged = 0;
    for await (const stored of store.loadLive()) {
      if (stored.damage !== undefined) {
        damaged += 1;
        log("error", "run-damaged", { run: stored.row.id, seq: stored.damage.seq, error: stored.damage.message });
      }
      live += 1;
      const { root } = stored.row;
      byRoot.set(root, [...(byRoot.get(root) ?? []), stored]);
    }
    const groups = [...byRoot];
    for (let at = 0; at < groups.length; at += RESTORE_AT_ONCE) {
      const some = groups.slice(at, at + RESTORE_AT_ONCE);
      await Promise.all(some.map(([root, stored]) => this.#open(root, stored)));
    }
    return { live, damaged };
  }

  /** Calls `listener` with the handle of each run whose durable state, or detail, has changed. */
  onChange(listener: (run: string) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  async spawn(spawns: readonly Spawn[]): Promise<SpawnOutcome> {
    const { store, maxDepth, maxChildren } = this.#options;
    if (this.#phase !== "open") return { kind: "unavailable", message: "this runtime is shutting down" };
    const parents = [...new Set(spawns.flatMap(({ parent }) => (parent === undefined ? [] : [parent])))];
    const trees = new Map<string, HostedTree>();
    for (const parent of parents) {
      const tree = await this.#treeOf(parent);
      if (tree === undefined) return { kind: "refused", why: "unknown-parent", parent };
      trees.set(parent, tree);
    }
    const health = store.health();
    if (health.state !== "ok") {
      for (const tree of trees.values()) if (tree.idle) this.#keepIdle(tree);
      return { kind: "unavailable", message: `the journal takes no new runs: ${health.message}` };
    }
    // No await from here to the append: what is checked is what is written.
    for (const parent of parents) {
      const tree = trees.get(parent) as HostedTree;
      if (tree.gone) return { kind: "unavailable", message: "the journal of the parent is being read again" };
      const adding = spawns.filter((spawn) => spawn.parent === parent).length;
      const why = refusesChild(tree.tree, parent, { maxDepth, maxChildren, adding });
      if (why !== undefined) {
        for (const other of trees.values()) if (other.idle) this.#keepIdle(other);
        return { kind: "refused", why, parent };
      }
    }
    const staged = spawns.map((spawn) => this.#stage(spawn, trees));
    const changes = mergeChanges(staged.flatMap(({ step }) => step.changes));
    const outcome = await this.#append(changes, [...trees.values()]);
    if (outcome.kind === "durable") {
      for (const { tree } of staged) this.#keep(tree);
      for (const { step } of staged) step.settle(outcome);
      return { kind: "spawned", handles: staged.map(({ id }) => id) };
    }
    for (const { step, fresh, tree } of staged) {
      if (fresh) tree.close();
      else step.settle(outcome);
    }
    if (outcome.kind === "conflict" && outcome.on === "idempotency-key" && typeof outcome.found === "string") {
      return { kind: "key-taken", handle: outcome.found };
    }
    return { kind: "unavailable", message: outcome.message };
  }

  /** Behind all commits of the trees that get a child; those wait for the disk, since their live runs cannot be undone. */
  #append(changes: Staged["changes"], trees: readonly HostedTree[]): Promise<AppendOutcome> {
    const [first, ...others] = new Set(trees);
    if (first === undefined) return this.#options.store.append(changes, { whenFull: "refuse" });
    const before = Promise.all(others.map((tree) => tree.written()));
    const write = first.follow(async (append) => {
      await before;
      return append(changes);
    });
    for (const tree of others) void tree.follow(() => write); // Its outcome is the caller's.
    return write;
  }

  #stage(
    spawn: Spawn,
    trees: ReadonlyMap<string, HostedTree>,
  ): { readonly id: string; readonly tree: HostedTree; readonly fresh: boolean; readonly step: Staged } {
    const { parent, principal, caller, session, assignment, idempotencyKey, argumentsDigest } = spawn;
    const id = `run-${randomUUID()}`;
    const above = parent === undefined ? undefined : trees.get(parent);
    const tree = above ?? this.#newTree(id);
    const depth = (parent === undefined ? 0 : (tree.tree.nodes.get(parent)?.depth ?? 0)) + 1;
    const step = tree.spawn(
      { type: "spawned", id, parent, root: tree.tree.root, depth, principal, caller, session, assignment },
      { idempotencyKey, argumentsDigest },
    );
    return { id, tree, fresh: above === undefined, step };
  }

  /** A run of any principal: the caller checks whose it is. */
  async find(handle: string): Promise<Found | undefined> {
    const inMemory = this.findNow(handle);
    if (inMemory !== undefined) return inMemory;
    const stored = await this.#options.store.load(handle);
    if (stored === undefined) return undefined;
    const replayed = replayRun(stored.records);
    if (replayed.run === undefined) return undefined;
    const { run } = replayed;
    const damage = run.end === undefined ? (stored.damage?.message ?? brokenText(replayed)) : undefined;
    // Between the look and the load it may have been taken over.
    return this.findNow(handle) ?? { run, tree: undefined, damage };
  }

  /** As `find`, for runs in memory. */
  findNow(handle: string): Found | undefined {
    const root = this.#rootOf.get(handle);
    const tree = root === undefined ? undefined : this.#trees.get(root);
    const live = tree?.durable(handle);
    if (live !== undefined) return { run: live, tree };
    const ended = this.#ended.get(handle);
    return ended === undefined ? undefined : { run: ended, tree };
  }

  /** A run as it is shown. */
  async view({ run, tree, damage }: Found): Promise<RunView> {
    const nowMs = this.#options.wallMs();
    const node = tree?.tree.nodes.get(run.id);
    if (node !== undefined) return viewOf(run, { node, detail: tree?.detailOf(run.id), nowMs });
    const { store } = this.#options;
    const [counters, children] = await Promise.all([store.counters([run.id]), store.children(run.id)]);
    const { limits } = run.assignment;
    const { used, exceeded } = fromCounters(counters.get(run.id), { id: run.id, limits });
    const { spawnedAtMs } = run;
    const rows = children.map(({ row }) => row.id);
    const view = viewOf(run, {
      node: { limits, subtree: used, exceeded, spawnedAtMs, children: rows },
      detail: undefined,
      nowMs,
    });
    return damage === undefined ? view : damagedView(view, damage);
  }

  /** The tree of a live run, or of one whose tree is in the store. */
  async #treeOf(run: string): Promise<HostedTree | undefined> {
    const root = this.#rootOf.get(run) ?? (await this.#options.store.entry(run))?.row.root;
    return root === undefined ? undefined : this.#open(root);
  }

  /** The trees in this process, for the status page. */
  trees(): Iterable<HostedTree> {
    return this.#trees.values();
  }

  /** Begins nothing more, and waits until tool calls that are under way have their outcomes in the journal. */
  async drain(): Promise<void> {
    this.#phase = "draining";
    await Promise.all([...this.#trees.values()].map((tree) => tree.drain()));
  }

  close(): void {
    this.#phase = "closed";
    for (const tree of this.#trees.values()) tree.close();
    this.#trees.clear();
    this.#listeners.clear();
  }

  #newTree(root: string): HostedTree {
    return this.#hosted(createTree(root), new Map());
  }

  #hosted(tree: ReturnType<typeof createTree>, seqs: Map<string, number>): HostedTree {
    const { store, clock, wallMs, log, rules } = this.#options;
    return new HostedTree(tree, seqs, {
      store,
      clock,
      wallMs,
      log,
      rules: { ...rules, partialOf: (run) => this.#partialOf(run) },
      begin: (hosted, run, action) => {
        const work = beginWork(this.#options, hosted, run, action);
        if (action.type === "ask-turn") this.#turns.set(run.id, work);
        return work;
      },
      onDurable: (entries) => {
        for (const { record } of entries) this.#options.count(record);
      },
      onChange: (_hosted, run) => this.#changed(run),
      onIdle: (hosted) => this.#keepIdle(hosted),
      onLost: (hosted, why) => this.#lost(hosted, why),
    });
  }

  #partialOf(run: string): string | undefined {
    const work = this.#turns.get(run);
    return work === undefined ? undefined : partialOfWork(work);
  }

  #changed(run: RunState): void {
    if (run.turn === undefined) this.#turns.delete(run.id);
    if (run.end !== undefined) {
      this.#ended.set(run.id, run);
      for (const oldest of this.#ended.keys()) {
        if (this.#ended.size <= ENDED_KEPT) break;
        this.#ended.delete(oldest);
      }
      // What the dataplane does not hear of it forgets by itself.
      this.#options.model.endRun(run.id, run.principal);
    }
    for (const listener of this.#listeners) listener(run.id);
  }

  #keep(tree: HostedTree): void {
    this.#trees.set(tree.tree.root, tree);
    for (const run of tree.tree.nodes.keys()) this.#rootOf.set(run, tree.tree.root);
  }

  #drop(tree: HostedTree): void {
    if (this.#trees.get(tree.tree.root) !== tree) return;
    tree.close();
    this.#trees.delete(tree.tree.root);
    this.#idle.delete(tree.tree.root);
    for (const run of tree.tree.nodes.keys()) this.#rootOf.delete(run);
  }

  #keepIdle(tree: HostedTree): void {
    const { root } = tree.tree;
    this.#idle.delete(root);
    this.#idle.add(root);
    for (const oldest of this.#idle) {
      if (this.#idle.size <= IDLE_TREES_KEPT) return;
      this.#idle.delete(oldest);
      const old = this.#trees.get(oldest);
      // It may have got a child meanwhile.
      if (old?.idle === true) this.#drop(old);
    }
  }

  /** The store did not write a step: what it has is the truth. */
  #lost(tree: HostedTree, why: string): void {
    const { root } = tree.tree;
    this.#options.log("error", "journal-step-lost", { root, error: why });
    this.#drop(tree);
    this.#reopenLater(root);
  }

  #reopenLater(root: string): void {
    if (this.#phase !== "open") return;
    this.#options.clock.after(REOPEN_AFTER_MS, () => {
      if (this.#phase !== "open") return;
      this.#open(root).catch((error: unknown) => {
        this.#options.log("error", "journal-unreadable", { root, error: String(error) });
        this.#reopenLater(root);
      });
    });
  }

  #open(root: string, live?: readonly StoredRun[]): Promise<HostedTree> {
    const known = this.#trees.get(root);
    if (known !== undefined) return Promise.resolve(known);
    const underWay = this.#opening.get(root);
    if (underWay !== undefined) return underWay;
    const opening = this.#restore(root, live).finally(() => this.#opening.delete(root));
    this.#opening.set(root, opening);
    return opening;
  }

  async #restore(root: string, loaded: readonly StoredRun[] | undefined): Promise<HostedTree> {
    const { store, log } = this.#options;
    const entries = await this.#entriesOf(root);
    const counters = await store.counters(entries.map(({ row }) => row.id));
    const tree = createTree(root);
    const seqs = new Map<string, number>();
    const live: RestoredRun[] = [];
    // Parents before children.
    for (const entry of entries.toSorted((left, right) => detailOf(left).depth - detailOf(right).depth)) {
      const { row, lastSeq } = entry;
      const { depth, limits, grants } = detailOf(entry);
      const { used, exceeded } = fromCounters(counters.get(row.id), { id: row.id, limits });
      seqs.set(row.id, lastSeq);
      if (row.endedAtMs !== undefined) {
        const { id, parent, principal, createdAtMs: spawnedAtMs, state } = row;
        const reason = (row.reason ?? "failed") as EndReason;
        const outline = { id, parent, depth, principal, limits, spawnedAtMs, grants };
        restoreEnded(tree, outline, { state, reason, used, exceeded });
        continue;
      }
      const stored = loaded?.find((run) => run.row.id === row.id) ?? (await store.load(row.id));
      const replayed = replayRun(stored?.records ?? []);
      if (replayed.kind === "broken" || stored?.damage !== undefined) {
        const error = replayed.kind === "broken" ? replayed.message : stored?.damage?.message;
        log("error", "run-not-resumed", { run: row.id, error });
        continue;
      }
      restoreLive(tree, replayed.run, { used, exceeded });
      const { idempotencyKey, argumentsDigest } = row;
      live.push({ run: replayed.run, extras: { idempotencyKey, argumentsDigest } });
    }
    const hosted = this.#hosted(tree, seqs);
    this.#keep(hosted);
    await hosted.resume(live);
    return hosted;
  }

  async #entriesOf(root: string): Promise<readonly RunEntry[]> {
    const entries: RunEntry[] = [];
    let cursor: string | undefined;
    do {
      const page = await this.#options.store.list({
        root,
        limit: LIST_PAGE,
        ...(cursor === undefined ? {} : { cursor }),
      });
      entries.push(...page.items);
      cursor = page.cursor;
    } while (cursor !== undefined);
    return entries;
  }
}

/** The part of a row that this process, or one before it, has written for itself. */
function detailOf({ row }: RunEntry): RowDetail {
  return row.detail as RowDetail;
}

/** Several runs of one list can touch the same run: a parent is named once per commit. */
function mergeChanges(changes: Staged["changes"]): Staged["changes"] {
  const byRun = new Map<string, Staged["changes"][number]>();
  for (const change of changes) {
    const known = byRun.get(change.runId);
    if (known === undefined) {
      byRun.set(change.runId, change);
      continue;
    }
    byRun.set(change.runId, {
      ...known,
      ...change,
      expectedSeq: known.expectedSeq,
      records: [...known.records, ...change.records],
      approvals: [...(known.approvals ?? []), ...(change.approvals ?? [])],
      counters: [...(known.counters ?? []), ...(change.counters ?? [])],
    });
  }
  return [...byRun.values()];
}

function brokenText(replayed: ReturnType<typeof replayRun>): string | undefined {
  return replayed.kind === "broken" ? `record ${replayed.seq}: ${replayed.message}` : undefined;
}
