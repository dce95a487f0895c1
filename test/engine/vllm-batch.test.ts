import { describe, expect, it } from "vitest";
import { abort, nextEventAtMs, step, submit } from "../../src/engine/index.ts";
import { lines, plainEngine, play, request } from "./support.ts";

describe("a vLLM batch", () => {
  it("spends one token budget per step, running requests first", () => {
    const engine = plainEngine("vllm", { chunkTokens: 64 });
    const events = play(engine, [
      { atMs: 0, request: request("r1", { prompt: 100, output: 2 }) },
      { atMs: 0, request: request("r2", { prompt: 30, output: 2 }) },
    ]);
    // Step 1: 64 of r1. Step 2: its last 36 and 28 of r2. Step 3: one decode token and r2's last 2, at least 10 ms.
    expect(lines(events)).toEqual([
      "admitted r1 @0 cached 0",
      "admitted r2 @64 cached 0",
      "token r1 @128 #1",
      "token r1 @138 #2",
      "finished r1 @138",
      "token r2 @138 #1",
      "token r2 @148 #2",
      "finished r2 @148",
    ]);
  });

  it("never runs more than max_num_seqs requests", () => {
    const engine = plainEngine("vllm", { maxRunning: 2 });
    const events = play(
      engine,
      ["a", "b", "c"].map((id) => ({ atMs: 0, request: request(id, { prompt: 10, output: id === "a" ? 1 : 3 }) })),
    );
    expect(lines(events, ["admitted"])).toEqual([
      "admitted a @0 cached 0",
      "admitted b @0 cached 0",
      "admitted c @20 cached 0",
    ]);
  });

  it("admits a request only when its whole prompt has room, not its first chunk alone", () => {
    // 10 blocks: r1 takes 4, r2 wants 7, its first chunk of 32 tokens would need 2.
    const engine = plainEngine("vllm", { kvTokens: 160, chunkTokens: 32 });
    const events = play(engine, [
      { atMs: 0, request: request("r1", { prompt: 64, output: 1 }) },
      { atMs: 0, request: request("r2", { prompt: 112, output: 1 }) },
    ]);
    expect(lines(events, ["admitted", "finished"])).toEqual([
      "admitted r1 @0 cached 0",
      "finished r1 @64",
      "admitted r2 @64 cached 0",
      "finished r2 @176",
    ]);
  });

  it("reserves nothing for the answer, and preempts the tail of the running when blocks run out", () => {
    // 6 blocks; both requests have 2 for their prompt and 3 from the first decode step on. When r1 needs its 4th, after
    // 16 decode steps, r2 is pushed out; r1's new block is r2's deepest one, so r2's prompt survives in the cache.
    const engine = plainEngine("vllm", { kvTokens: 96 });
    const events = play(engine, [
      { atMs: 0, request: request("r1", { prompt: 32, output: 30 }) },
      { atMs: 0, request: request("r2", { prompt: 32, output: 30 }) },
    ]);
    expect(lines(events, ["admitted", "preempted", "finished"])).toEqual([
      "admitted r1 @0 cached 0",
      "admitted r2 @0 cached 0",
      "preempted r2 @224",
      "finished r1 @354",
      "admitted r2 @354 cached 32",
      "finished r2 @491",
    ]);
    // It goes on with its 18th token, and pays for the 17 tokens that it lost.
    expect(lines(events, ["token"]).filter((line) => line.includes("r2"))[17]).toBe("token r2 @371 #18");
  });

  it("admits nobody in a step that preempts", () => {
    const engine = plainEngine("vllm", { kvTokens: 96, priorityScheduling: true });
    const events = play(engine, [
      { atMs: 0, request: request("r1", { prompt: 32, output: 30, priority: 1 }) },
      { atMs: 0, request: request("r2", { prompt: 32, output: 30, priority: 9 }) },
      { atMs: 220, request: request("urgent", { prompt: 1, output: 1, priority: 0 }) },
    ]);
    // At 224 r2 is pushed out and leaves two blocks: the urgent one, first in the queue, needs one and waits a step.
    expect(lines(events, ["preempted", "admitted"]).slice(2, 4)).toEqual([
      "preempted r2 @224",
      "admitted urgent @234 cached 0",
    ]);
  });

  it("orders by priority, smaller first, when priority scheduling is on", () => {
    const engine = plainEngine("vllm", { maxRunning: 1, priorityScheduling: true });
    const events = play(engine, [
      { atMs: 0, request: request("running", { prompt: 10, output: 2, priority: 5 }) },
      { atMs: 1, request: request("later", { prompt: 10, output: 1, priority: 7 }) },
      { atMs: 2, request: request("sooner", { prompt: 10, output: 1, priority: -1 }) },
      { atMs: 3, request: request("same", { prompt: 10, output: 1, priority: -1 }) },
    ]);
    expect(lines(events, ["admitted"]).map((line) => line.split(" ")[1])).toEqual([
      "running",
      "sooner",
      "same",
      "later",
    ]);
  });

  it("preempts the least urgent running request when priorities count, wherever it stands", () => {
    const engine = plainEngine("vllm", { kvTokens: 96, priorityScheduling: true });
    const events = play(engine, [
      { atMs: 0, request: request("low", { prompt: 32, output: 30, priority: 9 }) },
      { atMs: 65, request: request("high", { prompt: 32, output: 30, priority: 1 }) },
    ]);
    expect(lines(events, ["preempted"]).map((line) => line.split(" ")[1])).toEqual(["low"]);
    expect(engine.counters.finished).toBe(2);
  });

  it("takes full blocks of an earlier prompt from the cache, and computes the last token anew", () => {
    const engine = plainEngine("vllm", {});
    const shape = { prompt: 64, output: 16, family: "system", shared: 4 };
    const events = play(engine, [
      { atMs: 0, request: request("first", shape) },
      { atMs: 1_000, request: request("second", shape) },
      { atMs: 2_000, request: request("longer", { ...shape, prompt: 100 }) },
    ]);
    // All 4 blocks are cached; of an equal prompt only 3 may be used, since its last token needs a logit.
    expect(lines(events, ["admitted"])).toEqual([
      "admitted first @0 cached 0",
      "admitted second @1000 cached 48",
      "admitted longer @2000 cached 64",
    ]);
  });

  it("frees an aborted request at the end of the step in flight, and a waiting one at once", () => {
    const engine = plainEngine("vllm", { maxRunning: 1 });
    submit(engine, request("runs", { prompt: 50, output: 5 }), 0);
    submit(engine, request("waits", { prompt: 50, output: 5 }), 0);
    step(engine, 0);
    expect(lines(abort(engine, "waits", 20))).toEqual(["aborted waits @20"]);
    expect(abort(engine, "runs", 25)).toEqual([]);
    expect(engine.kv.freeCount).toBe(engine.kv.blockCount - 4);
    expect(lines(step(engine, 60))).toEqual(["aborted runs @50"]);
    expect(engine.kv.freeCount).toBe(engine.kv.blockCount);
    expect(nextEventAtMs(engine)).toBeUndefined();
  });

  it("refuses what its queue or its context cannot take, and says by how much", () => {
    const engine = plainEngine("vllm", { maxRunning: 1, queueMax: 1, contextTokens: 100 });
    submit(engine, request("runs", { prompt: 50, output: 5 }), 0);
    step(engine, 0);
    expect(submit(engine, request("waits", { prompt: 50, output: 5 }), 1)).toBeUndefined();
    expect(submit(engine, request("waits", { prompt: 50, output: 5 }), 1)).toEqual({ kind: "duplicate-id" });
    expect(submit(engine, request("more", { prompt: 50, output: 5 }), 2)).toEqual({ kind: "queue-full", queueMax: 1 });
    expect(submit(engine, request("long", { prompt: 100, output: 1 }), 3)).toEqual({
      kind: "too-long",
      tokens: 100,
      tokensMax: 99,
    });
  });

  it("keeps the place and memory of a stalled request until it is aborted", () => {
    const engine = plainEngine("vllm", { maxRunning: 1 });
    const events = play(engine, [
      { atMs: 0, request: request("stuck", { prompt: 16, output: 9, stall: 2 }) },
      { atMs: 0, request: request("next", { prompt: 16, output: 1 }) },
    ]);
    expect(lines(events)).toEqual(["admitted stuck @0 cached 0", "token stuck @16 #1", "token stuck @26 #2"]);
    expect(nextEventAtMs(engine)).toBeUndefined();
    expect(lines(abort(engine, "stuck", 5_000))).toEqual(["aborted stuck @5000"]);
    expect(lines(play(engine, []))).toEqual([
      "admitted next @5000 cached 0",
      "token next @5016 #1",
      "finished next @5016",
    ]);
  });
});
