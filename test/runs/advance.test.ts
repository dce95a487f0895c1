import { describe, expect, test } from "vitest";
import { conversation, REFUSAL } from "../../src/runs/index.ts";
import { callable, createTable, refused } from "./bench-tree.ts";

const toolTexts = (table: ReturnType<typeof createTable>): readonly string[] =>
  conversation(table.state()).flatMap((message) => (message.role === "tool" ? [message.content] : []));

describe("the life of a run", () => {
  test("a spawn asks its first turn in the same commit", () => {
    const table = createTable();
    table.spawn();
    expect(table.story()).toEqual(["spawned", "turn-requested"]);
    expect(table.actions()).toMatchObject([{ type: "ask-turn", turn: { turn: 1, mode: "tools", maxTokens: 256 } }]);
  });

  test("an answer without calls completes the run", () => {
    const table = createTable();
    table.spawn();
    table.answer([], { text: "three boats" });
    expect(table.end()).toMatchObject({ state: "Completed", reason: "completed", answer: "three boats" });
    expect(table.actions()).toEqual([]);
  });

  test("a call is begun only with its intent, and its outcome asks the next turn", () => {
    const table = createTable();
    table.spawn();
    table.answer([callable()]);
    expect(table.story().slice(2)).toEqual(["turn-answered", "call-intent"]);
    expect(table.actions()).toMatchObject([
      { type: "call-tool", idempotencyKey: "r/1/0", attempt: 1, call: { arguments: { n: 1 } } },
    ]);
    table.outcome(0, "five");
    expect(table.story().slice(4)).toEqual(["call-outcome", "turn-requested"]);
    expect(toolTexts(table)).toEqual(["five"]);
    expect(table.state().sums).toMatchObject({ turns: 1, toolCalls: 1, failedToolCalls: 0, toolMs: 3, turnMs: 50 });
  });

  test("each turn's messages begin with those of the turn before", () => {
    const table = createTable();
    table.spawn({ system: "be brief" });
    const first = JSON.stringify(conversation(table.state()));
    table.answer([callable()]);
    table.outcome(0, "five");
    const second = JSON.stringify(conversation(table.state()));
    expect(second.startsWith(first.slice(0, -1))).toBe(true);
  });

  test("a refused call is told to the model and never begins", () => {
    const table = createTable();
    table.spawn();
    table.answer([refused("Error: n must be a number")]);
    expect(table.story().slice(2)).toEqual(["turn-answered", "turn-requested"]);
    expect(toolTexts(table)).toEqual(["Error: n must be a number"]);
    expect(table.state().sums).toMatchObject({ toolCalls: 1, failedToolCalls: 1, callsStarted: 0 });
  });

  test("a tool's error is a result, and counts as failed", () => {
    const table = createTable();
    table.spawn();
    table.answer([callable()]);
    table.outcome(0, "Error: no such file", { ok: false });
    expect(toolTexts(table)).toEqual(["Error: no such file"]);
    expect(table.state().sums).toMatchObject({ toolCalls: 1, failedToolCalls: 1 });
    expect(table.actions()).toMatchObject([{ type: "ask-turn" }]);
  });

  test("a journal read again gives the same state", () => {
    const table = createTable();
    table.spawn({ parallelToolCalls: true });
    table.answer([callable({ asks: "destructive", tool: "write" }), callable({ n: 2 })]);
    table.decide("r.1.0", { scope: "run" });
    table.outcome(1);
    table.outcome(0);
    table.answer([], { text: "done" });
    expect(JSON.stringify(table.replayed())).toBe(JSON.stringify(table.state()));
  });
});

describe("several calls of one answer", () => {
  test("run one after the other, in order, without parallelToolCalls", () => {
    const table = createTable();
    table.spawn();
    table.answer([callable({ n: 1 }), callable({ n: 2 })]);
    expect(table.actions()).toMatchObject([{ index: 0 }]);
    table.outcome(0);
    expect(table.actions()).toMatchObject([{ index: 1 }]);
    table.outcome(1);
    expect(table.actions()).toMatchObject([{ type: "ask-turn", turn: { turn: 2 } }]);
  });

  test("run side by side with parallelToolCalls, and the turn waits for all", () => {
    const table = createTable();
    table.spawn({ parallelToolCalls: true });
    table.answer([callable({ n: 1 }), callable({ n: 2 })]);
    expect(table.actions()).toMatchObject([{ index: 0 }, { index: 1 }]);
    table.outcome(1);
    expect(table.actions()).toMatchObject([{ type: "call-tool", index: 0 }]);
    table.outcome(0);
    expect(table.actions()).toMatchObject([{ type: "ask-turn" }]);
  });

  test("a call that must ask holds up only itself with parallelToolCalls", () => {
    const table = createTable();
    table.spawn({ parallelToolCalls: true });
    table.answer([callable({ asks: "destructive", tool: "write" }), callable({ n: 2 })]);
    expect(table.actions()).toMatchObject([{ type: "call-tool", index: 1 }]);
    table.outcome(1);
    expect(table.actions()).toEqual([]);
    table.decide("r.1.0");
    expect(table.actions()).toMatchObject([{ type: "call-tool", index: 0 }]);
  });
});

describe("maxToolCalls", () => {
  test("0 asks without tools from the start", () => {
    const table = createTable();
    table.spawn({ maxToolCalls: 0 });
    expect(table.state().turn).toMatchObject({ mode: "toolless" });
    table.answer([callable()], { text: "as text" });
    expect(table.end()).toMatchObject({ state: "Completed", reason: "completed", answer: "as text" });
  });

  test("counts refused calls, refuses what is beyond it in the same answer, and makes the next turn the last", () => {
    const table = createTable();
    table.spawn({ maxToolCalls: 2 });
    table.answer([refused("Error: no"), callable({ n: 2 }), callable({ n: 3 })]);
    table.outcome(1);
    expect(toolTexts(table)).toEqual(["Error: no", "result", REFUSAL.callsUsedUp]);
    expect(table.state().turn).toMatchObject({ turn: 2, mode: "last-none" });
    expect(table.state().sums).toMatchObject({ toolCalls: 3, failedToolCalls: 2, callsStarted: 1 });
    table.answer([], { text: "end" });
    expect(table.end()).toMatchObject({ state: "Completed", reason: "max_tool_calls", answer: "end" });
  });

  test("where tool_choice cannot say it, the end of the last tool result says that no calls are left", () => {
    const table = createTable({ lastTurnOf: () => "auto" });
    table.spawn({ maxToolCalls: 1 });
    table.answer([callable()]);
    table.outcome(0, "five");
    expect(table.state().turn).toMatchObject({ mode: "last-auto" });
    expect(toolTexts(table)[0]).toMatch(/^five\n\nNo tool calls are left/);
  });

  test("a call on the last turn is refused once, then one extra turn without tools ends the run", () => {
    const table = createTable();
    table.spawn({ maxToolCalls: 1 });
    table.answer([callable()]);
    table.outcome(0);
    table.answer([callable({ n: 2 })], { text: "I must" });
    expect(table.state().turn).toMatchObject({ turn: 3, mode: "extra" });
    expect(toolTexts(table)[1]).toBe(REFUSAL.noneLeft);
    table.answer([callable({ n: 3 })], { text: "four" });
    expect(table.end()).toMatchObject({ state: "Completed", reason: "max_tool_calls", answer: "four" });
    expect(table.state().sums).toMatchObject({ turns: 3, toolCalls: 2, failedToolCalls: 1, callsStarted: 1 });
  });
});

describe("attempts of a turn", () => {
  test("after the fifth that lost its engine the run fails as engine_unavailable", () => {
    const table = createTable();
    table.spawn();
    for (let attempt = 1; attempt < 5; attempt += 1) {
      table.fail("engine-lost");
      expect(table.actions()).toMatchObject([{ type: "ask-turn", key: `r/1 turn ${attempt + 1}` }]);
    }
    table.fail("engine-lost", "engine a: 500");
    expect(table.end()).toMatchObject({ state: "Failed", reason: "engine_unavailable" });
    expect(table.end()?.error).toMatch(/engine a: 500/);
  });

  test("after the fifth other error it fails as failed", () => {
    const table = createTable();
    table.spawn();
    for (let attempt = 0; attempt < 5; attempt += 1) table.fail("engine-error");
    expect(table.end()).toMatchObject({ state: "Failed", reason: "failed" });
  });

  test("what no repeat can mend ends the run at once, with that text", () => {
    const table = createTable();
    table.spawn();
    table.answer([callable()], { text: "let me look" });
    table.outcome(0);
    table.fail("refused", "no Generative replica serves model 'm'");
    expect(table.end()).toMatchObject({
      state: "Failed",
      reason: "failed",
      error: "no Generative replica serves model 'm'",
      partial: "let me look",
    });
  });

  test("attempts are counted per turn, and pauses between them grow", () => {
    const table = createTable();
    table.spawn();
    table.fail("engine-lost");
    const [first] = table.actions();
    table.fail("engine-lost");
    const [second] = table.actions();
    const pause = (action: typeof first) => (action?.type === "ask-turn" ? action.notBeforeMs - table.now() : 0);
    expect([pause(first), pause(second)]).toEqual([1_000, 2_000]);
    table.answer([callable()]);
    table.outcome(0);
    expect(table.state().turn?.failures).toEqual([]);
  });
});

describe("after the end", () => {
  test("no record follows", () => {
    const table = createTable();
    table.spawn();
    table.answer([], { text: "x" });
    expect(() => table.cancel()).toThrow(/has ended/);
    expect(() => table.fail("engine-lost")).toThrow(/has ended/);
    expect(table.story().at(-1)).toBe("ended");
  });
});
