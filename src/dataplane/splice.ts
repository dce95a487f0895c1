/**
 * Byte edits of a request body that never re-serialise it (spec 3, Forwarding): everything outside the edit stays as the
 * client wrote it, so that a prefix cache and a signature survive.
 */
import type { RequestScan } from "./inspection.ts";
import { JsonScan } from "./json-scan.ts";

export type Spliced = {
  readonly body: Buffer;
  /** What was edited, for `x-luftpause-spliced`. */ readonly spliced: readonly string[];
};

const EDIT: readonly string[] = ["stream_options.include_usage"];

/**
 * Asks for usage on a stream whose client did not. A client that said `include_usage: false` did not ask either: its value
 * is replaced, and the chunk that follows from it is cut out again.
 */
export function spliceIncludeUsage(body: Buffer, scan: RequestScan): Spliced {
  return { body: askForUsage(body, scan), spliced: EDIT };
}

function askForUsage(body: Buffer, scan: RequestScan): Buffer {
  const { streamOptions, root } = scan;
  if (streamOptions === undefined) {
    // Behind the last member. A null or otherwise broken `stream_options` before it is overruled: the last one counts.
    const member = '"stream_options":{"include_usage":true}';
    return insert(body, root.end - 1, isEmpty(body, root.start) ? member : `,${member}`);
  }
  const value = includeUsageAt(body, streamOptions.start);
  if (value !== undefined) return replace(body, value.start, value.end, "true");
  const member = '"include_usage":true';
  const text = isEmpty(body, streamOptions.start) ? member : `,${member}`;
  return insert(body, streamOptions.end - 1, text);
}

function isEmpty(body: Buffer, start: number): boolean {
  const cursor = new JsonScan(body);
  cursor.at = start + 1;
  return cursor.peek() === 0x7d;
}

/** The range of the value of the last `include_usage` in an object, or undefined. The object was validated before. */
function includeUsageAt(body: Buffer, start: number): { readonly start: number; readonly end: number } | undefined {
  const cursor = new JsonScan(body);
  cursor.at = start + 1;
  let found: { readonly start: number; readonly end: number } | undefined;
  while (cursor.peek() !== 0x7d) {
    const keyStart = cursor.at;
    cursor.string();
    const key = JSON.parse(body.toString("utf8", keyStart, cursor.at)) as string;
    cursor.expect(0x3a, "expected ':'");
    cursor.peek();
    const from = cursor.at;
    cursor.value(2);
    if (key === "include_usage") found = { start: from, end: cursor.at };
    if (cursor.peek() === 0x2c) cursor.at += 1;
  }
  return found;
}

function insert(body: Buffer, at: number, text: string): Buffer {
  return replace(body, at, at, text);
}

function replace(body: Buffer, start: number, end: number, text: string): Buffer {
  return Buffer.concat([body.subarray(0, start), Buffer.from(text, "latin1"), body.subarray(end)]);
}
