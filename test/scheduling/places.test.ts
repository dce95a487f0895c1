/** When a batch run loses its place: slices, runs that do not come back, replicas with little to do (spec 9). */
import { expect, test } from "vitest";
import { ActiveCore } from "./active-set-support.ts";

/** Two runs of 40,000 tokens fill the pool, a third one waits. Prefill is 10 tokens per ms until learned: 4 s for each. */
function full(about: Parameters<typeof ActiveCore.with>[0] = {}): ActiveCore {
  const core = ActiveCore.with({ placeLeastMs: 1_000_000, placeMostMs: 1_000_000, ...about });
  core.turn("one/1", { tokens: 40_000 });
  core.turn("two/1", { tokens: 40_000 });
  core.turn("wait/1", { tokens: 40_000 });
  return core;
}

test("a run whose slice is spent yields at the end of its turn to who waits", () => {
  const core = full({ sliceFactor: 10 });
  core.after(39_000);
  expect(core.done("one/1", { promptTokens: 40_000 })).toEqual([]);
  expect(core.turn("one/2", { tokens: 40_000 })).toEqual(["one/2>a"]);
  core.after(2_000);
  expect(core.done("one/2", { promptTokens: 40_000 })).toEqual(["wait/1>a"]);
  // Its next turn waits, before all first turns.
  core.turn("new/1", { tokens: 40_000 });
  core.turn("one/3", { tokens: 40_000 });
  expect(core.place("one/3")).toBe(1);
  core.after(100_000);
  expect(core.done("two/1", { promptTokens: 40_000 })).toEqual(["one/3>a"]);
  expect(core.done("wait/1", { promptTokens: 40_000 })).toEqual(["new/1>a"]);
});

test("a slice that is spent while the run is away opens its place without another event than the time", () => {
  const core = full({ sliceFactor: 10 });
  core.after(10_000).done("one/1", { promptTokens: 40_000 });
  core.after(29_999);
  expect(core.tick()).toEqual([]);
  core.after(1);
  expect(core.tick()).toEqual(["wait/1>a"]);
});

test("a spent slice costs nothing while nobody waits", () => {
  const core = ActiveCore.with({ sliceFactor: 1 });
  core.turn("one/1", { tokens: 40_000 });
  core.after(50_000).done("one/1", { promptTokens: 40_000 });
  expect(core.after(100).turn("one/2", { tokens: 40_000 })).toEqual(["one/2>a"]);
});

test("only as many places are taken as who waits needs, those that are due longest first", () => {
  const core = ActiveCore.with({ sliceFactor: 0.001 });
  for (const run of ["one", "two", "three", "four"]) core.turn(`${run}/1`, { tokens: 20_000 });
  for (const run of ["two", "one", "three"]) core.after(10).done(`${run}/1`, { promptTokens: 20_000 });
  expect(core.turn("wait/1", { tokens: 40_000 })).toEqual(["wait/1>a"]);
  // Two was due first, one next; three keeps its place.
  expect(core.turn("three/2", { tokens: 20_000 })).toEqual(["three/2>a"]);
  expect(core.turn("two/2", { tokens: 20_000 })).toEqual([]);
});

test("slices switched off: a run keeps its place for as long as it comes back in time", () => {
  const core = full({ sliceFactor: 0 });
  core.after(900_000);
  expect(core.done("one/1", { promptTokens: 40_000 })).toEqual([]);
  expect(core.turn("one/2", { tokens: 40_000 })).toEqual(["one/2>a"]);
});

test("the slice goes by the prefill that the replica has shown", () => {
  const core = ActiveCore.with({ sliceFactor: 10, placeLeastMs: 1_000_000, placeMostMs: 1_000_000 });
  core.turn("zero/1", { tokens: 40_000 });
  core.after(1_000).start("zero/1");
  // 40,000 tokens in a second: 40 per ms.
  core.done("zero/1", { promptTokens: 40_000, cachedTokens: 0 }, { stop: true });
  core.turn("one/1", { tokens: 40_000 });
  core.turn("two/1", { tokens: 40_000 });
  core.turn("wait/1", { tokens: 40_000 });
  core.after(9_999);
  expect(core.done("one/1", { promptTokens: 40_000 })).toEqual([]);
  core.after(1);
  expect(core.tick()).toEqual(["wait/1>a"]);
});

test("a run that does not come back in 10 s gives its place to who waits", () => {
  const core = full({ placeLeastMs: 10_000, placeMostMs: 120_000 });
  core.done("one/1", { promptTokens: 40_000 });
  core.after(9_999);
  expect(core.tick()).toEqual([]);
  core.after(1);
  expect(core.tick()).toEqual(["wait/1>a"]);
});

test("the place is kept for four times what the tool usually takes, at most two minutes", () => {
  const core = ActiveCore.with();
  for (let turn = 1; turn <= 20; turn += 1) {
    core.turn(`slow/${turn}`, { tokens: 1_000 });
    core.done(`slow/${turn}`, { promptTokens: 1_000 }, { tool: "build" });
    core.after(20_000);
  }
  core.turn("slow/21", { tokens: 1_000 });
  core.done("slow/21", { promptTokens: 1_000 }, { stop: true });
  core.turn("one/1", { tokens: 80_000 });
  core.done("one/1", { promptTokens: 80_000 }, { tool: "build" });
  core.turn("wait/1", { tokens: 40_000 });
  core.after(79_999);
  expect(core.tick()).toEqual([]);
  core.after(1);
  expect(core.tick()).toEqual(["wait/1>a"]);
});

test("a failed run's place goes to who waits, else it is there for the retry", () => {
  const core = full();
  expect(core.fail("one/1")).toEqual(["wait/1>a"]);
  expect(core.fail("two/1")).toEqual([]);
  expect(core.turn("two/2", { tokens: 40_000 })).toEqual(["two/2>a"]);
});

test("a run that ended or is forgotten holds no place", () => {
  const core = full();
  core.done("one/1", { promptTokens: 40_000 });
  const principal = core.state.turns.get("two/1" as never)!.caller.principal.id;
  expect(core.feed({ type: "run-ended", nowMs: core.nowMs, run: "one" as never, principal })).toEqual(["wait/1>a"]);
});

test("a replica with few turns in flight takes held work, and the run that is away longest loses its place", () => {
  const core = full({ workConservingBelow: 2 });
  core.after(500).done("one/1", { promptTokens: 40_000 });
  expect(core.where("wait/1")).toBe("a");
  expect(core.after(500).turn("one/2", { tokens: 40_000 })).toEqual([]);
  expect(core.why("one/2")).toBe(
    "no place in the pool of a (2 live runs fill 80,000 of 85,000 tokens, this one needs 40,000)",
  );
});

test("a batch run that becomes interactive keeps its place and is not held by the pool any more", () => {
  const core = full();
  core.done("one/1", { promptTokens: 40_000 });
  expect(core.turn("one/2", { class: "interactive", tokens: 90_000 })).toEqual(["one/2>a"]);
  core.done("one/2", { promptTokens: 90_000 }, { stop: true });
  expect(core.where("wait/1")).toBe("a");
});

test("a run whose replica is gone has no place, and begins anew elsewhere", () => {
  const core = full();
  core.done("one/1", { promptTokens: 40_000 });
  expect(core.probe("a", { replaced: true, load: { kvCapacityTokens: 100_000, takesPriority: true } })).toEqual([
    "wait/1>a",
  ]);
  expect(core.turn("one/2", { tokens: 60_000 })).toEqual([]);
});

test("after a restart runs that are paused or in flight have their places again", () => {
  const core = full();
  core.done("one/1", { promptTokens: 40_000 });
  const { state } = core;
  const fresh = ActiveCore.with({ placeLeastMs: 1_000_000, placeMostMs: 1_000_000 });
  const who = { principal: state.turns.get("two/1" as never)!.caller.principal.id, caller: "c" as never };
  fresh.feed({
    type: "dataplane-linked",
    nowMs: 0,
    dataplane: "d" as never,
    runs: [
      { ...who, run: "one" as never, class: "batch", phase: "paused", replica: "a" as never, quietMs: 0, pausedMs: 0 },
    ],
    flights: [
      {
        ...who,
        turn: "two/1" as never,
        run: "two" as never,
        class: "batch",
        model: "m",
        api: "chat",
        source: "header",
        replica: "a" as never,
        side: false,
        ageMs: 0,
      },
    ],
    keys: [],
    models: [],
  });
  expect(fresh.state.replicas.get("a" as never)?.live.batchRuns).toBe(2);
  expect(fresh.turn("one/2", { tokens: 80_000 })).toEqual(["one/2>a"]);
});
