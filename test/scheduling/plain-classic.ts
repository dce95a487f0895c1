/**
 * The events of the scheduling core over the plain rules (plain-rules.ts). The core is compared with it event by event
 * (differential.test.ts).
 */
import type { SchedulerEffect, SchedulerEvent, SchedulingConfig } from "../../src/scheduling/index.ts";
import type { IdentityKey, RunSource } from "../../src/wire/admission.ts";
import type { WireApi } from "../../src/wire/endpoint.ts";
import type { LoadSample } from "../../src/wire/load.ts";
import {
  admission,
  createReplica,
  forgetLoad,
  knowModels,
  PlainRules,
  type PlainReplica,
  type PlainRun,
  type PlainTurn,
} from "./plain-rules.ts";

export class PlainClassic extends PlainRules {
  decide(event: SchedulerEvent): readonly SchedulerEffect[] {
    this.nowMs = Math.max(this.nowMs, event.nowMs);
    this.effects = [];
    // Time has passed: kept room has run out, pushed-back turns may go again.
    this.settle();
    this.apply(event);
    this.settle();
    return this.effects;
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
    const namesOwn = this.replicas.filter(({ config }) => config.kind === "generative" && config.models.length === 0);
    if (known.length === 0 && namesOwn.some(({ configured, probed }) => configured && !probed)) return undefined;
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
    replica.probed = true;
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
      replica.probed = false;
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
    for (const { replica: id, models } of event.models) {
      const replica = this.replica(id);
      if (replica?.configured !== true || replica.config.models.length > 0 || replica.models.length > 0) continue;
      replica.models = models;
      knowModels(replica);
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
}
