/**
 * Watches the engines: health, load, models and APIs of every endpoint, each on its own (spec 2, Load signals; spec 8,
 * What a replica speaks). A slow, huge or broken answer of one engine delays and breaks nothing else.
 *
 * P1: probes of one endpoint never overlap.
 * P2: every round ends within the probe time-out and emits exactly one `replica-probed`.
 * P3: a hosted endpoint is asked for its health path only, and for models where none are configured.
 */
import type { Clock } from "../base/clock.ts";
import type { Log } from "../telemetry/index.ts";
import type { EndpointConfig, EngineKind, WireApi } from "../wire/endpoint.ts";
import { readEngineMetrics, sumLoads, type EngineMetrics } from "../wire/engine-metrics.ts";
import type { LoadSample } from "../wire/load.ts";
import type { SchedulerEvent } from "../scheduling/index.ts";
import { createProbeClient, type ProbeAnswer, type ProbeClient } from "./probe-client.ts";

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

/** APIs that are asked for, with the path that tells. */
const GENERATIVE_APIS: readonly (readonly [WireApi, string])[] = [
  ["chat", "/v1/chat/completions"],
  ["completions", "/v1/completions"],
  ["embeddings", "/v1/embeddings"],
];

/** An engine lists a handful of models; a router some hundred. */
const MODELS_MAX = 2_000;
const MODEL_NAME_MAX = 512;

type Watched = {
  endpoint: EndpointConfig;
  engine: EngineKind | undefined;
  /** Learned APIs so far; an API that could not be asked is missing and asked again. */
  readonly speaks: Map<WireApi, boolean>;
  models: readonly string[] | undefined;
  startedAtSeconds: number | undefined;
  healthy: boolean | undefined;
  problem: string | undefined;
  cancelTimer: (() => void) | undefined;
  gone: boolean;
};

export function createProber(options: ProberOptions): Prober {
  const { clock, log } = options;
  const client = createProbeClient(options.connectTimeoutMs);
  let watched = options.endpoints.map(watch);
  let started = false;

  const loop = async (one: Watched): Promise<void> => {
    const startedMs = clock.nowMs();
    await probe(one, client, options);
    if (one.gone) return;
    const delayMs = Math.max(0, options.probeEveryMs - (clock.nowMs() - startedMs));
    one.cancelTimer = clock.after(delayMs, () => void loop(one)); // Never rejects: see probe.
  };

  return {
    async start() {
      started = true;
      await Promise.all(watched.map(loop));
    },
    reconfigure(endpoints) {
      const before = new Map(watched.map((one) => [one.endpoint.name, one]));
      watched = endpoints.map((endpoint) => {
        const known = before.get(endpoint.name);
        if (known === undefined || known.endpoint.url !== endpoint.url) return watch(endpoint);
        before.delete(endpoint.name);
        known.endpoint = endpoint;
        return known;
      });
      for (const one of before.values()) {
        one.gone = true;
        one.cancelTimer?.();
      }
      if (started) for (const one of watched) if (one.healthy === undefined) void loop(one); // Never rejects.
    },
    problem: (name) => watched.find(({ endpoint }) => endpoint.name === name)?.problem,
    async stop() {
      for (const one of watched) {
        one.gone = true;
        one.cancelTimer?.();
      }
      await client.close();
    },
  };

  /** One round of one endpoint. */
  async function probe(one: Watched, probeClient: ProbeClient, { emit }: ProberOptions): Promise<void> {
    const { endpoint } = one;
    const signal = AbortSignal.timeout(options.probeTimeoutMs);
    emit({ type: "probe-sent", replica: endpoint.name, nowMs: clock.nowMs() });
    const [health, metrics, models] = await Promise.all([
      probeClient.get(endpoint.url + endpoint.healthPath, endpoint.apiKey, signal),
      askLoad(one, probeClient, signal),
      askModels(one, probeClient, signal),
    ]);
    const healthy = isHealthy(endpoint, health, models.answer);
    const engine = endpoint.engine === "auto" ? detect(metrics.engine, models) : endpoint.engine;
    if (engine !== undefined) one.engine = engine;
    const replaced = healthy && wasReplaced(one, models.names, metrics.startedAtSeconds);
    if (healthy && endpoint.speaks === "auto") await learnApis(one, probeClient, signal);
    if (one.gone) return;
    noteHealth(one, healthy, health);
    emit({
      type: "replica-probed",
      replica: endpoint.name,
      healthy,
      load: metrics.load,
      models: healthy ? models.names : undefined,
      speaks: speaksOf(one),
      engine: one.engine,
      replaced,
      nowMs: clock.nowMs(),
    });
  }

  function noteHealth(one: Watched, healthy: boolean, health: ProbeAnswer): void {
    const words = health.kind === "failed" ? health.reason : `${one.endpoint.healthPath} answered ${health.status}`;
    if (!healthy) one.problem = words;
    else if (one.healthy !== true) one.problem = keyProblem(one);
    if (one.healthy !== healthy) {
      const fields = { replica: one.endpoint.name, engine: one.engine };
      if (healthy) log("info", "replica-healthy", fields);
      else log("warn", "replica-unhealthy", { ...fields, reason: words });
      if (healthy && one.problem !== undefined) log("error", "replica-key-refused", fields);
    }
    one.healthy = healthy;
  }
}

function watch(endpoint: EndpointConfig): Watched {
  return {
    endpoint,
    engine: endpoint.engine === "auto" ? undefined : endpoint.engine,
    speaks: new Map(),
    models: undefined,
    startedAtSeconds: undefined,
    healthy: undefined,
    problem: undefined,
    cancelTimer: undefined,
    gone: false,
  };
}

/** Healthy: its health path answers 2xx; an engine without that path (Ollama, many APIs) by its list of models. */
function isHealthy(endpoint: EndpointConfig, health: ProbeAnswer, models: ProbeAnswer | undefined): boolean {
  if (health.kind === "failed") return false;
  if (health.status >= 200 && health.status < 300) return true;
  const noSuchPath = health.status === 404 || health.status === 405 || health.status === 501;
  return noSuchPath && endpoint.healthPath === "/health" && models?.kind === "answer" && models.status === 200;
}

async function askLoad(one: Watched, client: ProbeClient, signal: AbortSignal): Promise<EngineMetrics> {
  const { endpoint } = one;
  const nothing: EngineMetrics = { engine: "unknown", load: undefined, startedAtSeconds: undefined };
  if (one.engine === "hosted" || one.engine === "ollama" || endpoint.kind === "single-pass") return nothing;
  const sources = endpoint.loadFrom.length > 0 ? endpoint.loadFrom : [endpoint.url];
  const pages = await Promise.all(
    sources.map(async (source) => {
      const answer = await client.get(`${source}/metrics`, endpoint.apiKey, signal);
      return answer.kind === "answer" && answer.status === 200 ? readEngineMetrics(answer.text) : nothing;
    }),
  );
  if (endpoint.loadFrom.length === 0) return pages[0] ?? nothing;
  const load: LoadSample | undefined = sumLoads(pages.map((page) => page.load));
  return { engine: "router", load, startedAtSeconds: undefined };
}

type ModelsAnswer = {
  readonly answer: ProbeAnswer | undefined;
  readonly names: readonly string[] | undefined;
  readonly owner: string;
};

async function askModels(one: Watched, client: ProbeClient, signal: AbortSignal): Promise<ModelsAnswer> {
  const { endpoint } = one;
  if (endpoint.models.length > 0 && endpoint.engine !== "auto")
    return { answer: undefined, names: undefined, owner: "" };
  const answer = await client.get(`${endpoint.url}/v1/models`, endpoint.apiKey, signal);
  if (answer.kind === "failed" || answer.status !== 200) return { answer, names: undefined, owner: "" };
  try {
    const page = JSON.parse(answer.text) as {
      readonly data?: readonly { readonly id?: unknown; readonly owned_by?: unknown }[];
    };
    const rows = Array.isArray(page.data) ? page.data.slice(0, MODELS_MAX) : [];
    const names = rows
      .map((row) => row?.id)
      .filter((id): id is string => typeof id === "string" && id !== "" && id.length <= MODEL_NAME_MAX);
    const owner = rows[0]?.owned_by;
    return { answer, names: names.length > 0 ? names : undefined, owner: typeof owner === "string" ? owner : "" };
  } catch {
    return { answer, names: undefined, owner: "" };
  }
}

/** Which engine it is, from its metrics, else from how it signs its list of models. */
function detect(byMetrics: EngineKind, models: ModelsAnswer): EngineKind | undefined {
  if (byMetrics !== "unknown") return byMetrics;
  const server = models.answer?.kind === "answer" ? models.answer.server : "";
  if (models.owner === "vllm") return "vllm";
  if (models.owner === "sglang") return "sglang";
  if (models.owner === "llamacpp" || server.startsWith("llama.cpp")) return "llama.cpp";
  if (models.owner === "library") return "ollama";
  return undefined;
}

/** Another engine answers at the same address: other models where they are learned, or another start. */
function wasReplaced(
  one: Watched,
  names: readonly string[] | undefined,
  startedAtSeconds: number | undefined,
): boolean {
  let replaced = false;
  if (names !== undefined && one.endpoint.models.length === 0) {
    const sorted = names.toSorted();
    replaced = one.models !== undefined && sorted.join("\n") !== one.models.join("\n");
    one.models = sorted;
  }
  if (startedAtSeconds !== undefined) {
    if (one.startedAtSeconds !== undefined && startedAtSeconds !== one.startedAtSeconds) replaced = true;
    one.startedAtSeconds = startedAtSeconds;
  }
  // Its APIs are asked for again.
  if (replaced) one.speaks.clear();
  return replaced;
}

/** Asks once for each API that is not known yet (spec 8, What a replica speaks). */
async function learnApis(one: Watched, client: ProbeClient, signal: AbortSignal): Promise<void> {
  const { endpoint } = one;
  if (one.engine === "hosted") {
    one.speaks.set("chat", true);
    return;
  }
  const classifyPath = endpoint.classifyPath ?? (one.engine === "sglang" ? "/v1/classify" : "/classify");
  const apis: readonly (readonly [WireApi, string])[] =
    endpoint.kind === "single-pass" ? [["classify", classifyPath]] : GENERATIVE_APIS;
  await Promise.all(
    apis
      .filter(([api]) => !one.speaks.has(api))
      .map(async ([api, path]) => {
        const answer = await client.post(endpoint.url + path, endpoint.apiKey, signal);
        if (answer.kind === "failed") return;
        if (answer.status === 401 || answer.status === 403) one.problem = `its key is refused (${answer.status})`;
        one.speaks.set(api, answer.status !== 404 && answer.status !== 405 && answer.status !== 501);
      }),
  );
}

function keyProblem(one: Watched): string | undefined {
  return one.problem?.startsWith("its key is refused") === true ? one.problem : undefined;
}

/** What is known of its APIs; undefined while nothing is. */
function speaksOf(one: Watched): readonly WireApi[] | undefined {
  if (one.endpoint.speaks !== "auto") return one.endpoint.speaks;
  if (one.speaks.size === 0) return undefined;
  return [...one.speaks].filter(([, served]) => served).map(([api]) => api);
}
