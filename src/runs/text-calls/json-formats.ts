/** Calls whose arguments are JSON behind a marker: Hermes, Mistral, DeepSeek V3, Kimi K2, Llama. */
import { isJsonObject, readJson, readText } from "../json/index.ts";
import { afterSpace, behind, matchAt, type CallFormat, type Offered, type Section, type TextCall } from "./types.ts";

/** `{"name", "arguments" | "parameters"}`, bare or inside `function`; undefined: it is no call of an offered tool. */
export function callOf(value: unknown, offered: Offered): TextCall | undefined {
  if (!isJsonObject(value)) return undefined;
  const inner = isJsonObject(value["function"]) ? value["function"] : value;
  const name = inner["name"] ?? (typeof value["function"] === "string" ? value["function"] : undefined);
  if (typeof name !== "string" || offered(name) === undefined) return undefined;
  const args = argumentsOf(inner["arguments"] ?? inner["parameters"]);
  return args === undefined ? undefined : { name, arguments: args };
}

/** A call without arguments has none, `{}`, or null. */
function argumentsOf(value: unknown): TextCall["arguments"] | undefined {
  if (value === undefined || value === null || value === "") return {};
  if (typeof value === "string") {
    const inner = readText(value);
    return inner === undefined ? undefined : argumentsOf(inner);
  }
  return isJsonObject(value) ? value : undefined;
}

/** One call, or an array of calls. */
export function callsOf(value: unknown, offered: Offered): readonly TextCall[] | undefined {
  const calls = (Array.isArray(value) ? value : [value]).map((entry) => callOf(entry, offered));
  return calls.length > 0 && calls.every((call) => call !== undefined) ? calls : undefined;
}

/** `name{…}`: JSON arguments that begin at `at`. */
function argumentsAt(text: string, at: number, name: string, offered: Offered): Section | undefined {
  if (offered(name) === undefined) return undefined;
  const read = readJson(text, at);
  if (read === undefined || !isJsonObject(read.value)) return undefined;
  return { calls: [{ name, arguments: read.value }], end: read.end };
}

/** Hermes and Qwen: `<tool_call>{"name": …, "arguments": …}</tool_call>`. The JSON says where it ends, not the tag. */
export const HERMES: CallFormat = {
  name: "hermes",
  opens: /<tool_call>\s*[[{]/,
  read(text, at, offered) {
    const read = readJson(text, at + "<tool_call>".length);
    const calls = callsOf(read?.value, offered);
    if (read === undefined || calls === undefined) return undefined;
    const close = matchAt(/\s*<\/tool_call>/, text, read.end);
    if (close !== undefined) return { calls, end: read.end + close[0].length };
    // The closing tag may be a stop token, or be forgotten; anything else behind the call makes it unclear.
    return matchAt(/\s*(?:<tool_call>|$)/, text, read.end) === undefined ? undefined : { calls, end: read.end };
  },
};

/** Llama: `<function=name>{…}</function>`. */
export const LLAMA_FUNCTION: CallFormat = {
  name: "llama-function",
  opens: /<function=[^>\s]+>\s*\{/,
  read(text, at, offered) {
    const open = matchAt(/<function=([^>\s]+)>/, text, at);
    const section = argumentsAt(text, at + (open?.[0].length ?? 0), open?.[1] ?? "", offered);
    const close = section && matchAt(/\s*(?:<\/function>|$)(?:\s*<\/tool_call>)?/, text, section.end);
    return section && close && { calls: section.calls, end: section.end + close[0].length };
  },
};

/** Mistral: `[TOOL_CALLS][{…}]`, or `[TOOL_CALLS]name[CALL_ID]id[ARGS]{…}` once per call. */
export const MISTRAL: CallFormat = {
  name: "mistral",
  opens: /\[TOOL_CALLS\]/,
  read(text, at, offered) {
    const from = afterSpace(text, at + "[TOOL_CALLS]".length);
    if (text[from] === "[" || text[from] === "{") {
      const read = readJson(text, from);
      const calls = callsOf(read?.value, offered);
      return read === undefined || calls === undefined ? undefined : { calls, end: read.end };
    }
    const head = matchAt(/([\w.-]+)\s*(?:\[CALL_ID\]\s*([\w-]+)\s*)?(?:\[ARGS\])?\s*/, text, from);
    if (head === undefined) return undefined;
    const section = argumentsAt(text, from + head[0].length, head[1] ?? "", offered);
    return section && { calls: section.calls.map((call) => ({ ...call, id: head[2] })), end: section.end };
  },
};

/** DeepSeek V3 (`function<sep>name`, fenced JSON) and V3.1 (`name<sep>{…}`). */
export const DEEPSEEK: CallFormat = {
  name: "deepseek",
  opens: /<｜tool▁calls▁begin｜>|<｜tool▁call▁begin｜>/,
  read(text, at, offered) {
    return readList(text, at, offered, {
      opens: /<｜tool▁calls▁begin｜>\s*/,
      head: /<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>([^\n<]+)\n```json\n|([^\n<]+)<｜tool▁sep｜>)/,
      close: /\s*(?:```)?\s*<｜tool▁call▁end｜>\s*/,
      ends: /<｜tool▁calls▁end｜>/,
    });
  },
};

/** Kimi K2: `functions.name:0` is also the call's id, which its template shows again. */
export const KIMI_K2: CallFormat = {
  name: "kimi-k2",
  opens: /<\|tool_calls_section_begin\|>|<\|tool_call_begin\|>/,
  read(text, at, offered) {
    return readList(text, at, offered, {
      opens: /<\|tool_calls?_section_begin\|>(?:(?!<\|)[\s\S])*/,
      head: /<\|tool_call_begin\|>\s*((?:functions\.)?([\w.-]+?)(?::\d+)?)\s*<\|tool_call_argument_begin\|>/,
      id: true,
      close: /\s*<\|tool_call_end\|>(?:(?!<\|)[\s\S])*/,
      ends: /<\|tool_calls?_section_end\|>/,
    });
  },
};

type ListGrammar = {
  readonly opens: RegExp;
  /** The last group that matched is the name; with `id` the first group is the call's id. */
  readonly head: RegExp;
  readonly id?: boolean;
  readonly close: RegExp;
  readonly ends: RegExp;
};

/** Calls one behind the other; the ones that are closed count, also when the text breaks off behind them. */
function readList(text: string, at: number, offered: Offered, grammar: ListGrammar): Section | undefined {
  let end = behind(grammar.opens, text, at);
  const calls: TextCall[] = [];
  for (;;) {
    const head = matchAt(grammar.head, text, end);
    if (head === undefined) break;
    const groups = head.slice(1).filter((group) => group !== undefined);
    const name = groups.at(-1)?.trim() ?? "";
    const section = argumentsAt(text, end + head[0].length, name, offered);
    const close = section && matchAt(grammar.close, text, section.end);
    if (section === undefined || close === undefined) break;
    const id = grammar.id === true ? groups[0] : undefined;
    calls.push(...section.calls.map((call) => ({ ...call, id })));
    end = section.end + close[0].length;
  }
  if (calls.length === 0) return undefined;
  return { calls, end: behind(grammar.ends, text, end) };
}
