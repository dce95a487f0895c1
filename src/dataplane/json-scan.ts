/**
 * A validating walk over JSON bytes: accepts exactly what JSON.parse accepts of the decoded text, builds nothing, and does
 * not recurse. Invalid UTF-8 inside strings is accepted, as decoding before parsing would (it becomes U+FFFD there).
 */

/** Nesting beyond this is refused: no request needs it, and a parser behind us may recurse. */
export const DEPTH_MAX = 512;

export class JsonProblem extends Error {
  override readonly name = "JsonProblem";
  /** Offset of the byte at which it stopped being JSON. */
  readonly at: number;

  constructor(at: number, expected: string) {
    super(expected);
    this.at = at;
  }
}

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const COMMA = 0x2c;
const COLON = 0x3a;
const OPEN_OBJECT = 0x7b;
const CLOSE_OBJECT = 0x7d;
const OPEN_ARRAY = 0x5b;
const CLOSE_ARRAY = 0x5d;

/** A cursor over JSON bytes. Methods move `at` behind what they read, or throw JsonProblem. */
export class JsonScan {
  readonly bytes: Uint8Array;
  at = 0;
  /** Of the string read last: it holds a backslash. */
  escaped = false;
  readonly #closers = new Uint8Array(DEPTH_MAX);

  constructor(bytes: Uint8Array) {
    this.bytes = bytes;
  }

  /** The next byte that is not white space, not consumed; -1 at the end. */
  peek(): number {
    const { bytes } = this;
    let { at } = this;
    let byte = bytes[at];
    while (byte === 0x20 || byte === 0x0a || byte === 0x0d || byte === 0x09) {
      at += 1;
      byte = bytes[at];
    }
    this.at = at;
    return byte ?? -1;
  }

  expect(byte: number, what: string): void {
    if (this.peek() !== byte) throw new JsonProblem(this.at, what);
    this.at += 1;
  }

  /** Reads a string and leaves `at` behind its closing quote. */
  string(): void {
    if (this.peek() !== QUOTE) throw new JsonProblem(this.at, "expected a string");
    const { bytes } = this;
    let at = this.at + 1;
    this.escaped = false;
    for (;;) {
      const byte = bytes[at];
      if (byte === undefined) throw new JsonProblem(at, "the string has no end");
      if (byte === QUOTE) break;
      if (byte === BACKSLASH) {
        this.escaped = true;
        at = this.#escape(at);
      } else if (byte < 0x20) {
        throw new JsonProblem(at, "a control character in a string must be escaped");
      } else {
        at += 1;
      }
    }
    this.at = at + 1;
  }

  #escape(from: number): number {
    const { bytes } = this;
    const kind = bytes[from + 1];
    if (kind === 0x75) {
      for (let at = from + 2; at < from + 6; at += 1) {
        if (!isHex(bytes[at])) throw new JsonProblem(at, "expected four hex digits");
      }
      return from + 6;
    }
    // One of "\/bfnrt
    const simple =
      kind === 0x22 ||
      kind === 0x5c ||
      kind === 0x2f ||
      kind === 0x62 ||
      kind === 0x66 ||
      kind === 0x6e ||
      kind === 0x72 ||
      kind === 0x74;
    if (!simple) throw new JsonProblem(from + 1, "unknown escape");
    return from + 2;
  }

  /** Skips one value of any kind. `depth` is the number of containers around it. */
  value(depth: number): void {
    const closers = this.#closers;
    let open = 0;
    for (;;) {
      // A value begins here.
      const byte = this.peek();
      if (byte === OPEN_OBJECT || byte === OPEN_ARRAY) {
        if (depth + open >= DEPTH_MAX) throw new JsonProblem(this.at, `nested more than ${DEPTH_MAX} deep`);
        const closer = byte === OPEN_OBJECT ? CLOSE_OBJECT : CLOSE_ARRAY;
        this.at += 1;
        if (this.peek() !== closer) {
          closers[open] = closer;
          open += 1;
          if (closer === CLOSE_OBJECT) this.key();
          continue;
        }
        this.at += 1;
      } else {
        this.scalar(byte);
      }
      // A value has ended: close containers until the next one begins.
      for (;;) {
        if (open === 0) return;
        const next = this.peek();
        this.at += 1;
        if (next === COMMA) {
          if (closers[open - 1] === CLOSE_OBJECT) this.key();
          break;
        }
        if (next !== closers[open - 1]) {
          throw new JsonProblem(
            this.at - 1,
            closers[open - 1] === CLOSE_OBJECT ? "expected ',' or '}'" : "expected ',' or ']'",
          );
        }
        open -= 1;
      }
    }
  }

  /** Reads a key and its colon. */
  key(): void {
    this.string();
    const { escaped } = this;
    this.expect(COLON, "expected ':'");
    this.escaped = escaped;
  }

  scalar(first: number): void {
    switch (first) {
      case QUOTE:
        this.string();
        return;
      case 0x74:
        this.#word("true");
        return;
      case 0x66:
        this.#word("false");
        return;
      case 0x6e:
        this.#word("null");
        return;
      default:
        this.#number(first);
    }
  }

  #word(word: string): void {
    for (let index = 0; index < word.length; index += 1) {
      if (this.bytes[this.at + index] !== word.charCodeAt(index)) throw new JsonProblem(this.at, "expected a value");
    }
    this.at += word.length;
  }

  #number(first: number): void {
    const { bytes } = this;
    let at = first === 0x2d ? this.at + 1 : this.at;
    if (bytes[at] === 0x30) at += 1;
    else at = this.#digits(at);
    if (bytes[at] === 0x2e) at = this.#digits(at + 1);
    if (bytes[at] === 0x65 || bytes[at] === 0x45) {
      at += 1;
      if (bytes[at] === 0x2b || bytes[at] === 0x2d) at += 1;
      at = this.#digits(at);
    }
    this.at = at;
  }

  #digits(from: number): number {
    const { bytes } = this;
    let at = from;
    while (isDigit(bytes[at])) at += 1;
    if (at === from) throw new JsonProblem(from, "expected a value");
    return at;
  }
}

function isDigit(byte: number | undefined): boolean {
  return byte !== undefined && byte >= 0x30 && byte <= 0x39;
}

function isHex(byte: number | undefined): boolean {
  if (byte === undefined) return false;
  return isDigit(byte) || (byte >= 0x41 && byte <= 0x46) || (byte >= 0x61 && byte <= 0x66);
}
