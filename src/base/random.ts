/**
 * Seeded randomness for pure layers: the same seed gives the same draws on every machine, and a stream split by name
 * does not shift when another stream draws more. Not for secrets.
 */
export type Random = {
  /** A number in [0, 1). */
  next(): number;
  /** A whole number in [least, most]. */
  integer(least: number, most: number): number;
  /** An independent stream for one purpose. Does not draw from this one. */
  split(name: string): Random;
};

/** A 32-bit hash of a text (FNV-1a with a final mix). */
export function hashText(text: string, seed = 0): number {
  let hash = 0x811c9dc5 ^ seed;
  for (let at = 0; at < text.length; at += 1) hash = Math.imul(hash ^ text.charCodeAt(at), 0x01000193);
  return mix(hash);
}

/** A generator (mulberry32) whose draws depend on `seed` alone. */
export function createRandom(seed: number): Random {
  let state = seed | 0;
  const next = (): number => {
    state = (state + 0x6d2b79f5) | 0;
    let value = Math.imul(state ^ (state >>> 15), 1 | state);
    value = (value + Math.imul(value ^ (value >>> 7), 61 | value)) ^ value;
    return ((value ^ (value >>> 14)) >>> 0) / 4_294_967_296;
  };
  return {
    next,
    integer: (least, most) => least + Math.floor(next() * (most - least + 1)),
    split: (name) => createRandom(hashText(name, seed)),
  };
}

/** Spreads every bit of the input over all bits of the output (murmur3's finalizer). Unsigned. */
function mix(value: number): number {
  let mixed = value | 0;
  mixed = Math.imul(mixed ^ (mixed >>> 16), 0x85ebca6b);
  mixed = Math.imul(mixed ^ (mixed >>> 13), 0xc2b2ae35);
  return (mixed ^ (mixed >>> 16)) >>> 0;
}
