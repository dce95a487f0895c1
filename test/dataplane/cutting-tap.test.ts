import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { createCuttingTap } from "../../src/dataplane/cutting-tap.ts";
import { EXPECTED, foundBy, parts, read, WAYS_TO_WRITE, written, type Found } from "./streams.ts";

type Passed = { readonly bytes: Buffer; readonly found: Found; readonly sizes: readonly number[] };

/** What the tap lets through of a stream that comes in these parts, and how much at each of them. */
function passed(bytes: Buffer, cuts: readonly number[]): Passed {
  const tap = createCuttingTap();
  const out: Buffer[] = [];
  const sizes: number[] = [];
  let size = 0;
  const emit = (buffer: Buffer, start: number, end: number): void => {
    size += end - start;
    out.push(Buffer.from(buffer.subarray(start, end)));
  };
  for (const [buffer, start, end] of parts(bytes, cuts)) {
    size = 0;
    tap.push(buffer, start, end, emit);
    sizes.push(size);
  }
  tap.finish(emit);
  return { bytes: Buffer.concat(out), found: foundBy(tap), sizes };
}

/** How the usage event of each stream begins: it is what must go. Streams that are not here have none to take out. */
const USAGE_EVENTS: { readonly [name: string]: RegExp } = {
  "hosted-odd.sse": /data: \{"id":"x-1","choices":\[\],"usage":.*\n\ndata: \{"id":"x-1","choices":\[\],"usage":.*\n\n/,
  "llama.cpp-tools.sse": /data: \{"choices":\[\],.*\n\n/,
  "llama.cpp-usage.sse": /data: \{"choices":\[\],.*\n\n/,
  "made-short.sse": /data: \{"choices":\[\],.*\n\n/,
  "ollama-parallel.sse": /data: \{.*"choices":\[\],.*\n\n/,
  "sglang-reasoning.sse": /data: \{.*"choices":\[\],.*\n\n/,
  "sglang-tools.sse": /data: \{.*"choices":\[\],.*\n\n/,
  "vllm-continuous-usage.sse": /data: \{.*"choices":\[\],.*\n\n/,
  "vllm-recorded-text.sse": /data: \{.*"choices":\[\],.*\n\n/,
  "vllm-recorded-tools.sse": /data: \{.*"choices":\[\],.*\n\n/,
  "vllm-tools.sse": /data: \{.*"choices":\[\],.*\n\n/,
};

/** The stream without its usage event, written in one way. */
function withoutUsage(name: string, way: string): Buffer {
  const text = read(name).toString("latin1");
  const event = USAGE_EVENTS[name];
  if (event === undefined) return written(name, way);
  const cut = text.replace(event, "");
  expect(cut.length).toBeLessThan(text.length);
  return Buffer.from((WAYS_TO_WRITE[way] ?? String)(cut), "latin1");
}

// A comment before every event would stay behind: what it stands before is not what it belongs to.
const WAYS = Object.keys(WAYS_TO_WRITE).filter((way) => way !== "with a comment before every event");
const stepOf = (way: string): number => (way === "as recorded" ? 1 : 7);

describe("the cutting tap on a recorded stream", () => {
  it.each(Object.keys(EXPECTED).flatMap((name) => WAYS.map((way) => [name, way] as const)))(
    "takes exactly the usage event out of %s, written %s, wherever it is split",
    (name, way) => {
      const bytes = written(name, way);
      const expected = withoutUsage(name, way);
      const whole = passed(bytes, []);
      expect(whole.bytes.toString("latin1")).toBe(expected.toString("latin1"));
      expect(whole.found).toEqual(EXPECTED[name]);
      const found = JSON.stringify(whole.found);
      for (let at = 1; at < bytes.length; at += stepOf(way)) {
        const split = passed(bytes, [at]);
        if (!split.bytes.equals(expected)) expect.fail(`split at ${at}: ${split.bytes.toString("latin1")}`);
        if (JSON.stringify(split.found) !== found) expect.fail(`split at ${at}: ${JSON.stringify(split.found)}`);
      }
      const everywhere = Array.from({ length: bytes.length - 1 }, (_, at) => at + 1);
      expect(passed(bytes, everywhere).bytes.toString("latin1")).toBe(expected.toString("latin1"));
    },
  );

  it("gives the same bytes at every pair of splits of a short stream", () => {
    for (const way of ["as recorded", "with CRLF", "with LF and CR taking turns"]) {
      const bytes = written("made-short.sse", way);
      const expected = withoutUsage("made-short.sse", way);
      for (let first = 1; first < bytes.length; first += 1) {
        for (let second = first; second < bytes.length; second += 1) {
          if (!passed(bytes, [first, second]).bytes.equals(expected)) expect.fail(`${way}: ${first} and ${second}`);
        }
      }
    }
  });

  it.each(Object.keys(EXPECTED))("holds nothing of %s back before a finish reason was seen", (name) => {
    const bytes = read(name);
    const text = bytes.toString("latin1");
    const finish = text.search(/"finish_reason": ?"/);
    const until = finish === -1 ? bytes.length : text.indexOf("\n\n", finish) + 2;
    const cuts = Array.from({ length: until }, (_, at) => at + 1);
    const { sizes } = passed(bytes, cuts);
    expect(sizes.slice(0, until)).toEqual(cuts.map(() => 1));
  });

  it("passes a whole read on as it came, without a copy, until something is cut", () => {
    const bytes = read("vllm-tools.sse");
    const seen: unknown[] = [];
    createCuttingTap().push(bytes, 10, 500, (buffer, start, end) => seen.push([buffer === bytes, start, end]));
    expect(seen).toEqual([[true, 10, 500]]);
  });
});

const FINISH = 'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n';
const usage = (rest: string): string => `data: {"choices":[],"usage":{"prompt_tokens":1}${rest}}\n\n`;
const through = (...events: readonly string[]): string => passed(Buffer.from(events.join("")), []).bytes.toString();

describe("what is not cut", () => {
  it.each([
    ["usage before any finish reason", [usage(""), FINISH], usage("") + FINISH],
    ["usage in a chunk with a choice", [FINISH, 'data: {"choices":[{}],"usage":{"prompt_tokens":1}}\n\n'], undefined],
    ["an error that comes with usage", [FINISH, usage(',"error":{"message":"m"}')], undefined],
    ["usage that is null", [FINISH, 'data: {"choices":[],"usage":null}\n\n'], undefined],
    ["an event without choices", [FINISH, 'data: {"usage":{"prompt_tokens":1}}\n\n'], undefined],
    ["an event larger than any usage chunk", [FINISH, usage(`,"x":"${"y".repeat(9_000)}"`)], undefined],
    ["a comment and the end", [FINISH, ": bye\n\n", "data: [DONE]\n\n"], undefined],
  ])("%s", (_, events, expected) => {
    expect(through(...events)).toBe(expected ?? events.join(""));
  });

  it("is a long event after the finish reason, which passes although it comes in pieces", () => {
    const bytes = Buffer.from(FINISH + usage(`,"x":"${"y".repeat(9_000)}"`) + "data: [DONE]\n\n");
    const cuts = Array.from({ length: Math.floor(bytes.length / 1_000) }, (_, index) => (index + 1) * 1_000);
    const { bytes: out, sizes } = passed(bytes, cuts);
    expect(out.equals(bytes)).toBe(true);
    // Held at first, on its way as soon as it is too long.
    expect(sizes[1]).toBe(0);
    expect(sizes.slice(0, -1).reduce((sum, size) => sum + size, 0)).toBeGreaterThan(8_192);
  });
});

it("does not hold a long event back that began in the same read as the finish reason", () => {
  const bytes = Buffer.from(`${FINISH}data: {"x":"${"y".repeat(9_000)}`);
  expect(passed(bytes, [bytes.length]).sizes[0]).toBe(bytes.length);
});

describe("what is cut", () => {
  it("is usage that ends the stream without a blank line", () => {
    expect(through(FINISH, usage("").slice(0, -2))).toBe(FINISH);
  });

  it("is every usage chunk, and line ends between events stay", () => {
    expect(through(FINISH, "\n", usage(""), "\n", usage(""), "data: [DONE]\n\n")).toBe(`${FINISH}\n\ndata: [DONE]\n\n`);
  });
});

describe("the place for an event of ours", () => {
  it("is there while an event is held that the client has not seen", () => {
    const tap = createCuttingTap();
    const push = (text: string): void => tap.push(Buffer.from(text), 0, Buffer.byteLength(text), () => undefined);
    push(FINISH.slice(0, 20));
    expect(tap.findings.betweenEvents).toBe(false);
    push(FINISH.slice(20));
    expect(tap.findings.betweenEvents).toBe(true);
    push('data: {"choices":[],');
    expect(tap.findings.betweenEvents).toBe(true);
    push("x".repeat(9_000));
    expect(tap.findings.betweenEvents).toBe(false);
  });
});

it("gives the same bytes and findings for any events in any parts", () => {
  const event = fc.constantFrom(
    FINISH,
    usage(""),
    usage(',"id":"u"'),
    usage("").replaceAll("\n", "\r\n"),
    FINISH.replaceAll("\n", "\r\n"),
    usage("").replaceAll("\n", "\r"),
    'data: {"choices":[{"delta":{"content":"a"}}]}\n\n',
    ": c\n\n",
    "data: [DONE]\n\n",
    "\n",
    "\r",
    "\r\n",
    "data: half",
  );
  fc.assert(
    fc.property(fc.array(event, { maxLength: 8 }), fc.array(fc.nat({ max: 500 }), { maxLength: 6 }), (events, at) => {
      const bytes = Buffer.from(events.join(""), "latin1");
      const cuts = at.map((position) => Math.min(position, bytes.length)).sort((a, b) => a - b);
      const whole = passed(bytes, []);
      const split = passed(bytes, cuts);
      expect(split.bytes.toString("latin1")).toBe(whole.bytes.toString("latin1"));
      expect(split.found).toEqual(whole.found);
    }),
    { numRuns: 1_500 },
  );
});
