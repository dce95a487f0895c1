/**
 * Calls that a model wrote as text, because its engine was not told of the form, or its parser failed (spec 4, Reliable
 * tool calls for small models). The form is found from the text alone.
 *
 * T1: a call counts only when its tool is offered, it is closed, and its arguments are one whole object. Else the text
 *     stays as it is, untouched.
 * T2: nothing that is missing is made up: text that broke off gives the calls that were closed before.
 * T3: text in backticks, and forms without a marker inside other text, are talk about calls.
 */
import { GEMMA } from "./gemma.ts";
import { readHarmony, readStrippedHarmony } from "./harmony.ts";
import { DEEPSEEK, HERMES, KIMI_K2, LLAMA_FUNCTION, MISTRAL } from "./json-formats.ts";
import { splitReasoning } from "./reasoning.ts";
import { GLM, INVOKE, KIMI_K3, QWEN } from "./tag-formats.ts";
import { matchAt, type CallFormat, type Offered, type TextCall } from "./types.ts";
import { readWholeMessage } from "./whole-message.ts";

export type Recovered = {
  readonly calls: readonly TextCall[];
  /** The answer without thinking and calls. */
  readonly content: string;
  readonly reasoning: string;
  /** The text without the calls alone: what a template shows again, so that the engine's cached prefix stays good. */
  readonly kept: string;
  /** How the calls were written; undefined: there are none. */
  readonly format: string | undefined;
  /** Something begins like a call, and is none that counts. */
  readonly unread: boolean;
};

const FORMATS: readonly CallFormat[] = [
  HERMES,
  LLAMA_FUNCTION,
  QWEN,
  GLM,
  GEMMA,
  MISTRAL,
  DEEPSEEK,
  KIMI_K2,
  INVOKE,
  KIMI_K3,
];

const ANY_OPEN = new RegExp(FORMATS.map(({ opens }) => `(?:${opens.source})`).join("|"), "g");

/** What may stand around calls and means nothing without them. */
const WRAPPERS =
  /<\/tool_call>|<\/?tool_calls>|<\|open\|>(?:tools|response)<\|sep\|>|<\|close\|>(?:tools|response|message)<\|sep\|>|<｜tool▁calls▁end｜>|<\|tool_calls_section_end\|>/g;

/** Longer answers are prose: a small model's call is short, and reading must not take long. */
const TEXT_CHARS_MAX = 256 * 1024;
/** So are those with more places where a call might begin. */
const OPENS_MAX = 64;

/**
 * @param acceptsBare whether a call counts that has no marker of its own: the text may as well be an answer.
 */
export function recoverCalls(
  text: string,
  offered: Offered,
  acceptsBare: (call: TextCall) => boolean = () => true,
): Recovered {
  if (text.length > TEXT_CHARS_MAX || (text.match(ANY_OPEN)?.length ?? 0) > OPENS_MAX) return withoutCalls(text);
  const harmony = readHarmony(text, offered) ?? readStrippedHarmony(text, offered);
  if (harmony !== undefined) {
    const { calls, content, reasoning } = harmony;
    const format = calls.length > 0 ? "harmony" : undefined;
    return { calls, content, reasoning, kept: content, format, unread: false };
  }
  const marked = readMarked(text, offered);
  if (marked !== undefined) return marked;
  const { reasoning, from } = splitReasoning(text, text.length);
  const whole = readWholeMessage(text.slice(from), offered);
  if (whole === undefined || !whole.calls.every(acceptsBare)) return withoutCalls(text);
  const { calls, before } = whole;
  const kept = text.slice(0, from) + before;
  return { calls, content: before, reasoning, kept, format: "whole-message", unread: false };
}

function withoutCalls(text: string): Recovered {
  const first = firstOpen(text, 0);
  const { reasoning, from } = splitReasoning(text, first);
  const content = from === 0 ? text : text.slice(from).trimStart();
  const unread = first < text.length && !isQuoted(text, first);
  return { calls: [], content, reasoning, kept: text, format: undefined, unread };
}

function firstOpen(text: string, from: number): number {
  ANY_OPEN.lastIndex = from;
  return ANY_OPEN.exec(text)?.index ?? text.length;
}

function readMarked(text: string, offered: Offered): Recovered | undefined {
  const { reasoning, from } = splitReasoning(text, firstOpen(text, 0));
  // Thinking that never ends, with a call as its last thing, is a call.
  const begin = from === text.length ? 0 : from;
  const calls: TextCall[] = [];
  const pieces: string[] = [];
  let format: string | undefined;
  let kept = begin;
  for (let at = firstOpen(text, begin); at < text.length;) {
    const found = isQuoted(text, at) ? undefined : readAny(text, at, offered);
    if (found === undefined) {
      at = firstOpen(text, at + 1);
      continue;
    }
    format ??= found.format;
    calls.push(...found.calls);
    pieces.push(text.slice(kept, at));
    kept = found.end;
    at = firstOpen(text, found.end);
  }
  if (calls.length === 0) return undefined;
  if (begin !== from && text.slice(kept).trim() !== "") return undefined;
  const rest = text.slice(kept);
  // Behind calls that are good, one that broke off is no answer.
  pieces.push(firstOpen(rest, 0) < rest.length && !rest.includes("`") ? rest.slice(0, firstOpen(rest, 0)) : rest);
  const said = pieces.join("").replaceAll(WRAPPERS, "").trim();
  const content = begin === from ? said : "";
  return { calls, content, reasoning, kept: (text.slice(0, begin) + said).trimEnd(), format, unread: false };
}

function readAny(
  text: string,
  at: number,
  offered: Offered,
): { readonly calls: readonly TextCall[]; readonly end: number; readonly format: string } | undefined {
  for (const format of FORMATS) {
    if (matchAt(format.opens, text, at) === undefined) continue;
    const section = format.read(text, at, offered);
    if (section !== undefined) return { ...section, format: format.name };
  }
  return undefined;
}

/** Inside backticks, of a line or of a fence. */
function isQuoted(text: string, at: number): boolean {
  const before = text.slice(0, at);
  const fences = before.match(/^[ \t]*```/gm)?.length ?? 0;
  if (fences % 2 === 1) return !isWholeFence(text);
  const line = before.slice(before.lastIndexOf("\n") + 1);
  return (line.match(/`/g)?.length ?? 0) % 2 === 1;
}

/** A message that is one fence: models put their call into one. */
function isWholeFence(text: string): boolean {
  return /^\s*```[\s\S]*```\s*$/.test(text) && text.match(/^[ \t]*```/gm)?.length === 2;
}
