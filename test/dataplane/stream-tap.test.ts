import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { createStreamTap } from "../../src/dataplane/stream-tap.ts";
import {
  EXPECTED,
  fileNames,
  foundBy,
  parts,
  read,
  standsBetweenEvents,
  WAYS_TO_WRITE,
  written,
  type Found,
} from "./streams.ts";

const NAMES = Object.keys(EXPECTED);
const WAYS = Object.keys(WAYS_TO_WRITE);
/** Every byte of what was recorded; of the other ways every seventh, and all of them at once. */
const stepOf = (way: string): number => (way === "as recorded" ? 1 : 7);
const LINE_ENDS = ["as recorded", "with CRLF", "with CR", "with LF and CR taking turns"];

/** What a tap finds in a stream that comes in these parts. */
function tapped(bytes: Buffer, cuts: readonly number[]): Found {
  const tap = createStreamTap();
  for (const [buffer, start, end] of parts(bytes, cuts)) tap.push(buffer, start, end);
  tap.finish();
  return foundBy(tap);
}

/** Findings of one event that holds this JSON, behind a first event that has started the answer. */
function foundIn(...chunks: readonly unknown[]): Found {
  const events = chunks.map((chunk) => `data: ${JSON.stringify(chunk)}\n\n`).join("");
  return tapped(Buffer.from(`data: {"choices":[{"delta":{"content":"a"}}]}\n\n${events}`), []);
}

describe("the tap on a recorded stream", () => {
  it("has an expectation for every recorded stream, and a stream for every expectation", () => {
    expect(fileNames(".sse").sort()).toEqual([...NAMES].sort());
  });

  it.each(NAMES.flatMap((name) => WAYS.map((way) => [name, way] as const)))(
    "finds the same in %s, written %s, wherever it is split",
    (name, way) => {
      const bytes = written(name, way);
      expect(tapped(bytes, [])).toEqual(EXPECTED[name]);
      const expected = JSON.stringify(tapped(bytes, []));
      for (let at = 1; at < bytes.length; at += stepOf(way)) {
        const found = JSON.stringify(tapped(bytes, [at]));
        if (found !== expected) expect.fail(`split at ${at}: ${found}`);
      }
      const everywhere = Array.from({ length: bytes.length - 1 }, (_, at) => at + 1);
      expect(tapped(bytes, everywhere)).toEqual(EXPECTED[name]);
    },
  );

  it.each(WAYS)("finds the same in a short stream, written %s, at every pair of splits", (way) => {
    const bytes = written("made-short.sse", way);
    const expected = JSON.stringify(tapped(bytes, []));
    for (let first = 1; first < bytes.length; first += 1) {
      for (let second = first; second < bytes.length; second += 1) {
        const found = JSON.stringify(tapped(bytes, [first, second]));
        if (found !== expected) expect.fail(`split at ${first} and ${second}: ${found}`);
      }
    }
  });

  it.each(NAMES.flatMap((name) => LINE_ENDS.map((way) => [name, way] as const)))(
    "knows at every byte of %s, written %s, whether an event of ours may stand there",
    (name, way) => {
      const bytes = written(name, way);
      const byBytes = createStreamTap();
      for (let at = 0; at <= bytes.length; at += 1) {
        const expected = standsBetweenEvents(bytes.subarray(0, at));
        if (at > 0) byBytes.push(bytes, at - 1, at);
        if (byBytes.findings.betweenEvents !== expected) expect.fail(`byte by byte: after ${at} not ${expected}`);
        if (at % stepOf(way) !== 0) continue;
        const atOnce = createStreamTap();
        atOnce.push(bytes, 0, at);
        if (atOnce.findings.betweenEvents !== expected) expect.fail(`at once: after ${at} not ${expected}`);
      }
    },
  );
});

describe("the start of an answer", () => {
  const startedBy = (delta: unknown): boolean => {
    const tap = createStreamTap();
    const bytes = Buffer.from(`data: ${JSON.stringify({ choices: [{ index: 0, delta }] })}\n\n`);
    tap.push(bytes, 0, bytes.length);
    return tap.findings.started;
  };

  it.each([
    [{ content: "a" }],
    [{ content: null, reasoning: "a" }],
    [{ content: "", reasoning_content: "a" }],
    [{ reasoning_details: [{ type: "text", text: "a" }] }],
    [{ content: [{ type: "thinking", thinking: [{ type: "text", text: "a" }] }] }],
    [{ refusal: "no" }],
    [{ tool_calls: [{ index: 0 }] }],
  ])("is the delta %j", (delta) => {
    expect(startedBy(delta)).toBe(true);
  });

  it.each([
    [{ role: "assistant" }],
    [{ role: "assistant", content: "" }],
    [{ role: "assistant", content: null, reasoning_content: null, refusal: null, tool_calls: null }],
    [{ tool_calls: [] }],
    [{ reasoning_details: [] }],
    [{ content: [] }],
    [{ content_type: "text", contents: "a" }],
    [{}],
  ])("is not the delta %j", (delta) => {
    expect(startedBy(delta)).toBe(false);
  });

  it("is the first text of a completion, and no comment", () => {
    const tap = createStreamTap();
    const push = (text: string): void => tap.push(Buffer.from(text), 0, Buffer.byteLength(text));
    push(": keep-alive\n\n");
    push('data: {"choices":[{"index":0,"text":""}]}\n\n');
    expect(tap.findings.started).toBe(false);
    push('data: {"choices":[{"index":0,"text":"O"}]}\n\n');
    expect(tap.findings.started).toBe(true);
  });

  it("is seen at the last byte of its event, not before", () => {
    const tap = createStreamTap();
    const bytes = Buffer.from('data: {"choices":[{"delta":{"content":"a"}}]}\n\n');
    tap.push(bytes, 0, bytes.length - 1);
    expect(tap.findings.started).toBe(false);
    tap.push(bytes, bytes.length - 1, bytes.length);
    expect(tap.findings.started).toBe(true);
  });
});

describe("what content says", () => {
  it.each(["data: [DONE]", "[DONE]", "data: [DONE]\n\ndata: [DONE]\n\n"])("%j does not end a stream", (content) => {
    expect(foundIn({ choices: [{ delta: { content } }] }).terminal).toBe(false);
  });

  it("is never taken for a finish reason, usage, tool calls or an error", () => {
    const content = '"finish_reason":"stop","usage":{"prompt_tokens":1},"error":{"a":1},"tool_calls":[{"id":"x"}]';
    expect(foundIn({ choices: [{ delta: { content } }] })).toMatchObject({
      finishReason: undefined,
      usage: {},
      failed: false,
      toolCalls: [],
    });
  });
});

it("keeps a finish reason that is longer than any in part only", () => {
  expect(foundIn({ choices: [{ finish_reason: "r".repeat(100_000) }] }).finishReason).toBe("r".repeat(64));
});

describe("tool calls", () => {
  const deltas = (...calls: readonly unknown[]): Found =>
    foundIn(...calls.map((call) => ({ choices: [{ index: 0, delta: { tool_calls: [call] } }] })));

  it("take an id that comes after their arguments have begun", () => {
    const { toolCalls } = deltas(
      { index: 0, function: { name: "f", arguments: "{" } },
      { index: 0, id: "late", function: { arguments: "}" } },
    );
    expect(toolCalls).toEqual([{ choice: 0, id: "late", name: "f", arguments: "{}" }]);
  });

  it("without an index go by their place in the list", () => {
    const { toolCalls } = foundIn({
      choices: [{ delta: { tool_calls: [{ function: { name: "f" } }, { function: { name: "g", arguments: "{}" } }] } }],
    });
    expect(toolCalls.map(({ name }) => name)).toEqual(["f", "g"]);
  });

  it("may be custom ones, whose text is an input", () => {
    const { toolCalls } = deltas({ index: 0, id: "c", custom: { name: "sh", input: "ls" } });
    expect(toolCalls).toEqual([{ choice: 0, id: "c", name: "sh", arguments: "ls" }]);
  });

  it("of a model that loops are kept up to a bound, and so are their arguments", () => {
    const many = deltas(
      ...Array.from({ length: 300 }, (_, at) => ({ index: at, id: `c${at}`, function: { name: "f" } })),
    );
    expect(many.toolCalls).toHaveLength(256);
    const long = deltas(
      ...Array.from({ length: 30 }, () => ({
        index: 0,
        id: "c",
        function: { name: "f", arguments: "x".repeat(60_000) },
      })),
    );
    expect(long.toolCalls[0]?.arguments.length).toBe(17 * 60_000);
    const named = deltas(
      ...Array.from({ length: 30 }, (_, at) => ({
        index: at,
        id: "i".repeat(30_000),
        function: { name: `f${at}`.padEnd(30_000, "n"), arguments: "{}" },
      })),
    );
    expect(named.toolCalls).toHaveLength(17);
    expect(JSON.stringify(named.toolCalls).length).toBeLessThan(1_100_000);
  });
});

describe("usage", () => {
  it("keeps per field the last value that is not null", () => {
    const found = foundIn(
      { usage: { prompt_tokens: 10, completion_tokens: null, prompt_tokens_details: { cached_tokens: 4 } } },
      { usage: { prompt_tokens: null, completion_tokens: 3 } },
      { usage: { completion_tokens: 5, prompt_tokens_details: null } },
    );
    expect(found.usage).toEqual({ promptTokens: 10, completionTokens: 5, cachedTokens: 4 });
  });

  it("ignores what is no count", () => {
    expect(foundIn({ usage: { prompt_tokens: "7", completion_tokens: -1 } }).usage).toEqual({});
    // Two of these would add up to what no JSON can hold, on the link too.
    expect(foundIn({ timings: { prompt_n: 1e308, cache_n: 1e308, predicted_n: 1.5 } }).usage).toEqual({});
  });

  it("prefers usage to timings, whichever comes first", () => {
    const usage = { usage: { prompt_tokens: 9, completion_tokens: 2 } };
    const timings = { timings: { prompt_n: 3, cache_n: 5, predicted_n: 7 } };
    const expected = { promptTokens: 9, completionTokens: 2, cachedTokens: 5 };
    expect(foundIn(usage, timings).usage).toEqual(expected);
    expect(foundIn(timings, usage).usage).toEqual(expected);
    expect(foundIn(timings).usage).toEqual({ promptTokens: 8, completionTokens: 7, cachedTokens: 5 });
  });
});

describe("an event that is too large", () => {
  const huge = (bytes: number): string =>
    `data: ${JSON.stringify({ choices: [{ delta: { content: "x".repeat(bytes) }, finish_reason: "lost" }] })}\n\n`;
  const stream = Buffer.from(
    `data: {"choices":[{"delta":{"content":"a"}}]}\n\n${huge(300_000)}data: {"choices":[{"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n`,
  );

  it.each([[[]], [[100]], [[100, 262_300]], [[40, 299_000, 300_100]]])(
    "is skipped and counted, and what follows is read (split at %j)",
    (cuts) => {
      expect(tapped(stream, cuts)).toMatchObject({ skipped: 1, finishReason: "stop", terminal: true, started: true });
    },
  );

  it("is skipped when it comes in small pieces, and the piece where it ends is between events", () => {
    const cuts = Array.from({ length: Math.floor(stream.length / 997) }, (_, index) => (index + 1) * 997);
    expect(tapped(stream, cuts)).toMatchObject({ skipped: 1, finishReason: "stop", terminal: true });
  });

  it.each([[[]], [[100]]])("is counted although it says nothing but text (split at %j)", (cuts) => {
    const text = JSON.stringify({ choices: [{ delta: { content: "x".repeat(300_000) } }] });
    const bytes = Buffer.from(`data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: ${text}\n\n`);
    expect(tapped(bytes, cuts)).toMatchObject({ skipped: 1 });
  });

  it("of just the largest size is read", () => {
    const rest = huge(0).length;
    const bytes = Buffer.from(huge(262_144 - rest));
    expect(bytes.length).toBe(262_144);
    expect(tapped(bytes, [5000, 200_000])).toMatchObject({ skipped: 0, finishReason: "lost" });
    expect(tapped(Buffer.from(huge(262_145 - rest)), [5000, 262_144])).toMatchObject({ skipped: 1 });
  });
});

describe("the tap on anything", () => {
  it("never throws, and finds the same wherever the bytes are split", () => {
    const piece = fc.oneof(
      fc.constantFrom(
        "\n",
        "\r",
        "\r\n",
        "\n\n",
        "data:",
        "data: ",
        "data: [DONE]",
        ": c",
        "event: x",
        "\u00ef\u00bb\u00bf",
      ),
      fc.constantFrom(
        '{"choices":[{"delta":{"content":"a"}}]}',
        '{"choices":[{"finish_reason":"stop"}]}',
        '{"choices":[],"usage":{"prompt_tokens":1}}',
        '{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}}]}}]}',
        '{"choices":[{"delta":{"tool_calls":[null,1,{"function":null}]}}]}',
        '{"usage":[],"choices":{},"error":null}',
        "\u00ff\u00fe",
        '{"',
      ),
    );
    fc.assert(
      fc.property(
        fc.array(piece, { maxLength: 12 }),
        fc.array(fc.nat({ max: 400 }), { maxLength: 6 }),
        (texts, positions) => {
          const bytes = Buffer.from(texts.join(""), "latin1");
          const cuts = positions.map((at) => Math.min(at, bytes.length)).sort((a, b) => a - b);
          expect(tapped(bytes, cuts)).toEqual(tapped(bytes, []));
        },
      ),
      { numRuns: 1_500 },
    );
  });

  it("reads nothing outside the range that it is given", () => {
    const bytes = read("vllm-tools.sse");
    const around = Buffer.concat([Buffer.from("data: [DONE]\n\n"), bytes, Buffer.from('data: {"id":"z"}\n\n')]);
    const tap = createStreamTap();
    tap.push(around, 14, 14 + bytes.length);
    tap.finish();
    expect(foundBy(tap)).toEqual(EXPECTED["vllm-tools.sse"]);
  });
});
