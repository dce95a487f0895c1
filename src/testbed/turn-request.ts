/** Reads the body of a chat or text completion: what the engine needs of it, or the error that a real one would give. */
import {
  countTokens,
  hashBlocks,
  renderChat,
  scriptChatAnswer,
  scriptCompletion,
  tokenizeAnswer,
} from "../engine/index.ts";
import type { AgentOverrides, TokenizedAnswer } from "../engine/index.ts";
import { contextError, unknownModel } from "./engine-errors.ts";
import type { EngineError } from "./engine-errors.ts";
import type { FaultSet } from "./faults.ts";
import type { ResolvedOptions } from "./options.ts";

export type TurnApi = "chat" | "completions";

export type TurnRequest = {
  readonly api: TurnApi;
  readonly model: string;
  readonly stream: boolean;
  readonly includeUsage: boolean;
  /** Log-probabilities are wanted, with this many alternatives; undefined: none. */
  readonly topLogprobs: number | undefined;
  readonly priority: number;
  /** The client's own id for the request (SGLang `rid`, vLLM `request_id`). */
  readonly clientId: string | undefined;
  readonly promptTokens: number;
  readonly maxTokens: number;
  readonly answer: TokenizedAnswer;
  readonly blockHashes: Float64Array;
};

export type Body = Readonly<Record<string, unknown>>;

/** Multi-byte text of one to four bytes a character, for `split-utf8`. */
const UTF8_OPENING = "Grüße aus 東京 🚢: ";

type Context = {
  readonly options: ResolvedOptions;
  readonly contextTokens: number;
  readonly faults: FaultSet;
  /** From `x-fake-agent`. */
  readonly overrides: AgentOverrides;
};

/** @returns the request, or the error that ends it. */
export function readTurnRequest(api: TurnApi, body: Body, context: Context): TurnRequest | EngineError {
  const { options, contextTokens } = context;
  const { dialect } = options;
  const problem = bodyProblem(api, body);
  if (problem !== undefined) return problem;
  const model = text(body["model"]) ?? "";
  if (!options.models.includes(model)) return unknownModel(model);
  // A request without a priority ranks last at SGLang; vLLM counts it as 0.
  const unranked = dialect === "sglang" && options.priority ? Number.MIN_SAFE_INTEGER : 0;
  const priority = number(body["priority"]) ?? unranked;
  if (dialect === "vllm" && priority !== 0 && !options.priority) {
    return { status: 400, message: `Got priority ${priority} but Priority scheduling is not enabled.` };
  }
  const wanted = number(body["max_completion_tokens"]) ?? number(body["max_tokens"]);
  if (wanted !== undefined && wanted < 1) {
    return { status: 400, message: `max_tokens must be at least 1, got ${wanted}.`, param: "max_tokens" };
  }
  const prompt = api === "chat" ? chatPrompt(body, options) : completionPrompt(body["prompt"]);
  const promptTokens = countTokens(prompt);
  // vLLM counts the answer that the client asks for; the others cut it instead.
  const asked = dialect === "vllm" ? (wanted ?? 1) : 1;
  if (promptTokens + asked > contextTokens) {
    return contextError(dialect, { promptTokens, maxTokens: wanted ?? 0, contextTokens });
  }
  const maxTokens = Math.min(wanted ?? Infinity, contextTokens - promptTokens);
  const answer =
    api === "chat" ? chatAnswer(body, context, maxTokens) : completionAnswer(body, prompt, context, maxTokens);
  return {
    api,
    model,
    stream: body["stream"] === true,
    includeUsage: record(body["stream_options"])["include_usage"] === true,
    topLogprobs: wantedLogprobs(api, body),
    priority,
    clientId: text(dialect === "sglang" ? body["rid"] : body["request_id"]),
    promptTokens,
    maxTokens,
    answer,
    blockHashes: hashBlocks(prompt + answer.text),
  };
}

function bodyProblem(api: TurnApi, body: Body): EngineError | undefined {
  const missing = (name: string): EngineError => ({ status: 400, message: `${name}: Field required`, param: name });
  if (api === "chat" && !(Array.isArray(body["messages"]) && body["messages"].length > 0)) return missing("messages");
  if (api === "completions" && body["prompt"] === undefined) return missing("prompt");
  if (text(body["model"]) === undefined) return missing("model");
  if (number(body["n"]) !== undefined && body["n"] !== 1) {
    return { status: 400, message: "the simulated engine gives one choice: n must be 1", param: "n" };
  }
  const top = api === "chat" ? body["top_logprobs"] : body["logprobs"];
  const count = number(top) ?? 0;
  if (count < 0 || count > 20) {
    return { status: 400, message: `top_logprobs must be from 0 to 20, got ${count}.`, param: "top_logprobs" };
  }
  if (api === "chat" && count > 0 && body["logprobs"] !== true) {
    return {
      status: 400,
      message: "when using `top_logprobs`, `logprobs` must be set to true.",
      param: "top_logprobs",
    };
  }
  return undefined;
}

function wantedLogprobs(api: TurnApi, body: Body): number | undefined {
  if (api === "completions") return number(body["logprobs"]);
  return body["logprobs"] === true ? (number(body["top_logprobs"]) ?? 0) : undefined;
}

function offeredTools(body: Body): readonly unknown[] {
  return Array.isArray(body["tools"]) ? body["tools"] : [];
}

function chatPrompt(body: Body, { dialect, excludeToolsWhenNone }: ResolvedOptions): string {
  const none = body["tool_choice"] === "none";
  // SGLang drops the tools from the prompt under `none`, and with them the whole prefix; vLLM only when told to.
  const dropped = none && (dialect === "sglang" || (dialect === "vllm" && excludeToolsWhenNone));
  const messages = Array.isArray(body["messages"]) ? body["messages"] : [];
  return renderChat(messages, dropped ? undefined : offeredTools(body));
}

function completionPrompt(prompt: unknown): string {
  if (typeof prompt === "string") return prompt;
  if (!Array.isArray(prompt)) return JSON.stringify(prompt);
  // Token ids are four characters each, as everywhere here.
  return prompt
    .map((part: unknown) => (typeof part === "number" ? String(part).padStart(4, "#").slice(-4) : String(part)))
    .join("");
}

function chatAnswer(body: Body, context: Context, maxTokens: number): TokenizedAnswer {
  const { options, faults, overrides } = context;
  const choice = body["tool_choice"];
  const named = text(record(record(choice)["function"])["name"]);
  const obeys = options.dialect !== "ollama"; // Ollama ignores tool_choice
  const format = record(body["response_format"]);
  const schema = record(format["json_schema"])["schema"] ?? (format["type"] === "json_object" ? {} : undefined);
  const answer = scriptChatAnswer({
    messages: Array.isArray(body["messages"]) ? body["messages"] : [],
    tools: obeys && choice === "none" ? [] : offeredTools(body),
    toolChoice: !obeys ? "auto" : named !== undefined ? { name: named } : choice === "required" ? "required" : "auto",
    parallelCalls: body["parallel_tool_calls"] !== false,
    answerSchema: schema,
    seed: options.seed + (number(body["seed"]) ?? 0),
    world: options.world,
    overrides,
  });
  const content = faults.has("split-utf8") ? UTF8_OPENING + answer.content : answer.content;
  return tokenizeAnswer({ ...answer, content: cutAtStop(content, body["stop"]) }, maxTokens);
}

function completionAnswer(body: Body, prompt: string, context: Context, maxTokens: number): TokenizedAnswer {
  const { options, overrides, faults } = context;
  const seed = options.seed + (number(body["seed"]) ?? 0);
  const written = scriptCompletion({ prompt, seed, world: options.world, overrides });
  const content = faults.has("split-utf8") ? UTF8_OPENING + written : written;
  return tokenizeAnswer({ content: cutAtStop(content, body["stop"]), calls: [] }, maxTokens);
}

function cutAtStop(content: string, stop: unknown): string {
  const stops = (Array.isArray(stop) ? stop : [stop]).filter((word) => typeof word === "string" && word !== "");
  const at = stops.map((word) => content.indexOf(String(word))).filter((index) => index !== -1);
  return at.length === 0 ? content : content.slice(0, Math.min(...at));
}

/** An object's fields; of anything else none. */
export function record(value: unknown): Body {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Body) : {};
}

/** A finite number, or undefined. */
function number(value: unknown): number | undefined {
  return typeof value === "number" && Number.isFinite(value) ? value : undefined;
}

/** A non-empty text, or undefined. */
export function text(value: unknown): string | undefined {
  return typeof value === "string" && value !== "" ? value : undefined;
}
