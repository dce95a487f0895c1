/** Short words for events and configurations of the scheduling core in tests. */
import {
  asCallerId,
  asDataplaneId,
  asPrincipalId,
  asReplicaId,
  asRunId,
  asTurnId,
  type ReplicaId,
} from "../../src/base/ids.ts";
import { checkInvariants, createState, decide, explain } from "../../src/scheduling/index.ts";
import type {
  ReplicaConfig,
  SchedulerEffect,
  SchedulerEvent,
  SchedulerState,
  SchedulingConfig,
} from "../../src/scheduling/index.ts";
import type {
  FailureReason,
  FlightReport,
  IdentityKey,
  KeyReport,
  ModelReport,
  RunReport,
  RunSource,
} from "../../src/wire/admission.ts";
import type { LoadSample } from "../../src/wire/load.ts";

export type EventOf<Type extends SchedulerEvent["type"]> = Extract<SchedulerEvent, { readonly type: Type }>;

export function replica(name: string, about: Partial<ReplicaConfig> = {}): ReplicaConfig {
  return {
    replica: asReplicaId(name),
    kind: "generative",
    models: ["m"],
    speaks: ["chat"],
    maxInFlight: undefined,
    ...about,
  };
}

export function config(about: Partial<SchedulingConfig> = {}): SchedulingConfig {
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
    principalWeights: [],
    replicas: [replica("a")],
    ...about,
  };
}

/** A key in short: `tool-calls:abc`; `~` after the source marks a weak one: `prefix~:abc`. */
export function key(text: string): IdentityKey {
  const [source = "", hash = ""] = text.split(":");
  const weak = source.endsWith("~");
  return { source: (weak ? source.slice(0, -1) : source) as RunSource, hash, ...(weak ? { weak } : {}) };
}

export function sample(about: Partial<LoadSample>): LoadSample {
  return {
    running: undefined,
    waiting: undefined,
    kvUsage: undefined,
    kvCapacityTokens: undefined,
    cacheHitRate: undefined,
    takesPriority: false,
    ...about,
  };
}

export type Ask = {
  readonly run?: string;
  readonly class?: "interactive" | "batch";
  readonly caller?: string;
  readonly principal?: string;
  readonly model?: string;
  readonly api?: EventOf<"turn-requested">["api"];
  readonly keys?: readonly string[];
  readonly side?: boolean;
  readonly heldMs?: number;
  readonly dataplane?: string;
};

export function requested(nowMs: number, turn: string, ask: Ask = {}): EventOf<"turn-requested"> {
  return {
    type: "turn-requested",
    nowMs,
    dataplane: asDataplaneId(ask.dataplane ?? "d"),
    turn: asTurnId(turn),
    principal: asPrincipalId(ask.principal ?? "p"),
    caller: asCallerId(ask.caller ?? "c"),
    class: ask.class ?? "interactive",
    model: ask.model ?? "m",
    api: ask.api ?? "chat",
    run: ask.run === undefined ? undefined : asRunId(ask.run),
    keys: (ask.keys ?? []).map(key),
    freshRun: asRunId(`fresh-${turn}`),
    side: ask.side ?? false,
    heldMs: ask.heldMs ?? 0,
  };
}

export function finished(
  nowMs: number,
  turn: string,
  about: { readonly paused?: boolean; readonly keys?: readonly string[] } = {},
): EventOf<"turn-finished"> {
  const paused = about.paused ?? false;
  const keys = (about.keys ?? []).map(key);
  return { type: "turn-finished", nowMs, turn: asTurnId(turn), usage: {}, finishReason: "stop", paused, keys };
}

export type Seen = {
  readonly healthy?: boolean;
  readonly load?: Partial<LoadSample>;
  readonly models?: readonly string[];
  readonly speaks?: EventOf<"replica-probed">["speaks"];
  readonly replaced?: boolean;
};

export function probed(nowMs: number, name: string, seen: Seen = {}): EventOf<"replica-probed"> {
  return {
    type: "replica-probed",
    nowMs,
    replica: asReplicaId(name),
    healthy: seen.healthy ?? true,
    load: seen.load === undefined ? undefined : sample(seen.load),
    models: seen.models,
    speaks: seen.speaks,
    engine: undefined,
    replaced: seen.replaced ?? false,
  };
}

export function linked(
  nowMs: number,
  dataplane: string,
  report: {
    readonly runs?: readonly RunReport[];
    readonly flights?: readonly FlightReport[];
    readonly keys?: readonly KeyReport[];
    readonly models?: readonly ModelReport[];
  } = {},
): EventOf<"dataplane-linked"> {
  const { runs = [], flights = [], keys = [], models = [] } = report;
  return { type: "dataplane-linked", nowMs, dataplane: asDataplaneId(dataplane), runs, flights, keys, models };
}

/** `t1>a`: turn t1 was admitted to a; `t1!404`: it was refused with a code. */
export function brief(effects: readonly SchedulerEffect[]): string[] {
  return effects.map((effect) => {
    if (effect.type === "admit-turn") return `${effect.turn}>${effect.replica}`;
    return effect.type === "reject-turn" ? `${effect.turn}!${effect.code}` : `${effect.turn}<`;
  });
}

/** A core under test: every event is followed by a check of all invariants. Effects come back in brief. */
export class Core {
  state: SchedulerState;
  nowMs = 0;
  effects: readonly SchedulerEffect[] = [];

  constructor(about: Partial<SchedulingConfig> = {}) {
    this.state = createState(config(about), 0);
  }

  /** A core whose replicas have all answered their first probe. */
  static up(about: Partial<SchedulingConfig> = {}): Core {
    const core = new Core(about);
    for (const row of core.state.config.replicas) core.probe(row.replica);
    return core;
  }

  feed(event: SchedulerEvent): string[] {
    const decided = decide(this.state, event);
    this.state = decided.state;
    this.effects = decided.effects;
    checkInvariants(this.state);
    return brief(this.effects);
  }

  after(ms: number): this {
    this.nowMs += ms;
    return this;
  }

  ask(turn: string, about: Ask = {}): string[] {
    return this.feed(requested(this.nowMs, turn, about));
  }

  finish(turn: string, about: { readonly paused?: boolean; readonly keys?: readonly string[] } = {}): string[] {
    return this.feed(finished(this.nowMs, turn, about));
  }

  pause(turn: string): string[] {
    return this.finish(turn, { paused: true });
  }

  start(turn: string): string[] {
    return this.feed({ type: "turn-started", nowMs: this.nowMs, turn: asTurnId(turn) });
  }

  fail(turn: string, reason: FailureReason = "engine-error"): string[] {
    return this.feed({ type: "turn-failed", nowMs: this.nowMs, turn: asTurnId(turn), reason });
  }

  abandon(turn: string): string[] {
    return this.feed({ type: "turn-abandoned", nowMs: this.nowMs, turn: asTurnId(turn), reason: "client-left" });
  }

  pushBack(turn: string, retryAfterMs: number): string[] {
    return this.feed({ type: "turn-pushed-back", nowMs: this.nowMs, turn: asTurnId(turn), retryAfterMs });
  }

  /** A poll that is sent and answered at the same moment. */
  probe(name: string, seen: Seen = {}): string[] {
    const sent = this.feed({ type: "probe-sent", nowMs: this.nowMs, replica: asReplicaId(name) });
    return [...sent, ...this.feed(probed(this.nowMs, name, seen))];
  }

  tick(): string[] {
    return this.feed({ type: "ticked", nowMs: this.nowMs });
  }

  /** Caps a replica at `running` by a sample that shows a queue. */
  cap(name: string, running: number): string[] {
    return this.probe(name, { load: { running, waiting: 1 } });
  }

  why(turn: string): string | undefined {
    return explain(this.state, asTurnId(turn))?.reason;
  }

  place(turn: string): number | undefined {
    return explain(this.state, asTurnId(turn))?.place;
  }

  where(turn: string): ReplicaId | undefined {
    return this.state.turns.get(asTurnId(turn))?.replica?.config.replica;
  }
}
