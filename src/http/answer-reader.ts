/**
 * Reads one HTTP/1.1 answer of an engine from the bytes of a socket: head, then the body by its framing. The bytes are
 * not copied: payload ranges and wire ranges of the caller's buffer go to the handler as they are found.
 *
 * Strict where leniency would let two readers disagree: one framing only, sizes in digits, no folded headers.
 */
import type { EngineHandler } from "./engine-call.ts";

/** Largest head of an answer, informational heads included. */
const HEAD_BYTES_MAX = 65_536;
/** Informational answers before the real one. */
const INFORMATIONAL_MAX = 16;
/** A chunk's size line with its extensions. */
const SIZE_LINE_BYTES_MAX = 1_024;
const TRAILER_BYTES_MAX = 16_384;

export type ReadOutcome = "more" | "whole-reusable" | "whole-closing" | { readonly malformed: string };

const STATUS_LINE = /^HTTP\/1\.([01]) ([1-9]\d\d)(?: .*)?$/;
const HEADER_LINE =
  /^([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*((?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?)[ \t]*$/;
const LAST_CHUNK_END = Buffer.from("\r\n", "latin1");

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

  constructor(handler: EngineHandler, method: string) {
    this.#handler = handler;
    this.#method = method;
  }

  /** Nothing of a chunk is open: bytes of our own may be put between. */
  get betweenFrames(): boolean {
    return this.#phase !== "data" && this.#phase !== "data-end" && !(this.#phase === "size" && this.#carry !== "");
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
    const end = text.indexOf("\r\n\r\n");
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
    const lines = text.split("\r\n");
    const start = STATUS_LINE.exec(lines[0] ?? "");
    if (start === null) return "answer is not HTTP/1.1";
    const status = Number(start[2]);
    const rawHeaders: string[] = [];
    const framing = { length: undefined as number | undefined, chunked: false };
    if (start[1] === "0") this.#reusable = false;
    for (let index = 1; index < lines.length; index += 1) {
      const match = HEADER_LINE.exec(lines[index] ?? "");
      if (match === null) return "answer with a malformed header";
      const name = match[1] ?? "";
      const value = match[2] ?? "";
      rawHeaders.push(name, value);
      const problem = this.#frameHeader(name.toLowerCase(), value, framing);
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
    while (at < to) {
      switch (this.#phase) {
        case "size": {
          const line = this.#line(buffer, at, to, SIZE_LINE_BYTES_MAX);
          if (typeof line === "string") return { malformed: line };
          at = line.next;
          if (line.text === undefined) break;
          const size = /^([0-9a-fA-F]{1,8})[ \t]*(?:;.*)?$/.exec(line.text)?.[1];
          if (size === undefined) return { malformed: "answer with a malformed chunk" };
          this.#left = Number.parseInt(size, 16);
          this.#phase = this.#left === 0 ? "trailer" : "data";
          if (this.#left > 0) break;
          if (at + 2 <= to && buffer[at] === 0x0d && buffer[at + 1] === 0x0a) {
            this.#phase = "done";
            this.#handler.onFrames(buffer, from, at + 2);
            return this.#whole(at + 2 < to);
          }
          // The last chunk's size line is passed on; trailers are not, so its end is written by us.
          this.#handler.onFrames(buffer, from, at);
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
        default: {
          const line = this.#line(buffer, at, to, TRAILER_BYTES_MAX);
          if (typeof line === "string") return { malformed: line };
          this.#trailerBytes += line.next - at;
          if (this.#trailerBytes > TRAILER_BYTES_MAX) return { malformed: "answer with endless trailers" };
          at = line.next;
          if (line.text !== "") break;
          this.#phase = "done";
          this.#handler.onFrames(LAST_CHUNK_END, 0, LAST_CHUNK_END.length);
          return this.#whole(at < to);
        }
      }
    }
    if (this.#phase !== "trailer" && to > from) this.#handler.onFrames(buffer, from, to);
    return "more";
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
