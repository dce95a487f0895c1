/**
 * A validating walk over JSON bytes: accepts exactly what JSON.parse accepts of the decoded text, builds nothing, and does
 * not recurse. Invalid UTF-8 inside a string is accepted, as decoding before parsing would (it becomes U+FFFD there);
 * outside strings only ASCII is JSON. The one thing that JSON.parse takes and this does not is nesting beyond DEPTH_MAX.
 *
 * The inside of a string is read four bytes at a time: a conversation is nearly all string, and byte by byte it would cost
 * more than JSON.parse does (33 KB of 60-byte strings: 24 µs against 50 µs).
 */

/** Nesting beyond this is refused: no request needs it, and a parser behind us may recurse. */
const DEPTH_MAX = 512;

/** The bytes are not JSON. */
export class JsonProblem extends Error {
  override readonly name = "JsonProblem";
  /** Offset of the byte at which they stopped being JSON. */
  readonly at: number;

  constructor(at: number, expected: string) {
    super(expected);
    this.at = at;
  }
}

export const BYTE = {
  quote: 0x22,
  comma: 0x2c,
  colon: 0x3a,
  backslash: 0x5c,
  openArray: 0x5b,
  closeArray: 0x5d,
  openObject: 0x7b,
  closeObject: 0x7d,
} as const;

/** What `peek` gives behind the last byte. */
const END = -1;

/** 1 for the bytes that end a run of plain string content: the quote, the backslash, control characters. */
const STOPS = new Uint8Array(256);
STOPS.fill(1, 0, 0x20);
STOPS[BYTE.quote] = 1;
STOPS[BYTE.backslash] = 1;

const NO_WORDS = new Int32Array(0);

/** 1 for what may follow a backslash by itself. */
const ESCAPED = new Uint8Array(256);
for (const character of '"\\/bfnrt') ESCAPED[character.charCodeAt(0)] = 1;

/** A cursor over JSON bytes. Methods move `at` behind what they read, or throw JsonProblem. */
export class JsonScan {
  readonly bytes: Buffer;
  at = 0;
  /** Of the string read last: it holds a backslash. */
  escaped = false;
  /** Of the member read last: the content of its key, without quotes. */
  keyStart = 0;
  keyEnd = 0;
  keyEscaped = false;
  /** Where the first whole word begins, and the words themselves. */
  readonly #lead: number;
  readonly #words: Int32Array;
  #closers: Uint8Array | undefined;

  constructor(bytes: Buffer) {
    this.bytes = bytes;
    this.#lead = Math.min(-bytes.byteOffset & 3, bytes.length);
    const words = (bytes.length - this.#lead) >> 2;
    // A body that ends before its first whole word has no place that is aligned.
    this.#words = words === 0 ? NO_WORDS : new Int32Array(bytes.buffer, bytes.byteOffset + this.#lead, words);
  }

  /** The next byte that is not white space, not consumed; -1 at the end. */
  peek(): number {
    const { bytes } = this;
    const { length } = bytes;
    let { at } = this;
    while (at < length) {
      const byte = bytes[at] ?? END;
      if (byte > 0x20 || (byte !== 0x20 && byte !== 0x0a && byte !== 0x0d && byte !== 0x09)) {
        this.at = at;
        return byte;
      }
      at += 1;
    }
    this.at = at;
    return END;
  }

  expect(byte: number, what: string): void {
    if (this.peek() !== byte) throw new JsonProblem(this.at, what);
    this.at += 1;
  }

  /** Reads a string and leaves `at` behind its closing quote. */
  string(): void {
    if (this.peek() !== BYTE.quote) throw new JsonProblem(this.at, "expected a string");
    const { bytes } = this;
    const { length } = bytes;
    const words = this.#words;
    const lead = this.#lead;
    let escaped = false;
    let at = this.at + 1;
    for (;;) {
      // Plain content: up to the next word, then words, then the rest of the word that has a stop in it.
      while (((at - lead) & 3) !== 0 && at < length && STOPS[bytes[at] ?? 0] === 0) at += 1;
      if (((at - lead) & 3) === 0) {
        let index = (at - lead) >> 2;
        while (index < words.length && !hasStop(words[index] ?? 0)) index += 1;
        at = Math.max(at, lead + (index << 2));
        while (at < length && STOPS[bytes[at] ?? 0] === 0) at += 1;
      }
      if (bytes[at] === BYTE.quote) break;
      if (bytes[at] !== BYTE.backslash) throw notInString(bytes, at);
      escaped = true;
      const kind = bytes[at + 1] ?? 0;
      at = ESCAPED[kind] === 1 ? at + 2 : this.#unicodeEscape(at, kind);
    }
    this.escaped = escaped;
    this.at = at + 1;
  }

  #unicodeEscape(from: number, kind: number): number {
    const { bytes } = this;
    if (kind !== 0x75) {
      const ended = from + 1 >= bytes.length;
      throw new JsonProblem(from + 1, ended ? "the string has no end" : "unknown escape");
    }
    for (let at = from + 2; at < from + 6; at += 1) {
      if (!isHex(bytes[at])) throw new JsonProblem(at, "expected four hex digits");
    }
    return from + 6;
  }

  /** Reads `{` and, unless the object is empty, its first key: then a value follows, and after it `nextMember`. */
  firstMember(): boolean {
    this.expect(BYTE.openObject, "expected '{'");
    if (this.peek() !== BYTE.closeObject) {
      this.#key();
      return true;
    }
    this.at += 1;
    return false;
  }

  /** After a member's value: reads the next key, or the end of the object. */
  nextMember(): boolean {
    const next = this.peek();
    if (next !== BYTE.comma && next !== BYTE.closeObject) throw new JsonProblem(this.at, "expected ',' or '}'");
    this.at += 1;
    if (next === BYTE.closeObject) return false;
    this.#key();
    return true;
  }

  /** Reads `[` and says whether an element follows, after it `nextElement`. */
  firstElement(): boolean {
    this.expect(BYTE.openArray, "expected '['");
    if (this.peek() !== BYTE.closeArray) return true;
    this.at += 1;
    return false;
  }

  /** After an element: reads the comma before the next one, or the end of the array. */
  nextElement(): boolean {
    const next = this.peek();
    if (next !== BYTE.comma && next !== BYTE.closeArray) throw new JsonProblem(this.at, "expected ',' or ']'");
    this.at += 1;
    return next === BYTE.comma;
  }

  #key(): void {
    this.peek();
    this.keyStart = this.at + 1;
    this.string();
    this.keyEnd = this.at - 1;
    this.keyEscaped = this.escaped;
    this.expect(BYTE.colon, "expected ':'");
  }

  /** Skips one value of any kind. `depth` is the number of containers around it. */
  value(depth: number): void {
    let open = 0;
    for (;;) {
      // A value begins here.
      const byte = this.peek();
      if (byte === BYTE.openObject || byte === BYTE.openArray) {
        if (depth + open >= DEPTH_MAX) throw new JsonProblem(this.at, `nested more than ${DEPTH_MAX} deep`);
        if (byte === BYTE.openObject ? this.firstMember() : this.firstElement()) {
          this.#closers ??= new Uint8Array(DEPTH_MAX);
          this.#closers[open] = byte;
          open += 1;
          continue;
        }
      } else {
        this.scalar(byte);
      }
      // A value has ended: close containers until the next one begins.
      while (open > 0) {
        if (this.#closers?.[open - 1] === BYTE.openObject ? this.nextMember() : this.nextElement()) break;
        open -= 1;
      }
      if (open === 0) return;
    }
  }

  scalar(first: number): void {
    switch (first) {
      case BYTE.quote:
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
    else at = this.#digits(at, at === this.at ? "expected a value" : "expected a digit");
    if (bytes[at] === 0x2e) at = this.#digits(at + 1, "expected a digit");
    if (bytes[at] === 0x65 || bytes[at] === 0x45) {
      at += 1;
      if (bytes[at] === 0x2b || bytes[at] === 0x2d) at += 1;
      at = this.#digits(at, "expected a digit");
    }
    this.at = at;
  }

  #digits(from: number, what: string): number {
    const { bytes } = this;
    let at = from;
    while (isDigit(bytes[at])) at += 1;
    if (at === from) throw new JsonProblem(from, what);
    return at;
  }

  /** Whether the key read last is this name, however it was escaped. The name is ASCII letters and `_`. */
  keyIs(name: string): boolean {
    const { bytes, keyStart, keyEnd } = this;
    if (this.keyEscaped) return isEscaped(bytes, keyStart, keyEnd, name);
    if (keyEnd - keyStart !== name.length) return false;
    for (let index = 0; index < name.length; index += 1) {
      if (bytes[keyStart + index] !== name.charCodeAt(index)) return false;
    }
    return true;
  }

  /** The text of the string at [start, end), quotes included in the range. */
  text(start: number, end: number, escaped: boolean): string {
    if (escaped) return JSON.parse(this.bytes.toString("utf8", start, end)) as string;
    return this.bytes.toString("utf8", start + 1, end - 1);
  }
}

function notInString(bytes: Buffer, at: number): JsonProblem {
  return new JsonProblem(
    at,
    at >= bytes.length ? "the string has no end" : "a control character in a string must be escaped",
  );
}

/** Whether one of the four bytes is a quote, a backslash or a control character (Bit Twiddling Hacks, "hasless"). */
function hasStop(word: number): boolean {
  const quote = word ^ 0x22222222;
  const backslash = word ^ 0x5c5c5c5c;
  const stops =
    ((quote - 0x01010101) & ~quote) | ((backslash - 0x01010101) & ~backslash) | ((word - 0x20202020) & ~word);
  return (stops & 0x80808080) !== 0;
}

/**
 * Whether string content that was read before says this name. Stops at the first character that differs and makes no
 * string: a body of nothing but escaped keys must not cost more than any other.
 */
function isEscaped(bytes: Buffer, start: number, end: number, name: string): boolean {
  let at = start;
  for (let index = 0; index < name.length; index += 1) {
    if (at >= end) return false;
    let code = bytes[at] ?? 0;
    at += 1;
    if (code === BYTE.backslash) {
      // The other escapes stand for what is in no name.
      if (bytes[at] !== 0x75) return false;
      code = hexValue(bytes, at + 1);
      at += 5;
    }
    if (code !== name.charCodeAt(index)) return false;
  }
  return at === end;
}

/** Of four hex digits. */
function hexValue(bytes: Buffer, from: number): number {
  let value = 0;
  for (let at = from; at < from + 4; at += 1) {
    const digit = bytes[at] ?? 0;
    // The low four bits of a letter are one less than its place after nine.
    value = value * 16 + (digit & 0x0f) + (isDigit(digit) ? 0 : 9);
  }
  return value;
}

function isDigit(byte: number | undefined): boolean {
  return byte !== undefined && byte >= 0x30 && byte <= 0x39;
}

function isHex(byte: number | undefined): boolean {
  if (byte === undefined) return false;
  return isDigit(byte) || (byte >= 0x41 && byte <= 0x46) || (byte >= 0x61 && byte <= 0x66);
}
