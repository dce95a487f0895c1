import { describe, expect, it } from "vitest";
import { readGauges, step, submit } from "../../src/engine/index.ts";
import { lines, plainEngine, play, request } from "./support.ts";

describe("an SGLang batch", () => {
  it("reserves the longest answer of a new request in full, and stays closed until a request ends", () => {
    // 1,024 tokens. r1 and r2 need 100 + 400 + 16 each: 516 < 1,024, then 516 < 524. r3 needs 136 and 24 are left: the
    // batch is full. One pass later 240 would be free (the running ones count with 0.7 of their rest), yet r3 waits
    // until r1 ends.
    const engine = plainEngine("sglang", { kvTokens: 1_024 });
    const events = play(engine, [
      { atMs: 0, request: request("r1", { prompt: 100, output: 10, max: 400 }) },
      { atMs: 0, request: request("r2", { prompt: 100, output: 20, max: 400 }) },
      { atMs: 0, request: request("r3", { prompt: 20, output: 1, max: 100 }) },
    ]);
    expect(lines(events, ["admitted", "finished"])).toEqual([
      "admitted r1 @0 cached 0",
      "admitted r2 @0 cached 0",
      "finished r1 @290",
      "admitted r3 @290 cached 0",
      "finished r3 @310",
      "finished r2 @410",
    ]);
  });

  it("admits when the need is below what is free, not when it is equal", () => {
    // 1,024 tokens; the second request needs exactly what the first leaves: 1,024 - 508 = 516, or one less.
    const admittedAt = (max: number): string | undefined => {
      const engine = plainEngine("sglang", { kvTokens: 1_024 });
      const events = play(engine, [
        { atMs: 0, request: request("first", { prompt: 108, output: 2, max: 400 }) },
        { atMs: 0, request: request("second", { prompt: 100, output: 2, max }) },
      ]);
      return lines(events, ["admitted"])[1];
    };
    expect(admittedAt(400)).toBe("admitted second @118 cached 0");
    expect(admittedAt(399)).toBe("admitted second @0 cached 0");
  });

  it("takes a cached prefix out of the free memory before it judges a request", () => {
    // `first` leaves 64 tokens of prefix. Of 1,024, r1 reserves 400 + 300: 324 are free, the cached 64 among them. r2
    // needs 36 + max + 16 of the other 260.
    const admittedAt = (max: number): string | undefined => {
      const engine = plainEngine("sglang", { kvTokens: 1_024 });
      const events = play(engine, [
        { atMs: 0, request: request("first", { prompt: 64, output: 16, family: "system", shared: 4 }) },
        { atMs: 1_000, request: request("r1", { prompt: 400, output: 5, max: 300 }) },
        { atMs: 1_000, request: request("r2", { prompt: 100, output: 2, max, family: "system", shared: 4 }) },
      ]);
      return lines(events, ["admitted"])[2];
    };
    expect(admittedAt(207)).toBe("admitted r2 @1000 cached 64");
    expect(admittedAt(208)).toBe("admitted r2 @1440 cached 64");
  });

  it("reserves at most 4,096 tokens for an answer, however long it may be", () => {
    const engine = plainEngine("sglang", { kvTokens: 16_384 });
    const events = play(engine, [
      { atMs: 0, request: request("r1", { prompt: 100, output: 2, max: 10_000 }) },
      { atMs: 0, request: request("r2", { prompt: 100, output: 2, max: 10_000 }) },
      { atMs: 0, request: request("r3", { prompt: 100, output: 2, max: 10_000 }) },
      { atMs: 0, request: request("r4", { prompt: 100, output: 2, max: 10_000 }) },
    ]);
    // 3 × 4,196 = 12,588 leaves 3,796: the fourth, which needs 4,212, waits.
    expect(lines(events, ["admitted"]).map((line) => line.slice(9))).toEqual([
      "r1 @0 cached 0",
      "r2 @0 cached 0",
      "r3 @0 cached 0",
      "r4 @310 cached 0",
    ]);
  });

  it("runs a prefill instead of a decode step", () => {
    const engine = plainEngine("sglang", {});
    const events = play(engine, [
      { atMs: 0, request: request("r1", { prompt: 20, output: 4 }) },
      { atMs: 25, request: request("r2", { prompt: 50, output: 1 }) },
    ]);
    expect(lines(events, ["token"])).toEqual([
      "token r1 @20 #1",
      "token r1 @30 #2",
      // 30 to 80: the prefill of r2 alone.
      "token r2 @80 #1",
      "token r1 @90 #3",
      "token r1 @100 #4",
    ]);
  });

  it("prefills a long prompt in chunks, one unfinished at a time", () => {
    const engine = plainEngine("sglang", { chunkTokens: 64 });
    const events = play(engine, [
      { atMs: 0, request: request("long", { prompt: 100, output: 1 }) },
      { atMs: 0, request: request("short", { prompt: 20, output: 1 }) },
      { atMs: 0, request: request("longer", { prompt: 90, output: 1 }) },
    ]);
    // 64 | 36 + 20, and 8 left for nothing whole: a chunk is whole blocks | 64 | 26.
    expect(lines(events, ["admitted", "finished"])).toEqual([
      "admitted long @0 cached 0",
      "admitted short @64 cached 0",
      "finished long @120",
      "finished short @120",
      "admitted longer @120 cached 0",
      "finished longer @210",
    ]);
  });

  it("retracts the request with the fewest generated tokens when decoding finds no memory", () => {
    // 17 blocks: r1 (one token ahead) holds 9 and r2 8 when r2 needs its 9th too.
    const engine = plainEngine("sglang", { kvTokens: 272, newTokenRatio: 0.1 });
    const events = play(engine, [
      { atMs: 0, request: request("r1", { prompt: 64, output: 100 }) },
      { atMs: 70, request: request("r2", { prompt: 64, output: 100 }) },
    ]);
    expect(lines(events, ["admitted", "preempted", "finished"])).toEqual([
      "admitted r1 @0 cached 0",
      "admitted r2 @74 cached 0",
      "preempted r2 @778",
      "finished r1 @1118",
      // Its prompt stayed in the tree, its generated tokens' memory did not.
      "admitted r2 @1118 cached 64",
      "finished r2 @1523",
    ]);
    expect(lines(events, ["token"]).find((line) => line.endsWith(" #66") && line.includes("r2"))).toBe(
      "token r2 @1183 #66",
    );
  });

  it("sets the ratio from what was decoded after a retraction", () => {
    const engine = plainEngine("sglang", { kvTokens: 272, newTokenRatio: 0.1 });
    play(
      engine,
      [
        { atMs: 0, request: request("r1", { prompt: 64, output: 100 }) },
        { atMs: 70, request: request("r2", { prompt: 64, output: 100 }) },
      ],
      778,
    );
    // (66 decoded + 20) ÷ (100 allowed + 1)
    expect(engine.sglang.newTokenRatio).toBeCloseTo(86 / 101, 10);
  });

  it("lets the ratio fall to 14 % of its start within 600 decode steps, and starts again when idle", () => {
    const engine = plainEngine("sglang", {});
    submit(engine, request("r1", { prompt: 10, output: 1_000 }), 0);
    step(engine, 10 + 300 * 10 - 1);
    expect(engine.sglang.newTokenRatio).toBeCloseTo(0.7 - 300 * ((0.7 * 0.86) / 600), 10);
    step(engine, 10 + 700 * 10);
    expect(engine.sglang.newTokenRatio).toBeCloseTo(0.098, 10);
    step(engine, 20_000);
    expect(engine.sequences.size).toBe(0);
    expect(engine.sglang.newTokenRatio).toBe(0.7);
  });

  it("orders by priority, larger first, when priority scheduling is on", () => {
    const engine = plainEngine("sglang", { maxRunning: 1, priorityScheduling: true });
    const events = play(engine, [
      { atMs: 0, request: request("running", { prompt: 10, output: 2 }) },
      { atMs: 1, request: request("low", { prompt: 10, output: 1, priority: -3 }) },
      { atMs: 2, request: request("high", { prompt: 10, output: 1, priority: 8 }) },
    ]);
    expect(lines(events, ["admitted"]).map((line) => line.split(" ")[1])).toEqual(["running", "high", "low"]);
  });

  it("shares one copy of a prefix that two requests computed side by side", () => {
    const engine = plainEngine("sglang", {});
    const shape = { prompt: 64, output: 50, family: "system", shared: 4 };
    submit(engine, request("one", shape), 0);
    submit(engine, request("two", shape), 0);
    step(engine, 0);
    expect(engine.kv.blockCount - engine.kv.freeCount).toBe(8);
    step(engine, 128);
    expect(engine.kv.blockCount - engine.kv.freeCount).toBe(4 + 2);
  });

  it("keeps the prefixes of waiting requests young, so that a paused run's prefix goes first", () => {
    // 24 blocks. `queued`, then `paused` leave prefixes of 4 blocks. `queued` comes back and waits behind a long
    // request, whose 20 blocks cost one of the two prefixes: that of the run which is away, though it is the younger.
    const engine = plainEngine("sglang", { kvTokens: 384, maxRunning: 1 });
    const run = (id: string, prompt: number): ReturnType<typeof request> =>
      request(`${id}-${prompt}`, { prompt, output: 16, family: id, shared: 4 });
    const events = play(engine, [
      { atMs: 0, request: run("queued", 64) },
      { atMs: 1_000, request: run("paused", 64) },
      { atMs: 2_000, request: request("long", { prompt: 100, output: 220 }) },
      { atMs: 2_001, request: run("queued", 100) },
      { atMs: 9_000, request: run("paused", 100) },
    ]);
    expect(lines(events, ["admitted"]).map((line) => line.replace(/@\d+ /, "").slice(9))).toEqual([
      "queued-64 cached 0",
      "paused-64 cached 0",
      "long cached 0",
      "queued-100 cached 64",
      "paused-100 cached 0",
    ]);
  });
});

describe("SGLang's gauges", () => {
  it("show the batch before a prefill, and do not move until the next report", () => {
    const engine = plainEngine("sglang", { maxRunning: 1 });
    submit(engine, request("r1", { prompt: 20, output: 100 }), 0);
    submit(engine, request("r2", { prompt: 20, output: 1 }), 0);
    step(engine, 0);
    expect(readGauges(engine, 0)).toMatchObject({ running: 0, waiting: 1, writtenMs: 0 });
    submit(engine, request("r3", { prompt: 20, output: 1 }), 100);
    step(engine, 409);
    // 39 decode steps later still the same, though one runs and two wait.
    expect(readGauges(engine, 409)).toMatchObject({ running: 0, waiting: 1, writtenMs: 0 });
    // The 40th begins at 20 + 39 × 10.
    step(engine, 410);
    expect(readGauges(engine, 410)).toMatchObject({ running: 1, waiting: 2, writtenMs: 410, cacheHitRate: 0 });
  });

  it("are refreshed once an engine has been idle for 30 s after its last report", () => {
    const engine = plainEngine("sglang", {});
    submit(engine, request("r1", { prompt: 20, output: 60 }), 0);
    step(engine, 5_000);
    expect(engine.sequences.size).toBe(0);
    expect(readGauges(engine, 30_000)).toMatchObject({ running: 1, writtenMs: 410 });
    expect(readGauges(engine, 30_410)).toMatchObject({ running: 0, waiting: 0, usedTokens: 0, writtenMs: 30_410 });
  });

  it("count by priority", () => {
    const engine = plainEngine("sglang", { maxRunning: 2, priorityScheduling: true });
    for (const [id, priority] of [
      ["a", 5],
      ["b", 5],
      ["c", 1],
      ["d", 9],
    ] as const) {
      submit(engine, request(id, { prompt: 20, output: 200, priority }), 0);
    }
    step(engine, 1_000);
    expect([...readGauges(engine, 1_000).byPriority]).toEqual([
      [9, { running: 1, waiting: 0 }],
      [5, { running: 1, waiting: 1 }],
      [1, { running: 0, waiting: 1 }],
    ]);
  });
});
