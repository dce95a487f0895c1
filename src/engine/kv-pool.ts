/**
 * The KV memory of an engine: a fixed number of blocks, shared by content.
 *
 * A block is locked while a request uses it (`refs` > 0). An unlocked block keeps its content under its chained hash
 * until it is taken for something else, least recently used first. This one list serves both engines: vLLM's free queue
 * (freed blocks join the tail, allocation pops the head and drops its hash) and SGLang's radix tree (leaves go first:
 * a request's blocks are released deepest first, so a parent is always younger in the list than its children).
 *
 * Does not know requests, time or tokens beyond a block.
 *
 * K1: `freeCount` blocks are in the list, exactly those with refs 0; the rest is locked.
 * K2: a locked block is never evicted.
 * K3: `byHash` names exactly the blocks with a hash, each hash once.
 */
import { invariant } from "../base/invariant.ts";

/** Tokens of one block: vLLM's default, and SGLang's `--page-size 16`. */
export const BLOCK_TOKENS = 16;

export type KvPool = {
  readonly blockCount: number;
  readonly refs: Int32Array;
  /** 0: no content worth keeping. */
  readonly hashes: Float64Array;
  /** Doubly linked list of unlocked blocks; index `blockCount` is its sentinel, whose `next` is evicted first. */
  readonly next: Int32Array;
  readonly prev: Int32Array;
  readonly byHash: Map<number, number>;
  freeCount: number;
  /** Unlocked blocks that still hold content (SGLang: evictable). */
  freeCachedCount: number;
  evictions: number;
};

/** A pool of `blockCount` empty blocks. */
export function createKvPool(blockCount: number): KvPool {
  const next = new Int32Array(blockCount + 1);
  const prev = new Int32Array(blockCount + 1);
  for (let at = 0; at <= blockCount; at += 1) {
    next[at] = at === blockCount ? 0 : at + 1;
    prev[at] = at === 0 ? blockCount : at - 1;
  }
  return {
    blockCount,
    refs: new Int32Array(blockCount),
    hashes: new Float64Array(blockCount),
    next,
    prev,
    byHash: new Map(),
    freeCount: blockCount,
    freeCachedCount: 0,
    evictions: 0,
  };
}

/** How many leading blocks of `hashes` are in the cache, at most `limit`. Changes nothing. */
export function matchPrefix(pool: KvPool, hashes: ArrayLike<number>, limit: number): number {
  const end = Math.min(limit, hashes.length);
  let matched = 0;
  while (matched < end && pool.byHash.has(hashes[matched] ?? 0)) matched += 1;
  return matched;
}

/** Of the first `count` cached blocks, how many are unlocked: locking them takes that much from the free blocks. */
export function unlockedAmong(pool: KvPool, hashes: ArrayLike<number>, count: number): number {
  let unlocked = 0;
  for (let at = 0; at < count; at += 1) {
    const block = pool.byHash.get(hashes[at] ?? 0);
    if (block !== undefined && pool.refs[block] === 0) unlocked += 1;
  }
  return unlocked;
}

/** Locks the first `count` cached blocks for a request. `count` comes from `matchPrefix`. */
export function lockPrefix(pool: KvPool, hashes: ArrayLike<number>, count: number): number[] {
  const blocks: number[] = [];
  for (let at = 0; at < count; at += 1) {
    const block = pool.byHash.get(hashes[at] ?? 0);
    invariant(block !== undefined, "a matched block vanished before it was locked");
    lock(pool, block);
    blocks.push(block);
  }
  return blocks;
}

/** Makes the first `count` cached blocks the youngest, as SGLang's match of a waiting request does. */
export function touchPrefix(pool: KvPool, hashes: ArrayLike<number>, count: number): void {
  for (let at = count - 1; at >= 0; at -= 1) {
    const block = pool.byHash.get(hashes[at] ?? 0);
    if (block === undefined || pool.refs[block] !== 0) continue;
    unlink(pool, block);
    linkYoungest(pool, block);
  }
}

/** Takes one block for new content, evicting the oldest unlocked one. -1: every block is locked. */
export function allocateBlock(pool: KvPool): number {
  if (pool.freeCount === 0) return -1;
  const block = pool.next[pool.blockCount] ?? 0;
  invariant(pool.refs[block] === 0, "K2: a locked block stood in the list of unlocked ones");
  unlink(pool, block);
  pool.freeCount -= 1;
  const hash = pool.hashes[block] ?? 0;
  if (hash !== 0) {
    pool.byHash.delete(hash);
    pool.hashes[block] = 0;
    pool.freeCachedCount -= 1;
    pool.evictions += 1;
  }
  pool.refs[block] = 1;
  return block;
}

/**
 * Puts a full block into the cache under its hash.
 * @param share SGLang: where the content is there already, that block is used and ours is given back. vLLM keeps both;
 * here the second one simply stays without a hash.
 * @returns the block that the request holds afterwards.
 */
export function publishBlock(pool: KvPool, block: number, hash: number, share: boolean): number {
  const present = pool.byHash.get(hash);
  if (present === block) return block;
  if (present === undefined) {
    if (pool.hashes[block] !== 0) return block;
    pool.hashes[block] = hash;
    pool.byHash.set(hash, block);
    return block;
  }
  if (!share) return block;
  lock(pool, present);
  releaseBlock(pool, block);
  return present;
}

/** Unlocks a request's blocks, deepest first, so that the tail of a prompt is evicted before its start. */
export function releaseBlocks(pool: KvPool, blocks: readonly number[]): void {
  for (let at = blocks.length - 1; at >= 0; at -= 1) releaseBlock(pool, blocks[at] ?? 0);
}

function lock(pool: KvPool, block: number): void {
  const refs = pool.refs[block] ?? 0;
  if (refs === 0) {
    unlink(pool, block);
    pool.freeCount -= 1;
    if (pool.hashes[block] !== 0) pool.freeCachedCount -= 1;
  }
  pool.refs[block] = refs + 1;
}

function releaseBlock(pool: KvPool, block: number): void {
  const refs = pool.refs[block] ?? 0;
  invariant(refs > 0, "a block was released more often than locked");
  pool.refs[block] = refs - 1;
  if (refs > 1) return;
  pool.freeCount += 1;
  if (pool.hashes[block] === 0) {
    linkOldest(pool, block);
  } else {
    pool.freeCachedCount += 1;
    linkYoungest(pool, block);
  }
}

function unlink(pool: KvPool, block: number): void {
  const next = pool.next[block] ?? 0;
  const prev = pool.prev[block] ?? 0;
  pool.next[prev] = next;
  pool.prev[next] = prev;
}

function linkYoungest(pool: KvPool, block: number): void {
  linkBefore(pool, block, pool.blockCount);
}

function linkOldest(pool: KvPool, block: number): void {
  linkBefore(pool, block, pool.next[pool.blockCount] ?? 0);
}

function linkBefore(pool: KvPool, block: number, next: number): void {
  const prev = pool.prev[next] ?? 0;
  pool.next[prev] = block;
  pool.prev[block] = prev;
  pool.next[block] = next;
  pool.prev[next] = block;
}
