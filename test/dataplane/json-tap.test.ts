import { describe, expect, it } from "vitest";
import { createJsonTap } from "../../src/dataplane/json-tap.ts";
import { fileNames, foundBy, parts, read, type Found } from "./streams.ts";

/** What is found does not depend on whether the answer's length was announced. */
function tapped(bytes: Buffer, cuts: readonly number[]): Found {
  const [found, announced] = [undefined, bytes.length].map((length) => {
    const tap = createJsonTap(length);
    for (const [buffer, start, end] of parts(bytes, cuts)) tap.push(buffer, start, end);
    tap.finish();
    return foundBy(tap);
  });
  expect(announced).toEqual(found);
  return found as Found;
}

const EXPECTED: { readonly [name: string]: Found } = {
  "llama.cpp-tools.json": {
    started: true,
    failed: false,
    terminal: true,
    finishReason: "tool_calls",
    usage: { promptTokens: 271, completionTokens: 35, cachedTokens: 270 },
    toolCalls: [
      {
        choice: 0,
        id: "chiD7uOr3AFV21PPR87HS0wL3OGMRYHW",
        name: "get_weather",
        arguments: '{\n    "city": "Paris"\n}',
      },
    ],
    responseId: "chatcmpl-PSrQbYuNvGOulXK0K2JEBbrPS6zmgBAJ",
    skipped: 0,
  },
  // A named tool: there are calls, although the reason is "stop".
  "vllm-recorded-named.json": {
    started: true,
    failed: false,
    terminal: true,
    finishReason: "stop",
    usage: { promptTokens: 265, completionTokens: 85, cachedTokens: 256 },
    toolCalls: [
      {
        choice: 0,
        id: "chatcmpl-tool-84fd8642453f6e70",
        name: "get_weather",
        arguments: '{"city": "Paris", "celsius": true}',
      },
    ],
    responseId: "chatcmpl-b2ec9fe9abf660ea",
    skipped: 0,
  },
};

/** An answer of more than a mebibyte, with what says something in front of, within and behind the bulk of it. */
function large(where: "behind" | "before"): Buffer {
  const bulk = JSON.stringify('\\"usage":{"prompt_tokens":666} é '.repeat(40_000));
  const calls =
    '"tool_calls" : [ {"id":"a\\u0031","type":"function","function":{"name":"f","arguments":"{\\"x\\":\\"é]}\\"}"}} ]';
  const usage = '"usage": {"prompt_tokens":7,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":3}}';
  const message = `"message":{"role":"assistant",${where === "before" ? `${calls},"content":${bulk}` : `"content":${bulk},${calls}`}}`;
  const choice = `"choices":[{"index":0,${message},"logprobs":null,"finish_reason":"tool_calls"}]`;
  return Buffer.from(where === "before" ? `{${usage},${choice}}` : `{${choice},${usage},"id":"r"}`);
}

describe("the tap on a whole JSON answer", () => {
  it("has an expectation for every recorded answer", () => {
    expect(fileNames(".json").sort()).toEqual(Object.keys(EXPECTED).sort());
  });

  it.each(Object.keys(EXPECTED))("finds the same in %s wherever it is split", (name) => {
    const bytes = read(name);
    for (let at = 0; at < bytes.length; at += 1) expect(tapped(bytes, [at])).toEqual(EXPECTED[name]);
  });

  it("has started with the first byte", () => {
    const tap = createJsonTap();
    expect(tap.findings.started).toBe(false);
    tap.push(Buffer.from("{"), 0, 1);
    expect(tap.findings.started).toBe(true);
  });

  it.each(["", "{", "[]", "null", "no", '{"choices":3,"usage":[]}', '{"choices":[null,{"message":null}]}'])(
    "takes %j without a word",
    (text) => {
      expect(tapped(Buffer.from(text), [])).toMatchObject({ usage: {}, finishReason: undefined, toolCalls: [] });
    },
  );

  it("says when the engine failed inside its answer", () => {
    expect(tapped(Buffer.from('{"error":{"message":"m"}}'), []).failed).toBe(true);
    expect(tapped(Buffer.from('{"error":null,"choices":[]}'), []).failed).toBe(false);
  });
});

describe("an answer that is too large to parse", () => {
  it.each(["behind", "before"] as const)("gives what says something, %s the bulk", (where) => {
    const bytes = large(where);
    expect(bytes.length).toBeGreaterThan(1_048_576);
    const found = tapped(
      bytes,
      Array.from({ length: Math.floor(bytes.length / 65_536) }, (_, at) => (at + 1) * 65_536),
    );
    expect(found).toMatchObject({
      skipped: 1,
      finishReason: "tool_calls",
      usage: { promptTokens: 7, completionTokens: 9, cachedTokens: 3 },
      toolCalls: [{ choice: 0, id: "a1", name: "f", arguments: '{"x":"é]}"}' }],
    });
  });

  it("gives the same wherever its last part is split", () => {
    const bytes = large("behind");
    const expected = tapped(bytes, []);
    for (let back = 1; back < 420; back += 11) {
      expect(tapped(bytes, [bytes.length - back, bytes.length - Math.floor(back / 2)])).toEqual(expected);
    }
  });

  it("keeps no value that does not end within its bound", () => {
    const calls = `[{"id":"a","function":{"name":"f","arguments":"${"x".repeat(1_200_000)}"}}]`;
    const bytes = Buffer.from(`{"choices":[{"message":{"tool_calls":${calls}},"finish_reason":"tool_calls"}]}`);
    expect(tapped(bytes, [])).toMatchObject({ skipped: 1, finishReason: "tool_calls", toolCalls: [] });
  });
});
