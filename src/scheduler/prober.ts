/**
 * Watches the engines: health, load, models and APIs of every endpoint, each on its own (spec 2, Load signals; spec 8,
 * What a replica speaks). A slow, huge or broken answer of one engine delays and breaks nothing else.
 *
 * P1: probes of one endpoint never overlap.
 * P2: every round ends within the probe time-out and emits `probe-sent`, then exactly one `replica-probed`.
 * P3: a hosted endpoint is asked for its health path, and for models where none are configured or no such path exists.
 * P4: an endpoint that left is silent, though its last probe may still be under way.
 */
import type { Clock } from "../base/clock.ts";
import type { SchedulerEvent } from "../scheduling/index.ts";
import type { Log } from "../telemetry/index.ts";
import type { EndpointConfig, EngineKind, WireApi } from "../wire/endpoint.ts";
import { ApiSurvey } from "./probe-apis.ts";
import { createProbeClient, type ProbeClient } from "./probe-client.ts";
import { askHealth, askLoad, askModels, detectEngine, NO_METRICS, NO_MODELS, type Health } from "./probe-questions.ts";

export type ProberOptions = {
  readonly endpoints: readonly EndpointConfig[];
  readonly clock: Clock;
  readonly log: Log;
  readonly probeEveryMs: number;
  readonly probeTimeoutMs: number;
  readonly connectTimeoutMs: number;
  /** Takes the events; the host adds nothing. */
  readonly emit: (event: SchedulerEvent) => void;
};

export type Prober = {
  /** Begins; resolves when every endpoint was probed once. */
  start(): Promise<void>;
  /** Other endpoints from now on; those that stay keep what was learned. */
  reconfigure(endpoints: readonly EndpointConfig[]): void;
  /** What stands between an endpoint and its turns, in words; undefined when it is well. */
  problem(endpoint: string): string | undefined;
  stop(): Promise<void>;
};

/** One endpoint that is watched. */
type Watched = {
  endpoint: EndpointConfig;
  engine: EngineKind | undefined;
  readonly apis: ApiSurvey;
  models: readonly string[] | undefined;
  startedAtSeconds: number | undefined;
  /** Of the last round; undefined before the first one ended. */
  health: Health | undefined;
  /** The last words that were logged about its key. */
  refusalLogged: string | undefined;
  looping: boolean;
  /** Pause after the first round, in periods. */
  firstPause: number;
  cancelTimer: (() => void) | undefined;
  gone: boolean;
};

export function createProber(options: ProberOptions): Prober {
  const { clock, log, emit } = options;
  const client = createProbeClient(options.connectTimeoutMs);
  let watched = options.endpoints.map(watch);
  let started = false;

  const loop = async (one: Watched): Promise<void> => {
    one.looping = true; // P1
    const startedMs = clock.nowMs();
    await probe(one);
    if (one.gone) return;
    const everyMs = options.probeEveryMs * one.firstPause;
    one.firstPause = 1;
    const delayMs = Math.max(0, everyMs - (clock.nowMs() - startedMs));
    one.cancelTimer = clock.after(delayMs, () => void loop(one)); // Rejects only when the core has a bug.
  };

  const probe = async (one: Watched): Promise<void> => {
    const replica = one.endpoint.name;
    emit({ type: "probe-sent", replica, nowMs: clock.nowMs() });
    const found = await ask(one, client, AbortSignal.timeout(options.probeTimeoutMs));
    if (one.gone) return; // P4
    note(one, found.health);
    emit({
      type: "replica-probed",
      replica,
      healthy: found.health.healthy,
      load: found.metrics.load,
      models: found.health.healthy ? found.models.names : undefined,
      speaks: speaksOf(one),
      engine: one.engine,
      replaced: found.replaced,
      nowMs: clock.nowMs(),
    });
  };

  const note = (one: Watched, health: Health): void => {
    const { healthy, words } = health;
    const fields = { replica: one.endpoint.name, engine: one.engine };
    if (one.health?.healthy !== healthy) {
      if (healthy) log("info", "replica-healthy", fields);
      else log("warn", "replica-unhealthy", { ...fields, reason: words });
    }
    one.health = health;
    const { refusal } = one.apis;
    if (refusal !== undefined && refusal !== one.refusalLogged) {
      log("error", "replica-key-refused", { ...fields, reason: refusal });
    }
    one.refusalLogged = refusal;
  };

  const leave = (one: Watched): void => {
    one.gone = true;
    one.cancelTimer?.();
  };

  return {
    async start() {
      started = true;
      // A large pool is asked all over the period, not in bursts that hold up everything else in the process.
      for (const [at, one] of watched.entries()) one.firstPause = (at + 1) / watched.length;
      await Promise.all(watched.map(loop));
    },
    reconfigure(endpoints) {
      const before = new Map(watched.map((one) => [one.endpoint.name, one]));
      watched = endpoints.map((endpoint) => {
        const known = before.get(endpoint.name);
        if (known === undefined || known.endpoint.url !== endpoint.url) return watch(endpoint);
        before.delete(endpoint.name);
        if (asksOtherwise(known.endpoint, endpoint)) known.apis.forget();
        if (endpoint.engine !== "auto") known.engine = endpoint.engine;
        known.endpoint = endpoint;
        return known;
      });
      for (const one of before.values()) leave(one);
      if (started) for (const one of watched) if (!one.looping) void loop(one); // As above.
    },
    problem(name) {
      const one = watched.find(({ endpoint }) => endpoint.name === name);
      if (one?.health === undefined) return undefined;
      return one.health.healthy ? one.apis.refusal : one.health.words;
    },
    async stop() {
      for (const one of watched) leave(one);
      await client.close();
    },
  };
}

function watch(endpoint: EndpointConfig): Watched {
  return {
    endpoint,
    engine: endpoint.engine === "auto" ? undefined : endpoint.engine,
    apis: new ApiSurvey(),
    models: undefined,
    startedAtSeconds: undefined,
    health: undefined,
    refusalLogged: undefined,
    looping: false,
    firstPause: 1,
    cancelTimer: undefined,
    gone: false,
  };
}

/** One round: all questions at once, so that a slow answer holds up none of the others. */
async function ask(one: Watched, client: ProbeClient, signal: AbortSignal) {
  const { endpoint } = one;
  const asksModels = endpoint.models.length === 0 || endpoint.engine === "auto";
  const models = asksModels ? askModels(endpoint, client, signal) : Promise.resolve(NO_MODELS);
  const metrics = hasMetrics(one) ? askLoad(endpoint, client, signal) : Promise.resolve(NO_METRICS);
  const health = askHealth(endpoint, models, client, signal);
  const survey = async (): Promise<void> => {
    const [found, listed] = await Promise.all([health, models]);
    if (!found.healthy || endpoint.speaks !== "auto" || one.engine === "hosted") return;
    await one.apis.ask(endpoint, one.engine ?? detectEngine("unknown", listed), client, signal);
  };
  const [found, page, listed] = await Promise.all([health, metrics, models, survey()]);
  const engine = endpoint.engine === "auto" ? detectEngine(page.engine, listed) : endpoint.engine;
  if (engine !== undefined) one.engine = engine;
  const replaced = found.healthy && wasReplaced(one, listed.names, page.startedAtSeconds);
  if (replaced) one.apis.forget(); // It is asked what it speaks at the next round; until then the old answer counts.
  return { health: found, metrics: page, models: listed, replaced };
}

function hasMetrics({ endpoint, engine }: Watched): boolean {
  return endpoint.kind === "generative" && engine !== "hosted" && engine !== "ollama";
}

/** Another engine answers at the same address: other models where they are learned, or another start. */
function wasReplaced(
  one: Watched,
  names: readonly string[] | undefined,
  startedAtSeconds: number | undefined,
): boolean {
  let replaced = false;
  if (names !== undefined && one.endpoint.models.length === 0) {
    replaced = one.models !== undefined && names.join("\n") !== one.models.join("\n");
    one.models = names;
  }
  // A router that starts again takes nothing from the caches behind it.
  if (startedAtSeconds !== undefined && one.engine !== "router") {
    if (one.startedAtSeconds !== undefined && startedAtSeconds !== one.startedAtSeconds) replaced = true;
    one.startedAtSeconds = startedAtSeconds;
  }
  return replaced;
}

/** Whether what was learned of its APIs was learned with another key or at other paths. */
function asksOtherwise(before: EndpointConfig, after: EndpointConfig): boolean {
  return before.apiKey !== after.apiKey || before.kind !== after.kind || before.classifyPath !== after.classifyPath;
}

/** What is known of its APIs; undefined while nothing is. */
function speaksOf(one: Watched): readonly WireApi[] | undefined {
  const { speaks } = one.endpoint;
  if (speaks !== "auto") return speaks;
  return one.engine === "hosted" ? ["chat"] : one.apis.speaks(one.engine);
}
