/**
 * What the chunks of a chat or text completion say, put together over the whole answer: first content, usage, finish
 * reason, tool calls. Lenient where engines differ (docs/run-identity.md): an id that comes once, again, late or never;
 * parallel calls that all have index 0; arguments in pieces, whole, or as an object.
 */
import type { Usage } from "../wire/admission.ts";
import type { AnsweredToolCall } from "./inspection.ts";

type Loose = { readonly [key: string]: unknown };

type OpenCall = { readonly choice: number; id: string; name: string; arguments: string };

/** Calls of one answer that are kept; a model that loops must not grow a table. */
const CALLS_MAX = 256;
/** Ids, names and arguments that are kept of one answer, all calls together. What is cut matches no echo. */
const CALL_CHARS_MAX = 1_048_576;
/** The reason goes over the link and into events: no engine's is longer than a word. */
const REASON_CHARS_MAX = 64;

export class ChatChunks {
  started = false;
  /** The engine said in its answer that it failed. */
  failed = false;
  finishReason: string | undefined;
  responseId: string | undefined;
  usage: Usage = {};
  readonly #calls: OpenCall[] = [];
  /** The call that deltas of a choice and index go on with; also by choice, index and id. */
  readonly #open = new Map<string, OpenCall>();
  #callChars = 0;

  /** Calls with a name: a delta that never names its function is none. */
  get toolCalls(): readonly AnsweredToolCall[] {
    return this.#calls.filter((call) => call.name !== "");
  }

  /** Takes one parsed chunk, of a stream or a whole answer. */
  take(chunk: unknown): void {
    if (!isObject(chunk)) return;
    const { id, error, choices } = chunk;
    if (typeof id === "string" && id !== "") this.responseId = id;
    if (isObject(error) || hasText(error)) this.failed = true;
    this.#takeUsage(chunk);
    if (!Array.isArray(choices)) return;
    for (const [position, choice] of (choices as unknown[]).entries()) {
      if (isObject(choice)) this.#takeChoice(choice, position);
    }
  }

  #takeChoice(choice: Loose, position: number): void {
    const reason = choice["finish_reason"];
    if (hasText(reason)) this.finishReason = reason.slice(0, REASON_CHARS_MAX);
    if (hasText(choice["text"])) this.started = true;
    const delta = isObject(choice["delta"]) ? choice["delta"] : choice["message"];
    if (!isObject(delta)) return;
    if (!this.started) this.started = hasContent(delta);
    const calls = delta["tool_calls"];
    if (calls === undefined || calls === null) return;
    // One engine sends a single call as an object instead of a list.
    const list: unknown[] = Array.isArray(calls) ? calls : [calls];
    const index = typeof choice["index"] === "number" ? choice["index"] : position;
    for (const [at, call] of list.entries()) if (isObject(call)) this.#takeCall(call, index, at);
  }

  #takeCall(delta: Loose, choice: number, position: number): void {
    this.started = true;
    const place = `${choice}:${typeof delta["index"] === "number" ? delta["index"] : position}`;
    const id = typeof delta["id"] === "string" ? delta["id"] : "";
    const described = firstObject(delta["function"], delta["custom"]) ?? delta;
    const name = typeof described["name"] === "string" ? described["name"] : "";
    const call = this.#callAt(place, id) ?? this.#addCall(place, choice);
    if (call === undefined) return;
    if (call.id === "" && id !== "" && this.#fits(id)) {
      call.id = id;
      this.#open.set(`${place}:${id}`, call);
    }
    if (call.name === "" && this.#fits(name)) call.name = name;
    const text = argumentText(described["arguments"] ?? described["input"]);
    if (this.#fits(text)) call.arguments += text;
  }

  /** From the first text that does not fit on, none is kept. */
  #fits(text: string): boolean {
    this.#callChars += text.length;
    return this.#callChars <= CALL_CHARS_MAX;
  }

  /** The same place with another id is another call: some engines number every parallel call 0. */
  #callAt(place: string, id: string): OpenCall | undefined {
    const running = this.#open.get(place);
    if (running === undefined || id === "" || running.id === "" || running.id === id) return running;
    const earlier = this.#open.get(`${place}:${id}`);
    if (earlier !== undefined) this.#open.set(place, earlier);
    return earlier;
  }

  #addCall(place: string, choice: number): OpenCall | undefined {
    if (this.#calls.length >= CALLS_MAX) return undefined;
    const call = { choice, id: "", name: "", arguments: "" };
    this.#calls.push(call);
    this.#open.set(place, call);
    return call;
  }

  /** Per field, the last value that is not null counts: some engines split usage over several chunks. */
  #takeUsage(chunk: Loose): void {
    const usage = firstObject(chunk["usage"]);
    // llama.cpp gives `timings` also to clients that did not ask for usage; its `prompt_n` leaves the cached part out.
    const timings = firstObject(chunk["timings"]);
    if (usage === undefined && timings === undefined) return;
    const details = firstObject(usage?.["prompt_tokens_details"]);
    const { promptTokens, completionTokens, cachedTokens } = this.usage;
    const timed = countOf(timings?.["prompt_n"]);
    const found = {
      promptTokens:
        countOf(usage?.["prompt_tokens"]) ??
        promptTokens ??
        (timed === undefined ? undefined : timed + (countOf(timings?.["cache_n"]) ?? 0)),
      completionTokens: countOf(usage?.["completion_tokens"]) ?? completionTokens ?? countOf(timings?.["predicted_n"]),
      cachedTokens: countOf(details?.["cached_tokens"]) ?? countOf(timings?.["cache_n"]) ?? cachedTokens,
    };
    this.usage = {
      ...(found.promptTokens === undefined ? undefined : { promptTokens: found.promptTokens }),
      ...(found.completionTokens === undefined ? undefined : { completionTokens: found.completionTokens }),
      ...(found.cachedTokens === undefined ? undefined : { cachedTokens: found.cachedTokens }),
    };
  }
}

/** Whether a chunk is the usage chunk that `include_usage` adds: usage, no choice, no error. */
export function isUsageChunk(chunk: unknown): boolean {
  if (!isObject(chunk) || !isObject(chunk["usage"]) || "error" in chunk) return false;
  return Array.isArray(chunk["choices"]) && chunk["choices"].length === 0;
}

/** Text, a refusal, or reasoning under whatever name the engine has for it. Tool calls are looked at elsewhere. */
function hasContent(delta: Loose): boolean {
  for (const key of Object.keys(delta)) {
    if (key !== "content" && key !== "refusal" && !key.startsWith("reasoning")) continue;
    const value = delta[key];
    // Some engines send reasoning and text as a list of parts.
    if (hasText(value) || (Array.isArray(value) && value.length > 0)) return true;
  }
  return false;
}

function isObject(value: unknown): value is Loose {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function firstObject(...values: readonly unknown[]): Loose | undefined {
  return values.find(isObject);
}

function hasText(value: unknown): value is string {
  return typeof value === "string" && value !== "";
}

function countOf(value: unknown): number | undefined {
  return typeof value === "number" && Number.isSafeInteger(value) && value >= 0 ? value : undefined;
}

function argumentText(value: unknown): string {
  if (typeof value === "string") return value;
  return value === undefined || value === null ? "" : JSON.stringify(value);
}
