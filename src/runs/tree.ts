/**
 * A tree of runs: who descends from whom, and what each subtree has used.
 *
 * T1: a node's sums are those of its own run and of all its descendants, ended and deleted ones too.
 * T2: what is set aside in a subtree is what its open turns have reserved.
 * The state is changed in place. Runs that ended are kept as their outline: conversation and calls are let go.
 */
import { invariant } from "../base/invariant.ts";
import { fold, NO_SUMS } from "./fold.ts";
import type { EndReason, Exceeded, Grant, Limits, RunRecord, RunState, RunStateName, Sums } from "./types.ts";

/** What is kept of a run that has ended, for those that live on. */
export type Outline = {
  readonly id: string;
  readonly parent: string | undefined;
  readonly depth: number;
  readonly principal: string;
  readonly limits: Limits;
  readonly spawnedAtMs: number;
  readonly grants: readonly Grant[];
};

export type RunNode = Outline & {
  /** Undefined once it has ended. */
  live: RunState | undefined;
  end: { readonly state: RunStateName; readonly reason: EndReason } | undefined;
  grants: readonly Grant[];
  readonly children: string[];
  subtree: Sums;
  reservedTokens: number;
  /** Set once the budget of this node was exceeded. */
  exceeded: Exceeded | undefined;
};

export type TreeState = {
  readonly root: string;
  readonly nodes: Map<string, RunNode>;
  /** Runs whose next turn waits for others' reservations, longest first. */
  readonly waiting: Set<string>;
};

/** A record that was applied, with the run before and after it. */
export type Entry = {
  readonly run: string;
  readonly record: RunRecord;
  readonly before: RunState | undefined;
  readonly after: RunState;
};

export function createTree(root: string): TreeState {
  return { root, nodes: new Map(), waiting: new Set() };
}

export function nodeOf(tree: TreeState, run: string): RunNode {
  const node = tree.nodes.get(run);
  invariant(node !== undefined, `run ${run} is not in the tree ${tree.root}`);
  return node;
}

/** The run itself, its parent, and so on up to the top. */
export function upwards(tree: TreeState, run: string): readonly RunNode[] {
  const path: RunNode[] = [];
  for (let node = tree.nodes.get(run); node !== undefined;) {
    path.push(node);
    node = node.parent === undefined ? undefined : tree.nodes.get(node.parent);
  }
  return path;
}

/** The run itself and all its descendants, parents first. */
export function subtreeOf(tree: TreeState, run: string): readonly RunNode[] {
  const nodes = [nodeOf(tree, run)];
  for (let at = 0; at < nodes.length; at += 1) {
    for (const child of nodes[at]?.children ?? []) nodes.push(nodeOf(tree, child));
  }
  return nodes;
}

/** Applies a run's next record, and carries what it used up to every ancestor. */
export function apply(tree: TreeState, run: string, record: RunRecord): Entry {
  const known = tree.nodes.get(run);
  invariant(known?.end === undefined, `run ${run} has ended, and yet a record ${record.type} follows`);
  const before = known?.live;
  const after = fold(before, record);
  if (known === undefined) addNode(tree, after);
  const node = nodeOf(tree, run);
  node.live = after.end === undefined ? after : undefined;
  node.grants = after.grants;
  if (after.end !== undefined) {
    node.end = { state: after.end.state, reason: after.end.reason };
    tree.waiting.delete(run);
    const { exceeded } = after.end;
    // The budgeted run may be gone, deleted after its time; then nobody asks for it any more.
    const owner = exceeded === undefined ? undefined : tree.nodes.get(exceeded.run);
    if (owner !== undefined) owner.exceeded ??= exceeded;
  }
  const used = difference(after.sums, before?.sums ?? NO_SUMS);
  const reserved = (after.turn?.reserved ?? 0) - (before?.turn?.reserved ?? 0);
  for (const above of upwards(tree, run)) {
    above.subtree = sum(above.subtree, used); // T1
    above.reservedTokens += reserved; // T2
  }
  return { run, record, before, after };
}

function addNode(tree: TreeState, run: RunState): void {
  const { id, parent, depth, principal, spawnedAtMs, grants } = run;
  insert(tree, { id, parent, depth, principal, limits: run.assignment.limits, spawnedAtMs, grants }, run);
}

function insert(tree: TreeState, outline: Outline, live: RunState | undefined): RunNode {
  const node: RunNode = {
    ...outline,
    live,
    end: undefined,
    children: [],
    subtree: NO_SUMS,
    reservedTokens: 0,
    exceeded: undefined,
  };
  tree.nodes.set(outline.id, node);
  if (outline.parent !== undefined) tree.nodes.get(outline.parent)?.children.push(outline.id);
  return node;
}

/**
 * Puts a run that ended before this process started into the tree, parents before children.
 * @param used what its subtree has used, from the store's counters.
 */
export function restoreEnded(
  tree: TreeState,
  outline: Outline,
  ended: {
    readonly state: RunStateName;
    readonly reason: EndReason;
    readonly used: Sums;
    readonly exceeded?: Exceeded | undefined;
  },
): void {
  const node = insert(tree, outline, undefined);
  node.end = { state: ended.state, reason: ended.reason };
  node.subtree = ended.used;
  node.exceeded = ended.exceeded;
}

/**
 * Puts a run that goes on into the tree.
 * @param used what its subtree has used, from the store's counters.
 */
export function restoreLive(
  tree: TreeState,
  run: RunState,
  restored: { readonly used: Sums; readonly exceeded?: Exceeded | undefined },
): void {
  addNode(tree, run);
  const node = nodeOf(tree, run.id);
  node.subtree = restored.used;
  node.exceeded = restored.exceeded;
  for (const above of upwards(tree, run.id)) above.reservedTokens += run.turn?.reserved ?? 0;
}

export type SpawnRefusal = "unknown-parent" | "parent-cancelled" | "parent-exceeded" | "too-deep" | "too-many-children";

/** Whether a run may get a child; spec 4, Run tree and budgets. */
export function refusesChild(
  tree: TreeState,
  parent: string,
  bounds: { readonly maxDepth: number; readonly maxChildren: number; readonly adding: number },
): SpawnRefusal | undefined {
  const node = tree.nodes.get(parent);
  if (node === undefined) return "unknown-parent";
  for (const above of upwards(tree, parent)) {
    // What was cancelled above covers all that could still come below.
    if (above.exceeded !== undefined || above.end?.reason === "budget") return "parent-exceeded";
    if (above.end?.state === "Cancelled" || above.live?.cancelRequested === true) return "parent-cancelled";
  }
  if (node.depth >= bounds.maxDepth) return "too-deep";
  if (node.children.length + bounds.adding > bounds.maxChildren) return "too-many-children";
  return undefined;
}

/** The names of all sums, as a host keeps them in counters. */
export const REPORTED_SUMS = Object.keys(NO_SUMS) as readonly (keyof Sums)[];

export function difference(after: Sums, before: Sums): Sums {
  return combine(after, before, -1);
}

export function sum(left: Sums, right: Sums): Sums {
  return combine(left, right, 1);
}

function combine(left: Sums, right: Sums, sign: 1 | -1): Sums {
  return Object.fromEntries(REPORTED_SUMS.map((name) => [name, left[name] + sign * right[name]])) as Sums;
}
