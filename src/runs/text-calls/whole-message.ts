/**
 * Calls without a marker of their own: JSON or Python's form (Llama 3), also behind `<|python_tag|>` or in a code fence.
 * They count only when they are the whole message: an answer may contain such text.
 */
import { callOf, callsOf } from "./json-formats.ts";
import { readJson } from "../json/index.ts";
import { readPythonic } from "./pythonic.ts";
import { afterSpace, behind, type Offered, type TextCall } from "./types.ts";

export type WholeMessage = { readonly calls: readonly TextCall[]; readonly before: string };

const FENCE = /^\s*```(?:json|python|tool_code|tool_call|xml)?\s*\n([\s\S]*?)\n?```\s*$/;
const PYTHON_TAG = "<|python_tag|>";

export function readWholeMessage(text: string, offered: Offered): WholeMessage | undefined {
  const tag = text.indexOf(PYTHON_TAG);
  const marked = tag !== -1 && !/["'{[(]/.test(text.slice(0, tag));
  const before = marked ? text.slice(0, tag) : "";
  const bare = (marked ? text.slice(tag + PYTHON_TAG.length) : text)
    .replace(/^\s*<\|python_start\|>/, "")
    .replace(/<\|(?:python_end|eom_id|eot_id)\|>\s*$/, "");
  const inner = FENCE.exec(bare)?.[1] ?? bare;
  const calls = readJsonCalls(inner, offered) ?? readPythonicCalls(inner, offered);
  return calls && { calls, before };
}

/** One call, an array of them, or several with `;`, a comma or white space between. */
function readJsonCalls(text: string, offered: Offered): readonly TextCall[] | undefined {
  const calls: TextCall[] = [];
  let at = afterSpace(text, 0);
  while (at < text.length) {
    if (text[at] !== "{" && text[at] !== "[") return undefined;
    const read = readJson(text, at);
    const found = read && (Array.isArray(read.value) ? callsOf(read.value, offered) : one(callOf(read.value, offered)));
    if (read === undefined || found === undefined) return undefined;
    calls.push(...found);
    at = behind(/\s*[;,]?\s*/, text, read.end);
  }
  return calls.length === 0 ? undefined : calls;
}

const one = (call: TextCall | undefined): readonly TextCall[] | undefined => call && [call];

function readPythonicCalls(text: string, offered: Offered): readonly TextCall[] | undefined {
  const section = readPythonic(text, 0, offered);
  return section !== undefined && text.slice(section.end).trim() === "" ? section.calls : undefined;
}
