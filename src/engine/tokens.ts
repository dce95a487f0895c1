/**
 * A stand-in for a tokenizer: four UTF-16 code units are one token. Real vocabularies average close to that on English
 * and JSON; what matters here is that equal text gives equal tokens, so that prefixes are shared by content.
 */
import { BLOCK_TOKENS } from "./kv-pool.ts";

export const CHARS_PER_TOKEN = 4;

/** Tokens of a text, at least 1. */
export function countTokens(text: string): number {
  return Math.max(1, Math.ceil(text.length / CHARS_PER_TOKEN));
}

/** The text in token-sized pieces. A surrogate pair is never split: its piece is one code unit longer. */
export function tokenTexts(text: string): string[] {
  const pieces: string[] = [];
  let at = 0;
  while (at < text.length) {
    let end = Math.min(at + CHARS_PER_TOKEN, text.length);
    const last = text.charCodeAt(end - 1);
    if (last >= 0xd800 && last <= 0xdbff && end < text.length) end += 1;
    pieces.push(text.slice(at, end));
    at = end;
  }
  return pieces;
}

/**
 * Chained hashes of the full blocks of a text: block i's hash covers all text up to its end, so equal hashes mean an
 * equal prefix. 53 bits, never 0; at a million blocks the chance of any collision is about 1 in 20,000.
 */
export function hashBlocks(text: string): Float64Array {
  const blockChars = BLOCK_TOKENS * CHARS_PER_TOKEN;
  const full = Math.floor(text.length / blockChars);
  const hashes = new Float64Array(full);
  let low = 0x811c9dc5 | 0;
  let high = 0x2545f491;
  for (let block = 0; block < full; block += 1) {
    const end = (block + 1) * blockChars;
    for (let at = block * blockChars; at < end; at += 1) {
      const unit = text.charCodeAt(at);
      low = Math.imul(low ^ unit, 0x01000193);
      high = Math.imul(((high << 5) | (high >>> 27)) ^ unit, 0x27d4eb2f);
    }
    const bits = ((high ^ (low >>> 15)) & 0x1fffff) * 4_294_967_296 + ((low ^ (high >>> 13)) >>> 0);
    hashes[block] = bits === 0 ? 1 : bits;
  }
  return hashes;
}
