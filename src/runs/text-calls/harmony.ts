/**
 * OpenAI's Harmony, the form of gpt-oss: messages with a role, a channel, and the recipient of a call in the header.
 * Also with its tokens stripped, as engines leave it when they were not told of the form.
 */
import { isJsonObject, readJson } from "../json/index.ts";
import { behind, matchAt, type Offered, type TextCall } from "./types.ts";

export type HarmonyAnswer = {
  readonly calls: readonly TextCall[];
  /** What is said to the user. */
  readonly content: string;
  readonly reasoning: string;
};

const MESSAGE = "<|message|>";
const HEADER =
  /(?:<\|start\|>assistant)?(?:\s*to=[\w.-]+\s*)?(?:<\|channel\|>(?:(?!<\|(?!constrain\|>))[\s\S])*)<\|message\|>/;
const ENDS = ["<|end|>", "<|call|>", "<|return|>"] as const;
const RECIPIENT = /to=(?:functions\.)?([\w.-]+)/;
const NEXT = /\s*(?:<\|start\|>|<\|channel\|>|$)/;

/** undefined: the text is not written in this form throughout. */
export function readHarmony(text: string, offered: Offered): HarmonyAnswer | undefined {
  const calls: TextCall[] = [];
  const content: string[] = [];
  const reasoning: string[] = [];
  let at = 0;
  while (at < text.length) {
    const header = matchAt(HEADER, text, at);
    if (header === undefined) {
      // A header that broke off says nothing yet.
      if (at > 0 && /^(?:<\|start\|>|<\|channel\|>)/.test(text.slice(at)) && !text.includes(MESSAGE, at)) break;
      return undefined;
    }
    const from = at + header[0].length;
    const channel = /<\|channel\|>\s*(\w+)/.exec(header[0])?.[1] ?? "";
    const recipient = RECIPIENT.exec(header[0])?.[1];
    if (recipient !== undefined && offered(recipient) !== undefined) {
      const read = readJson(text, from);
      if (read === undefined || !isJsonObject(read.value)) return undefined;
      calls.push({ name: recipient, arguments: read.value });
      at = behindEnd(text, read.end);
      continue;
    }
    const end = endOfMessage(text, from);
    const said = text.slice(from, end);
    if (channel === "analysis") reasoning.push(said);
    else if (channel === "final" || channel === "commentary") content.push(said);
    else return undefined;
    at = behindEnd(text, end);
  }
  if (at === 0) return undefined;
  return { calls, content: content.join("\n"), reasoning: reasoning.join("\n") };
}

/** The first end marker that another message, or nothing, follows: a message may quote one. */
function endOfMessage(text: string, from: number): number {
  let first = text.length;
  for (const marker of ENDS) {
    for (let at = text.indexOf(marker, from); at !== -1; at = text.indexOf(marker, at + 1)) {
      if (matchAt(NEXT, text, at + marker.length) === undefined) continue;
      first = Math.min(first, at);
      break;
    }
  }
  return first;
}

function behindEnd(text: string, at: number): number {
  return behind(/\s*(?:<\|end\|>|<\|call\|>|<\|return\|>)?\s*/, text, at);
}

const STRIPPED = /(?:^|assistant)\s*commentary\s+to=functions\.([\w.-]+?)\s*(?:json|code)?\s*(?=\{)/;

/** `commentary to=functions.name json{…}`: the form without its tokens. */
export function readStrippedHarmony(text: string, offered: Offered): HarmonyAnswer | undefined {
  const calls: TextCall[] = [];
  let before = "";
  let rest = text;
  for (;;) {
    const header = STRIPPED.exec(rest);
    if (header === null) break;
    const name = header[1] ?? "";
    const read = readJson(rest, header.index + header[0].length);
    if (offered(name) === undefined || read === undefined || !isJsonObject(read.value)) return undefined;
    calls.push({ name, arguments: read.value });
    if (calls.length === 1) before = rest.slice(0, header.index);
    rest = rest.slice(read.end);
  }
  if (calls.length === 0) return undefined;
  const thought = /^\s*analysis/.test(before);
  return {
    calls,
    reasoning: thought ? before.replace(/^\s*analysis/, "").trim() : "",
    content: [thought ? "" : before, rest.replace(/^\s*assistantfinal/, "")].join("").trim(),
  };
}
