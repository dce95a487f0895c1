/** The routes that work on the engine model: chat, completions, classify, and SGLang's abort. */
import type { IncomingMessage, ServerResponse } from "node:http";
import { countTokens, hashBlocks, promptTokensMax } from "../engine/index.ts";
import { parseAgentOverrides } from "./agent-header.ts";
import { classifyBody, readClassifyRequest } from "./classify.ts";
import type { Context } from "./context.ts";
import { errorBody, refusalError, unknownModel } from "./engine-errors.ts";
import type { EngineError } from "./engine-errors.ts";
import { faultNumber, parseFaults } from "./faults.ts";
import type { FaultSet } from "./faults.ts";
import { parseObject, readBody, sendText } from "./http-io.ts";
import type { MutableRecord } from "./recorder.ts";
import { createResponseWriter } from "./response-writer.ts";
import { createTurn, engineRequestOf, JSON_HEADERS, STREAM_HEADERS } from "./turn.ts";
import { readTurnRequest, record, text } from "./turn-request.ts";
import type { Body, TurnApi } from "./turn-request.ts";

type Exchange = { readonly request: IncomingMessage; readonly response: ServerResponse; readonly path: string };

/** `POST /v1/chat/completions` and `/v1/completions`. */
export async function turnRoute(context: Context, api: TurnApi, exchange: Exchange): Promise<void> {
  const { options, engine, driver, recorder } = context;
  const { response } = exchange;
  const taken = await takeRequest(context, exchange, context.newId(api === "chat" ? "chat" : "completion"));
  if (taken === undefined) return;
  const { entry, body, faults } = taken;
  const overrides = readOverrides(exchange.request, body);
  if (typeof overrides === "string") return refuse(context, response, entry, { status: 400, message: overrides });
  const contextTokens = promptTokensMax(engine) + 1;
  const turnRequest = readTurnRequest(api, body, { options, contextTokens, faults, overrides });
  if ("status" in turnRequest) return refuse(context, response, entry, turnRequest);

  const writer = createResponseWriter(response, faults);
  const { newId } = context;
  const id = entry.id;
  const turn = createTurn({
    options,
    request: turnRequest,
    faults,
    writer,
    record: entry,
    id,
    callId: () => newId("call"),
  });
  context.turns.set(id, turn);
  const refusal = driver.submit(engineRequestOf(turn));
  if (refusal !== undefined) {
    context.turns.delete(id);
    return refuse(context, response, entry, refusalError(options.dialect, refusal, turnRequest.maxTokens));
  }
  // vLLM sends the head of a stream at once, SGLang with the first token.
  if (turnRequest.stream && options.dialect === "vllm") writer.begin(200, STREAM_HEADERS, true);
  response.on("close", () => {
    if (context.turns.get(id) !== turn) return;
    recorder.settle(entry, "aborted");
    if (!faults.has("ignore-abort")) driver.abort(id);
  });
}

/** `POST /classify` and `/v1/classify`. */
export async function classifyRoute(context: Context, exchange: Exchange): Promise<void> {
  const { options, driver, recorder, passes } = context;
  const { response } = exchange;
  const taken = await takeRequest(context, exchange, context.newId("classify"));
  if (taken === undefined) return;
  const { entry, body, faults } = taken;
  const request = readClassifyRequest(body);
  if (typeof request === "string") return refuse(context, response, entry, { status: 400, message: request });
  if (!options.models.includes(request.model)) return refuse(context, response, entry, unknownModel(request.model));
  const id = entry.id;
  const joined = request.inputs.join("\n");
  const promptTokens = countTokens(joined);
  entry.promptTokens = promptTokens;
  const writer = createResponseWriter(response, faults);
  passes.set(id, (outcome) => {
    if (outcome === "finished") {
      const { labels, seed } = options;
      writer.whole(200, JSON_HEADERS, classifyBody({ request, id, labels, seed, promptTokens }));
      entry.status = 200;
    }
    recorder.settle(entry, outcome);
  });
  const refusal = driver.submit({
    id,
    blockHashes: hashBlocks(joined),
    promptTokens,
    outputTokens: 0,
    maxTokens: 0,
    priority: 0,
    ...(faults.has("stall") ? { stallAfterTokens: 0 } : {}),
  });
  if (refusal !== undefined) {
    passes.delete(id);
    return refuse(context, response, entry, refusalError(options.dialect, refusal, 0));
  }
  response.on("close", () => {
    if (passes.has(id) && !faults.has("ignore-abort")) driver.abort(id);
  });
}

/** SGLang `POST /abort_request`: `{rid}` or `{abort_all: true}`. Answers 200 whether it knew the request or not. */
export async function abortRoute(context: Context, { request, response }: Exchange): Promise<void> {
  const bytes = await readBody(request);
  const body = bytes instanceof Buffer ? record(parseObject(bytes)) : {};
  const rid = text(body["rid"]);
  const all = body["abort_all"] === true;
  for (const turn of context.turns.values()) {
    if (!all && turn.id !== rid && turn.clientId !== rid) continue;
    if (turn.faults.has("ignore-abort")) continue;
    turn.stopped = true;
    context.driver.abort(turn.id);
  }
  sendText(response, 200, "", "text/plain; charset=utf-8");
}

type Taken = { readonly entry: MutableRecord; readonly body: Body; readonly faults: FaultSet };

/** Reads and records a request; undefined when it has been answered already or the client is gone. */
async function takeRequest(
  context: Context,
  { request, response, path }: Exchange,
  id: string,
): Promise<Taken | undefined> {
  const bytes = await readBody(request);
  if (bytes === "gone") return undefined;
  const body = bytes === "too-large" ? Buffer.alloc(0) : bytes;
  const entry = context.recorder.add({
    path,
    rawHeaders: request.rawHeaders,
    body,
    arrivedMs: context.driver.nowMs(),
    id,
  });
  const end = (error: EngineError): undefined => refuse(context, response, entry, error);
  if (bytes === "too-large") return end({ status: 413, message: "the body is larger than 128 MiB" });
  const parsed = parseObject(bytes);
  if (parsed === undefined) {
    // llama.cpp answers a body that it cannot parse with 500; a probe for what is served must not read that as "no".
    const status = context.options.dialect === "llama.cpp" ? 500 : 400;
    return end({
      status,
      message: bytes.length === 0 ? "the body is empty: JSON expected" : "the body is not a JSON object",
    });
  }
  const faults = faultsOf(context, request, parsed);
  if (typeof faults === "string") return end({ status: 400, message: faults, param: "fake_fault" });
  const own = faultNumber(faults.request, "refuse");
  const general = faultNumber(context.faults(), "refuse");
  const status = own ?? (general !== undefined && context.takeRefusal() ? general : undefined);
  if (status !== undefined) return end(refusedBySwitch(status, faults.all));
  if (faults.all.has("die-at-once")) {
    context.recorder.settle(entry, "failed");
    response.socket?.destroy();
    return undefined;
  }
  if (response.destroyed) {
    context.recorder.settle(entry, "aborted");
    return undefined;
  }
  return { entry, body: parsed, faults: faults.all };
}

function refusedBySwitch(status: number, faults: FaultSet): EngineError {
  const retryAfter = faultNumber(faults, "retry-after");
  return {
    status,
    message: `refused by the fault switch refuse=${status}`,
    ...(retryAfter === undefined ? {} : { headers: { "retry-after": String(retryAfter) } }),
  };
}

function faultsOf(
  context: Context,
  request: IncomingMessage,
  body: Body,
): { readonly request: FaultSet; readonly all: FaultSet } | string {
  const header = request.headers["x-fake-fault"];
  const field = body["fake_fault"];
  const texts = [header, ...(Array.isArray(field) ? field : [field])].filter((one) => typeof one === "string");
  const parsed = parseFaults(texts, "request");
  if (parsed.kind === "invalid") return parsed.message;
  return { request: parsed.faults, all: new Map([...context.faults(), ...parsed.faults]) };
}

function readOverrides(request: IncomingMessage, body: Body): ReturnType<typeof parseAgentOverrides> {
  const header = request.headers["x-fake-agent"];
  const given = body["fake_agent"];
  return parseAgentOverrides([header, given].filter((one) => typeof one === "string").join(","));
}

function refuse(context: Context, response: ServerResponse, entry: MutableRecord, error: EngineError): undefined {
  const body = errorBody(context.options.dialect, error);
  for (const [name, value] of Object.entries(error.headers ?? {})) response.setHeader(name, value);
  entry.status = error.status;
  context.recorder.settle(entry, "refused");
  sendText(response, error.status, body);
  return undefined;
}
