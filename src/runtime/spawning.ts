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
  /** Of a run that names none. */
  readonly maxToolCalls: number;
  readonly maxTokens: number;
  /** The model of a run that names none; a text when there is none to choose. */
  readonly defaultModel: () => Promise<{ readonly model: string } | { readonly problem: string }>;
};

/** An equal `run` within this long is the repeat of one whose answer was lost. */
const SAME_RUN_MS = 10_000;

export class Spawner {
  readonly #options: SpawnerOptions;
  /** Spawns with a key run one after the other: the second then finds the first. */
  #keyed: Promise<unknown> = Promise.resolve();
  readonly #recent = new Map<string, { readonly atMs: number; readonly spawned: Promise<Spawned | ServiceRefusal> }>();

  constructor(options: SpawnerOptions) {
    this.#options = options;
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
    const spawned = this.spawn(who, [spec]);
    this.#recent.set(digest, { atMs: nowMs, spawned });
    void spawned.then((outcome) => {
      // What was refused may be asked for again at once.
      if (outcome.kind === "refused") this.#recent.delete(digest);
    });
    return spawned;
  }

  async #spawnAll(who: Requester, specs: readonly SpawnSpec[]): Promise<Spawned | ServiceRefusal> {
    const made: { readonly handle: string; readonly model: string }[] = [];
    const spawns: Spawn[] = [];
    const places: number[] = [];
    const keys = new Map<string, number>();
    for (const [at, spec] of specs.entries()) {
      const key = keyInList(spec.idempotencyKey, keys);
      const argumentsDigest = digestOfJson({ ...spec, idempotencyKey: undefined });
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
