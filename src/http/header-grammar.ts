/** The grammar of HTTP headers, and what is remembered of the few names that peers send again and again. */

const NAME = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/;
const VALUE = /^[\t\x20-\x7e\x80-\xff]*$/;

/** Whether a text may stand as a header's value: no controls, Latin-1 only. */
export function isHeaderValue(text: string): boolean {
  return VALUE.test(text);
}

export function isHeaderName(text: string): boolean {
  return NAME.test(text);
}

/** Names are the peer's to choose: the table is bounded, and what it keeps is a copy, not a piece of a whole head. */
const NAMES_MAX = 1_024;
const NAME_CHARS_MAX = 64;
const lowerNames = new Map<string, string>();

/** A header's name in lower case; undefined where the text is no name. */
export function lowerNameOf(raw: string): string | undefined {
  const known = lowerNames.get(raw);
  if (known !== undefined) return known;
  if (!NAME.test(raw)) return undefined;
  if (raw.length > NAME_CHARS_MAX || lowerNames.size >= NAMES_MAX) return raw.toLowerCase();
  const own = detached(raw);
  const name = own.toLowerCase();
  lowerNames.set(own, name);
  return name;
}

/**
 * The same Latin-1 text as a string of its own. A piece of a string keeps all of it in memory: what outlives a request
 * must not keep its head.
 */
export function detached(text: string): string {
  return Buffer.from(text, "latin1").toString("latin1");
}
