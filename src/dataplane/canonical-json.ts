/**
 * Canonical text of JSON: keys sorted, no white space, numbers in their shortest form. Two texts that differ only in what
 * client libraries change when they re-serialise have the same canonical text (spec 8, rule 7).
 */

/** Deeper values are compared as they are written. */
const DEPTH_MAX = 64;

/** The canonical form of a JSON text; text that does not parse counts as it is. */
export function canonicalJson(text: string): string {
  let value: unknown;
  try {
    // Integers beyond the exact range would collapse into their neighbours: they keep their digits.
    value = JSON.parse(text, function reviver(_key, parsed: unknown, context?: { readonly source?: string }) {
      const source = context?.source;
      if (typeof parsed !== "number" || source === undefined || isExact(parsed, source)) return parsed;
      return new Digits(source);
    } as (this: unknown, key: string, value: unknown) => unknown) as unknown;
  } catch {
    return text;
  }
  return encode(value, 0) ?? text;
}

/** A number that a double does not hold exactly. */
class Digits {
  readonly text: string;
  constructor(text: string) {
    this.text = text;
  }
}

function isExact(value: number, source: string): boolean {
  return Number.isSafeInteger(value) || !/^-?\d+$/.test(source);
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
