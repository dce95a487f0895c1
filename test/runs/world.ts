/**
 * A world around a tree of runs: a model, tools, people and time, all drawn from one seed. It lives through a story, and
 * can go on with any prefix of the story's journal, as a process that was killed there would.
 *
 * The tools keep a ledger of what was begun, by idempotency key: that is what a crash must not double.
 */
import { createRandom, type Random } from "../../src/base/random.ts";
import {
  actionsOf,
  advance,
  createTree,
  decide,
  passTime,
  pendingApprovals,
  RECORD_VERSION,
  refusesChild,
  restoreEnded,
  restoreLive,
  replayRun,
  resume,
  sum,
  NO_SUMS,
  type Action,
  type Decision,
  type Entry,
  type MadeCall,
  type RunRecord,
  type RunRules,
  type RunState,
  type Sums,
  type TreeState,
} from "../../src/runs/index.ts";
import { ASSIGNMENT, callable, refused } from "./bench-tree.ts";

const RULES: RunRules = {
  approvalExpireMs: 50_000,
  lastTurnOf: (replica) => (replica === "x" ? "auto" : "none"),
};
const RUNS_MAX = 5;

/** A record of one run, in the order of the whole tree. */
export type Line = { readonly run: string; readonly record: RunRecord };

export type Ledger = {
  /** Times that a call was begun, by idempotency key, with the line of the journal after which it was. */
  readonly begun: { readonly key: string; readonly afterLine: number }[];
  /** Tokens that engines reported in answers. */
  tokens: number;
};

export type World = {
  readonly tree: TreeState;
  readonly lines: Line[];
  readonly ledger: Ledger;
  readonly random: Random;
  nowMs: number;
};

export function createWorld(seed: number): World {
  return {
    tree: createTree("r"),
    lines: [],
    ledger: { begun: [], tokens: 0 },
    random: createRandom(seed),
    nowMs: 1_000_000,
  };
}

/** The world of a process that starts with the journal up to a line; the ledger is what the tools know by then. */
export function worldAt(story: World, lineCount: number, seed: number): World {
  const lines = JSON.parse(JSON.stringify(story.lines.slice(0, lineCount))) as Line[];
  const journals = new Map<string, RunRecord[]>();
  for (const { run, record } of lines) journals.set(run, [...(journals.get(run) ?? []), record]);
  const states = new Map<string, RunState>();
  for (const [run, records] of journals) {
    const outcome = replayRun(records);
    if (outcome.kind === "broken") throw new Error(`${run}: ${outcome.message}`);
    states.set(run, outcome.run);
  }
  const used = (id: string): Sums => {
    let total = NO_SUMS;
    for (const state of states.values()) if (isBelow(states, state.id, id)) total = sum(total, state.sums);
    return total;
  };
  const exceeded = (id: string) => [...states.values()].find(({ end }) => end?.exceeded?.run === id)?.end?.exceeded;
  const world = createWorld(seed);
  for (const state of states.values()) {
    const restored = { used: used(state.id), exceeded: exceeded(state.id) };
    if (state.end === undefined) restoreLive(world.tree, state, restored);
    else restoreEnded(world.tree, { ...state, limits: state.assignment.limits }, { ...state.end, ...restored });
  }
  world.lines.push(...lines);
  world.nowMs = (lines.at(-1)?.record.at ?? 0) + 10;
  // What was begun after a line that is there was begun; the intent itself may be the last thing that was written.
  world.ledger.begun.push(...story.ledger.begun.filter(({ afterLine }) => afterLine <= lineCount));
  for (const { record } of lines) {
    if (record.type === "turn-answered")
      world.ledger.tokens += record.usage.promptTokens + record.usage.completionTokens;
  }
  return world;
}

export function isBelow(states: ReadonlyMap<string, RunState>, run: string, top: string): boolean {
  for (let at: string | undefined = run; at !== undefined; at = states.get(at)?.parent) if (at === top) return true;
  return false;
}

/** Lives until every run has ended. @returns false when something stands still. */
export function live(world: World): boolean {
  const seen = new Set<string>();
  startCalls(world, seen);
  for (let steps = 0; steps < 3_000; steps += 1) {
    const runs = [...world.tree.nodes.values()].flatMap((node) => (node.live === undefined ? [] : [node.live]));
    if (runs.length === 0) return true;
    const actions = runs.flatMap(actionsOf);
    const asked = runs.flatMap(pendingApprovals);
    if (actions.length === 0 && asked.length === 0) return false;
    world.nowMs += world.random.integer(1, 400);
    keep(world, step(world, { runs, actions, asked }));
    startCalls(world, seen);
  }
  return false;
}

/** Every wanted call that has not begun in this process begins. */
function startCalls(world: World, seen: Set<string>): void {
  for (const node of world.tree.nodes.values()) {
    for (const action of node.live === undefined ? [] : actionsOf(node.live)) {
      if (action.type !== "call-tool" || seen.has(action.key)) continue;
      seen.add(action.key);
      world.ledger.begun.push({ key: action.idempotencyKey, afterLine: world.lines.length });
    }
  }
}

export function keep(world: World, entries: readonly Entry[]): void {
  for (const { run, record } of entries) world.lines.push({ run, record });
}

type Choices = {
  readonly runs: readonly RunState[];
  readonly actions: readonly Action[];
  readonly asked: ReturnType<typeof pendingApprovals>;
};

function step(world: World, { runs, actions, asked }: Choices): readonly Entry[] {
  const { random, tree, nowMs } = world;
  const roll = random.next();
  const someRun = pick(random, runs);
  if (roll < 0.02) return put(world, someRun.id, { type: "cancel-requested", by: "p" });
  if (roll < 0.07) {
    world.nowMs += random.integer(100, 9_000);
    return passTime(tree, { rules: RULES, nowMs: world.nowMs });
  }
  if (roll < 0.14) return spawn(world, pick(random, [...tree.nodes.keys()]));
  if (asked.length > 0 && (actions.length === 0 || roll < 0.4)) {
    const { run, id } = pick(random, asked);
    return decide(tree, { run, approval: id, decision: answer(random) }, { rules: RULES, nowMs });
  }
  return actions.length === 0 ? [] : act(world, pick(random, actions));
}

function answer(random: Random): Decision {
  const resolution = random.next() < 0.3 ? pick(random, ["rerun", "result", "fail", "cancel"] as const) : undefined;
  return {
    allow: random.next() < 0.7,
    scope: pick(random, ["once", "once", "run", "tree"] as const),
    resolution,
    result: "as it was",
    by: "p",
    channel: "tool",
  };
}

function act(world: World, action: Action): readonly Entry[] {
  const { random } = world;
  if (action.type === "call-tool") {
    const { turn, index, attempt } = action;
    const ok = random.next() < 0.8;
    return put(world, action.run, { type: "call-outcome", turn, index, attempt, ok, text: `r${index}`, tookMs: 2 });
  }
  const { turn } = action.turn;
  if (random.next() < 0.1) {
    const failure = pick(random, ["engine-lost", "engine-lost", "engine-error", "refused"] as const);
    return put(world, action.run, { type: "turn-failed", turn, failure, message: "broken" });
  }
  const calls = Array.from({ length: Math.max(0, random.integer(-1, 3)) }, () => call(random));
  const usage = { promptTokens: random.integer(5, 40), completionTokens: random.integer(1, 20), cachedTokens: 0 };
  world.ledger.tokens += usage.promptTokens + usage.completionTokens;
  const replica = random.next() < 0.5 ? "x" : "y";
  const text = `answer ${turn}`;
  const took = { heldMs: 1, tookMs: 5 };
  return put(world, action.run, { type: "turn-answered", turn, text, calls, usage, finish: "stop", replica, ...took });
}

function call(random: Random): MadeCall {
  if (random.next() < 0.15) return refused("Error: wrong arguments");
  return callable({
    n: random.integer(1, 2),
    tool: pick(random, ["look", "write"]),
    effect: pick(random, ["read-only", "idempotent", "unsafe", "unsafe"]),
    onCrash: random.next() < 0.2 ? "rerun" : "ask",
    asks: random.next() < 0.4 ? "destructive" : undefined,
  });
}

/** The first run, or a child of one that may have one. */
export function spawn(world: World, parent: string | undefined): readonly Entry[] {
  const { random, tree } = world;
  const number = tree.nodes.size;
  if (parent !== undefined) {
    const bounds = { maxDepth: 3, maxChildren: 3, adding: 1 };
    if (number >= RUNS_MAX || refusesChild(tree, parent, bounds) !== undefined) return [];
  }
  const id = parent === undefined ? "r" : `k${number}`;
  const bound = (least: number, most: number, chance: number): number | undefined =>
    random.next() < chance ? random.integer(least, most) : undefined;
  return put(world, id, {
    type: "spawned",
    id,
    parent,
    root: "r",
    depth: (tree.nodes.get(parent ?? "")?.depth ?? 0) + 1,
    principal: "p",
    caller: "c",
    assignment: {
      ...ASSIGNMENT,
      maxToolCalls: random.integer(0, 5),
      maxTokens: random.integer(0, 1) * 60,
      parallelToolCalls: random.next() < 0.5,
      limits: { tokens: bound(200, 1_200, 0.3), toolCalls: bound(1, 8, 0.3), seconds: bound(1, 30, 0.2) },
    },
  });
}

type Body = RunRecord extends infer Record ? (Record extends RunRecord ? Omit<Record, "v" | "at"> : never) : never;

function put(world: World, run: string, body: Body): readonly Entry[] {
  return advance(world.tree, run, { v: RECORD_VERSION, at: world.nowMs, ...body }, RULES);
}

function pick<Item>(random: Random, items: readonly Item[]): Item {
  const item = items[random.integer(0, items.length - 1)];
  if (item === undefined) throw new Error("nothing to pick from");
  return item;
}

/** Takes over: what a process does first. */
export function takeOver(world: World): void {
  keep(world, resume(world.tree, { rules: RULES, nowMs: world.nowMs }));
}
