/** Gemma 4: `<|tool_call>call:name{key:<|"|>text<|"|>,other:3}<tool_call|>`. */
import type { JsonObject } from "../types.ts";
import { afterSpace, matchAt, type CallFormat } from "./types.ts";

const QUOTE = '<|"|>';
const DEPTH_MAX = 64;
const OPEN = /<\|tool_call>\s*call:\s*([\w.-]+)\s*(?=\{)/;

export const GEMMA: CallFormat = {
  name: "gemma",
  opens: /<\|tool_call>\s*call:/,
  read(text, at, offered) {
    const open = matchAt(OPEN, text, at);
    const name = open?.[1] ?? "";
    if (open === undefined || offered(name) === undefined) return undefined;
    const read = valueAt(text, at + open[0].length, 0);
    const close = read && matchAt(/\s*<tool_call\|>/, text, read.end);
    if (read === undefined || close === undefined) return undefined;
    return { calls: [{ name, arguments: read.value as JsonObject }], end: read.end + close[0].length };
  },
};

type Read = { readonly value: unknown; readonly end: number };

function valueAt(text: string, from: number, depth: number): Read | undefined {
  const at = afterSpace(text, from);
  if (depth > DEPTH_MAX) return undefined;
  if (text[at] === "{") return objectAt(text, at, depth);
  if (text[at] === "[") return arrayAt(text, at, depth);
  if (text.startsWith(QUOTE, at)) return quotedAt(text, at);
  const bare = matchAt(/[^,{}[\]<]*/, text, at)?.[0] ?? "";
  return { value: bareValue(bare.trim()), end: at + bare.length };
}

function quotedAt(text: string, at: number): Read | undefined {
  const from = at + QUOTE.length;
  const end = text.indexOf(QUOTE, from);
  return end === -1 ? undefined : { value: text.slice(from, end), end: end + QUOTE.length };
}

function bareValue(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return text;
  }
}

function objectAt(text: string, from: number, depth: number): Read | undefined {
  const members: [string, unknown][] = [];
  let at = afterSpace(text, from + 1);
  while (text[at] !== "}") {
    const quoted = text.startsWith(QUOTE, at) ? quotedAt(text, at) : undefined;
    const key = quoted === undefined ? matchAt(/[^:{}[\],]+/, text, at)?.[0] : (quoted.value as string);
    if (key === undefined) return undefined;
    const colon = afterSpace(text, quoted?.end ?? at + key.length);
    const read = text[colon] === ":" ? valueAt(text, colon + 1, depth + 1) : undefined;
    if (read === undefined) return undefined;
    members.push([key.trim(), read.value]);
    const behind = behindItem(text, read.end, "}");
    if (behind === undefined) return undefined;
    at = behind;
  }
  return { value: Object.fromEntries(members), end: at + 1 };
}

function arrayAt(text: string, from: number, depth: number): Read | undefined {
  const items: unknown[] = [];
  let at = afterSpace(text, from + 1);
  while (text[at] !== "]") {
    const read = valueAt(text, at, depth + 1);
    const behind = read && behindItem(text, read.end, "]");
    if (read === undefined || behind === undefined) return undefined;
    items.push(read.value);
    at = behind;
  }
  return { value: items, end: at + 1 };
}

/** Behind a member or an item: the next one, or the closing bracket. */
function behindItem(text: string, from: number, closing: string): number | undefined {
  const at = afterSpace(text, from);
  if (text[at] === ",") return afterSpace(text, at + 1);
  return text[at] === closing ? at : undefined;
}
