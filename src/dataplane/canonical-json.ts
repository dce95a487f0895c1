/**
 * Canonical text of JSON: keys sorted, no white space, numbers and strings in their shortest form. Two texts that differ
 * only in what client libraries change when they re-serialise have the same canonical text (spec 8, rule 7).
 */

/** A deeper value counts as it is written. */
const DEPTH_MAX = 64;
/** Longer texts count as they are written: parsing them would stop every other turn for milliseconds. */
const TEXT_CHARS_MAX = 1_048_576;
/** No double has more digits before its point. */
const DIGITS_MAX = 309;
/** Only a number of this kind can be more than a double holds. A reviver makes parsing several times dearer. */
const LARGE_NUMBER = /\d{16}|e[+-]?\d{3}/i;

/**
 * The canonical form of a JSON text; text that does not parse counts as it is.
 * No text at all is the same as no arguments, `{}`: the AI SDK and LangChain send the one for the other.
 */
export function canonicalJson(text: string): string {
  if (text.length > TEXT_CHARS_MAX) return text;
  if (text.trim() === "") return "{}";
  try {
    const value: unknown = LARGE_NUMBER.test(text) ? JSON.parse(text, keepDigits) : JSON.parse(text);
    return encode(value, 0) ?? text;
  } catch {
    // Not JSON, or nested so deep that the parser gives up.
    return text;
  }
}

/** A number that a double does not hold: its digits count, or it would collapse into its neighbours. */
class Digits {
  readonly text: string;
  constructor(text: string) {
    this.text = text;
  }
}

/** For JSON.parse; its third argument is there from Node 21 on. */
function keepDigits(_key: string, value: unknown, context?: { readonly source?: string }): unknown {
  const source = context?.source;
  if (typeof value !== "number" || source === undefined || isHeld(value, source)) return value;
  return new Digits(source);
}

/** Whether the double is the number that was written. Fractions are: every client reads them as doubles. */
function isHeld(value: number, source: string): boolean {
  if (Number.isSafeInteger(value)) return true;
  if (!Number.isFinite(value)) return false;
  if (!/^-?\d+$/.test(source)) return true;
  return source.length <= DIGITS_MAX + 1 && BigInt(source) === BigInt(value);
}

function encode(value: unknown, depth: number): string | undefined {
  if (depth > DEPTH_MAX) return undefined;
  if (value instanceof Digits) return value.text;
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  const parts: string[] = [];
  if (Array.isArray(value)) {
    for (const element of value) {
      const text = encode(element, depth + 1);
      if (text === undefined) return undefined;
      parts.push(text);
    }
    return `[${parts.join(",")}]`;
  }
  for (const key of Object.keys(value).sort()) {
    const text = encode((value as { readonly [name: string]: unknown })[key], depth + 1);
    if (text === undefined) return undefined;
    parts.push(`${JSON.stringify(key)}:${text}`);
  }
  return `{${parts.join(",")}}`;
}
