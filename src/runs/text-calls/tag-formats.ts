/** Calls whose arguments stand in tags of their own: Qwen, GLM, DeepSeek's DSML and Anthropic, Kimi K3. */
import type { JsonObject } from "../types.ts";
import { allowedTypes, parseJson, propertySchema } from "../json/index.ts";
import { afterSpace, behind, matchAt, type CallFormat, type Section, type TextCall } from "./types.ts";

type TagGrammar = {
  /** Group 1: the tool's name. */
  readonly open: RegExp;
  /** Group 1: the argument's name; group 2, where there is one: whether the value is a text (`true`, `string`). */
  readonly key: RegExp;
  /** Behind a value. It counts only where `key` or `close` follows, because a value may quote it. */
  readonly valueEnd: RegExp;
  readonly close: RegExp;
  /** Values stand on lines of their own. */
  readonly onLines?: boolean;
};

/** One call that begins at `at`. */
function readTags(text: string, at: number, schema: JsonObject, grammar: TagGrammar): Section | undefined {
  const open = matchAt(grammar.open, text, at);
  if (open === undefined) return undefined;
  let end = at + open[0].length;
  const members: [string, unknown][] = [];
  for (;;) {
    const close = matchAt(grammar.close, text, end);
    if (close !== undefined) {
      const call: TextCall = { name: open[1] ?? "", arguments: Object.fromEntries(members) };
      return { calls: [call], end: end + close[0].length };
    }
    const key = matchAt(grammar.key, text, end);
    const name = key?.[1];
    if (key === undefined || name === undefined) return undefined;
    const from = end + key[0].length;
    const value = valueAt(text, from, { grammar, schema, seen: members.map(([seen]) => seen) });
    if (value === undefined) return undefined;
    const raw = text.slice(from, value.end);
    const written = grammar.onLines === true ? raw.replace(/^\r?\n/, "").replace(/\r?\n$/, "") : raw;
    members.push([
      unescaped(name),
      typedValue(written, { schema: propertySchema(schema, name), root: schema, text: key[2] }),
    ]);
    end = value.next;
  }
}

/** Where the value ends, and where what follows it begins. */
function valueAt(
  text: string,
  from: number,
  around: { readonly grammar: TagGrammar; readonly schema: JsonObject; readonly seen: readonly string[] },
): { readonly end: number; readonly next: number } | undefined {
  const { grammar, schema, seen } = around;
  const marks = new RegExp(`${grammar.valueEnd.source}|(?=${grammar.close.source})|(?=${grammar.key.source})`, "g");
  marks.lastIndex = from;
  for (let mark = marks.exec(text); mark !== null; mark = marks.exec(text)) {
    const next = mark.index + mark[0].length;
    if (mark[0] !== "") {
      const follows = matchAt(grammar.key, text, next) ?? matchAt(grammar.close, text, next);
      if (follows !== undefined) return { end: mark.index, next };
    } else {
      marks.lastIndex = mark.index + 1;
      // The end of the value was forgotten: only what cannot be part of it says so.
      const key = matchAt(grammar.key, text, mark.index)?.[1];
      const atLine = mark.index === 0 || text[mark.index - 1] === "\n" || text[mark.index] === "\n";
      if (key === undefined ? closesCall(text, mark.index, grammar) : atLine && isNew(schema, key, seen)) {
        return { end: mark.index, next: mark.index };
      }
    }
  }
  return undefined;
}

const isNew = (schema: JsonObject, key: string, seen: readonly string[]): boolean =>
  propertySchema(schema, key) !== undefined && !seen.includes(key);

/** Whether the closing tag here ends the call: nothing but another call, or the end, comes behind it. */
function closesCall(text: string, at: number, grammar: TagGrammar): boolean {
  const close = matchAt(grammar.close, text, at);
  return close !== undefined && matchAt(/\s*(?:<|$)/, text, at + close[0].length) !== undefined;
}

/** Names stand in attributes, where some templates escape them. */
function unescaped(name: string): string {
  return name.replaceAll("&quot;", '"').replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
}

type Typing = {
  readonly schema: JsonObject | undefined;
  readonly root: JsonObject;
  /** What the tag says about the value: `true` or `string` for a text, anything else for JSON. */
  readonly text: string | undefined;
};

function typedValue(written: string, about: Typing): unknown {
  const { schema, root, text } = about;
  if (text === "true" || text === "string") return written;
  const types = schema !== undefined && text === undefined ? allowedTypes(schema, root) : undefined;
  if (types !== undefined && types.has("string") && !(types.has("null") && written.trim() === "null")) return written;
  const read = parseJson(written);
  return read === undefined ? written : read.value;
}

const QWEN_TAGS: TagGrammar = {
  open: /(?:<tool_call>\s*)?<function=([^>\s]+)>\s*/,
  key: /\s*<parameter=([^>\n]+)>/,
  valueEnd: /<\/parameter>/,
  close: /\s*<\/function>(?:\s*<\/tool_call>)?/,
  onLines: true,
};

/** Qwen3-Coder and later: `<function=name><parameter=key>value</parameter></function>`, mostly inside `<tool_call>`. */
export const QWEN: CallFormat = {
  name: "qwen",
  opens: /(?:<tool_call>\s*)?<function=[^>\s]+>/,
  read(text, at, offered) {
    const schema = offered(matchAt(QWEN_TAGS.open, text, at)?.[1] ?? "");
    return schema && readTags(text, at, schema, QWEN_TAGS);
  },
};

const GLM_TAGS: TagGrammar = {
  open: /<tool_call>\s*([\w.-]+)\s*/,
  key: /\s*<arg_key>([^<]+)<\/arg_key>\s*<arg_value>/,
  valueEnd: /<\/arg_value>/,
  close: /\s*<\/tool_call>/,
};

/** GLM: `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`. */
export const GLM: CallFormat = {
  name: "glm",
  opens: /<tool_call>\s*[\w.-]+\s*(?=<arg_key>|<\/tool_call>)/,
  read(text, at, offered) {
    const schema = offered(matchAt(GLM_TAGS.open, text, at)?.[1] ?? "");
    return schema && readTags(text, at, schema, GLM_TAGS);
  },
};

const DSML = "(?:｜DSML｜ ?)?";
const INVOKE_TAGS: TagGrammar = {
  open: new RegExp(`<${DSML}invoke name="([^"]+)"\\s*(?:>\\s*|(?=/>))`),
  key: new RegExp(`\\s*<${DSML}parameter name="([^"]+)"(?: string="(true|false)")?\\s*>`),
  valueEnd: new RegExp(`</${DSML}parameter>`),
  close: new RegExp(`\\s*(?:/>|</${DSML}invoke>)`),
};
const INVOKE_SECTION = new RegExp(`<${DSML}(?:function_calls|tool_?calls|calls)>\\s*`);
const INVOKE_SECTION_END = new RegExp(`\\s*</${DSML}(?:function_calls|tool_?calls|calls)>`);

/** DeepSeek's DSML, and Anthropic's tags: `<invoke name="…"><parameter name="…">…`. The section's tags may be missing. */
export const INVOKE: CallFormat = {
  name: "invoke",
  opens: new RegExp(`${INVOKE_SECTION.source}(?=<${DSML}invoke )|<${DSML}invoke name="`),
  read(text, at, offered) {
    let end = behind(INVOKE_SECTION, text, at);
    const calls: TextCall[] = [];
    for (;;) {
      const from = afterSpace(text, end);
      const schema = offered(matchAt(INVOKE_TAGS.open, text, from)?.[1] ?? "");
      const section = schema && readTags(text, from, schema, INVOKE_TAGS);
      if (section === undefined) break;
      calls.push(...section.calls);
      end = section.end;
    }
    if (calls.length === 0) return undefined;
    return { calls, end: behind(INVOKE_SECTION_END, text, end) };
  },
};

const KIMI_K3_TAGS: TagGrammar = {
  open: /<\|open\|>call tool="([^"]+)"[^<]*<\|sep\|>/,
  key: /<\|open\|>argument key="([^"]+)" type="([^"]+)"<\|sep\|>/,
  valueEnd: /<\|close\|>argument<\|sep\|>/,
  close: /<\|close\|>call<\|sep\|>/,
};

/** Kimi K3. */
export const KIMI_K3: CallFormat = {
  name: "kimi-k3",
  opens: /<\|open\|>call tool="/,
  read(text, at, offered) {
    const schema = offered(matchAt(KIMI_K3_TAGS.open, text, at)?.[1] ?? "");
    return schema && readTags(text, at, schema, KIMI_K3_TAGS);
  },
};
