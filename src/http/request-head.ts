/**
 * The strict grammar of the fast lane. It takes only requests that every HTTP/1.1 parser reads in the same way; everything
 * else goes to node:http, so that the lane can never disagree with it about where a request ends (request smuggling).
 */
import { lowerNameOf } from "./header-grammar.ts";

export type RequestHead = {
  readonly method: string;
  readonly path: string;
  readonly query: string;
  /** Names and values alternating, as received. */
  readonly rawHeaders: string[];
  /** The names in lower case, one per header. */
  readonly names: string[];
  /** Bytes of body that follow; 0 without content-length. */
  readonly bodyBytes: number;
  /** The client asked to close after the answer. */
  readonly close: boolean;
};

/** Node's own limit on a request's head (16 KiB). */
export const HEAD_BYTES_MAX = 16_384;

// One space between the parts, origin form only. `#` and `\\` have no place in a target.
const REQUEST_LINE = /^(?:GET|POST|DELETE) \/[\x21\x22\x24-\x5b\x5d-\x7e]* HTTP\/1\.1$/;
const SPACE = 0x20;
const VERSION_CHARS = " HTTP/1.1".length;
/** No control characters, so no folding either. */
const VALUE = /^[\x20-\x7e\x80-\xff]*$/;
const LENGTH = /^(?:0|[1-9]\d{0,14})$/;

/** Headers that change how a message is framed or continued: node:http handles them. */
const UNUSUAL = new Set([
  "transfer-encoding",
  "expect",
  "upgrade",
  "te",
  "trailer",
  "http2-settings",
  "proxy-connection",
]);

/**
 * Parses the head of a request.
 * @param text the bytes before the blank line, as Latin-1.
 * @returns undefined when anything is unusual: the connection then belongs to node:http.
 */
export function parseRequestHead(text: string): RequestHead | undefined {
  let end = text.indexOf("\r\n");
  if (end === -1) end = text.length;
  const line = text.slice(0, end);
  if (!REQUEST_LINE.test(line)) return undefined;
  const rawHeaders: string[] = [];
  const names: string[] = [];
  let bodyBytes = -1;
  let hosts = 0;
  let close = false;
  while (end < text.length) {
    const from = end + 2;
    end = text.indexOf("\r\n", from);
    if (end === -1) end = text.length;
    const colon = text.indexOf(":", from);
    if (colon === -1 || colon >= end) return undefined;
    const raw = text.slice(from, colon);
    const name = lowerNameOf(raw);
    const value = plainValue(text, colon + 1, end);
    if (name === undefined || value === undefined || UNUSUAL.has(name)) return undefined;
    if (name === "content-length") {
      if (bodyBytes !== -1 || !LENGTH.test(value)) return undefined;
      bodyBytes = Number(value);
    } else if (name === "host") {
      hosts += 1;
    } else if (name === "connection") {
      const option = value.toLowerCase();
      if (option === "close") close = true;
      else if (option !== "keep-alive") return undefined;
    }
    rawHeaders.push(raw, value);
    names.push(name);
  }
  if (hosts !== 1) return undefined;
  const space = line.indexOf(" ");
  const target = line.slice(space + 1, line.length - VERSION_CHARS);
  const mark = target.indexOf("?");
  return {
    method: line.slice(0, space),
    path: mark === -1 ? target : target.slice(0, mark),
    query: mark === -1 ? "" : target.slice(mark),
    rawHeaders,
    names,
    bodyBytes: Math.max(0, bodyBytes),
    close,
  };
}

/** A value behind at most one space and without any other around it; undefined when it is not written so. */
function plainValue(text: string, from: number, to: number): string | undefined {
  const value = text.slice(text.charCodeAt(from) === SPACE ? from + 1 : from, to);
  if (value.charCodeAt(0) === SPACE || value.charCodeAt(value.length - 1) === SPACE) return undefined;
  return VALUE.test(value) ? value : undefined;
}

/** First value of a lower-case name, or undefined. */
export function headerValue(head: Pick<RequestHead, "names" | "rawHeaders">, name: string): string | undefined {
  const at = head.names.indexOf(name);
  return at === -1 ? undefined : head.rawHeaders[2 * at + 1];
}

/** How often a lower-case name occurs. */
export function headerCount(head: Pick<RequestHead, "names">, name: string): number {
  let count = 0;
  for (const other of head.names) if (other === name) count += 1;
  return count;
}
