/** Shares in tokens with a half-life (spec 9, Fair in tokens, with weights). */
import { expect, test } from "vitest";
import { asPrincipalId, type CallerId, type PrincipalId } from "../../src/base/ids.ts";
import { ActiveCore, replica, type Prompt } from "./active-set-support.ts";

/** One slot, so that each admission shows who goes first. Every turn is a run of its own that ends with it. */
function oneSlot(
  about: Parameters<typeof ActiveCore.with>[0] = {},
  weights: readonly [string, number][] = [],
): ActiveCore {
  const principalWeights = weights.map(([principal, weight]) => ({ principal: asPrincipalId(principal), weight }));
  return ActiveCore.with(
    { bound: "none", ...about },
    { replicas: [replica("a", { maxInFlight: 1 })], principalWeights },
  );
}

type Served = { readonly [principal: string]: number };

/** Principals with an endless backlog of runs of so many uncached prompt tokens; what each was served in the end. */
function serve(core: ActiveCore, prompts: { readonly [principal: string]: number }, turns: number): Served {
  const served: { [principal: string]: number } = {};
  const owners = new Map<string, string>();
  let number = 0;
  const ask = (principal: string): string[] => {
    number += 1;
    owners.set(`r${number}`, principal);
    return core.turn(`r${number}`, { principal, caller: "c", tokens: prompts[principal] ?? 0 });
  };
  let running: string[] = [];
  for (const principal of Object.keys(prompts)) for (let at = 0; at < 5; at += 1) running.push(...ask(principal));
  for (let at = 0; at < turns; at += 1) {
    const turn = running[0]!.split(">")[0]!;
    const principal = owners.get(turn)!;
    const promptTokens = prompts[principal]!;
    served[principal] = (served[principal] ?? 0) + promptTokens;
    core.after(promptTokens / 20);
    running = [
      ...core.done(turn, { promptTokens, cachedTokens: 0, completionTokens: 0 }, { stop: true }),
      ...ask(principal),
    ];
  }
  return served;
}

test("two backlogged principals with prompts of 10:1 get equal tokens, not equal turns", () => {
  const { big = 0, small = 0 } = serve(oneSlot(), { big: 10_000, small: 1_000 }, 400);
  expect(big / (big + small)).toBeCloseTo(0.5, 1);
});

test("weights are shares of tokens", () => {
  const { big = 0, small = 0 } = serve(oneSlot({}, [["big", 3]]), { big: 10_000, small: 1_000 }, 400);
  expect(big / (big + small)).toBeCloseTo(0.75, 1);
  const other = serve(oneSlot({}, [["small", 3]]), { big: 10_000, small: 1_000 }, 400);
  expect(other["small"]! / (other["big"]! + other["small"]!)).toBeCloseTo(0.75, 1);
});

test("switched off, turns in flight are counted: the one with long prompts gets most tokens", () => {
  const { big = 0, small = 0 } = serve(oneSlot({ tokenShares: false }), { big: 10_000, small: 1_000 }, 400);
  expect(big / (big + small)).toBeGreaterThan(0.85);
});

/** Who goes next after both wait, the first of them having been served before. */
function nextAfter(core: ActiveCore, restMs: number, first: Prompt, second: Prompt): string {
  core.turn("used", { tokens: 10_000, ...first });
  core.done("used", { promptTokens: 10_000, cachedTokens: 0, completionTokens: 500 }, { stop: true });
  core.after(restMs).turn("block", { principal: "other", caller: "other" });
  core.turn("again", { ...first });
  core.turn("fresh", { ...second });
  return core.done("block", {}, { stop: true })[0]!;
}

test("what was served counts while the caller is away, and fades", () => {
  const one = { principal: "p", caller: "one" };
  const two = { principal: "p", caller: "two" };
  expect(nextAfter(oneSlot(), 60_000, one, two)).toBe("fresh>a");
  const core = oneSlot();
  const moments = nextAfter(core, 599_000, one, two);
  expect(moments).toBe("fresh>a");
  // After ten half-lives a thousandth is left: the caller is forgotten with its tokens.
  const faded = oneSlot();
  faded.turn("used", { tokens: 10_000, ...one });
  faded.done("used", { promptTokens: 10_000, cachedTokens: 0 }, { stop: true });
  const callers = (): number => faded.state.principals.get("p" as PrincipalId)?.callers.size ?? 0;
  expect(callers()).toBe(1);
  faded.after(600_000).tick();
  expect(callers()).toBe(0);
});

test("principals first, then callers inside them", () => {
  const core = oneSlot();
  core.turn("a1", { principal: "p", caller: "busy", tokens: 50_000 });
  core.turn("p-busy", { principal: "p", caller: "busy", tokens: 10 });
  core.turn("p-calm", { principal: "p", caller: "calm", tokens: 10 });
  core.turn("q", { principal: "q", caller: "busy", tokens: 10 });
  expect(core.done("a1", { promptTokens: 50_000, cachedTokens: 0 }, { stop: true })).toEqual(["q>a"]);
  expect(core.done("q", { promptTokens: 10, cachedTokens: 0 }, { stop: true })).toEqual(["p-calm>a"]);
});

test("what a turn will probably cost is booked when it goes, and put right when it ends", () => {
  const core = oneSlot();
  const tokens = (): number => core.state.principals.get("p" as PrincipalId)?.callers.get("c" as CallerId)?.tokens ?? 0;
  core.turn("t1", { tokens: 8_000 });
  expect(tokens()).toBeCloseTo(8_000);
  core.done("t1", { promptTokens: 8_000, cachedTokens: 7_000, completionTokens: 100 }, { stop: true });
  expect(tokens()).toBeCloseTo(1_200);
});

test("a turn that is taken back costs nothing", () => {
  const core = oneSlot();
  core.turn("t1", { tokens: 8_000 });
  core.feed({ type: "turn-withdrawn", nowMs: 0, turn: "t1" as never });
  const principal = core.state.principals.get("p" as PrincipalId);
  // It is on its way again: once, not twice.
  core.shows("a", {});
  expect(core.where("t1")).toBe("a");
  expect(principal?.tokens).toBeCloseTo(8_000);
});

test("after years of uptime shares are still numbers", () => {
  const core = oneSlot();
  for (let day = 0; day < 400; day += 1) {
    core.after(86_400_000).turn(`t${day}`, { tokens: 1_000 });
    core.done(`t${day}`, { promptTokens: 1_000, cachedTokens: 0 }, { stop: true });
  }
  const share = core.state.principals.get("p" as PrincipalId)?.share ?? Number.NaN;
  expect(share).toBeGreaterThan(0);
  expect(share).toBeLessThan(1e300);
});

test("a reload with another half-life or weight keeps the order", () => {
  const core = oneSlot();
  core.turn("a1", { caller: "busy", tokens: 50_000 });
  core.turn("busy", { caller: "busy", tokens: 10 });
  core.turn("calm", { caller: "calm", tokens: 10 });
  const { config } = core.state;
  const activeSet = { ...config.activeSet!, shareHalfLifeMs: 1_000 };
  core.after(5_000).feed({ type: "pool-configured", nowMs: core.nowMs, config: { ...config, activeSet } });
  expect(core.done("a1", { promptTokens: 50_000, cachedTokens: 0 }, { stop: true })).toEqual(["calm>a"]);
});
