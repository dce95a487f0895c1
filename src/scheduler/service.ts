/**
 * Host of the scheduling core: owns the state, feeds events in order, carries out effects, ticks.
 *
 * H1: `decide` is never re-entered: an event that arrives while effects are carried out waits its turn.
 * H2: messages to a dataplane leave in the order of the events that caused them.
 */
import type { Clock } from "../base/clock.ts";
import type { DataplaneId } from "../base/ids.ts";
import {
  createState,
  decide,
  explain,
  replicaViews,
  runOfTurn,
  runView,
  snapshot,
  type SchedulerEffect,
  type SchedulerEvent,
  type SchedulerState,
  type SchedulerStatus,
  type SchedulingConfig,
} from "../scheduling/index.ts";
import type { Log } from "../telemetry/index.ts";
import { LINK_PROTOCOL, type AdmissionPort, type DataplaneMessage, type SchedulerMessage } from "../wire/admission.ts";
import type { EndpointConfig } from "../wire/endpoint.ts";
import type { EventLog } from "./event-log.ts";
import { createLocalPort } from "./local-port.ts";
import { createProber } from "./prober.ts";

export type SchedulerOptions = {
  readonly config: SchedulingConfig;
  readonly endpoints: readonly EndpointConfig[];
  readonly clock: Clock;
  readonly log: Log;
  readonly tickMs: number;
  readonly probeEveryMs: number;
  readonly probeTimeoutMs: number;
  readonly connectTimeoutMs: number;
  /** Written before the effects of an event are carried out; undefined: none. */
  readonly eventLog: EventLog | undefined;
};

/** A dataplane's end of the link, as the scheduler sees it. */
export type DataplaneSink = {
  send(message: SchedulerMessage): void;
};

export type DataplaneSession = {
  receive(message: DataplaneMessage): void;
  lost(): void;
};

export type Status = SchedulerStatus & {
  /** What stands between a replica and its turns, by replica. */
  readonly problems: { readonly [replica: string]: string };
};

export type SchedulerCounts = {
  readonly events: number;
  readonly admitted: number;
  readonly rejected: number;
  readonly leftOut: number;
};

export type Scheduler = {
  /** Begins to probe and tick; resolves when every endpoint was probed once. */
  start(): Promise<void>;
  /** A dataplane in the same process. */
  localPort(): AdmissionPort;
  /** A dataplane elsewhere: the link server calls this for each connection. */
  attach(sink: DataplaneSink): DataplaneSession;
  status(): Status;
  /** Another pool: validated before, applied at once. */
  reconfigure(config: SchedulingConfig, endpoints: readonly EndpointConfig[]): void;
  /** Since the start, for metrics. `leftOut`: events that the decision log could not take. */
  counts(): SchedulerCounts;
  stop(): Promise<void>;
};

/** Probes and ticks begin with `start`; events are taken at once. */
export function createScheduler(options: SchedulerOptions): Scheduler {
  const { clock, log } = options;
  let config = options.config;
  let state: SchedulerState = createState(config, clock.nowMs());
  let running = false;
  let stopped = false;
  let poolText = "";
  const pending: SchedulerEvent[] = [];
  const sinks = new Map<DataplaneId, DataplaneSink>();
  const counts = { events: 0, admitted: 0, rejected: 0 };
  let cancelTick: (() => void) | undefined;
  options.eventLog?.begin(state);

  const carryOut = (effect: SchedulerEffect): void => {
    const sink = sinks.get(effect.dataplane);
    switch (effect.type) {
      case "admit-turn": {
        counts.admitted += 1;
        const { turn, replica, run, source, priority } = effect;
        const about = { turn, replica, run, source };
        sink?.send({ type: "admitted", ...about, ...(priority === undefined ? undefined : { priority }) });
        return;
      }
      case "withdraw-turn":
        sink?.send({ type: "withdraw", turn: effect.turn });
        return;
      case "reject-turn": {
        counts.rejected += 1;
        const { turn, run, source, code, message } = effect;
        sink?.send({ type: "rejected", turn, run, source, code, message });
      }
    }
  };

  const step = (event: SchedulerEvent): void => {
    counts.events += 1;
    const outcome = decide(state, event);
    state = outcome.state;
    options.eventLog?.record(event, outcome.effects, state);
    for (const effect of outcome.effects) carryOut(effect);
    if (event.type === "turn-requested" && !outcome.effects.some((effect) => effect.turn === event.turn)) {
      const about = runOfTurn(state, event.turn);
      if (about !== undefined) sinks.get(event.dataplane)?.send({ type: "held", turn: event.turn, ...about });
    }
    if (event.type === "replica-probed" || event.type === "pool-configured") announcePool();
  };

  // H1: effects may come back as events at once (a local dataplane answers by function call).
  const feed = (event: SchedulerEvent): void => {
    if (stopped) return;
    pending.push(event);
    if (running) return;
    running = true;
    try {
      for (let next = pending.shift(); next !== undefined; next = pending.shift()) step(next);
    } finally {
      running = false;
    }
  };

  const announcePool = (): void => {
    const replicas = replicaViews(state);
    const text = JSON.stringify(replicas);
    if (text === poolText) return;
    poolText = text;
    for (const sink of sinks.values()) sink.send({ type: "pool", replicas });
  };

  const tick = (): void => {
    feed({ type: "ticked", nowMs: clock.nowMs() });
    cancelTick = clock.after(options.tickMs, tick);
  };

  const prober = createProber({
    endpoints: options.endpoints,
    clock,
    log,
    probeEveryMs: options.probeEveryMs,
    probeTimeoutMs: options.probeTimeoutMs,
    connectTimeoutMs: options.connectTimeoutMs,
    emit: feed,
  });

  const attach = (sink: DataplaneSink): DataplaneSession => {
    let dataplane: DataplaneId | undefined;
    const lost = (): void => {
      if (dataplane === undefined || sinks.get(dataplane) !== sink) return;
      sinks.delete(dataplane);
      feed({ type: "dataplane-lost", dataplane, nowMs: clock.nowMs() });
      log("warn", "dataplane-lost", { dataplane });
      // The grace ends between two ticks: its slots are free at once then.
      clock.after(config.dataplaneGraceMs, () => feed({ type: "ticked", nowMs: clock.nowMs() }));
    };
    return {
      lost,
      receive(message) {
        const nowMs = clock.nowMs();
        if (message.type === "hello") {
          // One stream is one dataplane: under another name the one before has left.
          if (dataplane !== message.dataplane) lost();
          dataplane = message.dataplane;
          sinks.set(dataplane, sink);
          const { runs, flights, keys, models } = message;
          feed({ type: "dataplane-linked", dataplane, runs, flights, keys, models, nowMs });
          log("info", "dataplane-linked", { dataplane, runs: runs.length, flights: flights.length });
          sink.send({ type: "welcome", protocol: LINK_PROTOCOL });
          sink.send({ type: "pool", replicas: replicaViews(state) });
          return;
        }
        // Before hello nothing is known of the peer: its messages have no place in the order of events.
        if (dataplane === undefined || sinks.get(dataplane) !== sink) return;
        const event = toEvent(message, dataplane, nowMs);
        if (event !== undefined) feed(event);
        else answer(message, sink);
      },
    };
  };

  /** Questions change nothing: they are answered from the state. */
  const answer = (message: DataplaneMessage, sink: DataplaneSink): void => {
    if (message.type === "explain") {
      const about = explain(state, message.turn);
      if (about !== undefined) sink.send({ type: "explained", ...about });
    } else if (message.type === "run-query") {
      const view = runView(state, message.principal, message.run);
      sink.send({ type: "run-known", query: message.query, view });
    }
  };

  return {
    async start() {
      cancelTick = clock.after(options.tickMs, tick);
      await prober.start();
    },
    localPort: () => createLocalPort(attach),
    attach,
    status() {
      const problems: { [replica: string]: string } = {};
      for (const { replica } of config.replicas) {
        const problem = prober.problem(replica);
        if (problem !== undefined) problems[replica] = problem;
      }
      return { ...snapshot(state), problems };
    },
    reconfigure(next, endpoints) {
      config = next;
      feed({ type: "pool-configured", config, nowMs: clock.nowMs() });
      prober.reconfigure(endpoints);
      log("info", "pool-configured", { endpoints: endpoints.length });
    },
    counts: () => ({ ...counts, leftOut: options.eventLog?.counts().leftOut ?? 0 }),
    async stop() {
      stopped = true; // Nothing is decided any more: the log ends with what was carried out.
      cancelTick?.();
      await prober.stop();
      await options.eventLog?.close();
    },
  };
}

/** A message as an event; undefined for questions. */
function toEvent(message: DataplaneMessage, dataplane: DataplaneId, nowMs: number): SchedulerEvent | undefined {
  switch (message.type) {
    case "requested": {
      const { turn, principal, caller, class: serviceClass, model, api, run, keys, freshRun, side, heldMs } = message;
      const { promptBytes, prefixKey, streams } = message;
      const owner = { turn, principal, caller, class: serviceClass };
      const prompt = { model, api, promptBytes, prefixKey, streams };
      return { type: "turn-requested", dataplane, ...owner, ...prompt, run, keys, freshRun, side, heldMs, nowMs };
    }
    case "abandoned":
      return { type: "turn-abandoned", turn: message.turn, reason: message.reason, nowMs };
    case "started":
      return { type: "turn-started", turn: message.turn, nowMs };
    case "finished": {
      const { turn, usage, finishReason, paused, keys, tool } = message;
      return { type: "turn-finished", turn, usage, finishReason, paused, keys, tool, nowMs };
    }
    case "failed":
      return { type: "turn-failed", turn: message.turn, reason: message.reason, nowMs };
    case "pushed-back":
      return { type: "turn-pushed-back", turn: message.turn, retryAfterMs: message.retryAfterMs, nowMs };
    case "withdrawn":
      return { type: "turn-withdrawn", turn: message.turn, nowMs };
    case "too-late":
      return { type: "turn-too-late", turn: message.turn, nowMs };
    case "open-turns":
      return { type: "turns-named", dataplane, turns: message.turns, nowMs };
    case "run-ended":
      return { type: "run-ended", run: message.run, principal: message.principal, nowMs };
    case "hello":
    case "explain":
    case "run-query":
      return undefined;
  }
}
