/** From what a client asks for to what the host spawns: model, tools, bounds, and keys that make repeats harmless. */
import type { Assignment, SpawnRefusal } from "../runs/index.ts";
import type { RowDetail } from "./commit.ts";
import { digestOfJson } from "./digest.ts";
import type { RunHost, Spawn } from "./run-host.ts";
import type { Requester, ServiceRefusal, Spawned, SpawnSpec } from "./run-service.ts";
import { functionsOf } from "./run-work.ts";
import type { RunEntry, RunStore } from "./store/port.ts";
import { chooseTools } from "./tool-choice.ts";
import type { ToolServers } from "./tool-servers/port.ts";

export type SpawnerOptions = {
  readonly host: RunHost;
  readonly store: RunStore;
  readonly tools: ToolServers;
  readonly wallMs: () => number;
  /** Of a run that names none. */
  readonly maxToolCalls: number;
  readonly maxTokens: number;
  /** The model of a run that names none; a text when there is none to choose. */
  readonly defaultModel: () => Promise<{ readonly model: string } | { readonly problem: string }>;
};

/** An equal `run` within this long is the repeat of one whose answer was lost. */
const SAME_RUN_MS = 10_000;
/** For this long after a start the process before may have taken such a run: then the store is asked, too. */
const AFTER_START_MS = 120_000;
const PAGE = 500;
const PAGES_MAX = 20;

export class Spawner {
  readonly #options: SpawnerOptions;
  /** Spawns with a key run one after the other: the second then finds the first. */
  #keyed: Promise<unknown> = Promise.resolve();
  readonly #recent = new Map<string, { readonly atMs: number; readonly spawned: Promise<Spawned | ServiceRefusal> }>();
  readonly #startedMs: number;

  constructor(options: SpawnerOptions) {
    this.#options = options;
    this.#startedMs = options.wallMs();
  }

  async spawn(who: Requester, specs: readonly SpawnSpec[]): Promise<Spawned | ServiceRefusal> {
    if (specs.length === 0) return refused("name at least one task");
    if (specs.every(({ idempotencyKey }) => idempotencyKey === undefined)) return this.#spawnAll(who, specs);
    const spawned = this.#keyed.then(() => this.#spawnAll(who, specs));
    this.#keyed = spawned.catch(() => undefined);
    return spawned;
  }

  run(who: Requester, spec: SpawnSpec, nowMs: number): Promise<Spawned | ServiceRefusal> {
    const digest = digestOfJson([who.principal, spec]);
    // The oldest stand first.
    for (const [key, { atMs }] of this.#recent) {
      if (nowMs - atMs <= SAME_RUN_MS) break;
      this.#recent.delete(key);
    }
    const recent = this.#recent.get(digest);
    if (recent !== undefined) return recent.spawned;
    const spawned = this.#runAnew(who, spec);
    this.#recent.set(digest, { atMs: nowMs, spawned });
    void spawned.then((outcome) => {
      // What was refused may be asked for again at once.
      if (outcome.kind === "refused") this.#recent.delete(digest);
    });
    return spawned;
  }

  /** A client that repeats a `run` after a crash may not have seen that it was taken: its tools must not run twice. */
  async #runAnew(who: Requester, spec: SpawnSpec): Promise<Spawned | ServiceRefusal> {
    if (spec.idempotencyKey !== undefined) return this.spawn(who, [spec]);
    const known = await this.#takenBeforeStart(who, spec);
    if (known !== undefined) return { kind: "spawned", handles: [known.handle], models: [known.model] };
    return this.#spawnAll(who, [spec], "run");
  }

  async #takenBeforeStart(who: Requester, spec: SpawnSpec): Promise<{ handle: string; model: string } | undefined> {
    const { store, wallMs } = this.#options;
    const nowMs = wallMs();
    if (nowMs - this.#startedMs > AFTER_START_MS) return undefined;
    const digest = digestOf(spec, "run");
    let cursor: string | undefined;
    for (let page = 0; page < PAGES_MAX; page += 1) {
      const filter = { principal: who.principal, limit: PAGE };
      const found = await store.list(cursor === undefined ? filter : { ...filter, cursor });
      for (const { row } of found.items) {
        if (row.createdAtMs < nowMs - SAME_RUN_MS) return undefined;
        const isIt = row.argumentsDigest === digest && row.createdAtMs <= this.#startedMs;
        if (isIt) return { handle: row.id, model: (row.detail as RowDetail).model };
      }
      cursor = found.cursor;
      if (cursor === undefined) return undefined;
    }
    return undefined;
  }

  async #spawnAll(
    who: Requester,
    specs: readonly SpawnSpec[],
    by: "spawn" | "run" = "spawn",
  ): Promise<Spawned | ServiceRefusal> {
    const made: { readonly handle: string; readonly model: string }[] = [];
    const spawns: Spawn[] = [];
    const places: number[] = [];
    const keys = new Map<string, number>();
    const lists = listDigests(specs);
    for (const [at, spec] of specs.entries()) {
      const key = keyInList(spec.idempotencyKey, keys);
      const list = spec.idempotencyKey === undefined ? undefined : lists.get(spec.idempotencyKey);
      const argumentsDigest = list === undefined ? digestOf(spec, by) : digestOfJson([list, key]);
      if (key !== undefined) {
        const known = await this.#options.store.findByIdempotencyKey(who.principal, key);
        const repeat = known === undefined ? undefined : repeatOf(known, key, argumentsDigest);
        if (repeat !== undefined) {
          if ("message" in repeat) return repeat;
          made[at] = repeat;
          continue;
        }
      }
      const assigned = await this.#assign(who, spec);
      if ("message" in assigned) return specs.length === 1 ? assigned : refused(`task ${at + 1}: ${assigned.message}`);
      const { parent } = spec;
      const { principal, caller, session } = who;
      spawns.push({ parent, principal, caller, session, assignment: assigned, idempotencyKey: key, argumentsDigest });
      places.push(at);
    }
    if (spawns.length > 0) {
      const outcome = await this.#options.host.spawn(spawns);
      switch (outcome.kind) {
        case "spawned":
          for (const [at, place] of places.entries()) {
            made[place] = { handle: outcome.handles[at] ?? "", model: spawns[at]?.assignment.model ?? "" };
          }
          break;
        case "refused":
          return refused(this.#refusalText(outcome.why, outcome.parent));
        case "key-taken":
          return refused(`the idempotency key was used this very moment by ${outcome.handle}: ask again`);
        case "unavailable":
          return refused(`no run was started: ${outcome.message}`);
      }
    }
    return { kind: "spawned", handles: made.map(({ handle }) => handle), models: made.map(({ model }) => model) };
  }

  #refusalText(why: SpawnRefusal, parent: string): string {
    const { maxDepth, maxChildren } = this.#options.host.bounds;
    switch (why) {
      case "unknown-parent":
        return `parent: unknown handle ${parent}`;
      case "parent-cancelled":
        return `parent: ${parent} was cancelled, it can have no more children`;
      case "parent-exceeded":
        return `parent: the budget over ${parent} is exceeded, it can have no more children`;
      case "too-deep":
        return `parent: ${parent} stands at depth ${maxDepth}, the deepest that runtime.maxDepth allows`;
      case "too-many-children":
        return `parent: ${parent} would have more than ${maxChildren} children (runtime.maxChildren)`;
    }
  }

  async #assign(who: Requester, spec: SpawnSpec): Promise<Assignment | ServiceRefusal> {
    const wrong = problemOf(spec);
    if (wrong !== undefined) return refused(wrong);
    if (spec.parent !== undefined) {
      const parent = await this.#options.host.find(spec.parent);
      if (parent?.run.principal !== who.principal) return refused(`parent: unknown handle ${spec.parent}`);
    }
    const chosen = spec.model === undefined ? await this.#options.defaultModel() : { model: spec.model };
    if ("problem" in chosen) return refused(chosen.problem);
    const offered = this.#options.tools.list();
    const { tools, unknown } = chooseTools(offered, spec.tools);
    const unknownAsks = chooseTools(offered, spec.approveTools).unknown;
    if (unknown.length + unknownAsks.length > 0) {
      const [argument, name] = unknown.length > 0 ? ["tools", unknown[0]] : ["approveTools", unknownAsks[0]];
      return refused(`${argument}: no tool is called '${name}'; the tool \`tools\` lists them`);
    }
    const maxToolCalls = spec.maxToolCalls ?? this.#options.maxToolCalls;
    const used = maxToolCalls === 0 ? [] : tools;
    return {
      task: spec.task,
      system: spec.system,
      model: chosen.model,
      serviceClass: spec.serviceClass ?? "interactive",
      maxToolCalls,
      tools: used,
      toolsBytes: used.length === 0 ? 0 : Buffer.byteLength(JSON.stringify(functionsOf(used, offered)), "utf8"),
      maxTokens: spec.maxTokens ?? this.#options.maxTokens,
      parallelToolCalls: spec.parallelToolCalls ?? false,
      approveTools: spec.approveTools ?? [],
      limits: { tokens: spec.budgetTokens, toolCalls: spec.budgetToolCalls, seconds: spec.budgetSeconds },
    };
  }
}

export function refused(message: string): ServiceRefusal {
  return { kind: "refused", message };
}

function problemOf(spec: SpawnSpec): string | undefined {
  if (spec.task.trim() === "") return "task: say what the sub-agent shall do";
  for (const name of ["maxToolCalls", "maxTokens"] as const) {
    const value = spec[name];
    if (value !== undefined && !(Number.isSafeInteger(value) && value >= 0)) return `${name}: a whole number from 0 up`;
  }
  for (const name of ["budgetTokens", "budgetToolCalls"] as const) {
    const value = spec[name];
    if (value !== undefined && !(Number.isSafeInteger(value) && value >= 1)) return `${name}: a whole number from 1 up`;
  }
  const seconds = spec.budgetSeconds;
  if (seconds !== undefined && !(Number.isFinite(seconds) && seconds >= 1)) return "budgetSeconds: a number from 1 up";
  return undefined;
}

/** Of what was asked for. One that `run` has started is told from one that `spawn` has: that one is meant to be another. */
function digestOf(spec: SpawnSpec, by: "spawn" | "run"): string {
  const given = { ...spec, idempotencyKey: undefined };
  return by === "run" && spec.idempotencyKey === undefined ? digestOfJson([by, given]) : digestOfJson(given);
}

/** Under a key that several entries share the whole list is what must be the same. By key, of those alone. */
function listDigests(specs: readonly SpawnSpec[]): ReadonlyMap<string, string> {
  const digests = new Map<string, string>();
  if (specs.length === 1) return digests;
  for (const [key, sharers] of Map.groupBy(specs, ({ idempotencyKey }) => idempotencyKey)) {
    if (key !== undefined && sharers.length > 1) digests.set(key, digestOfJson(sharers));
  }
  return digests;
}

/** The n-th entry of a list under one common key has a key of its own: the same in a repeat of the list. */
function keyInList(key: string | undefined, seen: Map<string, number>): string | undefined {
  if (key === undefined) return undefined;
  const number = seen.get(key) ?? 0;
  seen.set(key, number + 1);
  return number === 0 ? key : `${key}#${number}`;
}

function repeatOf(
  { row }: RunEntry,
  key: string,
  argumentsDigest: string,
): { readonly handle: string; readonly model: string } | ServiceRefusal {
  if (row.argumentsDigest !== argumentsDigest) {
    return refused(`idempotencyKey: '${key}' was used with other arguments, for ${row.id}; take another key`);
  }
  const { model } = row.detail as RowDetail;
  return { handle: row.id, model };
}
