/**
 * JSON as models write it. What is accepted beyond JSON has one reading only: raw control characters in strings, escapes
 * that do not exist (the backslash then stands for itself), Windows paths with single backslashes, quotes of either kind, Python's `True`, `False` and `None`,
 * a comma before a closing bracket. Nothing that is missing is made up: what is not closed is not read.
 *
 * An integer that a number cannot hold exactly comes as its digits.
 */
export type Read = { readonly value: unknown; readonly end: number };

const DEPTH_MAX = 64;
const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
/** How a path begins whose backslashes are not escaped. */
const DRIVE = /[A-Za-z]:\\[\w.-]/y;
const WORD = /true|false|null|True|False|None/y;
const WORDS: { readonly [word: string]: unknown } = {
  true: true,
  True: true,
  false: false,
  False: false,
  null: null,
  None: null,
};
const ESCAPES: { readonly [letter: string]: string } = {
  '"': '"',
  "'": "'",
  "\\": "\\",
  "/": "/",
  b: "\b",
  f: "\f",
  n: "\n",
  r: "\r",
  t: "\t",
};

/** The value that begins at `at`, white space before it included; undefined: there is none, or it is not whole. */
export function readJson(text: string, at: number): Read | undefined {
  const reader = new Reader(text, at);
  const value = reader.value(0);
  return reader.failed ? undefined : { value, end: reader.at };
}

/** The whole text as one value. */
export function parseJson(text: string): Read | undefined {
  const read = readJson(text, 0);
  return read !== undefined && text.slice(read.end).trim() === "" ? read : undefined;
}

/** A value as it is, or the whole value that stands in a text; undefined: it cannot be read. */
export function readText(value: unknown): unknown {
  return typeof value === "string" ? parseJson(value)?.value : value;
}

class Reader {
  at: number;
  failed = false;
  readonly #text: string;

  constructor(text: string, at: number) {
    this.#text = text;
    this.at = at;
  }

  value(depth: number): unknown {
    this.#space();
    const letter = this.#text[this.at];
    if (depth > DEPTH_MAX) return this.#fail();
    if (letter === "{") return this.#object(depth);
    if (letter === "[") return this.#array(depth);
    if (letter === '"' || letter === "'") return this.#string(letter);
    const word = this.#take(WORD);
    if (word !== undefined) return WORDS[word];
    const number = this.#take(NUMBER);
    return number === undefined ? this.#fail() : numberOf(number);
  }

  #object(depth: number): unknown {
    const members: [string, unknown][] = [];
    this.at += 1;
    for (;;) {
      if (this.#next("}")) return Object.fromEntries(members);
      const quote = this.#text[this.at];
      if (quote !== '"' && quote !== "'") return this.#fail();
      const name = this.#string(quote) as string;
      if (!this.#next(":")) return this.#fail();
      members.push([name, this.value(depth + 1)]);
      if (this.failed) return undefined;
      if (!this.#next(",") && this.#text[this.at] !== "}") return this.#fail();
    }
  }

  #array(depth: number): unknown {
    const items: unknown[] = [];
    this.at += 1;
    for (;;) {
      if (this.#next("]")) return items;
      items.push(this.value(depth + 1));
      if (this.failed) return undefined;
      if (!this.#next(",") && this.#text[this.at] !== "]") return this.#fail();
    }
  }

  #string(quote: string): unknown {
    const text = this.#text;
    let value = "";
    let from = this.at + 1;
    DRIVE.lastIndex = from;
    const isPath = DRIVE.test(text);
    for (let at = from; at < text.length; at += 1) {
      if (text[at] === quote) {
        this.at = at + 1;
        return value + text.slice(from, at);
      }
      if (text[at] !== "\\") continue;
      const letter = text[at + 1] ?? "";
      // In `C:\new` the `\n` is no line break.
      if (isPath && /\w/.test(letter)) continue;
      const code = /^u[0-9a-fA-F]{4}/.exec(text.slice(at + 1, at + 6))?.[0];
      const meant = code === undefined ? ESCAPES[letter] : String.fromCharCode(Number.parseInt(code.slice(1), 16));
      if (meant === undefined) continue;
      value += text.slice(from, at) + meant;
      at += code === undefined ? 1 : 5;
      from = at + 1;
    }
    return this.#fail();
  }

  #space(): void {
    while (/\s/.test(this.#text[this.at] ?? "")) this.at += 1;
  }

  /** Whether the next letter is this one; then it is passed, and so is the white space around it. */
  #next(letter: string): boolean {
    this.#space();
    if (this.#text[this.at] !== letter) return false;
    this.at += 1;
    if (letter === "," || letter === ":") this.#space();
    return true;
  }

  #take(pattern: RegExp): string | undefined {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.#text)?.[0];
    if (found !== undefined) this.at += found.length;
    return found;
  }

  #fail(): undefined {
    this.failed = true;
    return undefined;
  }
}

function numberOf(digits: string): unknown {
  const number = Number(digits);
  const exact = Number.isSafeInteger(number) || !/^-?\d+$/.test(digits);
  return exact ? number : digits;
}
