/**
 * One HTTP request and its answer, whichever front took it: the fast lane on the socket or node:http (spec 3).
 * Route handlers see only this, so both fronts serve every route in the same way.
 */

/** How the body of an answer is delimited on the wire. */
export type AnswerFraming =
  /** `content-length`: the handler writes exactly that many bytes. */
  | { readonly kind: "length"; readonly bytes: number }
  /** A stream. HTTP/1.1 clients get chunked framing, HTTP/1.0 clients a closed connection. */
  | { readonly kind: "stream" }
  /** No body at all (204, 304, HEAD). */
  | { readonly kind: "none" };

export type Exchange = {
  readonly method: string;
  /** As sent, before `?`, not decoded. Always starts with `/`. */
  readonly path: string;
  /** With its `?`, as sent; empty when there is none. */
  readonly query: string;
  /** Names and values alternating, as received, values as Latin-1. */
  readonly rawHeaders: readonly string[];
  /** First value of a lower-case name. */
  header(name: string): string | undefined;
  /** How often a lower-case name occurs: Node joins duplicates with a comma, the raw list does not. */
  headerCount(name: string): number;
  /**
   * Reads the whole body once. The callback may run synchronously when the bytes are already here.
   * `too-large`: over the limit; the rest is not read and the connection closes after the answer.
   * `aborted`: the client left before its body was complete; nothing more may be written.
   */
  readBody(bytesMax: number, done: (body: Buffer | "too-large" | "aborted") => void): void;

  /** True once status and headers are on their way: no status can change any more. */
  readonly begun: boolean;
  /** True once the answer was ended, broken off, or the client left. */
  readonly over: boolean;
  /** Chunk frames of an engine may be passed on unchanged by `writeFramed` (HTTP/1.1 client, `stream` framing). */
  readonly takesFrames: boolean;
  /**
   * Sends status and headers; they travel in one write with the first body bytes of the same tick.
   * @param headers names and values alternating, without content-length, transfer-encoding, connection and date.
   * Values that are not valid in a header (controls, non-Latin-1) are an invariant violation: check before.
   */
  begin(status: number, headers: readonly string[], framing: AnswerFraming): void;
  /**
   * Body bytes, framed here as the answer needs. The bytes are copied or written before this returns: the caller may
   * reuse its buffer.
   * @returns false when the client is slower than the bytes: stop the source until `onDrain`.
   */
  write(bytes: Uint8Array): boolean;
  /** Bytes that already carry chunk framing, the last chunk included when it comes. Only when `takesFrames`. */
  writeFramed(bytes: Uint8Array): boolean;
  /** Ends the answer cleanly. `framed`: the last chunk was already among the bytes of `writeFramed`. */
  end(options?: { readonly framed?: boolean }): void;
  /**
   * Ends the answer so that the client sees that it is not whole: writes `last` if given, then destroys the socket in
   * the write's callback, never in the same tick, never with a last chunk (spec 3, How a failed stream ends).
   */
  breakOff(last?: Uint8Array): void;
  /** Called when a slow client has taken what was written. */
  onDrain: (() => void) | undefined;
  /** Called once when the client leaves before the answer was ended or broken off. Never called afterwards. */
  onGone: (() => void) | undefined;
};

/** Answers with one JSON (or text) body. */
export function answerWhole(
  exchange: Exchange,
  status: number,
  headers: readonly string[],
  body: string,
  contentType = "application/json",
): void {
  const bytes = Buffer.from(body, "utf8");
  exchange.begin(status, ["content-type", contentType, ...headers], { kind: "length", bytes: bytes.length });
  if (bytes.length > 0) exchange.write(bytes);
  exchange.end();
}
