/** The bound of the live set by whether prefixes survive, where the size of the pool is not known (spec 9). */
import { expect, test } from "vitest";
import { ActiveCore } from "./active-set-support.ts";

/** A replica that reports cached tokens and no pool. Six batch runs may be live at first. */
function blind(about: Parameters<typeof ActiveCore.with>[0] = {}): ActiveCore {
  const core = ActiveCore.with({ placeLeastMs: 1_000_000, placeMostMs: 1_000_000, ...about });
  core.shows("a", { kvCapacityTokens: undefined });
  core.probe("a", { replaced: true, load: { running: 0, waiting: 0, takesPriority: true } });
  core.turn("zero/1");
  core.done("zero/1", { promptTokens: 1_000, cachedTokens: 0 }, { stop: true });
  return core;
}

const limit = (core: ActiveCore): number => core.state.replicas.get("a" as never)!.live.limit;

function begin(core: ActiveCore, runs: number): string[] {
  return Array.from({ length: runs }, (_, at) => core.turn(`run${at}/1`, { tokens: 1_000 })).flat();
}

test("six batch runs are live at first; the seventh is held, interactive runs are not", () => {
  const core = blind();
  expect(begin(core, 7)).toHaveLength(6);
  expect(core.why("run6/1")).toBe("no place on a (6 live batch runs, limit 6.0 by the survival of prefixes)");
  expect(core.turn("chat/1", { class: "interactive" })).toEqual(["chat/1>a"]);
});

test("while prefixes survive and runs wait the limit rises, by half a run for each round of returns", () => {
  const core = blind();
  begin(core, 8);
  core.done("run0/1", { promptTokens: 1_000, cachedTokens: 0 });
  core.after(10).turn("run0/2");
  core.done("run0/2", { promptTokens: 1_200, cachedTokens: 1_000 });
  expect(limit(core)).toBeCloseTo(6 + 0.5 / 6);
});

test("without anybody waiting it does not rise", () => {
  const core = blind();
  begin(core, 2);
  core.done("run0/1", { promptTokens: 1_000, cachedTokens: 0 });
  core.after(10).turn("run0/2");
  core.done("run0/2", { promptTokens: 1_200, cachedTokens: 1_000 });
  expect(limit(core)).toBe(6);
});

test("a prefix that was lost cuts the limit, at most once a second and never below one", () => {
  const core = blind();
  begin(core, 3);
  for (const run of ["run0", "run1", "run2"]) {
    core.done(`${run}/1`, { promptTokens: 1_000, cachedTokens: 0 });
    core.after(10).turn(`${run}/2`);
  }
  core.done("run0/2", { promptTokens: 1_200, cachedTokens: 799 });
  // Three were live: the limit comes down to where they are.
  expect(limit(core)).toBeCloseTo(0.9 * 4);
  core.after(500).done("run1/2", { promptTokens: 1_200, cachedTokens: 0 });
  expect(limit(core)).toBeCloseTo(0.9 * 4);
  core.after(500).done("run2/2", { promptTokens: 1_200, cachedTokens: 0 });
  expect(limit(core)).toBeCloseTo(0.9 * 0.9 * 4);
});

test("a run that comes back without its place is expected cold, and cuts nothing", () => {
  const core = blind({ placeLeastMs: 10, placeMostMs: 10 });
  begin(core, 7);
  core.done("run0/1", { promptTokens: 1_000, cachedTokens: 0 });
  core.after(10).tick();
  expect(core.where("run6/1")).toBe("a");
  core.turn("run0/2");
  core.after(10).done("run1/1", { promptTokens: 1_000, cachedTokens: 0 }, { stop: true });
  expect(core.where("run0/2")).toBe("a");
  core.done("run0/2", { promptTokens: 1_200, cachedTokens: 0 });
  expect(limit(core)).toBe(6);
});

test("other tools change the prompt from its start: that says nothing about the cache", () => {
  const core = blind();
  core.turn("run0/1", { prefix: "with tools" });
  core.done("run0/1", { promptTokens: 1_000, cachedTokens: 0 });
  core.after(10).turn("run0/2", { prefix: "without" });
  core.done("run0/2", { promptTokens: 1_200, cachedTokens: 0 });
  expect(limit(core)).toBe(6);
});

test("where the pool is known too, it is the bound by default, and the survival of prefixes if so configured", () => {
  for (const [bound, admitted] of [
    ["pool", 8],
    ["survival", 6],
    ["both", 6],
  ] as const) {
    const core = blind({ bound });
    core.shows("a", { kvCapacityTokens: 100_000 });
    expect(begin(core, 8)).toHaveLength(admitted);
  }
});
