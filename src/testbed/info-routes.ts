/** The routes that only tell: models, health, metrics, load and identity of each dialect, and the engine's own `/fake`. */
import type { IncomingMessage, ServerResponse } from "node:http";
import { load } from "../engine/index.ts";
import type { Context } from "./context.ts";
import { FAULTS, faultsHelp, parseFaults } from "./faults.ts";
import type { FaultName, FaultSet } from "./faults.ts";
import { parseObject, readBody, sendText } from "./http-io.ts";
import { errorBody } from "./engine-errors.ts";
import { metricsPage } from "./metrics-page.ts";

/** How long a slow page takes: longer than any probe waits (2 s). */
const SLOW_MS = 10_000;
/** Size of a huge metrics page in bytes. */
const HUGE_BYTES = 32 * 1_024 * 1_024;

export function modelsRoute({ options, engine }: Context, response: ServerResponse): void {
  const owner = { vllm: "vllm", sglang: "sglang", "llama.cpp": "llamacpp", ollama: "library", "single-pass": "vllm" };
  const created = Math.floor(Date.now() / 1_000);
  const data = options.models.map((id) => ({
    id,
    object: "model",
    created,
    owned_by: owner[options.dialect],
    root: id,
    max_model_len: engine.params.contextTokens,
  }));
  sendText(response, 200, JSON.stringify({ object: "list", data }));
}

export function healthRoute(context: Context, response: ServerResponse): void {
  const fault = context.faults().get("health");
  const llama = context.options.dialect === "llama.cpp";
  const answer = (): void => {
    if (fault === "failing") {
      sendText(
        response,
        503,
        errorBody(context.options.dialect, { status: 503, message: "the engine is not healthy" }),
      );
    } else sendText(response, 200, llama ? '{"status":"ok"}' : "", llama ? undefined : "text/plain");
  };
  if (fault === "slow") setTimeout(answer, SLOW_MS).unref();
  else answer();
}

export function metricsRoute(context: Context, response: ServerResponse): void {
  const { options, engine, driver, finishReasons } = context;
  const { dialect, priority } = options;
  if (!options.metrics) {
    if (dialect !== "llama.cpp") return sendText(response, 404, '{"detail":"Not Found"}');
    const message = "This server does not support metrics endpoint. Start it with `--metrics`";
    return sendText(response, 501, errorBody(dialect, { status: 501, message }));
  }
  driver.catchUp();
  const model = options.models[0] ?? "";
  const page = metricsPage({ engine, nowMs: driver.nowMs(), dialect, model, priority, finishReasons });
  const send = (status: number, text: string): void =>
    sendText(response, status, text, "text/plain; version=0.0.4; charset=utf-8");
  switch (context.faults().get("metrics")) {
    case "malformed":
      return send(200, malformed(page));
    case "huge":
      return send(200, page + "# padding of a page that nobody should read\n".repeat(Math.ceil(HUGE_BYTES / 44)));
    case "slow":
      setTimeout(() => send(200, page), SLOW_MS).unref();
      return;
    case "error":
      return send(500, "Internal Server Error");
    default:
      return send(200, page);
  }
}

/** Values that are no numbers, labels that do not end, lines that are no series. */
function malformed(page: string): string {
  return page
    .split("\n")
    .map((line, at) =>
      line.startsWith("#") ? line : [line.replace(/ \S+$/, " many"), line.slice(0, -8), `{${line}`][at % 3],
    )
    .join("\n");
}

/** SGLang `GET /v1/loads`: computed when asked, so fresher than the gauges. */
export function loadsRoute({ engine, driver }: Context, response: ServerResponse): void {
  driver.catchUp();
  const now = load(engine);
  const uncached = engine.waiting.reduce((sum, sequence) => sum + sequence.request.promptTokens, 0);
  const loads = [
    {
      dp_rank: 0,
      num_running_reqs: now.running,
      num_waiting_reqs: now.waiting,
      num_total_reqs: now.running + now.waiting,
      num_waiting_uncached_tokens: uncached,
      num_used_tokens: now.usedTokens,
      max_total_num_tokens: now.kvTokens,
      token_usage: now.kvTokens === 0 ? 0 : now.usedTokens / now.kvTokens,
      gen_throughput: engine.sglang.gauges.genThroughput,
      cache_hit_rate: engine.sglang.gauges.cacheHitRate,
      utilization: 0,
      max_running_requests: engine.params.maxRunning,
    },
  ];
  sendText(response, 200, JSON.stringify({ timestamp: new Date().toISOString(), dp_rank_count: 1, loads }));
}

/** What each engine says of itself; fingerprints read it. Undefined: the dialect has no such route. */
export function identityBody({ options, engine }: Context, path: string): unknown {
  const { dialect, models } = options;
  const { contextTokens, kvTokens, maxRunning } = engine.params;
  const server = { max_total_num_tokens: kvTokens, max_running_requests: maxRunning, version: "simulated" };
  const known: { readonly [key: string]: unknown } = {
    "vllm /version": { version: "simulated" },
    "single-pass /version": { version: "simulated" },
    "sglang /get_model_info": { model_path: models[0], is_generation: true },
    "sglang /get_server_info": { model_path: models[0], context_length: contextTokens, ...server },
    "sglang /server_info": { model_path: models[0], context_length: contextTokens, ...server },
    "llama.cpp /props": {
      total_slots: maxRunning,
      build_info: "simulated",
      default_generation_settings: { n_ctx: contextTokens },
    },
    "llama.cpp /slots": engine.slots.map((slot, id) => ({
      id,
      n_ctx: contextTokens,
      is_processing: slot.sequence !== undefined,
    })),
    "ollama /api/version": { version: "simulated" },
    "ollama /api/ps": { models: models.map((name) => ({ name, model: name, context_length: contextTokens })) },
    "ollama /api/tags": { models: models.map((name) => ({ name, model: name })) },
  };
  return known[`${dialect} ${path}`];
}

/** `GET /fake/stats`: what reached the engine, without headers and bodies. */
export function statsRoute(context: Context, response: ServerResponse): void {
  context.driver.catchUp();
  const requests = context.recorder
    .last()
    .map(({ rawHeaders: _headers, body, ...rest }) => ({ ...rest, bodyBytes: body.length }));
  const { engine, recorder } = context;
  sendText(
    response,
    200,
    JSON.stringify({ counts: recorder.counts(), load: load(engine), counters: engine.counters, requests }),
  );
}

/** `GET /fake/faults` shows the switches, `POST {"faults": ["stall=2"]}` puts others in their place. */
export async function faultsRoute(context: Context, request: IncomingMessage, response: ServerResponse): Promise<void> {
  if (request.method === "POST") {
    const bytes = await readBody(request);
    const wanted = bytes instanceof Buffer ? parseObject(bytes)?.["faults"] : undefined;
    if (!Array.isArray(wanted) || !wanted.every((one) => typeof one === "string")) {
      return sendText(
        response,
        400,
        '{"error":"the body must be {\\"faults\\": [\\"name\\" or \\"name=value\\", ...]}"}',
      );
    }
    const parsed = parseFaults(wanted, "engine");
    if (parsed.kind === "invalid") return sendText(response, 400, JSON.stringify({ error: parsed.message }));
    context.setFaults(parsed.faults);
  }
  sendText(response, 200, JSON.stringify({ faults: faultTexts(context.faults()), known: FAULTS }));
}

/** Switches as they are written. */
export function faultTexts(faults: FaultSet): string[] {
  return [...faults].map(([name, value]: [FaultName, number | string | true]) =>
    value === true ? name : `${name}=${value}`,
  );
}

/** `GET /`: for a person who opens the address. */
export function bannerText({ options }: Context): string {
  const { name, dialect, profile, models } = options;
  return [
    `luftpause simulated engine '${name}': dialect ${dialect}, profile ${profile}, models ${models.join(", ")}`,
    "",
    "  POST /v1/chat/completions   POST /v1/completions   GET /v1/models   GET /health   GET /metrics",
    "  GET /fake/stats             GET|POST /fake/faults",
    "",
    "Faults, per request in the header x-fake-fault or the body field fake_fault, or by POST /fake/faults:",
    faultsHelp(),
    "",
    "The scripted agent, per request in x-fake-agent or fake_agent: calls=2,parallel=2,tokens=40,tool=NAME",
    "",
  ].join("\n");
}
