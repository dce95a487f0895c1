/**
 * What the chunks of a chat or text completion say, put together over the whole answer: first content, usage, finish
 * reason, tool calls. Lenient where engines differ (research in docs/run-identity.md): an id that comes once, again, late
 * or never; parallel calls that all have index 0; arguments in pieces, whole, or as an object.
 */
import type { Usage } from "../wire/admission.ts";
import type { EchoedToolCall } from "./inspection.ts";

type Loose = { readonly [key: string]: unknown };

type OpenCall = { id: string; name: string; arguments: string };

/** Calls of one answer that are kept; a model that loops must not grow a table. */
const CALLS_MAX = 256;
const ARGUMENT_CHARS_MAX = 1_048_576;

export class ChatChunks {
  started = false;
  finishReason: string | undefined;
  responseId: string | undefined;
  usage: Usage = {};
  readonly #calls: OpenCall[] = [];
  /** The call that deltas of a choice and index go on with. */
  readonly #byIndex = new Map<string, OpenCall>();

  get toolCalls(): readonly EchoedToolCall[] {
    return this.#calls.filter((call) => call.name !== "");
  }

  /** Takes one parsed chunk, of a stream or a whole answer. */
  take(chunk: unknown): void {
    if (!isObject(chunk)) return;
    if (typeof chunk["id"] === "string" && chunk["id"] !== "") this.responseId = chunk["id"];
    this.#takeUsage(chunk);
    const choices = chunk["choices"];
    if (!Array.isArray(choices)) return;
    for (const [position, choice] of (choices as unknown[]).entries()) {
      if (isObject(choice)) this.#takeChoice(choice, position);
    }
  }

  #takeChoice(choice: Loose, position: number): void {
    const reason = choice["finish_reason"];
    if (typeof reason === "string" && reason !== "") this.finishReason = reason;
    if (hasText(choice["text"])) this.started = true;
    const delta = isObject(choice["delta"]) ? choice["delta"] : choice["message"];
    if (!isObject(delta)) return;
    const { content, reasoning, reasoning_content: thinking, refusal, tool_calls: calls } = delta;
    if (hasText(content) || hasText(reasoning) || hasText(thinking) || hasText(refusal)) this.started = true;
    if (calls === undefined || calls === null) return;
    // One engine sends a single call as an object instead of a list.
    const list: unknown[] = Array.isArray(calls) ? calls : [calls];
    const index = typeof choice["index"] === "number" ? choice["index"] : position;
    for (const [at, call] of list.entries()) if (isObject(call)) this.#takeCall(call, index, at);
  }

  #takeCall(delta: Loose, choice: number, position: number): void {
    this.started = true;
    const index = typeof delta["index"] === "number" ? delta["index"] : position;
    const key = `${choice}:${index}`;
    const id = typeof delta["id"] === "string" ? delta["id"] : "";
    const described = isObject(delta["function"]) ? delta["function"] : delta;
    const name = typeof described["name"] === "string" ? described["name"] : "";
    let call = this.#byIndex.get(key);
    // The same index with another id is another call: some engines number every parallel call 0.
    if (call === undefined || (id !== "" && call.id !== "" && id !== call.id)) {
      if (this.#calls.length >= CALLS_MAX) return;
      call = { id, name: "", arguments: "" };
      this.#byIndex.set(key, call);
      this.#calls.push(call);
    }
    if (call.id === "") call.id = id;
    if (call.name === "") call.name = name;
    const text = argumentText(described["arguments"]);
    if (call.arguments.length + text.length <= ARGUMENT_CHARS_MAX) call.arguments += text;
  }

  /** Per field, the last value that is not null counts: some engines split usage over several chunks. */
  #takeUsage(chunk: Loose): void {
    const usage = isObject(chunk["usage"]) ? chunk["usage"] : undefined;
    const timings = isObject(chunk["timings"]) ? chunk["timings"] : undefined;
    if (usage === undefined && timings === undefined) return;
    const details = isObject(usage?.["prompt_tokens_details"]) ? usage["prompt_tokens_details"] : undefined;
    const promptTokens = countOf(usage?.["prompt_tokens"]) ?? this.usage.promptTokens;
    const completionTokens = countOf(usage?.["completion_tokens"]) ?? this.usage.completionTokens;
    const cachedTokens =
      countOf(details?.["cached_tokens"]) ?? countOf(timings?.["cache_n"]) ?? this.usage.cachedTokens;
    this.usage = {
      ...(promptTokens === undefined ? {} : { promptTokens }),
      ...(completionTokens === undefined ? {} : { completionTokens }),
      ...(cachedTokens === undefined ? {} : { cachedTokens }),
    };
  }
}

/** Whether a chunk is the usage chunk that `include_usage` adds: usage, and no choice. */
export function isUsageChunk(chunk: unknown): boolean {
  if (!isObject(chunk) || !isObject(chunk["usage"])) return false;
  return Array.isArray(chunk["choices"]) && chunk["choices"].length === 0;
}

function isObject(value: unknown): value is Loose {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function hasText(value: unknown): boolean {
  return typeof value === "string" && value !== "";
}

function countOf(value: unknown): number | undefined {
  return typeof value === "number" && Number.isFinite(value) && value >= 0 ? value : undefined;
}

function argumentText(value: unknown): string {
  if (typeof value === "string") return value;
  return value === undefined || value === null ? "" : JSON.stringify(value);
}
