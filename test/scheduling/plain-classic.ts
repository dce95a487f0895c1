/**
 * The rules of spec 2 in the plainest form: arrays, searches, no index, nothing kept that can be counted. Slow and meant to
 * be read beside the spec. The core is compared with it event by event (differential.test.ts).
 */
import type {
  HoldExplanation,
  ReplicaConfig,
  SchedulerEffect,
  SchedulerEvent,
  SchedulingConfig,
} from "../../src/scheduling/index.ts";
import type { IdentityKey, RunSource, ServiceClass } from "../../src/wire/admission.ts";
import type { WireApi } from "../../src/wire/endpoint.ts";
import type { LoadSample } from "../../src/wire/load.ts";

export type PlainReplica = {
  config: ReplicaConfig;
  configured: boolean;
  healthy: boolean;
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

export class PlainClassic {
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

  decide(event: SchedulerEvent): readonly SchedulerEffect[] {
    this.nowMs = Math.max(this.nowMs, event.nowMs);
    this.effects = [];
    // Time has passed: kept room has run out, pushed-back turns may go again.
    this.settle();
    this.apply(event);
    this.settle();
    return this.effects;
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

  // --- events ---------------------------------------------------------------------------------------------------------

  apply(event: SchedulerEvent): void {
    switch (event.type) {
      case "turn-requested":
        return this.request(event);
      case "turn-finished": {
        const turn = this.turn(event.turn);
        if (turn === undefined) return;
        if (turn.replica === undefined) return this.fail(turn, false);
        this.remember(turn.run, event.keys, this.nowMs);
        this.remove(turn);
        if (!turn.event.side) {
          turn.run.last = event.paused ? "paused" : "idle";
          turn.run.pausedMs = this.nowMs;
          if (turn.run.kept?.taken === true) turn.run.kept = undefined;
        }
        turn.run.lastMs = this.nowMs;
        return this.forgetEnded(turn.run);
      }
      case "turn-failed":
      case "turn-abandoned": {
        const turn = this.turn(event.turn);
        if (turn !== undefined) this.fail(turn, ["engine-unreachable", "engine-lost"].includes(event.reason));
        return;
      }
      case "turn-pushed-back":
      case "turn-withdrawn": {
        const turn = this.turn(event.turn);
        if (turn?.replica === undefined) return;
        const { replica } = turn;
        this.beginsToWait(turn);
        turn.replica = undefined;
        turn.run.lastMs = this.nowMs;
        this.forgetReplicas();
        if (event.type === "turn-pushed-back") {
          turn.notBeforeMs = this.nowMs + event.retryAfterMs;
          replica.quiet = 0;
          replica.cap = Math.min(replica.cap ?? Infinity, Math.max(1, this.inFlight(replica)));
        }
        return this.rejectOrphans();
      }
      case "turn-started": {
        const turn = this.turn(event.turn);
        if (turn !== undefined) turn.aliveMs = this.nowMs;
        return;
      }
      case "turn-too-late":
        return;
      case "turns-named": {
        this.dataplane(event.dataplane).namedMs = this.nowMs;
        for (const turn of this.ofDataplane(event.dataplane)) {
          if (!event.turns.includes(turn.event.turn)) this.fail(turn, false);
        }
        return;
      }
      case "run-ended": {
        const run = this.run(event.principal, event.run);
        if (run === undefined) return;
        run.ended = true;
        return this.forgetEnded(run);
      }
      case "probe-sent": {
        const replica = this.replica(event.replica);
        if (replica !== undefined) replica.atProbe = this.inFlight(replica);
        return;
      }
      case "replica-probed":
        return this.probe(event);
      case "pool-configured":
        return this.configure(event.config);
      case "dataplane-linked":
        return this.link(event);
      case "dataplane-lost": {
        const dataplane = this.dataplanes.find((row) => row.id === event.dataplane);
        if (dataplane === undefined) return;
        dataplane.linked = false;
        dataplane.lostMs = this.nowMs;
        for (const turn of this.ofDataplane(event.dataplane)) if (turn.replica === undefined) this.drop(turn);
        return;
      }
      case "ticked":
        return this.tick();
    }
  }

  request(event: PlainTurn["event"]): void {
    const known = this.turn(event.turn);
    if (known !== undefined) {
      if (known.replica !== undefined) this.effects.push(admission(known, known.replica));
      return;
    }
    const { run: found, id, source, prefers } = this.recognise(event);
    const refusal = this.whyNever(event.model, event.api);
    if (refusal !== undefined) {
      const { dataplane, turn } = event;
      this.effects.push({ type: "reject-turn", dataplane, turn, run: id, source, ...refusal } as SchedulerEffect);
      return;
    }
    const run = found ?? this.newRun(event.principal, id);
    if (found === undefined) run.replica = prefers?.replica;
    let arrivalMs = this.nowMs - Math.max(0, event.heldMs);
    const kept = this.freshKept(run);
    if (kept !== undefined && !kept.taken) {
      arrivalMs = Math.min(arrivalMs, kept.arrivalMs);
      run.kept = { ...kept, taken: true };
    }
    run.class = event.class;
    run.caller = event.caller;
    run.turns += 1;
    run.lastMs = this.nowMs;
    this.dataplane(event.dataplane);
    this.sequence += 1;
    const { sequence } = this;
    const turn = { event, run, source, arrivalMs, sequence, notBeforeMs: 0, replica: undefined, aliveMs: 0 };
    this.beginsToWait(turn);
    this.turns.push(turn);
  }

  recognise(event: PlainTurn["event"]): {
    run: PlainRun | undefined;
    id: string;
    source: RunSource;
    prefers?: PlainRun | undefined;
  } {
    if (event.run !== undefined) {
      return { run: this.run(event.principal, event.run), id: event.run, source: "header" };
    }
    let prefers: PlainRun | undefined;
    const silent = new Set<RunSource>();
    for (const { hash, source, weak = false } of event.keys) {
      if (silent.has(source)) continue;
      const row = this.keys.find((known) => known.hash === hash && known.weak === weak);
      if (row === undefined || this.nowMs - row.atMs > this.config.identityTtlMs) continue;
      const owners = row.owners.filter((run) => this.runs.includes(run));
      const [run] = owners;
      if (row.many || owners.length > 1) silent.add(source);
      else if (run?.principal === event.principal) {
        const busy = this.turns.some((turn) => turn.run === run && !turn.event.side);
        if (!weak || (source === "prefix" && !busy)) return { run, id: run.id, source };
        prefers ??= run;
        silent.add(source);
      }
    }
    return { run: this.run(event.principal, event.freshRun), id: event.freshRun, source: "new", prefers };
  }

  remember(run: PlainRun, keys: readonly IdentityKey[], atMs: number): void {
    for (const { hash, weak = false } of keys) {
      const row = this.keys.find((known) => known.hash === hash && known.weak === weak);
      if (row === undefined) {
        this.keys.push({ hash, weak, owners: [run], many: false, atMs });
        continue;
      }
      row.owners = row.owners.filter((other) => this.runs.includes(other));
      if (!row.owners.includes(run)) row.owners.push(run);
      if (row.owners.length > 2) row.many = true;
      row.atMs = Math.max(row.atMs, atMs);
    }
  }

  whyNever(model: string, api: WireApi): { code: string; message: string } | undefined {
    const known = this.replicas.filter((replica) => replica.configured && replica.everServed.includes(model));
    if (known.length === 0) {
      return { code: "model_not_found", message: `no Generative replica serves model '${model}'` };
    }
    if (known.some((replica) => replica.speaks === undefined || replica.speaks.includes(api))) return undefined;
    return { code: "route_unknown", message: "" };
  }

  rejectOrphans(): void {
    for (const turn of this.turns) {
      if (turn.replica !== undefined) continue;
      const refusal = this.whyNever(turn.event.model, turn.event.api);
      if (refusal === undefined) continue;
      const { dataplane, turn: id } = turn.event;
      const { run, source } = turn;
      const effect = { type: "reject-turn", dataplane, turn: id, run: run.id, source, ...refusal };
      this.effects.push(effect as SchedulerEffect);
      this.fail(turn, false);
    }
  }

  freshKept(run: PlainRun): PlainRun["kept"] {
    if (run.kept !== undefined && this.nowMs - run.kept.sinceMs >= this.config.arrivalKeptMs) run.kept = undefined;
    return run.kept;
  }

  fail(turn: PlainTurn, connection: boolean): void {
    const { run, replica } = turn;
    const inherited = replica === undefined ? this.freshKept(run)?.avoid : undefined;
    this.remove(turn);
    const avoid = connection && replica?.configured === true ? replica : inherited;
    run.kept = { arrivalMs: turn.arrivalMs, sinceMs: this.nowMs, avoid, taken: false };
    if (!turn.event.side) run.last = "idle";
    run.lastMs = this.nowMs;
    this.forgetEnded(run);
  }

  drop(turn: PlainTurn): void {
    this.remove(turn);
    this.forgetEnded(turn.run);
  }

  remove(turn: PlainTurn): void {
    this.turns = this.turns.filter((other) => other !== turn);
    this.forgetReplicas();
  }

  forgetEnded(run: PlainRun): void {
    if (run.ended && !this.turns.some((turn) => turn.run === run)) this.forget(run);
  }

  forget(run: PlainRun): void {
    this.runs = this.runs.filter((other) => other !== run);
  }

  /** A replica that left the config is known only as long as turns are in flight there. */
  forgetReplicas(): void {
    this.replicas = this.replicas.filter((replica) => replica.configured || this.inFlight(replica) > 0);
  }

  probe(event: Extract<SchedulerEvent, { readonly type: "replica-probed" }>): void {
    const replica = this.replica(event.replica);
    if (replica === undefined || !replica.configured) return;
    if (event.replaced) this.dropEngine(replica);
    if (event.models !== undefined && replica.config.models.length === 0) replica.models = event.models;
    if (event.speaks !== undefined && replica.config.speaks === undefined) replica.speaks = event.speaks;
    knowModels(replica);
    replica.healthy = event.healthy;
    if (!event.healthy || event.load?.waiting === undefined) this.loadFailed(replica);
    else replica.failures = 0;
    if (event.healthy) {
      if (event.load !== undefined) replica.load = event.load;
      this.takeSample(replica, event.load);
    }
    this.rejectOrphans();
  }

  takeSample(replica: PlainReplica, load: LoadSample | undefined): void {
    if (load?.running !== undefined) {
      const surplus = load.running - replica.atProbe;
      replica.surpluses = surplus > 0 ? [...replica.surpluses, surplus].slice(-3) : [];
    }
    const unreadable = load === undefined && replica.load !== undefined;
    if (unreadable || (load !== undefined && load.waiting === undefined)) return;
    if (load?.waiting !== undefined && load.waiting > 0) {
      replica.quiet = 0;
      if (load.running !== undefined) {
        replica.cap = Math.max(1, Math.min(replica.cap ?? Infinity, load.running));
      }
      return;
    }
    if (replica.cap === undefined) return;
    replica.quiet = replica.atProbe < replica.cap ? replica.quiet + 1 : 0;
    const release = this.config.capRelease === "at-once" || replica.quiet >= 5;
    replica.cap = release ? undefined : replica.cap + 1;
    if (release) replica.quiet = 0;
  }

  loadFailed(replica: PlainReplica): void {
    if (replica.load === undefined) return;
    replica.failures += 1;
    if (replica.failures >= this.config.loadStaleAfterProbes) forgetLoad(replica);
  }

  dropEngine(replica: PlainReplica): void {
    forgetLoad(replica);
    for (const run of this.runs) {
      if (run.replica === replica) run.replica = undefined;
      if (run.kept?.avoid === replica) run.kept.avoid = undefined;
    }
  }

  configure(config: SchedulingConfig): void {
    this.config = config;
    for (const replica of this.replicas) {
      if (!replica.configured || config.replicas.some((row) => row.replica === replica.config.replica)) continue;
      this.dropEngine(replica);
      replica.configured = false;
      replica.healthy = false;
      replica.everServed = [];
    }
    const rows = config.replicas.map((row) => {
      const replica = this.replica(row.replica);
      if (replica === undefined) return createReplica(row);
      if (!replica.configured || row.models.length > 0) replica.models = row.models;
      if (!replica.configured || row.speaks !== undefined) replica.speaks = row.speaks;
      replica.configured = true;
      replica.config = row;
      knowModels(replica);
      return replica;
    });
    this.replicas = [...rows, ...this.replicas.filter((replica) => !replica.configured)];
    this.forgetReplicas();
    this.rejectOrphans();
  }

  link(event: Extract<SchedulerEvent, { readonly type: "dataplane-linked" }>): void {
    const dataplane = this.dataplane(event.dataplane);
    dataplane.linked = true;
    dataplane.namedMs = this.nowMs;
    for (const turn of this.ofDataplane(event.dataplane)) {
      const report = event.flights.find((flight) => flight.turn === turn.event.turn);
      if (turn.replica === undefined || report?.replica !== turn.replica.config.replica) this.drop(turn);
    }
    for (const report of event.runs) {
      const lastMs = this.nowMs - report.quietMs;
      const known = this.run(report.principal, report.run);
      if (known !== undefined && known.lastMs >= lastMs) continue;
      const run = known ?? this.newRun(report.principal, report.run);
      run.caller = report.caller;
      run.class = report.class;
      run.last = report.phase;
      run.pausedMs = this.nowMs - (report.pausedMs ?? report.quietMs);
      run.lastMs = lastMs;
      const replica = report.replica === undefined ? undefined : this.replica(report.replica);
      run.replica = replica?.configured === true ? replica : undefined;
    }
    for (const report of event.flights) this.takeFlight(event.dataplane, report);
    for (const report of event.keys) {
      const run = this.run(report.principal, report.run);
      if (run !== undefined) this.remember(run, report.keys, this.nowMs - report.ageMs);
    }
  }

  takeFlight(
    dataplane: PlainTurn["event"]["dataplane"],
    report: Extract<SchedulerEvent, { readonly type: "dataplane-linked" }>["flights"][number],
  ): void {
    if (this.turn(report.turn) !== undefined) return;
    let run = this.run(report.principal, report.run);
    if (run === undefined) {
      run = this.newRun(report.principal, report.run);
      run.caller = report.caller;
      run.class = report.class;
    }
    let replica = this.replica(report.replica);
    if (replica === undefined) {
      replica = createReplica({
        replica: report.replica,
        kind: "generative",
        models: [],
        speaks: [],
        maxInFlight: undefined,
      });
      replica.configured = false;
      this.replicas.push(replica);
    }
    this.sequence += 1;
    const { turn, principal, caller, model, api, side, ageMs } = report;
    const event = { type: "turn-requested", nowMs: this.nowMs, dataplane, turn, principal, caller } as const;
    this.turns.push({
      event: {
        ...event,
        class: report.class,
        model,
        api,
        run: report.run,
        keys: [],
        freshRun: report.run,
        side,
        heldMs: 0,
      },
      run,
      source: report.source,
      arrivalMs: this.nowMs - ageMs,
      sequence: this.sequence,
      notBeforeMs: 0,
      replica,
      aliveMs: this.nowMs,
    });
    run.lastMs = Math.max(run.lastMs, this.nowMs - ageMs);
    if (!side && replica.configured && run.replica === undefined) run.replica = replica;
  }

  tick(): void {
    for (const run of this.runs) {
      if (this.nowMs - run.lastMs < this.config.runIdleExpiryMs) continue;
      if (this.turns.some((turn) => turn.run === run)) run.lastMs = this.nowMs;
      else this.forget(run);
    }
    for (const dataplane of this.dataplanes) {
      const turns = this.ofDataplane(dataplane.id);
      if (!dataplane.linked && this.nowMs - dataplane.lostMs >= this.config.dataplaneGraceMs) {
        for (const turn of turns) this.fail(turn, false);
        this.dataplanes = this.dataplanes.filter((other) => other !== dataplane);
      } else if (this.nowMs - dataplane.namedMs >= this.config.turnExpiryMs) {
        for (const turn of turns) {
          if (turn.replica !== undefined && this.nowMs - turn.aliveMs >= this.config.turnExpiryMs) {
            this.fail(turn, false);
          }
        }
      }
    }
    this.keys = this.keys.filter((row) => this.nowMs - row.atMs <= this.config.identityTtlMs);
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

function admission(turn: PlainTurn, replica: PlainReplica): SchedulerEffect {
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

function createReplica(config: ReplicaConfig): PlainReplica {
  const replica: PlainReplica = {
    config,
    configured: true,
    healthy: false,
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

function knowModels(replica: PlainReplica): void {
  if (replica.config.kind === "generative") replica.everServed = [...replica.everServed, ...replica.models];
}

function forgetLoad(replica: PlainReplica): void {
  replica.load = undefined;
  replica.cap = undefined;
  replica.quiet = 0;
  replica.failures = 0;
  replica.surpluses = [];
}
