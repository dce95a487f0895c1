import { describe, expect, it } from "vitest";
import { createCacheAwareRouter } from "../../src/engine/cache-aware-router.ts";

const prompt = (...blocks: number[]): Float64Array => Float64Array.from(blocks);
const BOTH = [0, 1];

describe("the cache-aware router", () => {
  it("sends a prompt that it does not know to the engine with the fewest requests, of equal ones to that which served fewer", () => {
    const router = createCacheAwareRouter({ engines: 2 });
    expect([1, 2, 3].map((block) => router.choose(prompt(block), BOTH))).toEqual([0, 1, 0]);
    router.ended(0);
    router.ended(0);
    expect(router.inFlight).toEqual([0, 1]);
    expect(router.choose(prompt(4), BOTH)).toBe(0);
    router.ended(0);
    router.ended(1);
    expect(router.choose(prompt(5), BOTH)).toBe(1);
  });

  it("keeps a conversation where it began, whatever class it is and however busy that engine", () => {
    const router = createCacheAwareRouter({ engines: 2 });
    expect(router.choose(prompt(1, 2), BOTH)).toBe(0);
    expect(router.choose(prompt(9), BOTH)).toBe(1);
    router.ended(1);
    for (let turn = 0; turn < 50; turn += 1) expect(router.choose(prompt(1, 2, 3), BOTH)).toBe(0);
  });

  it("herds new runs to one engine once a shared prompt is more than the threshold of them", () => {
    const router = createCacheAwareRouter({ engines: 2, cacheThreshold: 0.3 });
    router.choose(prompt(1, 2, 10, 11, 12, 13), BOTH);
    // 2 of 6 blocks are known: more than 0.3.
    expect(router.choose(prompt(1, 2, 20, 21, 22, 23), BOTH)).toBe(0);
    // 2 of 7: not more.
    expect(router.choose(prompt(1, 2, 30, 31, 32, 33, 34), BOTH)).toBe(1);
    // Now the other engine had the shared part last.
    expect(router.choose(prompt(1, 2, 40, 41), BOTH)).toBe(1);
  });

  it("gives a prefix up only when the load is uneven by both measures", () => {
    const router = createCacheAwareRouter({ engines: 2, balanceAbs: 2, balanceRel: 1.5 });
    for (let turn = 0; turn < 3; turn += 1) expect(router.choose(prompt(1), BOTH)).toBe(0);
    // 3 − 0 > 2 and 3 > 1.5 × 0.
    expect(router.choose(prompt(1), BOTH)).toBe(1);
    // It was there last: 3 − 1 is not above 2.
    expect(router.choose(prompt(1), BOTH)).toBe(1);
  });

  it("does not send to an engine that is not usable, and goes back when it is", () => {
    const router = createCacheAwareRouter({ engines: 2 });
    expect(router.choose(prompt(1), BOTH)).toBe(0);
    expect(router.choose(prompt(1), [1])).toBe(1);
    expect(router.choose(prompt(1), BOTH)).toBe(1);
  });

  it("forgets the longest unused blocks beyond its bound", () => {
    const router = createCacheAwareRouter({ engines: 2, blocksMax: 2 });
    router.choose(prompt(1), BOTH);
    router.choose(prompt(2), BOTH);
    router.choose(prompt(1), BOTH);
    router.choose(prompt(3), BOTH);
    router.ended(0);
    router.ended(0);
    // Block 2 is gone: it goes where fewest requests are, not to engine 1.
    expect(router.inFlight).toEqual([0, 2]);
    expect(router.choose(prompt(2), BOTH)).toBe(0);
  });
});
