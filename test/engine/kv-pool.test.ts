import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import {
  allocateBlock,
  createKvPool,
  lockPrefix,
  matchPrefix,
  publishBlock,
  releaseBlocks,
  touchPrefix,
  unlockedAmong,
} from "../../src/engine/kv-pool.ts";
import type { KvPool } from "../../src/engine/kv-pool.ts";

/** The unlocked blocks, oldest first. */
function freeList(pool: KvPool): number[] {
  const blocks: number[] = [];
  for (let at = pool.next[pool.blockCount]!; at !== pool.blockCount; at = pool.next[at]!) blocks.push(at);
  return blocks;
}

/** A request's worth of blocks under these hashes, released again. */
function store(pool: KvPool, hashes: readonly number[]): number[] {
  const blocks = hashes.map((hash) => publishBlock(pool, allocateBlock(pool), hash, true));
  releaseBlocks(pool, blocks);
  return blocks;
}

describe("the KV pool", () => {
  it("evicts the least recently used content first, and of one prompt its tail", () => {
    const pool = createKvPool(6);
    store(pool, [11, 12, 13]);
    store(pool, [21, 22, 23]);
    allocateBlock(pool);
    expect(matchPrefix(pool, [11, 12, 13], 9)).toBe(2);
    allocateBlock(pool);
    expect(matchPrefix(pool, [11, 12, 13], 9)).toBe(1);
    expect(matchPrefix(pool, [21, 22, 23], 9)).toBe(3);
  });

  it("takes empty blocks before it evicts content", () => {
    const pool = createKvPool(4);
    store(pool, [1, 2]);
    allocateBlock(pool);
    allocateBlock(pool);
    expect(pool.evictions).toBe(0);
    expect(matchPrefix(pool, [1, 2], 9)).toBe(2);
  });

  it("takes a block that was released without content before it evicts any", () => {
    const pool = createKvPool(2);
    store(pool, [1]);
    const block = allocateBlock(pool);
    releaseBlocks(pool, [block]);
    expect(allocateBlock(pool)).toBe(block);
    expect(matchPrefix(pool, [1], 1)).toBe(1);
  });

  it("keeps what was touched longer than what was not", () => {
    const pool = createKvPool(4);
    store(pool, [1, 2]);
    store(pool, [3, 4]);
    touchPrefix(pool, [1, 2], 2);
    allocateBlock(pool);
    allocateBlock(pool);
    expect([matchPrefix(pool, [1, 2], 9), matchPrefix(pool, [3, 4], 9)]).toEqual([2, 0]);
  });

  it("gives back the copy where content is shared, and leaves it without a hash where it is not", () => {
    const shared = createKvPool(4);
    const [one, two] = [allocateBlock(shared), allocateBlock(shared)];
    publishBlock(shared, one, 7, true);
    expect(publishBlock(shared, two, 7, true)).toBe(one);
    expect([shared.refs[one], shared.refs[two]]).toEqual([2, 0]);
    const separate = createKvPool(4);
    const [first, second] = [allocateBlock(separate), allocateBlock(separate)];
    publishBlock(separate, first, 7, false);
    expect(publishBlock(separate, second, 7, false)).toBe(second);
    expect(separate.hashes[second]).toBe(0);
  });

  it("matches only a prefix without a gap", () => {
    const pool = createKvPool(4);
    store(pool, [1, 2, 3]);
    expect(matchPrefix(pool, [1, 9, 3], 9)).toBe(1);
    expect(matchPrefix(pool, [2, 3], 1)).toBe(1);
    expect(matchPrefix(pool, [9], 9)).toBe(0);
  });

  it("counts which part of a match costs free memory", () => {
    const pool = createKvPool(4);
    store(pool, [1, 2, 3]);
    lockPrefix(pool, [1, 2, 3], 1);
    expect(unlockedAmong(pool, [1, 2, 3], 3)).toBe(2);
  });

  it("keeps K1, K2 and K3 under any use", () => {
    const operation = fc.record({
      family: fc.integer({ min: 0, max: 3 }),
      length: fc.integer({ min: 1, max: 5 }),
      release: fc.boolean(),
      share: fc.boolean(),
      touch: fc.boolean(),
    });
    fc.assert(
      fc.property(fc.integer({ min: 2, max: 12 }), fc.array(operation, { maxLength: 60 }), (size, operations) => {
        const pool = createKvPool(size);
        const held: number[][] = [];
        for (const { family, length, release, share, touch } of operations) {
          const hashes = Array.from({ length }, (_, at) => 100 * (family + 1) + at);
          const matched = matchPrefix(pool, hashes, length);
          expect(matched).toBeLessThanOrEqual(length);
          if (touch) touchPrefix(pool, hashes, matched);
          const before = held.map((blocks) => blocks.map((block) => pool.hashes[block]));
          const mine = lockPrefix(pool, hashes, matched);
          for (let at = matched; at < length; at += 1) {
            const block = allocateBlock(pool);
            if (block === -1) break;
            mine.push(publishBlock(pool, block, hashes[at]!, share));
          }
          // K2: what others hold has kept its content.
          expect(held.map((blocks) => blocks.map((block) => pool.hashes[block]))).toEqual(before);
          held.push(mine);
          if (release) releaseBlocks(pool, held.shift()!);
          checkPool(pool, held);
        }
        for (const blocks of held) releaseBlocks(pool, blocks);
        expect(pool.freeCount).toBe(size);
      }),
      { numRuns: 200 },
    );
  });
});

function checkPool(pool: KvPool, held: readonly (readonly number[])[]): void {
  const refs = new Map<number, number>();
  for (const block of held.flat()) refs.set(block, (refs.get(block) ?? 0) + 1);
  for (let block = 0; block < pool.blockCount; block += 1) expect(pool.refs[block]).toBe(refs.get(block) ?? 0);
  const free = freeList(pool);
  expect(new Set(free).size).toBe(free.length); // K1
  expect(free.length).toBe(pool.freeCount);
  expect(free.every((block) => pool.refs[block] === 0)).toBe(true);
  expect(free.filter((block) => pool.hashes[block] !== 0).length).toBe(pool.freeCachedCount);
  for (const [hash, block] of pool.byHash) expect(pool.hashes[block]).toBe(hash); // K3
  expect([...pool.hashes].filter((hash) => hash !== 0).length).toBe(pool.byHash.size);
}
