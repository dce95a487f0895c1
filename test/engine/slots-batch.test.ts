import { describe, expect, it } from "vitest";
import { load } from "../../src/engine/index.ts";
import { lines, plainEngine, play, request } from "./support.ts";

describe("an engine with slots", () => {
  it("defers a request until a slot is free", () => {
    const engine = plainEngine("slots", { maxRunning: 2, contextTokens: 1_000 });
    const events = play(engine, [
      { atMs: 0, request: request("a", { prompt: 10, output: 2 }) },
      { atMs: 0, request: request("b", { prompt: 10, output: 9 }) },
      { atMs: 0, request: request("c", { prompt: 10, output: 1 }) },
    ]);
    expect(lines(events, ["admitted"])).toEqual([
      "admitted a @0 cached 0",
      "admitted b @0 cached 0",
      "admitted c @30 cached 0",
    ]);
  });

  it("takes the free slot with the longest common prefix, else the one unused for longest", () => {
    const engine = plainEngine("slots", { maxRunning: 2, contextTokens: 1_000 });
    const run = (id: string, prompt: number): ReturnType<typeof request> =>
      request(`${id}${prompt}`, { prompt, output: 16, family: id, shared: 4 });
    const events = play(engine, [
      { atMs: 0, request: run("x", 64) },
      { atMs: 1, request: run("y", 64) },
      { atMs: 2_000, request: run("y", 100) },
      { atMs: 3_000, request: run("x", 100) },
      // Nothing in common: it takes y's slot, which was used before x's, and y's prefix is gone.
      { atMs: 4_000, request: run("z", 64) },
      { atMs: 5_000, request: run("x", 120) },
      { atMs: 5_001, request: run("y", 120) },
    ]);
    expect(lines(events, ["admitted"]).map((line) => line.replace(/@\d+ /, "").slice(9))).toEqual([
      "x64 cached 0",
      "y64 cached 0",
      "y100 cached 64",
      "x100 cached 64",
      "z64 cached 0",
      "x120 cached 64",
      "y120 cached 0",
    ]);
  });

  it("with one slot loses the prefix at every change of runs", () => {
    const engine = plainEngine("slots", { maxRunning: 1, contextTokens: 1_000 });
    const events = play(
      engine,
      ["x", "y", "x", "x"].map((id, at) => ({
        atMs: at * 1_000,
        request: request(`${id}${at}`, { prompt: 64 + at, output: 16, family: id, shared: 4 }),
      })),
    );
    expect(lines(events, ["admitted"]).map((line) => line.split(" ").at(-1))).toEqual(["0", "0", "0", "64"]);
    expect(load(engine)).toEqual({ running: 0, waiting: 0, usedTokens: 0, kvTokens: 1_000 });
  });
});
