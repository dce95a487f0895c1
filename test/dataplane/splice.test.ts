import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { RequestScan } from "../../src/dataplane/inspection.ts";
import { scanRequest } from "../../src/dataplane/request-scan.ts";
import { spliceIncludeUsage, type Spliced } from "../../src/dataplane/splice.ts";
import { anyBody } from "./json-texts.ts";

function spliced(body: string | Buffer): Spliced {
  const bytes = Buffer.from(body);
  return spliceIncludeUsage(bytes, scanRequest(bytes, "chat") as RequestScan);
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
    const result = spliceIncludeUsage(bytes, scanRequest(bytes, "chat") as RequestScan);
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
        const { body, spliced: names } = spliceIncludeUsage(bytes, scan);
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
