/**
 * The rules of spec 2 in the plainest form: arrays, searches, no index, nothing kept that can be counted. Slow and meant to
 * be read beside the spec: when a turn fits, who goes first, where it goes, and why it is held. What events change:
 * plain-classic.ts.
 */
import type {
  HoldExplanation,
  ReplicaConfig,
  SchedulerEffect,
  SchedulerEvent,
  SchedulingConfig,
} from "../../src/scheduling/index.ts";
import type { RunSource, ServiceClass } from "../../src/wire/admission.ts";
import type { WireApi } from "../../src/wire/endpoint.ts";
import type { LoadSample } from "../../src/wire/load.ts";

export type PlainReplica = {
  config: ReplicaConfig;
  configured: boolean;
  healthy: boolean;
  probed: boolean;
  models: readonly string[];
  /** Every model that it was ever seen or configured to serve. */
  everServed: string[];
  speaks: readonly WireApi[] | undefined;
  cap: number | undefined;
  quiet: number;
  atProbe: number;
  load: LoadSample | undefined;
  failures: number;
  surpluses: number[];
};

export type PlainRun = {
  id: string;
  principal: string;
  caller: string;
  class: ServiceClass;
  last: "paused" | "idle";
  replica: PlainReplica | undefined;
  turns: number;
  lastMs: number;
  pausedMs: number;
  kept: { arrivalMs: number; sinceMs: number; avoid: PlainReplica | undefined; taken: boolean } | undefined;
  ended: boolean;
};

export type PlainTurn = {
  event: Extract<SchedulerEvent, { readonly type: "turn-requested" }>;
  run: PlainRun;
  source: RunSource;
  arrivalMs: number;
  sequence: number;
  notBeforeMs: number;
  replica: PlainReplica | undefined;
  aliveMs: number;
};

type PlainKey = { hash: string; weak: boolean; owners: PlainRun[]; many: boolean; atMs: number };
type PlainDataplane = { id: string; linked: boolean; lostMs: number; namedMs: number };

export class PlainRules {
  config: SchedulingConfig;
  nowMs: number;
  sequence = 0;
  admissions = 0;
  /** By principal, and by principal and caller: admissions when it was last admitted or its held turns began. */
  waitingSince = new Map<string, number>();
  replicas: PlainReplica[];
  runs: PlainRun[] = [];
  turns: PlainTurn[] = [];
  keys: PlainKey[] = [];
  dataplanes: PlainDataplane[] = [];
  effects: SchedulerEffect[] = [];

  constructor(config: SchedulingConfig, nowMs: number) {
    this.config = config;
    this.nowMs = nowMs;
    this.replicas = config.replicas.map(createReplica);
  }

  // --- the rules ------------------------------------------------------------------------------------------------------

  inFlight(replica: PlainReplica): number {
    return this.turns.filter((turn) => turn.replica === replica).length;
  }

  isHeld(turn: PlainTurn): boolean {
    return turn.replica === undefined;
  }

  isReady(turn: PlainTurn): boolean {
    return this.isHeld(turn) && turn.notBeforeMs <= this.nowMs;
  }

  limit(replica: PlainReplica): number | undefined {
    const bounds = [replica.cap, replica.config.maxInFlight].filter((bound) => bound !== undefined);
    return bounds.length === 0 ? undefined : Math.min(...bounds);
  }

  foreign(replica: PlainReplica): number {
    return replica.surpluses.length < 3 ? 0 : Math.min(...replica.surpluses);
  }

  keptRoom(replica: PlainReplica): number {
    return this.runs.filter((run) => run.replica === replica && this.needsRoom(run)).length;
  }

  needsRoom(run: PlainRun): boolean {
    const back = this.turns.some((turn) => turn.run === run && !turn.event.side);
    const inTime = this.nowMs - run.pausedMs < this.config.pausedRoomMs;
    return run.last === "paused" && run.class === "interactive" && !back && inTime && run.replica !== undefined;
  }

  hasRoom(replica: PlainReplica, serviceClass: ServiceClass): boolean {
    const limit = this.limit(replica);
    if (!replica.healthy) return false;
    if (limit === undefined) return true;
    const needed = this.inFlight(replica) + 1 + (serviceClass === "batch" ? this.keptRoom(replica) : 0);
    return needed <= Math.max(1, limit - this.foreign(replica));
  }

  serves(replica: PlainReplica, model: string, api: WireApi): boolean {
    if (replica.config.kind !== "generative" || !replica.configured) return false;
    return replica.models.includes(model) && (replica.speaks ?? ["chat"]).includes(api);
  }

  /** Where a run that is generating or paused must go. */
  pin(turn: PlainTurn): PlainReplica | undefined {
    const { run } = turn;
    const generating = this.turns.some((other) => other.run === run && other.replica !== undefined);
    if (run.replica === undefined || (!generating && run.last === "idle")) return undefined;
    return run.replica.healthy && this.serves(run.replica, turn.event.model, turn.event.api) ? run.replica : undefined;
  }

  fitting(turn: PlainTurn): PlainReplica[] {
    const pin = this.pin(turn);
    const allowed =
      pin === undefined
        ? this.replicas.filter((replica) => this.serves(replica, turn.event.model, turn.event.api))
        : [pin];
    return allowed.filter((replica) => this.hasRoom(replica, turn.event.class));
  }

  shares(turn: PlainTurn): [number, number] {
    const { principal, caller } = turn.event;
    const flying = this.turns.filter((other) => other.replica !== undefined && other.event.principal === principal);
    const weight = this.config.principalWeights.find((row) => row.principal === principal)?.weight ?? 1;
    return [flying.length / weight, flying.filter((other) => other.event.caller === caller).length];
  }

  since({ event }: PlainTurn): [number, number] {
    const { principal, caller } = event;
    return [this.waitingSince.get(principal) ?? 0, this.waitingSince.get(`${principal}/${caller}`) ?? 0];
  }

  /** A turn is about to be held: who has none yet begins to wait. */
  beginsToWait({ event }: PlainTurn): void {
    const others = this.turns.filter((other) => other.replica === undefined && other.event.turn !== event.turn);
    const { principal, caller } = event;
    const ofPrincipal = others.filter((other) => other.event.principal === principal);
    if (ofPrincipal.length === 0) this.waitingSince.set(principal, this.admissions);
    if (ofPrincipal.some((other) => other.event.caller === caller)) return;
    this.waitingSince.set(`${principal}/${caller}`, this.admissions);
  }

  /** All held turns, the one that goes first in front. */
  ranked(): PlainTurn[] {
    const rows = this.turns
      .filter((turn) => this.isHeld(turn))
      .map((turn) => ({
        turn,
        shares: this.shares(turn),
        since: this.since(turn),
        late: turn.event.class === "batch" ? 1 : 0,
      }));
    rows.sort(
      (a, b) =>
        a.late - b.late ||
        a.shares[0] - b.shares[0] ||
        a.since[0] - b.since[0] ||
        a.shares[1] - b.shares[1] ||
        a.since[1] - b.since[1] ||
        a.turn.arrivalMs - b.turn.arrivalMs ||
        a.turn.sequence - b.turn.sequence,
    );
    return rows.map((row) => row.turn);
  }

  settle(): void {
    for (;;) {
      const next = this.ranked().find((turn) => this.isReady(turn) && this.fitting(turn).length > 0);
      if (next === undefined) return;
      this.admit(next, this.place(next));
    }
  }

  place(turn: PlainTurn): PlainReplica {
    const fitting = this.fitting(turn);
    const { run } = turn;
    const { avoid } = run.kept ?? {};
    const others = fitting.filter((replica) => replica !== avoid);
    // A pinned turn has one place only; where there is a choice, the replica whose connection failed comes last.
    const choice = this.pin(turn) === undefined && others.length > 0 ? others : fitting;
    if (run.replica !== undefined && choice.includes(run.replica)) return run.replica;
    const load = (replica: PlainReplica): number => {
      const limit = this.limit(replica);
      return limit === undefined ? -1 : (this.inFlight(replica) + this.foreign(replica)) / limit;
    };
    return choice.toSorted((a, b) => load(a) - load(b) || this.inFlight(a) - this.inFlight(b))[0]!;
  }

  admit(turn: PlainTurn, replica: PlainReplica): void {
    const { run, event } = turn;
    this.admissions += 1;
    this.waitingSince.set(event.principal, this.admissions);
    this.waitingSince.set(`${event.principal}/${event.caller}`, this.admissions);
    turn.replica = replica;
    turn.aliveMs = this.nowMs;
    run.lastMs = this.nowMs;
    if (!event.side) {
      run.replica = replica;
      if (run.kept?.taken === true && run.kept.avoid !== replica) run.kept = undefined;
    }
    this.effects.push(admission(turn, replica));
  }

  // --- what is asked ---------------------------------------------------------------------------------------------------

  explain(turn: PlainTurn): HoldExplanation {
    const ranked = this.ranked();
    const at = ranked.indexOf(turn);
    const same = (other: PlainTurn): boolean =>
      other.event.caller === turn.event.caller &&
      other.event.principal === turn.event.principal &&
      other.event.class === turn.event.class;
    const behind = ranked.slice(0, at).filter(same).length;
    const tail = behind === 0 ? "" : `, behind ${behind} ${behind === 1 ? "turn" : "turns"} of its caller`;
    return { turn: turn.event.turn, reason: this.reason(turn) + tail, place: at + 1 };
  }

  reason(turn: PlainTurn): string {
    if (!this.isReady(turn)) {
      const seconds = Math.ceil((turn.notBeforeMs - this.nowMs) / 1000);
      return `pushed back by its engine, held for ${seconds} more ${seconds === 1 ? "second" : "seconds"}`;
    }
    const pin = this.pin(turn);
    const serving = this.replicas.filter((replica) => this.serves(replica, turn.event.model, turn.event.api));
    const healthy = pin === undefined ? serving.filter((replica) => replica.healthy) : [pin];
    const open = healthy.filter((replica) => this.hasRoom(replica, "interactive"));
    const kept = open.reduce((sum, replica) => sum + this.keptRoom(replica), 0);
    const room = `room kept for ${kept} ${kept === 1 ? "paused interactive run" : "paused interactive runs"}`;
    const roomKept = turn.event.class === "batch" && kept > 0;
    if (pin !== undefined) {
      return roomKept ? `${room} (pinned to ${this.full(pin)})` : `pinned to a full replica (${this.full(pin)})`;
    }
    if (healthy.length === 0) return "no healthy replica";
    if (roomKept) return room;
    if (healthy.length === 1) return `the only replica is full (${this.full(healthy[0]!)})`;
    return `all ${healthy.length} replicas are full`;
  }

  full(replica: PlainReplica): string {
    const foreign = this.foreign(replica) === 0 ? "" : `, foreign load ${this.foreign(replica)}`;
    return `${replica.config.replica}: ${this.inFlight(replica)} of ${this.limit(replica)} in flight${foreign}`;
  }

  // --- searches --------------------------------------------------------------------------------------------------------

  turn(id: string): PlainTurn | undefined {
    return this.turns.find((turn) => turn.event.turn === id);
  }

  run(principal: string, id: string): PlainRun | undefined {
    return this.runs.find((run) => run.principal === principal && run.id === id);
  }

  replica(id: string): PlainReplica | undefined {
    return this.replicas.find((replica) => replica.config.replica === id);
  }

  ofDataplane(id: string): PlainTurn[] {
    return this.turns.filter((turn) => turn.event.dataplane === id);
  }

  dataplane(id: string): PlainDataplane {
    let dataplane = this.dataplanes.find((row) => row.id === id);
    if (dataplane === undefined) {
      dataplane = { id, linked: true, lostMs: 0, namedMs: this.nowMs };
      this.dataplanes.push(dataplane);
    }
    return dataplane;
  }

  newRun(principal: string, id: string): PlainRun {
    const run: PlainRun = {
      id,
      principal,
      caller: "",
      class: "interactive",
      last: "idle",
      replica: undefined,
      turns: 0,
      lastMs: this.nowMs,
      pausedMs: 0,
      kept: undefined,
      ended: false,
    };
    this.runs.push(run);
    return run;
  }
}

export function admission(turn: PlainTurn, replica: PlainReplica): SchedulerEffect {
  const { dataplane, turn: id } = turn.event;
  const { run, source } = turn;
  return {
    type: "admit-turn",
    dataplane,
    turn: id,
    replica: replica.config.replica,
    run: run.id as Extract<SchedulerEffect, { readonly type: "admit-turn" }>["run"],
    source,
  };
}

export function createReplica(config: ReplicaConfig): PlainReplica {
  const replica: PlainReplica = {
    config,
    configured: true,
    healthy: false,
    probed: false,
    models: config.models,
    everServed: [],
    speaks: config.speaks,
    cap: undefined,
    quiet: 0,
    atProbe: 0,
    load: undefined,
    failures: 0,
    surpluses: [],
  };
  knowModels(replica);
  return replica;
}

export function knowModels(replica: PlainReplica): void {
  if (replica.config.kind === "generative") replica.everServed = [...replica.everServed, ...replica.models];
}

export function forgetLoad(replica: PlainReplica): void {
  replica.load = undefined;
  replica.cap = undefined;
  replica.quiet = 0;
  replica.failures = 0;
  replica.surpluses = [];
}
