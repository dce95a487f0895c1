/** The questions of a probe: is it well, what is its load, which models has it, which engine is it. None throws. */
import type { EndpointConfig, EngineKind } from "../wire/endpoint.ts";
import { readEngineMetrics, sumLoads, type EngineMetrics } from "../wire/engine-metrics.ts";
import type { ProbeAnswer, ProbeClient } from "./probe-client.ts";

/** An engine lists a handful of models; a router some hundred. */
const MODELS_MAX = 2_000;
const MODEL_NAME_MAX = 512;

export type ModelsAnswer = {
  /** Undefined when they were not asked for. */
  readonly answer: ProbeAnswer | undefined;
  /** In order of the alphabet; undefined when none could be read. */
  readonly names: readonly string[] | undefined;
  /** Who owns the first one: engines sign here. */
  readonly owner: string;
};

export const NO_METRICS: EngineMetrics = { engine: "unknown", load: undefined, startedAtSeconds: undefined };
export const NO_MODELS: ModelsAnswer = { answer: undefined, names: undefined, owner: "" };

export type Health = { readonly healthy: boolean; readonly words: string };

/**
 * Healthy: the health path answers 2xx. Where nobody has configured another path, an engine without that route (Ollama, LM
 * Studio, many APIs) is healthy while it lists its models.
 */
export async function askHealth(
  endpoint: EndpointConfig,
  models: Promise<ModelsAnswer>,
  client: ProbeClient,
  signal: AbortSignal,
): Promise<Health> {
  const health = await client.get(endpoint.url + endpoint.healthPath, endpoint.apiKey, signal);
  if (health.kind === "failed") return { healthy: false, words: health.reason };
  const words = `${endpoint.healthPath} answered ${health.status}`;
  if (health.status >= 200 && health.status < 300) return { healthy: true, words };
  const noSuchPath = health.status === 404 || health.status === 405 || health.status === 501;
  if (!noSuchPath || endpoint.healthPath !== "/health") return { healthy: false, words };
  const listed = (await models).answer ?? (await askModels(endpoint, client, signal)).answer;
  if (listed?.kind !== "answer") return { healthy: false, words: `${words}, /v1/models ${listed?.reason ?? ""}` };
  return { healthy: listed.status === 200, words: `${words}, /v1/models ${listed.status}` };
}

/** The load of the engine, or the sum over those behind a router: unknown as soon as one of them is. */
export async function askLoad(
  endpoint: EndpointConfig,
  client: ProbeClient,
  signal: AbortSignal,
): Promise<EngineMetrics> {
  const sources = endpoint.loadFrom.length > 0 ? endpoint.loadFrom : [endpoint.url];
  const pages = await Promise.all(
    sources.map(async (source) => {
      const answer = await client.get(`${source}/metrics`, endpoint.apiKey, signal);
      return answer.kind === "answer" && answer.status === 200 ? readEngineMetrics(answer.text) : NO_METRICS;
    }),
  );
  if (endpoint.loadFrom.length === 0) return pages[0] ?? NO_METRICS;
  return { engine: "router", load: sumLoads(pages.map((page) => page.load)), startedAtSeconds: undefined };
}

export async function askModels(
  endpoint: EndpointConfig,
  client: ProbeClient,
  signal: AbortSignal,
): Promise<ModelsAnswer> {
  const answer = await client.get(`${endpoint.url}/v1/models`, endpoint.apiKey, signal);
  if (answer.kind === "failed" || answer.status !== 200) return { ...NO_MODELS, answer };
  return { answer, ...readModels(answer.text) };
}

function readModels(text: string): Pick<ModelsAnswer, "names" | "owner"> {
  let page: unknown;
  try {
    page = JSON.parse(text);
  } catch {
    return { names: undefined, owner: "" };
  }
  const data: unknown = typeof page === "object" && page !== null && "data" in page ? page.data : undefined;
  const rows: unknown[] = Array.isArray(data) ? data.slice(0, MODELS_MAX) : [];
  const names = new Set<string>();
  for (const row of rows) {
    const id = field(row, "id");
    if (id !== "" && id.length <= MODEL_NAME_MAX) names.add(id);
  }
  // An engine that lists nothing is starting or broken: what is known of it stays.
  return { names: names.size === 0 ? undefined : [...names].toSorted(), owner: field(rows[0], "owned_by") };
}

function field(row: unknown, key: string): string {
  const value = typeof row === "object" && row !== null ? (row as { readonly [key: string]: unknown })[key] : undefined;
  return typeof value === "string" ? value : "";
}

/** Which engine it is, from its metrics, else from how it signs its list of models; undefined: this probe cannot tell. */
export function detectEngine(byMetrics: EngineKind, models: ModelsAnswer): EngineKind | undefined {
  if (byMetrics !== "unknown") return byMetrics;
  const server = models.answer?.kind === "answer" ? models.answer.server : "";
  if (models.owner === "vllm") return "vllm";
  if (models.owner === "sglang") return "sglang";
  if (models.owner === "llamacpp" || server.startsWith("llama.cpp")) return "llama.cpp";
  if (models.owner === "library") return "ollama";
  return undefined;
}
