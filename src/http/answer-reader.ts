/**
 * Reads one HTTP/1.1 answer of an engine from the bytes of a socket: head, then the body by its framing. The bytes are
 * not copied: payload ranges and wire ranges of the caller's buffer go to the handler as they are found.
 *
 * Strict where leniency would let two readers disagree: one framing only, sizes in digits, no folded headers.
 *
 * A1: the wire bytes that were given never end inside a size line or the last chunk: whenever no chunk's data is open,
 *     bytes of our own may follow them. Trailers are dropped, the last chunk is given whole, and only at the end.
 * A2: after `stop`, also from inside a callback, nothing is given any more.
 */
import { isHeaderValue, lowerNameOf } from "./header-grammar.ts";
import type { EngineHandler } from "./engine-call.ts";

/** Largest head of an answer, informational heads included. */
const HEAD_BYTES_MAX = 65_536;
/** Informational answers before the real one. */
const INFORMATIONAL_MAX = 16;
/** A chunk's size line with its extensions. */
const SIZE_LINE_BYTES_MAX = 1_024;
const TRAILER_BYTES_MAX = 16_384;
/** Digits of a chunk's size: up to 4 GiB. */
const SIZE_DIGITS_MAX = 8;

export type ReadOutcome = "more" | "whole-reusable" | "whole-closing" | { readonly malformed: string };

const STATUS_LINE = /^HTTP\/1\.([01]) ([1-9]\d\d)(?: .*)?$/;
const LAST_CHUNK = Buffer.from("0\r\n\r\n", "latin1");

type Phase = "head" | "length" | "size" | "data" | "data-end" | "trailer" | "close" | "done";

export class AnswerReader {
  /** A byte of an answer has come. */
  began = false;
  /** How long the server keeps the connection, where it says so. */
  keepAliveMs: number | undefined;
  readonly #handler: EngineHandler;
  readonly #method: string;
  #phase: Phase = "head";
  /** Bytes of a head, a size line or a trailer that are not whole yet. */
  #carry = "";
  #left = 0;
  #reusable = true;
  #informational = 0;
  #trailerBytes = 0;
  #stopped = false;

  constructor(handler: EngineHandler, method: string) {
    this.#handler = handler;
    this.#method = method;
  }

  /** Nothing of a chunk is open: bytes of our own may be put between. */
  get betweenFrames(): boolean {
    return this.#phase !== "data" && this.#phase !== "data-end"; // A1
  }

  /** The call is over (A2). */
  stop(): void {
    this.#stopped = true;
  }

  /** The end of the connection is the end of the body. */
  get closeEnds(): boolean {
    return this.#phase === "close";
  }

  /** Takes the first `bytes` of a buffer. */
  push(buffer: Buffer, bytes: number): ReadOutcome {
    this.began = true;
    let at = 0;
    while (this.#phase === "head") {
      const next = this.#head(buffer, at, bytes);
      if (typeof next === "object") return next;
      if (next === -1) return "more";
      at = next;
    }
    if (this.#stopped) return "more";
    switch (this.#phase) {
      case "length":
        return this.#length(buffer, at, bytes);
      case "close":
        if (bytes > at) this.#handler.onPayload(buffer, at, bytes);
        return "more";
      case "done":
        return this.#whole(at < bytes);
      default:
        return this.#chunks(buffer, at, bytes);
    }
  }

  #whole(leftOver: boolean): ReadOutcome {
    return this.#reusable && !leftOver ? "whole-reusable" : "whole-closing";
  }

  #length(buffer: Buffer, from: number, to: number): ReadOutcome {
    const end = Math.min(to, from + this.#left);
    this.#left -= end - from;
    if (end > from) this.#handler.onPayload(buffer, from, end);
    if (this.#left > 0) return "more";
    this.#phase = "done";
    return this.#whole(end < to);
  }

  /** Reads a head; returns where the body begins, or -1 when the head is not whole yet. */
  #head(buffer: Buffer, from: number, to: number): number | { readonly malformed: string } {
    // Only as much as a head may have is looked at; the blank line can lie across two reads.
    const text = this.#carry + buffer.toString("latin1", from, Math.min(to, from + HEAD_BYTES_MAX));
    const end = text.indexOf("\r\n\r\n", Math.max(0, this.#carry.length - 3));
    if (end === -1) {
      if (text.length >= HEAD_BYTES_MAX) return { malformed: "answer with endless headers" };
      this.#carry = text;
      return -1;
    }
    const bodyAt = from + (end + 4 - this.#carry.length);
    this.#carry = "";
    const problem = this.#takeHead(text.slice(0, end));
    return problem === undefined ? bodyAt : { malformed: problem };
  }

  #takeHead(text: string): string | undefined {
    let end = text.indexOf("\r\n");
    if (end === -1) end = text.length;
    const start = STATUS_LINE.exec(text.slice(0, end));
    if (start === null) return "answer is not HTTP/1.1";
    const status = Number(start[2]);
    const rawHeaders: string[] = [];
    const framing = { length: undefined as number | undefined, chunked: false };
    if (start[1] === "0") this.#reusable = false;
    while (end < text.length) {
      const from = end + 2;
      end = text.indexOf("\r\n", from);
      if (end === -1) end = text.length;
      const colon = text.indexOf(":", from);
      if (colon === -1 || colon >= end) return "answer with a malformed header";
      const raw = text.slice(from, colon);
      const name = lowerNameOf(raw);
      const value = withoutSpaceAround(text, colon + 1, end);
      if (name === undefined || !isHeaderValue(value)) return "answer with a malformed header";
      rawHeaders.push(raw, value);
      const problem = this.#frameHeader(name, value, framing);
      if (problem !== undefined) return problem;
    }
    if (status < 200) return this.#informationalHead(status);
    // Both framings at once is how answers are smuggled: chunked counts (RFC 9112, 6.3), the connection ends.
    if (framing.chunked && framing.length !== undefined) {
      framing.length = undefined;
      this.#reusable = false;
    }
    const bodiless = status === 204 || status === 304 || this.#method === "HEAD";
    if (bodiless || framing.length === 0) this.#phase = "done";
    else if (framing.chunked) this.#phase = "size";
    else if (framing.length === undefined) this.#phase = "close";
    else this.#phase = "length";
    this.#left = framing.length ?? 0;
    const framed = this.#phase === "size";
    this.#handler.onHead({ status, rawHeaders, framed, lengthBytes: bodiless ? 0 : framing.length });
    return undefined;
  }

  #informationalHead(status: number): string | undefined {
    if (status === 101) return "answer switches protocols";
    this.#informational += 1;
    return this.#informational > INFORMATIONAL_MAX ? "endless informational answers" : undefined;
  }

  #frameHeader(
    name: string,
    value: string,
    framing: { length: number | undefined; chunked: boolean },
  ): string | undefined {
    if (name === "content-length") {
      if (!/^\d{1,15}$/.test(value)) return "answer with a malformed content-length";
      const length = Number(value);
      if (framing.length !== undefined && framing.length !== length) return "answer with two content-lengths";
      framing.length = length;
    } else if (name === "transfer-encoding") {
      if (value.toLowerCase() !== "chunked" || framing.chunked) return "answer with an unknown transfer-encoding";
      framing.chunked = true;
    } else if (name === "connection") {
      if (/(?:^|,)[ \t]*close[ \t]*(?:,|$)/i.test(value)) this.#reusable = false;
    } else if (name === "keep-alive") {
      const seconds = /(?:^|[,\s])timeout=(\d{1,6})/i.exec(value)?.[1];
      if (seconds !== undefined) this.keepAliveMs = Number(seconds) * 1000;
    }
    return undefined;
  }

  #chunks(buffer: Buffer, from: number, to: number): ReadOutcome {
    let at = from;
    while (at < to && !this.#stopped) {
      switch (this.#phase) {
        case "size": {
          const next = this.#size(buffer, from, at, to);
          if (typeof next === "object") return next;
          // The line goes on in the next read, and what came of it waits (A1).
          if (next === -1) return "more";
          at = next;
          break;
        }
        case "data": {
          const end = Math.min(to, at + this.#left);
          this.#handler.onPayload(buffer, at, end);
          this.#left -= end - at;
          at = end;
          if (this.#left === 0) {
            this.#phase = "data-end";
            this.#left = 2;
          }
          break;
        }
        case "data-end": {
          if (buffer[at] !== (this.#left === 2 ? 0x0d : 0x0a)) return { malformed: "answer with a malformed chunk" };
          at += 1;
          this.#left -= 1;
          if (this.#left === 0) this.#phase = "size";
          break;
        }
        case "done":
          return this.#whole(true);
        default: {
          const line = this.#line(buffer, at, to, TRAILER_BYTES_MAX);
          if (typeof line === "string") return { malformed: line };
          this.#trailerBytes += line.next - at;
          if (this.#trailerBytes > TRAILER_BYTES_MAX) return { malformed: "answer with endless trailers" };
          at = line.next;
          if (line.text !== "") break;
          this.#phase = "done";
          this.#handler.onFrames(LAST_CHUNK, 0, LAST_CHUNK.length);
          return this.#whole(at < to);
        }
      }
    }
    if (this.#phase === "done") return this.#whole(false);
    if (this.#phase !== "trailer" && !this.#stopped) this.#handler.onFrames(buffer, from, to);
    return "more";
  }

  /**
   * Reads a chunk's size line; `from` is where the wire bytes begin that were not given yet.
   * @returns where the data begins, or -1 when the line is not whole yet.
   */
  #size(buffer: Buffer, from: number, lineAt: number, to: number): number | { readonly malformed: string } {
    const carried = this.#carry;
    if (carried === "") {
      // A plain line that is here in one piece: read without making a text of it, since each event of a stream has one.
      const dataAt = this.#plainSize(buffer, lineAt, to);
      if (dataAt !== -1) return dataAt;
    }
    const line = this.#line(buffer, lineAt, to, SIZE_LINE_BYTES_MAX);
    if (typeof line === "string") return { malformed: line };
    if (line.text === undefined) {
      if (lineAt > from) this.#handler.onFrames(buffer, from, lineAt);
      return -1;
    }
    const size = /^([0-9a-fA-F]{1,8})[ \t]*(?:;.*)?$/.exec(line.text)?.[1];
    if (size === undefined) return { malformed: "answer with a malformed chunk" };
    this.#left = Number.parseInt(size, 16);
    if (this.#left > 0) {
      this.#phase = "data";
      if (carried !== "") this.#handler.onFrames(Buffer.from(carried, "latin1"), 0, carried.length);
      return line.next;
    }
    this.#phase = "trailer";
    // Nearly always the end is here too, and goes with the bytes before it: the trailer is read as empty next.
    const { next } = line;
    const plain = line.text === "0" && carried === "" && next + 2 <= to;
    if (plain && buffer[next] === 0x0d && buffer[next + 1] === 0x0a) {
      this.#phase = "done";
      this.#handler.onFrames(buffer, from, next + 2);
      return next + 2;
    }
    if (lineAt > from) this.#handler.onFrames(buffer, from, lineAt);
    return next;
  }

  /** Reads a size line of hexadecimal digits alone, not zero; -1 for every other line, which is read with care. */
  #plainSize(buffer: Buffer, from: number, to: number): number {
    let size = 0;
    let at = from;
    const digitsEnd = Math.min(to, from + SIZE_DIGITS_MAX);
    for (; at < digitsEnd; at += 1) {
      const digit = hexDigit(buffer[at] ?? 0);
      if (digit === -1) break;
      size = size * 16 + digit;
    }
    if (size === 0 || at + 2 > to || buffer[at] !== 0x0d || buffer[at + 1] !== 0x0a) return -1;
    this.#left = size;
    this.#phase = "data";
    return at + 2;
  }

  /** A line up to its CRLF, carried over reads; `text` is undefined while it is not whole. */
  #line(
    buffer: Buffer,
    from: number,
    to: number,
    bytesMax: number,
  ): { readonly text: string | undefined; readonly next: number } | string {
    const end = buffer.indexOf(0x0a, from);
    const whole = end !== -1 && end < to;
    const next = whole ? end + 1 : to;
    const text = this.#carry + buffer.toString("latin1", from, next);
    if (text.length > bytesMax) return "answer with an endless line";
    if (!whole) {
      this.#carry = text;
      return { text: undefined, next };
    }
    this.#carry = "";
    return text.endsWith("\r\n") ? { text: text.slice(0, -2), next } : "answer with a malformed line end";
  }
}

/** By hand: a regular expression that takes the space from both ends needs quadratic time for a hostile value. */
function withoutSpaceAround(text: string, from: number, to: number): string {
  let start = from;
  let end = to;
  while (start < end && isSpace(text.charCodeAt(start))) start += 1;
  while (end > start && isSpace(text.charCodeAt(end - 1))) end -= 1;
  return text.slice(start, end);
}

function isSpace(code: number): boolean {
  return code === 0x20 || code === 0x09;
}

function hexDigit(byte: number): number {
  if (byte >= 0x30 && byte <= 0x39) return byte - 0x30;
  const letter = byte | 0x20;
  return letter >= 0x61 && letter <= 0x66 ? letter - 0x57 : -1;
}
