/** Error bodies as the real engines write them (research/proxy.md 1.5). */
import type { Refusal } from "../engine/index.ts";
import type { WireDialect } from "./options.ts";

/** An answer that is not a success. */
export type EngineError = {
  readonly status: number;
  readonly message: string;
  readonly param?: string;
  readonly headers?: Readonly<Record<string, string>>;
};

const TYPES: { readonly [status: number]: string } = {
  400: "BadRequestError",
  401: "AuthenticationError",
  404: "NotFoundError",
  405: "MethodNotAllowedError",
  413: "RequestTooLargeError",
  429: "RateLimitError",
  500: "InternalServerError",
  503: "ServiceUnavailableError",
};

const LLAMA_TYPES: { readonly [status: number]: string } = {
  400: "invalid_request_error",
  401: "authentication_error",
  404: "not_found_error",
  500: "server_error",
  501: "not_supported_error",
  503: "unavailable_error",
};

/** JSON text of an error in the shape of the dialect. */
export function errorBody(dialect: WireDialect, error: EngineError): string {
  const { status, message, param = null } = error;
  const type = TYPES[status] ?? (status >= 500 ? "InternalServerError" : "BadRequestError");
  switch (dialect) {
    case "sglang":
      return JSON.stringify({ object: "error", message, type, param, code: status });
    case "llama.cpp":
      return JSON.stringify({ error: { code: status, message, type: LLAMA_TYPES[status] ?? "server_error" } });
    case "ollama":
      return JSON.stringify({ error: { message, type: LLAMA_TYPES[status] ?? "api_error", param, code: null } });
    default:
      return JSON.stringify({ error: { message, type, param, code: status } });
  }
}

/** What an engine says when it does not take a request. */
export function refusalError(dialect: WireDialect, refusal: Refusal, maxTokens: number): EngineError {
  switch (refusal.kind) {
    case "queue-full":
      return { status: 503, message: queueFullText(dialect, refusal.queueMax) };
    case "too-long":
      return contextError(dialect, { promptTokens: refusal.tokens, maxTokens, contextTokens: refusal.tokensMax + 1 });
    default:
      return { status: 400, message: "a request with this id is already being worked on", param: "request_id" };
  }
}

/** Prompt and answer together are longer than the model allows. */
export function contextError(
  dialect: WireDialect,
  sizes: { readonly promptTokens: number; readonly maxTokens: number; readonly contextTokens: number },
): EngineError {
  const { promptTokens, maxTokens, contextTokens } = sizes;
  switch (dialect) {
    case "llama.cpp":
    case "ollama":
      return {
        status: 400,
        message: `the request exceeds the available context size (${contextTokens} tokens), try increasing it`,
      };
    case "sglang":
      return {
        status: 400,
        message: `The input (${promptTokens} tokens) is longer than the model's context length (${contextTokens} tokens).`,
      };
    default:
      return {
        status: 400,
        message:
          `This model's maximum context length is ${contextTokens} tokens. However, you requested ` +
          `${promptTokens + maxTokens} tokens (${promptTokens} in the messages, ${maxTokens} in the completion). ` +
          "Please reduce the length of the messages or completion.",
        param: "messages",
      };
  }
}

export function unknownModel(model: string): EngineError {
  return { status: 404, message: `The model \`${model}\` does not exist.`, param: "model" };
}

function queueFullText(dialect: WireDialect, queueMax: number): string {
  switch (dialect) {
    case "sglang":
      return "The request queue is full.";
    case "ollama":
      return "server busy, please try again.  maximum pending requests exceeded";
    default:
      return `The engine's queue is full: ${queueMax} requests are waiting. Try again later.`;
  }
}
