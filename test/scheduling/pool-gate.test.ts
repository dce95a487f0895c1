/** The bound of the live set by the size of the KV pool (spec 9, Admit runs, not turns). */
import { expect, test } from "vitest";
import { ActiveCore, replica } from "./active-set-support.ts";

test("first turns of batch runs are admitted while the contexts of the live runs fit the ceiling", () => {
  const core = ActiveCore.with({ ceiling: 0.85 });
  expect(core.turn("one/1", { tokens: 40_000 })).toEqual(["one/1>a"]);
  expect(core.turn("two/1", { tokens: 40_000 })).toEqual(["two/1>a"]);
  expect(core.turn("three/1", { tokens: 10_000 })).toEqual([]);
  expect(core.why("three/1")).toBe(
    "no place in the pool of a (2 live runs fill 80,000 of 85,000 tokens, this one needs 10,000)",
  );
  expect(core.turn("four/1", { tokens: 1_000 })).toEqual([]);
  expect(core.why("four/1")).toBe("no place on a before a run that needs more room, behind 1 turn of its caller");
});

test("an admitted run goes on at once, whatever waits", () => {
  const core = ActiveCore.with();
  core.turn("one/1", { tokens: 40_000 });
  core.turn("two/1", { tokens: 40_000 });
  core.turn("three/1", { tokens: 40_000 });
  expect(core.done("one/1", { promptTokens: 40_000, completionTokens: 100 })).toEqual([]);
  expect(core.after(2_000).turn("one/2", { tokens: 40_200 })).toEqual(["one/2>a"]);
});

test("several turns of one run need one place", () => {
  const core = ActiveCore.with();
  core.turn("one/1", { tokens: 60_000 });
  expect(core.turn("one/2", { tokens: 60_000 })).toEqual(["one/2>a"]);
  core.turn("two/1", { tokens: 60_000 });
  core.turn("two/2", { tokens: 60_000 });
  core.done("one/1", {}, { stop: true });
  // The place of the first opens the way for its siblings.
  expect(core.done("one/2", {}, { stop: true })).toEqual(["two/1>a", "two/2>a"]);
});

test("a run that ends gives its place at once", () => {
  const core = ActiveCore.with();
  core.turn("one/1", { tokens: 60_000 });
  core.turn("two/1", { tokens: 60_000 });
  expect(core.done("one/1", { promptTokens: 60_000 }, { stop: true })).toEqual(["two/1>a"]);
});

test("interactive turns are never held by the pool, and count first", () => {
  const core = ActiveCore.with();
  core.turn("one/1", { tokens: 60_000 });
  expect(core.turn("chat/1", { class: "interactive", tokens: 60_000 })).toEqual(["chat/1>a"]);
  expect(core.turn("two/1", { tokens: 20_000 })).toEqual([]);
  // While the interactive run waits for its tool its prefix is wanted there.
  core.done("one/1", {}, { stop: true });
  core.done("chat/1", { promptTokens: 60_000 });
  expect(core.where("two/1")).toBe("a");
  expect(core.turn("three/1", { tokens: 20_000 })).toEqual([]);
  // After the time for which room is kept, it is not.
  core.after(1_800_000);
  expect(core.tick()).toEqual(["three/1>a"]);
});

test("a run that is alone is admitted, however large", () => {
  const core = ActiveCore.with();
  expect(core.turn("giant/1", { tokens: 300_000 })).toEqual(["giant/1>a"]);
  expect(core.turn("small/1", { tokens: 10 })).toEqual([]);
});

test("a prefix that runs share counts once", () => {
  const core = ActiveCore.with();
  core.turn("zero/1", { tokens: 20_000, prefix: "agent" });
  core.done("zero/1", { promptTokens: 20_000, cachedTokens: 0 }, { stop: true });
  // The second one shows that 15,000 tokens of it were there already.
  core.turn("one/1", { tokens: 20_000, prefix: "agent" });
  core.done("one/1", { promptTokens: 20_000, cachedTokens: 15_000 });
  // 15,000 once and 5,000 each: fourteen fit below 85,000.
  for (let at = 2; at <= 14; at += 1) {
    expect(core.turn(`run${at}/1`, { tokens: 20_000, prefix: "agent" })).toEqual([`run${at}/1>a`]);
  }
  expect(core.turn("run15/1", { tokens: 20_000, prefix: "agent" })).toEqual([]);
  expect(core.turn("other/1", { tokens: 5_000, prefix: "other" })).toEqual([]);
});

test("what a run needs is what its engine counted, as soon as it has", () => {
  const core = ActiveCore.with();
  core.turn("one/1", { tokens: 10_000 });
  core.done("one/1", { promptTokens: 80_000, completionTokens: 4_000 });
  expect(core.turn("two/1", { tokens: 10_000 })).toEqual([]);
});

test("growth: runs between turns make room for one that comes back larger, the longest away first", () => {
  const core = ActiveCore.with();
  for (const run of ["one", "two", "three"]) core.turn(`${run}/1`, { tokens: 25_000 });
  core.done("one/1", { promptTokens: 25_000 });
  core.after(100).done("two/1", { promptTokens: 25_000 });
  core.after(100).done("three/1", { promptTokens: 25_000 });
  expect(core.turn("three/2", { tokens: 50_000 })).toEqual(["three/2>a"]);
  // The first has lost its place and is held before all first turns; the second goes on.
  expect(core.turn("new/1", { tokens: 1_000 })).toEqual(["new/1>a"]);
  expect(core.turn("one/2", { tokens: 25_000 })).toEqual([]);
  expect(core.turn("two/2", { tokens: 25_000 })).toEqual(["two/2>a"]);
  expect(core.turn("newer/1", { tokens: 20_000 })).toEqual([]);
  expect(core.place("one/2")).toBe(1);
  expect(core.place("newer/1")).toBe(2);
  expect(core.done("three/2", {}, { stop: true })).toEqual(["one/2>a", "newer/1>a"]);
});

test("growth: where all others are at work, the run that has grown waits", () => {
  const core = ActiveCore.with();
  core.turn("one/1", { tokens: 40_000 });
  core.turn("two/1", { tokens: 40_000 });
  core.done("two/1", { promptTokens: 40_000 });
  expect(core.turn("two/2", { tokens: 60_000 })).toEqual([]);
  expect(core.done("one/1", {}, { stop: true })).toEqual(["two/2>a"]);
});

test("growth switched off: nobody loses a place by it", () => {
  const core = ActiveCore.with({ growth: false });
  core.turn("one/1", { tokens: 40_000 });
  core.turn("two/1", { tokens: 40_000 });
  core.done("two/1", { promptTokens: 40_000 });
  expect(core.turn("two/2", { tokens: 60_000 })).toEqual(["two/2>a"]);
});

test("a new batch run goes where most of the pool is free", () => {
  const core = ActiveCore.with({}, { replicas: [replica("a"), replica("b")] });
  core.turn("one/1", { tokens: 40_000 });
  expect(core.turn("two/1", { tokens: 10_000 })).toEqual(["two/1>b"]);
  expect(core.turn("three/1", { tokens: 10_000 })).toEqual(["three/1>b"]);
  expect(core.turn("four/1", { tokens: 70_000 })).toEqual([]);
  expect(core.why("four/1")).toMatch(/^no place in the pool of a \(.*\), nor on 1 other replica$/);
});

test("without a pool size and without cached tokens nothing but the engine's own load counts", () => {
  const core = ActiveCore.with();
  core.probe("a", { replaced: true, load: { running: 0, waiting: 0 } });
  for (let at = 0; at < 20; at += 1) expect(core.turn(`run${at}/1`, { tokens: 90_000 })).toHaveLength(1);
});

test("the bound switched off: nothing is held by the pool", () => {
  const core = ActiveCore.with({ bound: "none" });
  for (let at = 0; at < 20; at += 1) expect(core.turn(`run${at}/1`, { tokens: 90_000 })).toHaveLength(1);
});
