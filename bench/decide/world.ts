/**
 * A closed world of agents around the scheduling core: what they do next depends on what was decided, as in the service. Its
 * own work is not measured. Everything random comes from the seed.
 */
import {
  asCallerId,
  asDataplaneId,
  asPrincipalId,
  asReplicaId,
  asRunId,
  asTurnId,
  type TurnId,
} from "../../src/base/ids.ts";
import { createRandom, type Random } from "../../src/base/random.ts";
import {
  createState,
  type SchedulerEffect,
  type SchedulerEvent,
  type SchedulerState,
} from "../../src/scheduling/index.ts";
import type { RunReport } from "../../src/wire/admission.ts";
import type { SchedulingConfig } from "../../src/scheduling/index.ts";

/** How held turns are spread over callers. */
export type Shape =
  /** 20 principals with 10 callers each, weights 0.1 to 4. */
  | "spread"
  /** One principal; one caller has half of all held turns, fifty have the rest. */
  | "burst"
  /** One principal, 10,000 callers. */
  | "callers";

export type WorldSize = {
  readonly runs: number;
  readonly replicas: number;
  readonly heldTurns: number;
  readonly slotsPerReplica: number;
  readonly shape: Shape;
};

/** The sizes of the table: 100 replicas and 10,000 held turns from 100,000 runs on, in proportion below. */
export function sizeFor(runs: number, shape: Shape): WorldSize {
  const heldTurns = Math.min(10_000, Math.floor(runs * 0.4));
  return { runs, replicas: 100, heldTurns, slotsPerReplica: Math.max(2, Math.min(64, Math.floor(runs / 400))), shape };
}

/** The clock of the world: 50,000 events a second. */
const EVENT_MS = 0.02;
const PROBE_EVERY_MS = 2_000;
const TICK_EVERY_MS = 1_000;
/** More often than the real 60 s, so that a short measurement sees it. */
const NAMED_EVERY_MS = 10_000;
const DATAPLANES = 4;
const REMEMBERED_CALLS = 3;

type AgentRun = {
  readonly index: number;
  id: string;
  open: boolean;
  paused: boolean;
  /** Keys of its last answer. */
  keys: readonly string[];
};

type OpenTurn = { readonly id: TurnId; readonly run: AgentRun; readonly dataplane: number };

export class World {
  readonly size: WorldSize;
  state: SchedulerState;
  nowMs = 0;
  heldNow = 0;
  readonly #random: Random;
  readonly #runs: AgentRun[] = [];
  readonly #paused: AgentRun[] = [];
  readonly #flying: OpenTurn[] = [];
  readonly #byTurn = new Map<string, OpenTurn>();
  readonly #heldIds: TurnId[] = [];
  readonly #scheduled: SchedulerEvent[] = [];
  #turns = 0;
  #generation = 0;
  #nextProbeMs = 0;
  #nextTickMs = 0;
  #nextNamedMs = NAMED_EVERY_MS;

  constructor(size: WorldSize, seed: number) {
    this.size = size;
    this.#random = createRandom(seed);
    this.state = createState(configFor(size), 0);
    for (let index = 0; index < size.runs; index += 1) {
      this.#runs.push({ index, id: flat(`run-${index.toString(36)}`), open: false, paused: false, keys: [] });
    }
  }

  /** Events that make the replicas healthy and the runs known: a resync, as after a restart. */
  *begin(): Generator<SchedulerEvent> {
    for (let at = 0; at < this.size.replicas; at += 1) yield this.#probe(at);
    for (let at = 0; at < DATAPLANES; at += 1) {
      const runs = this.#runs.filter((run) => run.index % DATAPLANES === at).map((run) => this.#report(run));
      yield {
        type: "dataplane-linked",
        nowMs: 0,
        dataplane: dataplaneName(at),
        runs,
        flights: [],
        keys: [],
        models: [],
      };
    }
  }

  /** The next event. Its effects must be handed to `took` before the next one is asked for. */
  next(): SchedulerEvent {
    this.nowMs += EVENT_MS;
    const planned = this.#scheduled.pop() ?? this.#housekeeping();
    if (planned !== undefined) return { ...planned, nowMs: this.nowMs };
    const random = this.#random.next();
    if (this.heldNow >= this.size.heldTurns && random < 0.02) return this.#abandon();
    if (this.heldNow < this.size.heldTurns || this.#flying.length === 0) return this.#request();
    return this.#end(random);
  }

  took(effects: readonly SchedulerEffect[]): void {
    for (const effect of effects) {
      const turn = this.#byTurn.get(effect.turn);
      if (turn === undefined || effect.type !== "admit-turn") continue;
      this.heldNow -= 1;
      this.#flying.push(turn);
      this.#scheduled.push({ type: "turn-started", nowMs: 0, turn: turn.id });
    }
  }

  #housekeeping(): SchedulerEvent | undefined {
    if (this.nowMs >= this.#nextProbeMs) {
      this.#nextProbeMs = this.nowMs + PROBE_EVERY_MS;
      for (let at = 0; at < this.size.replicas; at += 1) {
        this.#scheduled.push(this.#probe(at), { type: "probe-sent", nowMs: 0, replica: replicaName(at) });
      }
      return this.#scheduled.pop();
    }
    if (this.nowMs >= this.#nextTickMs) {
      this.#nextTickMs = this.nowMs + TICK_EVERY_MS;
      return { type: "ticked", nowMs: 0 };
    }
    if (this.nowMs < this.#nextNamedMs) return undefined;
    this.#nextNamedMs = this.nowMs + NAMED_EVERY_MS;
    const named: TurnId[][] = Array.from({ length: DATAPLANES }, () => []);
    for (const turn of this.#byTurn.values()) named[turn.dataplane]?.push(turn.id);
    for (const [at, turns] of named.entries()) {
      this.#scheduled.push({ type: "turns-named", nowMs: 0, dataplane: dataplaneName(at), turns });
    }
    return this.#scheduled.pop();
  }

  #probe(at: number): SchedulerEvent {
    const random = this.#random.next();
    const running = Math.floor(this.size.slotsPerReplica * (0.8 + random * 0.2));
    return {
      type: "replica-probed",
      nowMs: this.nowMs,
      replica: replicaName(at),
      healthy: true,
      load: {
        running,
        waiting: random < 0.1 ? 1 : 0,
        kvUsage: 0.8,
        kvCapacityTokens: 100_000,
        cacheHitRate: 0.7,
        takesPriority: false,
      },
      models: undefined,
      speaks: undefined,
      engine: "vllm",
      replaced: false,
    };
  }

  #report(run: AgentRun): RunReport {
    return {
      run: asRunId(run.id),
      ...this.#who(run),
      phase: "idle",
      replica: replicaName(run.index % this.size.replicas),
      quietMs: (this.size.runs - run.index) / 1_000,
    };
  }

  #who(run: AgentRun): Pick<RunReport, "principal" | "caller" | "class"> {
    const { index } = run;
    const serviceClass = index % 2 === 0 ? "interactive" : "batch";
    switch (this.size.shape) {
      case "spread":
        return {
          principal: asPrincipalId(flat(`principal-${index % 20}`)),
          caller: asCallerId(`caller-${Math.floor(index / 20) % 10}`),
          class: serviceClass,
        };
      case "burst": {
        const caller = index % 4 < 2 ? "burst" : `caller-${Math.floor(index / 4) % 50}`;
        return { principal: asPrincipalId("everybody"), caller: asCallerId(caller), class: serviceClass };
      }
      case "callers":
        return {
          principal: asPrincipalId("everybody"),
          caller: asCallerId(`caller-${Math.floor(index / 2) % 10_000}`),
          class: serviceClass,
        };
    }
  }

  #request(): SchedulerEvent {
    const run = this.#nextRun();
    run.open = true;
    run.paused = false;
    this.#turns += 1;
    const dataplane = run.index % DATAPLANES;
    const turn: OpenTurn = { id: asTurnId(flat(`turn-${this.#turns.toString(36)}`)), run, dataplane };
    this.#byTurn.set(turn.id, turn);
    this.#heldIds.push(turn.id);
    this.heldNow += 1;
    // Four of ten name their run, the others are recognised by what their last answer left.
    const named = run.keys.length === 0 || run.index % 10 < 4;
    return {
      type: "turn-requested",
      nowMs: this.nowMs,
      dataplane: dataplaneName(dataplane),
      turn: turn.id,
      ...this.#who(run),
      model: "model",
      api: "chat",
      run: named ? asRunId(run.id) : undefined,
      keys: named ? [] : keysOf(run.keys),
      freshRun: asRunId(flat(`fresh-${this.#turns}`)),
      side: false,
      heldMs: 0,
    };
  }

  /** Mostly a run whose tool has returned; one in fifty is a new run, and an old one has ended. */
  #nextRun(): AgentRun {
    const random = this.#random.next();
    if (
      this.#paused.length > Math.min(this.size.replicas * 8, this.size.runs / 10) ||
      (random < 0.6 && this.#paused.length > 0)
    ) {
      const run = takeRandom(this.#paused, this.#random);
      if (!run.open) return run;
    }
    for (let tries = 0; ; tries += 1) {
      if (tries > 10_000) throw new Error("the world has too few runs for its held turns and slots");
      const run = this.#runs[this.#random.integer(0, this.#runs.length - 1)];
      if (run === undefined || run.open || run.paused) continue;
      if (random > 0.98) {
        const { principal } = this.#who(run);
        this.#scheduled.push({ type: "run-ended", nowMs: 0, run: asRunId(run.id), principal });
        this.#generation += 1;
        run.id = flat(`run-${run.index.toString(36)}-${this.#generation.toString(36)}`);
        run.keys = [];
      }
      return run;
    }
  }

  #end(random: number): SchedulerEvent {
    const turn = takeRandom(this.#flying, this.#random);
    this.#forget(turn);
    if (random > 0.98) return { type: "turn-failed", nowMs: this.nowMs, turn: turn.id, reason: "engine-error" };
    const paused = this.#random.next() < 0.7;
    const { run } = turn;
    run.paused = paused;
    if (paused) this.#paused.push(run);
    const hash = (this.#turns * 2_654_435_761).toString(36).padStart(20, "0");
    run.keys = Array.from({ length: REMEMBERED_CALLS }, (_, at) => flat(`${hash}-${at}-${run.index.toString(36)}`));
    return {
      type: "turn-finished",
      nowMs: this.nowMs,
      turn: turn.id,
      usage: { promptTokens: 4_000, completionTokens: 100, cachedTokens: 3_000 },
      finishReason: paused ? "tool_calls" : "stop",
      paused,
      keys: keysOf(run.keys),
    };
  }

  #abandon(): SchedulerEvent {
    for (;;) {
      const id = this.#heldIds.pop();
      if (id === undefined) return { type: "ticked", nowMs: this.nowMs };
      const turn = this.#byTurn.get(id);
      if (turn === undefined || this.state.turns.get(id)?.state !== "held") continue;
      this.heldNow -= 1;
      this.#forget(turn);
      return { type: "turn-abandoned", nowMs: this.nowMs, turn: id, reason: "client-left" };
    }
  }

  #forget(turn: OpenTurn): void {
    this.#byTurn.delete(turn.id);
    turn.run.open = false;
    if (this.#heldIds.length > 50_000) this.#heldIds.splice(0, 40_000);
  }
}

/** A joined text is put together only when it is first read; one from the wire is not, and must not be paid for by the core. */
function flat(text: string): string {
  return /[^ -~]/.test(text) ? "" : text;
}

function keysOf(hashes: readonly string[]): Extract<SchedulerEvent, { readonly type: "turn-finished" }>["keys"] {
  return hashes.map((hash, at) => (at < 2 ? { source: "tool-calls", hash } : { source: "prefix", hash, weak: true }));
}

function takeRandom<Item>(items: Item[], random: Random): Item {
  const at = random.integer(0, items.length - 1);
  const item = items[at];
  const last = items.pop();
  if (item === undefined || last === undefined) throw new Error("nothing to take from");
  if (at < items.length) items[at] = last;
  return item;
}

function configFor(size: WorldSize): SchedulingConfig {
  return {
    policy: "classic",
    capRelease: "step",
    pausedRoomMs: 1_800_000,
    turnExpiryMs: 600_000,
    dataplaneGraceMs: 10_000,
    runIdleExpiryMs: 1_800_000,
    arrivalKeptMs: 60_000,
    loadStaleAfterProbes: 3,
    identityTtlMs: 1_800_000,
    identityKeysMax: 200_000,
    principalWeights: Array.from({ length: 20 }, (_, at) => ({
      principal: asPrincipalId(`principal-${at}`),
      weight: [0.1, 1, 2, 4][at % 4] ?? 1,
    })),
    replicas: Array.from({ length: size.replicas }, (_, at) => ({
      replica: replicaName(at),
      kind: "generative",
      models: ["model"],
      speaks: ["chat"],
      maxInFlight: size.slotsPerReplica,
    })),
  };
}

const REPLICAS = Array.from({ length: 1_000 }, (_, at) => asReplicaId(`replica-${at}`));
const PLANES = Array.from({ length: DATAPLANES }, (_, at) => asDataplaneId(`dataplane-${at}`));

function replicaName(at: number): ReturnType<typeof asReplicaId> {
  return REPLICAS[at] ?? asReplicaId(`replica-${at}`);
}

function dataplaneName(at: number): ReturnType<typeof asDataplaneId> {
  return PLANES[at] ?? asDataplaneId(`dataplane-${at}`);
}
