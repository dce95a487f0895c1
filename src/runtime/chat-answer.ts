/**
 * Puts a chat completion together from its chunks. Lenient, because engines are: what is missing is left out, what has a
 * wrong type is ignored.
 */
import type { Usage } from "../runs/index.ts";

/** A call as the engine gave it; the arguments are whatever text the model wrote. */
export type RawCall = { readonly id: string; readonly name: string; readonly arguments: string };

export type ChatAnswer = {
  readonly text: string;
  readonly calls: readonly RawCall[];
  /** Empty when the engine never said how it ended: then the answer is not whole. */
  readonly finish: string;
  readonly usage: Usage | undefined;
};

/** An answer of more text than this is given up: nobody reads it, and it would go into every later prompt. */
const TEXT_CHARS_MAX = 4 * 1024 * 1024;
const CALLS_MAX = 256;

type Loose = { readonly [key: string]: unknown };

export type EngineError = { readonly message: string; readonly code: string | number | undefined };

export class ChatAnswerBuilder {
  #text = "";
  #finish = "";
  #usage: Usage | undefined;
  readonly #calls = new Map<number, { id: string; name: string; arguments: string }>();
  #chars = 0;

  /** @returns an error that the chunk tells, or `too-long`. */
  add(chunk: unknown): EngineError | "too-long" | undefined {
    if (!isLoose(chunk)) return undefined;
    const failed = errorOf(chunk);
    if (failed !== undefined) return failed;
    this.#usage = usageOf(chunk["usage"]) ?? this.#usage;
    const choices: unknown = chunk["choices"];
    const choice: unknown = Array.isArray(choices) ? choices[0] : undefined;
    if (!isLoose(choice)) return undefined;
    // A stream has deltas; an engine that does not stream sends the message whole.
    const delta = choice["delta"] ?? choice["message"];
    if (isLoose(delta)) {
      if (typeof delta["content"] === "string") this.#text += delta["content"];
      if (Array.isArray(delta["tool_calls"])) this.#addCalls(delta["tool_calls"]);
    }
    if (typeof choice["finish_reason"] === "string") this.#finish = choice["finish_reason"];
    return this.#text.length + this.#chars > TEXT_CHARS_MAX || this.#calls.size > CALLS_MAX ? "too-long" : undefined;
  }

  #addCalls(parts: readonly unknown[]): void {
    for (const [at, part] of parts.entries()) {
      if (!isLoose(part)) continue;
      const index = typeof part["index"] === "number" ? part["index"] : at;
      const call = this.#calls.get(index) ?? { id: "", name: "", arguments: "" };
      this.#calls.set(index, call);
      if (typeof part["id"] === "string" && call.id === "") call.id = part["id"];
      const called = part["function"];
      if (!isLoose(called)) continue;
      if (typeof called["name"] === "string") call.name += called["name"];
      const text = called["arguments"];
      // Some engines give an object where the API has a text.
      const more = typeof text === "string" ? text : isLoose(text) ? JSON.stringify(text) : "";
      call.arguments += more;
      this.#chars += more.length;
    }
  }

  answer(): ChatAnswer {
    const calls = [...this.#calls.entries()].sort(([left], [right]) => left - right).map(([, call]) => call);
    return { text: this.#text, calls, finish: this.#finish, usage: this.#usage };
  }
}

/** The error in a body or an event, in the shapes that engines use. */
export function errorOf(body: unknown): EngineError | undefined {
  if (!isLoose(body)) return undefined;
  const error = body["error"];
  if (typeof error === "string") return { message: error, code: undefined };
  if (isLoose(error)) return { message: messageOf(error), code: codeOf(error["code"]) };
  // SGLang and old vLLM: the error is the object itself.
  if (body["object"] === "error") return { message: messageOf(body), code: codeOf(body["code"]) };
  return undefined;
}

function messageOf(error: Loose): string {
  return typeof error["message"] === "string" ? error["message"] : JSON.stringify(error).slice(0, 1_000);
}

function codeOf(code: unknown): string | number | undefined {
  return typeof code === "string" || typeof code === "number" ? code : undefined;
}

function usageOf(usage: unknown): Usage | undefined {
  if (!isLoose(usage)) return undefined;
  const details = usage["prompt_tokens_details"];
  const promptTokens = count(usage["prompt_tokens"]);
  const completionTokens = count(usage["completion_tokens"]);
  if (promptTokens === undefined && completionTokens === undefined) return undefined;
  return {
    promptTokens: promptTokens ?? 0,
    completionTokens: completionTokens ?? 0,
    cachedTokens: (isLoose(details) ? count(details["cached_tokens"]) : undefined) ?? 0,
  };
}

function count(value: unknown): number | undefined {
  return typeof value === "number" && Number.isFinite(value) && value >= 0 ? Math.floor(value) : undefined;
}

function isLoose(value: unknown): value is Loose {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
