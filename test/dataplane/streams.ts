/** The recorded streams, the ways to write and to split them, and what is expected of each: literals, not computed. */
import { readdirSync, readFileSync } from "node:fs";
import type { AnsweredToolCall, TapFindings } from "../../src/dataplane/inspection.ts";

const FOLDER = new URL("../transcripts/streams/", import.meta.url);

export const fileNames = (ending: string): string[] => readdirSync(FOLDER).filter((name) => name.endsWith(ending));
export const read = (name: string): Buffer => readFileSync(new URL(name, FOLDER));

/** What a tap has found, without how it stands between events. */
export type Found = Omit<TapFindings, "betweenEvents">;

const call = (id: string, name: string, text: string, choice = 0): AnsweredToolCall => ({
  choice,
  id,
  name,
  arguments: text,
});

const ANSWER: Found = {
  started: true,
  failed: false,
  terminal: true,
  finishReason: "stop",
  usage: {},
  toolCalls: [],
  responseId: undefined,
  skipped: 0,
};

/** Of each stream: what a tap must have found at its end. */
export const EXPECTED: { readonly [name: string]: Found } = {
  "hosted-odd.sse": { ...ANSWER, usage: { promptTokens: 40, completionTokens: 6 }, responseId: "x-1" },
  "llama.cpp-completions.sse": {
    ...ANSWER,
    finishReason: "length",
    usage: { promptTokens: 2, completionTokens: 5, cachedTokens: 0 },
    responseId: "chatcmpl-UTNoLlw6XDcxRdwNdiRMd6iQLLfNOxxE",
  },
  "llama.cpp-n2.sse": {
    ...ANSWER,
    finishReason: "length",
    // From `timings`: this client did not ask for usage.
    usage: { promptTokens: 23, completionTokens: 4, cachedTokens: 9 },
    responseId: "chatcmpl-Ur1Tj8T1KZCGiBv5l66JgVlCVyXBmIew",
  },
  "llama.cpp-text.sse": {
    ...ANSWER,
    finishReason: "length",
    usage: { promptTokens: 25, completionTokens: 12, cachedTokens: 0 },
    responseId: "chatcmpl-ErSKwxHktVYcniHOHF7tgpuil1VutrC8",
  },
  "llama.cpp-tools.sse": {
    ...ANSWER,
    finishReason: "tool_calls",
    usage: { promptTokens: 271, completionTokens: 35, cachedTokens: 0 },
    toolCalls: [call("efU3oNJztGEK6STADlun23arfhPfYkYl", "get_weather", '{\n    "city": "Paris"\n}')],
    responseId: "chatcmpl-zyxMfjtEA6Q1n4Ghv6z4LhlQ64zu4j6n",
  },
  "llama.cpp-usage.sse": {
    ...ANSWER,
    finishReason: "length",
    usage: { promptTokens: 23, completionTokens: 6, cachedTokens: 16 },
    responseId: "chatcmpl-oVFWE65ZTuk2pymWCpu4hgO5JPRbueSn",
  },
  "made-late-ids.sse": {
    ...ANSWER,
    toolCalls: [call("late_1", "f", '{"n":12345678901,"o":{"k":[1,2]}}'), call("", "g", "{}")],
    responseId: "x-1",
  },
  "made-lines.sse": { ...ANSWER, finishReason: "length", responseId: "ml" },
  "made-returning-ids.sse": {
    ...ANSWER,
    finishReason: "tool_calls",
    toolCalls: [call("a", "f", '{"p":1}'), call("b", "g", '{"q":2}')],
    responseId: "x-1",
  },
  "made-short.sse": { ...ANSWER, usage: { promptTokens: 3 } },
  "made-two-choices.sse": {
    ...ANSWER,
    finishReason: "tool_calls",
    toolCalls: [call("c0", "f", '{"n":1}'), call("c1", "f", '{"n":2}', 1)],
    responseId: "x-1",
  },
  "ollama-parallel.sse": {
    ...ANSWER,
    finishReason: "tool_calls",
    usage: { promptTokens: 164, completionTokens: 60 },
    toolCalls: [
      call("call_ab12cd34", "get_weather", '{"city":"Paris"}'),
      call("call_ef56gh78", "get_weather", '{"city":"Oslo"}'),
    ],
    responseId: "chatcmpl-417",
  },
  "sglang-kimi-ids.sse": {
    ...ANSWER,
    finishReason: "tool_calls",
    toolCalls: [call("functions.read:0", "read", '{"path":"a"}'), call("functions.read:1", "read", '{"path":"b"}')],
    responseId: "5e0b7d2f4c1a4d0e9b8c7a6f5e4d3c2b",
  },
  "sglang-reasoning.sse": {
    ...ANSWER,
    usage: { promptTokens: 31, completionTokens: 27, cachedTokens: 16 },
    responseId: "5e0b7d2f4c1a4d0e9b8c7a6f5e4d3c2b",
  },
  "sglang-tools.sse": {
    ...ANSWER,
    finishReason: "tool_calls",
    usage: { promptTokens: 205, completionTokens: 25 },
    toolCalls: [call("call_5c0c6e8f2a1b4d7e9f00", "get_weather", '{"city": "東京"}')],
    responseId: "5e0b7d2f4c1a4d0e9b8c7a6f5e4d3c2b",
  },
  "tgi-tools.sse": { ...ANSWER, toolCalls: [call("0", "get_weather", '{ "city": "Paris"}')] },
  "vllm-continuous-usage.sse": {
    ...ANSWER,
    usage: { promptTokens: 20, completionTokens: 3 },
    responseId: "chatcmpl-9f1c0d8e7b6a4f53a2",
  },
  "vllm-error.sse": { ...ANSWER, failed: true, finishReason: undefined, responseId: "chatcmpl-9f1c0d8e7b6a4f53a2" },
  "vllm-recorded-text.sse": {
    ...ANSWER,
    finishReason: "length",
    usage: { promptTokens: 62, completionTokens: 12, cachedTokens: 0 },
    responseId: "chatcmpl-98cb40ba31d81e73",
  },
  "vllm-recorded-tools.sse": {
    ...ANSWER,
    finishReason: "tool_calls",
    usage: { promptTokens: 265, completionTokens: 85, cachedTokens: 256 },
    toolCalls: [
      call("chatcmpl-tool-aed33797ea3ae15f", "get_weather", '{"city":\r"Paris"\t\n\n,\n "celsius": true \n\t\r}'),
    ],
    responseId: "chatcmpl-a5638050aa1f663b",
  },
  "vllm-tools.sse": {
    ...ANSWER,
    finishReason: "tool_calls",
    usage: { promptTokens: 812, completionTokens: 49, cachedTokens: 768 },
    toolCalls: [
      call("chatcmpl-tool-2f1b8c", "search", '{"b": 1.0, "a":"x",  "2":"z"}'),
      call("chatcmpl-tool-77d0aa", "read_file", '{"path": "/été.md"}'),
    ],
    responseId: "chatcmpl-9f1c0d8e7b6a4f53a2",
  },
};

/** The same stream as another engine would write it: what is found must stay the same. */
export const WAYS_TO_WRITE: { readonly [way: string]: (text: string) => string } = {
  "as recorded": (text) => text,
  "with CRLF": (text) => text.replaceAll("\n", "\r\n"),
  "with CR": (text) => text.replaceAll("\n", "\r"),
  "with a byte order mark": (text) => `\u00ef\u00bb\u00bf${text}`,
  "without the space behind data:": (text) => text.replaceAll(/^data: (?! )/gm, "data:"),
  "with LF and CR taking turns": (text) => text.replaceAll("\n\n", "\n\r"),
  "with a comment before every event": (text) => text.replaceAll(/(^|\n\n)data:/g, "$1: still here\n\ndata:"),
};

/** A stream in one way of writing; the text is Latin-1, one character a byte. */
export const written = (name: string, way: string): Buffer =>
  Buffer.from((WAYS_TO_WRITE[way] ?? String)(read(name).toString("latin1")), "latin1");

/** What a tap has found, as plain data. */
export const foundBy = ({ findings }: { readonly findings: TapFindings }): Found => ({
  started: findings.started,
  failed: findings.failed,
  terminal: findings.terminal,
  finishReason: findings.finishReason,
  usage: findings.usage,
  toolCalls: findings.toolCalls.map(({ choice, id, name, arguments: text }) => call(id, name, text, choice)),
  responseId: findings.responseId,
  skipped: findings.skipped,
});

/** The parts of a buffer between positions, each in a buffer of its own with other bytes around it. */
export function* parts(bytes: Buffer, cuts: readonly number[]): Iterable<readonly [Buffer, number, number]> {
  let from = 0;
  for (const to of [...cuts, bytes.length]) {
    yield [Buffer.concat([Buffer.from("#\n"), bytes.subarray(from, to), Buffer.from("\n\n")]), 2, 2 + to - from];
    from = to;
  }
}

/**
 * Whether an event may stand behind these bytes, read character by character: after a blank line, or where nothing but
 * line ends came since the last one. A CR after another kind of line end may be half of a CRLF: there it may not.
 */
export function standsBetweenEvents(bytes: Buffer): boolean {
  let between = true;
  let lineEmpty = true;
  for (let at = 0; at < bytes.length; at += 1) {
    const isCr = bytes[at] === 0x0d;
    if (!isCr && bytes[at] !== 0x0a) {
      between = false;
      lineEmpty = false;
      continue;
    }
    if (isCr && bytes[at + 1] === 0x0a) continue; // The line ends with the pair.
    const mayBeHalf = isCr && at === bytes.length - 1 && bytes[at - 1] !== 0x0d;
    if (lineEmpty && !mayBeHalf) between = true;
    lineEmpty = true;
  }
  return between;
}
