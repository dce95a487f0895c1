/** The JSON of answers and stream chunks: chat and text completions, in the words of each dialect. */
import { hashText } from "../base/random.ts";
import type { TokenPart } from "../engine/index.ts";
import { tokenTexts } from "../engine/index.ts";
import type { FaultSet } from "./faults.ts";
import type { WireDialect } from "./options.ts";
import type { TurnRequest } from "./turn-request.ts";

export type AnswerShape = {
  /** Chunks for tokens `[from, to)` of the answer; the first call begins with the role. */
  tokens(from: number, to: number): string[];
  /** Chunks after the last token: finish reason, and usage where it was asked for. */
  finish(reason: string, generated: number, cachedTokens: number): string[];
  /** The answer that is not streamed. */
  whole(reason: string, generated: number, cachedTokens: number): string;
};

export type ShapeOptions = {
  readonly dialect: WireDialect;
  readonly faults: FaultSet;
  readonly request: TurnRequest;
  readonly id: string;
  readonly createdSeconds: number;
  /** Cached tokens are reported. */
  readonly cachedTokens: boolean;
  /** A fresh tool call id. */
  readonly callId: () => string;
};

type Usage = { readonly prompt_tokens: number; readonly completion_tokens: number; readonly total_tokens: number };

/** Alternatives that a token's log-probabilities name; the model "thought" of these. */
const ALTERNATIVES = [" the", " a", " and", ".", ",", " of", " to", " in", "\n", " is", " for", " on", " it", " as",
  " with", " at", " by", " or", " an", " be", " no"] as const; // prettier-ignore

export function createAnswerShape(options: ShapeOptions): AnswerShape {
  return options.request.api === "chat" ? chatShape(options) : completionShape(options);
}

function chatShape(options: ShapeOptions): AnswerShape {
  const { request, id, createdSeconds, faults, dialect } = options;
  const { parts } = request.answer;
  const ids = callIds(options);
  const base = { id, object: "chat.completion.chunk", created: createdSeconds, model: request.model };
  // The constant part of every chunk is written once: a busy engine streams thousands of them a second.
  const head = `${JSON.stringify(base).slice(0, -1)},"choices":[{"index":0,"delta":`;
  const chunk = (delta: string, logprobs: string, reason: string): string =>
    `${head}${delta},"logprobs":${logprobs},"finish_reason":${reason}}]}`;
  const callIndex = (index: number): number => (faults.has("index-zero") ? 0 : index);
  const callHeads = (part: TokenPart & { readonly kind: "call" }): string[] => {
    const opening = { id: ids[part.index], type: "function", index: callIndex(part.index) };
    const call = (value: unknown): string => chunk(JSON.stringify({ tool_calls: [value] }), "null", "null");
    if (faults.has("late-name")) {
      const named = { index: callIndex(part.index), function: { name: part.name, arguments: "" } };
      return [call({ ...opening, function: { arguments: "" } }), call(named)];
    }
    return [call({ ...opening, function: { name: part.name, arguments: "" } })];
  };
  const partChunks = (part: TokenPart): string[] => {
    switch (part.kind) {
      case "content":
        return [chunk(`{"content":${JSON.stringify(part.text)}}`, chatLogprobs(request, part.text), "null")];
      case "call":
        return callHeads(part);
      default: {
        const call = { index: callIndex(part.index), function: { arguments: part.text } };
        return [chunk(JSON.stringify({ tool_calls: [call] }), "null", "null")];
      }
    }
  };
  const messageOf = (generated: number): unknown => {
    const { content, calls } = gather(parts.slice(0, generated));
    const toolCalls = calls.map((call, index) => ({ id: ids[index], type: "function", function: call }));
    const withCalls = toolCalls.length > 0 ? { tool_calls: toolCalls } : dialect === "vllm" ? { tool_calls: [] } : {};
    return { role: "assistant", content: content === "" && toolCalls.length > 0 ? null : content, ...withCalls };
  };
  return {
    tokens: (from, to) => {
      const chunks = from === 0 ? [chunk('{"role":"assistant","content":""}', "null", "null")] : [];
      for (const part of parts.slice(from, to)) if (part !== undefined) chunks.push(...partChunks(part));
      return chunks;
    },
    finish: (reason, generated, cachedTokens) => {
      const chunks = [chunk('{"content":""}', "null", JSON.stringify(reason))];
      if (request.includeUsage) {
        chunks.push(JSON.stringify({ ...base, choices: [], usage: usage(options, generated, cachedTokens) }));
      }
      return chunks;
    },
    whole: (reason, generated, cachedTokens) => {
      const logprobs = wholeLogprobs(request, generated);
      const choice = { index: 0, message: messageOf(generated), logprobs, finish_reason: reason };
      const answer = { ...base, object: "chat.completion", choices: [choice] };
      return JSON.stringify({ ...answer, usage: usage(options, generated, cachedTokens) });
    },
  };
}

function completionShape(options: ShapeOptions): AnswerShape {
  const { request, id, createdSeconds } = options;
  const { parts } = request.answer;
  const base = { id, object: "text_completion", created: createdSeconds, model: request.model };
  const choice = (written: string, offset: number, reason: string | null): unknown => ({
    index: 0,
    text: written,
    logprobs: request.topLogprobs === undefined ? null : textLogprobs(written, offset, request.topLogprobs),
    finish_reason: reason,
  });
  let offset = 0;
  return {
    tokens: (from, to) => {
      const chunks: string[] = [];
      for (const part of parts.slice(from, to)) {
        if (part?.kind !== "content") continue;
        chunks.push(JSON.stringify({ ...base, choices: [choice(part.text, offset, null)] }));
        offset += part.text.length;
      }
      return chunks;
    },
    finish: (reason, generated, cachedTokens) => {
      const chunks = [JSON.stringify({ ...base, choices: [choice("", 0, reason)] })];
      if (request.includeUsage) {
        chunks.push(JSON.stringify({ ...base, choices: [], usage: usage(options, generated, cachedTokens) }));
      }
      return chunks;
    },
    whole: (reason, generated, cachedTokens) => {
      const written = gather(parts.slice(0, generated)).content;
      const choices = [choice(written, 0, reason)];
      return JSON.stringify({ ...base, choices, usage: usage(options, generated, cachedTokens) });
    },
  };
}

function callIds({ request, faults, callId }: ShapeOptions): string[] {
  const count = request.answer.parts.filter((part) => part?.kind === "call").length;
  return Array.from({ length: count }, () => (faults.has("duplicate-ids") ? "call_0" : callId()));
}

function usage(options: ShapeOptions, generated: number, cachedTokens: number): Usage {
  const { promptTokens } = options.request;
  const base = { prompt_tokens: promptTokens, completion_tokens: generated, total_tokens: promptTokens + generated };
  if (options.cachedTokens) return { ...base, prompt_tokens_details: { cached_tokens: cachedTokens } } as Usage;
  return options.dialect === "vllm" ? ({ ...base, prompt_tokens_details: null } as Usage) : base;
}

function gather(parts: readonly (TokenPart | undefined)[]): {
  readonly content: string;
  readonly calls: readonly { readonly name: string; readonly arguments: string }[];
} {
  let content = "";
  const calls: { name: string; arguments: string }[] = [];
  for (const part of parts) {
    if (part?.kind === "content") content += part.text;
    if (part?.kind === "call") calls.push({ name: part.name, arguments: "" });
    const call = part?.kind === "arguments" ? calls[part.index] : undefined;
    if (call !== undefined && part?.kind === "arguments") call.arguments += part.text;
  }
  return { content, calls };
}

/** Log-probability of the chosen token, from its text: between -0.01 and -1.01, the same each time. */
function logprobOf(token: string): number {
  return -((hashText(token) % 1_000) / 1_000 + 0.01);
}

function tokenLogprob(token: string, top: number): unknown {
  const entry = (word: string, logprob: number): { token: string; logprob: number; bytes: number[] } => ({
    token: word,
    logprob,
    bytes: [...Buffer.from(word, "utf8")],
  });
  const own = logprobOf(token);
  const others = ALTERNATIVES.filter((word) => word !== token).slice(0, Math.max(0, top - 1));
  const alternatives = others.map((word, at) => entry(word, own - 1 - at * 0.25));
  return { ...entry(token, own), top_logprobs: top === 0 ? [] : [entry(token, own), ...alternatives] };
}

function chatLogprobs(request: TurnRequest, token: string): string {
  if (request.topLogprobs === undefined) return "null";
  return JSON.stringify({ content: [tokenLogprob(token, request.topLogprobs)] });
}

function wholeLogprobs(request: TurnRequest, generated: number): unknown {
  const top = request.topLogprobs;
  if (top === undefined) return null;
  const texts = request.answer.parts.slice(0, generated).filter((part) => part?.kind === "content");
  return { content: texts.map((part) => tokenLogprob(part.text, top)) };
}

/** The older format of `/v1/completions`. */
function textLogprobs(written: string, start: number, top: number): unknown {
  const tokens = tokenTexts(written);
  let offset = start;
  const offsets = tokens.map((token) => {
    const at = offset;
    offset += token.length;
    return at;
  });
  const others = (token: string): [string, number][] =>
    ALTERNATIVES.filter((word) => word !== token)
      .slice(0, Math.max(0, top - 1))
      .map((word, at) => [word, logprobOf(token) - 1 - at * 0.25]);
  return {
    tokens,
    token_logprobs: tokens.map(logprobOf),
    top_logprobs:
      top === 0 ? null : tokens.map((token) => Object.fromEntries([[token, logprobOf(token)], ...others(token)])),
    text_offset: offsets,
  };
}
