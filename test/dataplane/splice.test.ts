import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { RequestScan } from "../../src/dataplane/inspection.ts";
import { scanRequest } from "../../src/dataplane/request-scan.ts";
import { spliceRequest, type Spliced } from "../../src/dataplane/splice.ts";
import { anyBody } from "./json-texts.ts";

/** As if it were the body of a stream. */
function spliced(body: string | Buffer, priority?: number): Spliced {
  const bytes = Buffer.from(body);
  return spliceRequest(bytes, { ...(scanRequest(bytes, "chat") as RequestScan), stream: true }, priority);
}

const NAME = "stream_options.include_usage";

describe("the splice that asks for usage", () => {
  it.each([
    ['{"model":"m"}', '{"model":"m","stream_options":{"include_usage":true}}'],
    [' { "model" : "m"\n}\n', ' { "model" : "m"\n,"stream_options":{"include_usage":true}}\n'],
    [
      '{"model":"m","stream_options":{}, "seed":12345678901234567890}',
      '{"model":"m","stream_options":{"include_usage":true}, "seed":12345678901234567890}',
    ],
    ['{"stream_options":{ },"model":"m"}', '{"stream_options":{ "include_usage":true},"model":"m"}'],
    [
      '{"model":"m","stream_options":{"continuous_usage_stats":true }}',
      '{"model":"m","stream_options":{"continuous_usage_stats":true ,"include_usage":true}}',
    ],
    [
      '{"model":"m","stream_options":{"include_usage":false,"x":1}}',
      '{"model":"m","stream_options":{"include_usage":true,"x":1}}',
    ],
    [
      '{"model":"m","stream_options":{"include_usage": null}}',
      '{"model":"m","stream_options":{"include_usage": true}}',
    ],
    ['{"model":"m","stream_options":null}', '{"model":"m","stream_options":{"include_usage":true}}'],
    // Of duplicates the last one counts.
    [
      '{"stream_options":null,"model":"m","stream_options":{"include_usage":true,"include_usage":false}}',
      '{"stream_options":null,"model":"m","stream_options":{"include_usage":true,"include_usage":true}}',
    ],
    [
      '{"model":"m","stream\\u005foptions":{"include\\u005fusage":false}}',
      '{"model":"m","stream\\u005foptions":{"include\\u005fusage":true}}',
    ],
    ['{"model":"é{}","x":"\\"}"}', '{"model":"é{}","x":"\\"}","stream_options":{"include_usage":true}}'],
  ])("turns %j into %j", (body, expected) => {
    const { body: edited, spliced: names } = spliced(body);
    expect(edited.toString()).toBe(expected);
    expect(names).toEqual([NAME]);
  });

  it.each([
    '{"model":"m","stream_options":7}',
    '{"model":"m","stream_options":["include_usage"]}',
    '{"model":"m","stream_options":{"include_usage":"yes"}}',
    '{"model":"m","stream_options":{"include_usage":1}}',
    '{"model":"m","stream_options":{"include_usage":true}}',
  ])("leaves %j to the engine", (body) => {
    const bytes = Buffer.from(body);
    const result = spliceRequest(bytes, { ...(scanRequest(bytes, "chat") as RequestScan), stream: true }, undefined);
    expect(result.body).toBe(bytes);
    expect(result.spliced).toEqual([]);
  });

  it("changes nothing in any body but what it asks for, and no byte outside that", () => {
    let edits = 0;
    fc.assert(
      fc.property(anyBody, (text) => {
        const bytes = Buffer.from(text);
        const scan = scanRequest(bytes, "chat");
        fc.pre(!("code" in scan));
        const { body, spliced: names } = spliceRequest(bytes, { ...scan, stream: true }, undefined);
        const before = JSON.parse(text) as { readonly stream_options?: unknown };
        if (names.length === 0) {
          expect(body).toBe(bytes);
          return;
        }
        edits += 1;
        const options = before.stream_options;
        const others = typeof options === "object" && options !== null ? options : {};
        expect(JSON.parse(body.toString())).toEqual({ ...before, stream_options: { ...others, include_usage: true } });
        // What stands before and behind the edit is the whole body, but for a value that was replaced.
        let start = 0;
        while (start < bytes.length && bytes[start] === body[start]) start += 1;
        let end = 0;
        while (end < bytes.length - start && bytes.at(-1 - end) === body.at(-1 - end)) end += 1;
        expect(["", "null", "nul", "fals", "false"]).toContain(bytes.toString("utf8", start, bytes.length - end));
      }),
      { numRuns: 600 },
    );
    expect(edits).toBeGreaterThan(60);
  });
});

describe("the splice that tells the engine a priority", () => {
  const PRIORITY = "priority";

  it.each([
    [
      '{"model":"m","stream_options":{"include_usage":true}}',
      '{"model":"m","stream_options":{"include_usage":true},"priority":1}',
    ],
    // Who goes first is the policy's to say: a client's own is replaced, also one that is no number.
    ['{"priority":999999, "model":"m","stream_options":7}', '{"priority":1, "model":"m","stream_options":7}'],
    ['{"priority":{"a":[1]},"model":"m","stream_options":7}', '{"priority":1,"model":"m","stream_options":7}'],
    // Of duplicates the last one counts.
    [
      '{"priority":5,"model":"m","priority":6,"stream_options":7}',
      '{"priority":5,"model":"m","priority":1,"stream_options":7}',
    ],
  ])("turns %j into %j", (body, expected) => {
    const { body: edited, spliced: names } = spliced(body, 1);
    expect(edited.toString()).toBe(expected);
    expect(names).toEqual([PRIORITY]);
  });

  it.each([
    ['{"model":"m"}', '{"model":"m","stream_options":{"include_usage":true},"priority":0}'],
    [
      '{"stream_options":{},"priority":7,"model":"m"}',
      '{"stream_options":{"include_usage":true},"priority":0,"model":"m"}',
    ],
    [
      '{"priority":7,"model":"m","stream_options":null}',
      '{"priority":0,"model":"m","stream_options":{"include_usage":true}}',
    ],
  ])("goes with the other one: %j into %j", (body, expected) => {
    const { body: edited, spliced: names } = spliced(body, 0);
    expect(edited.toString()).toBe(expected);
    expect(names.toSorted()).toEqual([PRIORITY, NAME]);
  });

  it("is the only thing that happens to a turn that does not stream", () => {
    const bytes = Buffer.from('{"model":"m","stream":false}');
    const scan = scanRequest(bytes, "chat") as RequestScan;
    expect(spliceRequest(bytes, scan, 1)).toEqual({
      body: Buffer.from('{"model":"m","stream":false,"priority":1}'),
      spliced: [PRIORITY],
    });
    expect(spliceRequest(bytes, scan, undefined).body).toBe(bytes);
  });

  it("changes nothing in any body but that member", () => {
    fc.assert(
      fc.property(anyBody, fc.nat(9), (text, priority) => {
        const bytes = Buffer.from(text);
        const scan = scanRequest(bytes, "chat");
        fc.pre(!("code" in scan));
        const { body } = spliceRequest(bytes, { ...scan, stream: false }, priority);
        expect(JSON.parse(body.toString())).toEqual({ ...(JSON.parse(text) as object), priority });
      }),
      { numRuns: 300 },
    );
  });
});
