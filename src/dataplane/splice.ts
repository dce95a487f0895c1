/**
 * Byte edits of a request body that never re-serialise it (spec 3, Forwarding): everything outside the edit stays as the
 * client wrote it, so that integers, key order and the engine's cached prefix survive.
 */
import type { RequestScan } from "./inspection.ts";
import { BYTE, JsonScan } from "./json-scan.ts";
import { memberValue } from "./request-scan.ts";

/** What a splice needs of the scan of a request. */
export type SplicePlace = Pick<RequestScan, "includeUsage" | "streamOptions" | "root">;

export type Spliced = {
  readonly body: Buffer;
  /** Names for `x-luftpause-spliced`; empty when the body was left as it is. */
  readonly spliced: readonly string[];
};

const NAMES: readonly string[] = ["stream_options.include_usage"];
const NONE: readonly string[] = [];

const FALSE = 0x66;
const NULL = 0x6e;

/**
 * Asks for usage on a stream whose client did not ask. A client that said `false` or `null` did not ask either: its value
 * is replaced. Never a second member of a name that stands there already: some engines refuse duplicates. Any other value
 * is a mistake of the client's, or one that the engine takes for true, and is left to the engine.
 */
export function spliceIncludeUsage(body: Buffer, place: Omit<SplicePlace, "includeUsage">): Spliced {
  const { streamOptions, root } = place;
  const cursor = new JsonScan(body);
  if (streamOptions === undefined) return member(cursor, root, '"stream_options":{"include_usage":true}');
  const { start, end } = streamOptions;
  if (body[start] === NULL) return edit(body, start, end, '{"include_usage":true}');
  if (body[start] !== BYTE.openObject) return { body, spliced: NONE };
  const value = memberValue(cursor, start, "include_usage");
  if (value === undefined) return member(cursor, streamOptions, '"include_usage":true');
  if (value.first !== FALSE && value.first !== NULL) return { body, spliced: NONE };
  return edit(body, value.start, value.end, "true");
}

/** Adds a member behind the last one of an object. */
function member(cursor: JsonScan, object: { readonly start: number; readonly end: number }, text: string): Spliced {
  cursor.at = object.start + 1;
  const comma = cursor.peek() === BYTE.closeObject ? "" : ",";
  return edit(cursor.bytes, object.end - 1, object.end - 1, comma + text);
}

function edit(body: Buffer, start: number, end: number, text: string): Spliced {
  const edited = Buffer.concat([body.subarray(0, start), Buffer.from(text, "latin1"), body.subarray(end)]);
  return { body: edited, spliced: NAMES };
}
