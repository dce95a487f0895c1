/**
 * Byte edits of a request body that never re-serialise it (spec 3, Forwarding): everything outside the edit stays as the
 * client wrote it, so that integers, key order and the engine's cached prefix survive.
 */
import type { RequestScan } from "./inspection.ts";
import { BYTE, JsonScan } from "./json-scan.ts";
import { memberValue } from "./request-scan.ts";

/** What the splices need of the scan of a request. */
export type SplicePlace = Pick<RequestScan, "stream" | "includeUsage" | "streamOptions" | "priority" | "root">;

export type Spliced = {
  readonly body: Buffer;
  /** Names for `x-luftpause-spliced`; empty when the body was left as it is. */
  readonly spliced: readonly string[];
};

export const USAGE_SPLICE = "stream_options.include_usage";
const PRIORITY_SPLICE = "priority";

const FALSE = 0x66;
const NULL = 0x6e;

type Edit = { readonly name: string; readonly start: number; readonly end: number; readonly text: string };

/**
 * Edits a request for its engine: asks for usage on a stream whose client did not ask, and tells the engine the priority
 * that the policy gives. Never a second member of a name that stands there already: some engines refuse duplicates.
 * @param priority undefined: none is told, and a client's own stays.
 */
export function spliceRequest(body: Buffer, place: SplicePlace, priority: number | undefined): Spliced {
  const edits = [usageEdit(body, place), priorityEdit(place, priority)].filter((edit) => edit !== undefined);
  if (edits.length === 0) return { body, spliced: [] };
  const parts: Buffer[] = [];
  let from = 0;
  for (const { start, end, text } of edits.toSorted((one, other) => one.start - other.start)) {
    parts.push(body.subarray(from, start), Buffer.from(text, "latin1"));
    from = end;
  }
  parts.push(body.subarray(from));
  return { body: Buffer.concat(parts), spliced: edits.map(({ name }) => name) };
}

/**
 * A client that said `false` or `null` did not ask either: its value is replaced. Any other value is a mistake of the
 * client's, or one that the engine takes for true, and is left to the engine.
 */
function usageEdit(body: Buffer, { stream, includeUsage, streamOptions, root }: SplicePlace): Edit | undefined {
  if (!stream || includeUsage) return undefined;
  const name = USAGE_SPLICE;
  if (streamOptions === undefined) return member(name, root, ',"stream_options":{"include_usage":true}');
  const { start, end } = streamOptions;
  if (body[start] === NULL) return { name, start, end, text: '{"include_usage":true}' };
  if (body[start] !== BYTE.openObject) return undefined;
  const cursor = new JsonScan(body);
  const value = memberValue(cursor, start, "include_usage");
  if (value === undefined) {
    cursor.at = start + 1;
    const comma = cursor.peek() === BYTE.closeObject ? "" : ",";
    return member(name, streamOptions, `${comma}"include_usage":true`);
  }
  if (value.first !== FALSE && value.first !== NULL) return undefined;
  return { name, start: value.start, end: value.end, text: "true" };
}

/** A client's own is replaced: who goes first in the engine is the policy's to say, or every client would go first. */
function priorityEdit({ priority: own, root }: SplicePlace, priority: number | undefined): Edit | undefined {
  if (priority === undefined) return undefined;
  const name = PRIORITY_SPLICE;
  return own === undefined ? member(name, root, `,"priority":${priority}`) : { name, ...own, text: String(priority) };
}

/** Behind the last member of an object. A request has a model: its own object is never empty. */
function member(name: string, object: { readonly start: number; readonly end: number }, text: string): Edit {
  return { name, start: object.end - 1, end: object.end - 1, text };
}
