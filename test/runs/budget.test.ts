import { describe, expect, test } from "vitest";
import { conversation, refusesChild } from "../../src/runs/index.ts";
import { callable, createTable } from "./bench-tree.ts";

const usage = (promptTokens: number, completionTokens: number) => ({ promptTokens, completionTokens, cachedTokens: 0 });
/** Prompt estimate of the bench assignment's first turn: (15 bytes of task + 300 of tools) / 3. */
const FIRST_PROMPT = 105;

describe("budgetTokens", () => {
  test("a turn reserves its prompt estimate and its longest answer", () => {
    const table = createTable();
    table.spawn({ limits: { tokens: 10_000 } });
    expect(table.state().turn).toMatchObject({ reserved: FIRST_PROMPT + 256, maxTokens: 256 });
  });

  test("reserves 4096 for an answer without a bound, and bounds it", () => {
    const table = createTable();
    table.spawn({ maxTokens: 0, limits: { tokens: 10_000 } });
    expect(table.state().turn).toMatchObject({ reserved: FIRST_PROMPT + 4_096, maxTokens: 4_096 });
  });

  test("without a budget nothing is reserved and the engine's own length stays", () => {
    const table = createTable();
    table.spawn({ maxTokens: 0 });
    expect(table.state().turn).toMatchObject({ reserved: 0, maxTokens: 0 });
  });

  test("what does not fit beside others' reservations waits for them to settle", () => {
    const table = createTable();
    table.spawn({ limits: { tokens: 700 } });
    table.spawn({}, { id: "kid", parent: "r" });
    expect(table.story("kid")).toEqual(["spawned"]);
    expect(table.actions("kid")).toEqual([]);
    table.answer([], { usage: usage(100, 20), text: "end" });
    expect(table.story("kid")).toEqual(["spawned", "turn-requested"]);
  });

  test("what does not fit alone gets a shorter answer", () => {
    const table = createTable();
    table.spawn({ limits: { tokens: FIRST_PROMPT + 40 } });
    expect(table.state().turn).toMatchObject({ maxTokens: 40 });
  });

  test("with under 16 left the subtree is cancelled", () => {
    const table = createTable();
    table.spawn({ limits: { tokens: FIRST_PROMPT + 15 } });
    expect(table.end()).toMatchObject({
      state: "Cancelled",
      reason: "budget",
      error: `budget exceeded: tokens ${FIRST_PROMPT + 16}/${FIRST_PROMPT + 15}`,
    });
  });

  test("what was used up exactly is named as used", () => {
    const table = createTable();
    table.spawn({ limits: { tokens: 1_000 } });
    table.spawn({}, { id: "kid", parent: "r" });
    table.answer([callable()], { usage: usage(900, 100) });
    table.outcome(0);
    table.answer([], { run: "kid", usage: usage(0, 0), text: "kid ends" });
    expect(table.end()).toMatchObject({ error: "budget exceeded: tokens 1000/1000" });
  });

  test("counts what descendants use, and what an attempt without an answer used counts nothing", () => {
    const table = createTable();
    table.spawn({ limits: { tokens: 5_000 } });
    table.spawn({}, { id: "kid", parent: "r" });
    table.fail("engine-lost", "broken", "kid");
    table.answer([], { run: "kid", usage: usage(300, 30), text: "x" });
    expect(table.tree.nodes.get("r")?.subtree).toMatchObject({ promptTokens: 300, completionTokens: 30 });
  });

  test("a kid's reservation is open until its turn ends, not only its attempt", () => {
    const table = createTable();
    table.spawn({ limits: { tokens: 5_000 } });
    table.fail("engine-lost");
    expect(table.tree.nodes.get("r")?.reservedTokens).toBe(FIRST_PROMPT + 256);
    table.cancel();
    expect(table.tree.nodes.get("r")?.reservedTokens).toBe(0);
  });
});

describe("budgetToolCalls", () => {
  test("lets the calls that fit be made and the answer be given", () => {
    const table = createTable();
    table.spawn({ limits: { toolCalls: 1 } });
    table.answer([callable()]);
    table.outcome(0);
    table.answer([], { text: "end" });
    expect(table.end()).toMatchObject({ state: "Completed" });
  });

  test("ends the subtree before the call that exceeds it", () => {
    const table = createTable();
    table.spawn({ limits: { toolCalls: 1 } });
    table.spawn({}, { id: "kid", parent: "r" });
    table.answer([callable()]);
    table.answer([callable()], { run: "kid" });
    for (const run of ["r", "kid"]) {
      expect(table.end(run)).toMatchObject({ reason: "budget", error: "budget exceeded: toolCalls 2/1" });
    }
    expect(table.story("kid")).not.toContain("call-intent");
  });

  test("does not count refused calls", () => {
    const table = createTable();
    table.spawn({ limits: { toolCalls: 1 } });
    table.answer([callable({ asks: "destructive" })]);
    table.decide("r.1.0", { allow: false });
    table.answer([callable({ n: 2 })]);
    expect(table.actions()).toMatchObject([{ type: "call-tool" }]);
  });
});

describe("budgetSeconds", () => {
  test("is wall clock from the spawn of the budgeted run, and fires on an idle subtree", () => {
    const table = createTable();
    table.spawn({ limits: { seconds: 60 } });
    table.answer([callable({ asks: "destructive" })]);
    table.pass(59_999);
    expect(table.end()).toBeUndefined();
    table.pass(1);
    expect(table.end()).toMatchObject({
      state: "Cancelled",
      reason: "budget",
      error: "budget exceeded: seconds 60/60",
    });
  });

  test("downtime counts", () => {
    const table = createTable();
    table.spawn({ limits: { seconds: 60 } });
    table.pass(1_000);
    table.spawn({}, { id: "kid", parent: "r" });
    table.pass(70_000);
    for (const run of ["r", "kid"]) expect(table.end(run)).toMatchObject({ reason: "budget" });
  });

  test("still bounds the children of a run that has ended", () => {
    const table = createTable();
    table.spawn({ limits: { seconds: 60 } });
    table.spawn({}, { id: "kid", parent: "r" });
    table.answer([], { text: "end" });
    table.pass(60_000);
    expect(table.end("r")).toMatchObject({ state: "Completed" });
    expect(table.end("kid")).toMatchObject({ reason: "budget" });
    expect(table.tree.nodes.get("r")?.exceeded).toMatchObject({ name: "seconds" });
  });
});

test("at 80 % the model is told once, at the end of the next tool result", () => {
  const table = createTable();
  table.spawn({ limits: { tokens: 2_000 }, maxTokens: 32 });
  table.spawn({}, { id: "kid", parent: "r" });
  table.answer([callable()], { usage: usage(50, 10) });
  table.answer([], { run: "kid", usage: usage(1_500, 40), text: "end" });
  table.outcome(0, "five");
  table.answer([callable({ n: 2 })], { usage: usage(60, 10) });
  table.outcome(0, "six");
  const results = conversation(table.state()).filter(({ role }) => role === "tool");
  expect(results.map(({ content }) => content)).toEqual([
    "five\n\nNote: 1600 of 2000 tokens of this task's budget are used: finish soon.",
    "six",
  ]);
});

describe("the tree", () => {
  const bounds = { maxDepth: 3, maxChildren: 64, adding: 1 };

  test("cancel ends the run and all its running descendants, also below one that has ended", () => {
    const table = createTable();
    table.spawn();
    table.spawn({}, { id: "kid", parent: "r" });
    table.spawn({}, { id: "grandkid", parent: "kid" });
    table.answer([], { run: "kid", text: "end" });
    const entries = table.cancel();
    expect(entries.filter(({ record }) => record.type === "ended").map(({ run }) => run)).toEqual(["r", "grandkid"]);
    expect(table.end("kid")).toMatchObject({ state: "Completed" });
    expect(table.actions("grandkid")).toEqual([]);
  });

  test("a parent's end does not end its children", () => {
    const table = createTable();
    table.spawn();
    table.spawn({}, { id: "kid", parent: "r" });
    table.answer([], { text: "end" });
    expect(table.actions("kid")).toMatchObject([{ type: "ask-turn" }]);
  });

  test("a finished parent may get a child; a cancelled or budget-exceeded one may not", () => {
    const finished = createTable();
    finished.spawn();
    finished.answer([], { text: "end" });
    expect(refusesChild(finished.tree, "r", bounds)).toBeUndefined();

    const cancelled = createTable();
    cancelled.spawn();
    cancelled.spawn({}, { id: "kid", parent: "r" });
    cancelled.answer([], { run: "kid", text: "end" });
    cancelled.cancel();
    expect(refusesChild(cancelled.tree, "r", bounds)).toBe("parent-cancelled");
    expect(refusesChild(cancelled.tree, "kid", bounds)).toBe("parent-cancelled");

    const exceeded = createTable();
    exceeded.spawn({ limits: { seconds: 1 } });
    exceeded.pass(1_000);
    expect(refusesChild(exceeded.tree, "r", bounds)).toBe("parent-exceeded");
  });

  test("depth and number of children are bounded", () => {
    const table = createTable();
    table.spawn();
    expect(refusesChild(table.tree, "r", { ...bounds, maxDepth: 1 })).toBe("too-deep");
    expect(refusesChild(table.tree, "r", { ...bounds, maxChildren: 2, adding: 3 })).toBe("too-many-children");
    expect(refusesChild(table.tree, "nobody", bounds)).toBe("unknown-parent");
  });
});
