/** Reads server-sent events out of bytes that arrive in any cut. Memory is bounded: one event may not grow without end. */
import { StringDecoder } from "node:string_decoder";

const EVENT_CHARS_MAX = 4 * 1024 * 1024;

export type SsePiece =
  | { readonly kind: "data"; readonly data: string }
  /** A line that begins with a colon: a sign of life. */
  | { readonly kind: "comment"; readonly text: string };

export class SseReader {
  readonly #decoder = new StringDecoder("utf8");
  #rest = "";
  #data: string[] = [];

  /**
   * @returns what became whole with these bytes, in order; `too-long` when one event outgrew its bound.
   */
  push(bytes: Buffer): readonly SsePiece[] | "too-long" {
    this.#rest += this.#decoder.write(bytes);
    const pieces: SsePiece[] = [];
    for (;;) {
      const end = /\r\n|\n|\r(?!$)/.exec(this.#rest);
      if (end === null) break;
      const line = this.#rest.slice(0, end.index);
      this.#rest = this.#rest.slice(end.index + end[0].length);
      this.#line(line, pieces);
    }
    const waiting = this.#data.reduce((chars, { length }) => chars + length, this.#rest.length);
    return waiting > EVENT_CHARS_MAX ? "too-long" : pieces;
  }

  #line(line: string, pieces: SsePiece[]): void {
    if (line === "") {
      if (this.#data.length > 0) pieces.push({ kind: "data", data: this.#data.join("\n") });
      this.#data = [];
    } else if (line.startsWith(":")) {
      pieces.push({ kind: "comment", text: line.slice(1).trim() });
    } else if (line.startsWith("data:")) {
      this.#data.push(line.startsWith("data: ") ? line.slice(6) : line.slice(5));
    }
  }
}
