import { describe, expect, test } from "vitest";
import { conversation, pendingApprovals, REFUSAL, settledApproval } from "../../src/runs/index.ts";
import { ASSIGNMENT, callable, createTable, refused } from "./bench-tree.ts";

const GATED = { asks: "destructive", tool: "write" } as const;

function pending(table: ReturnType<typeof createTable>, run = "r") {
  return pendingApprovals(table.state(run));
}

function toolTexts(table: ReturnType<typeof createTable>, run = "r"): readonly string[] {
  return conversation(table.state(run)).flatMap((message) => (message.role === "tool" ? [message.content] : []));
}

describe("a call that must ask", () => {
  test("waits with its arguments shown, and begins when it is allowed", () => {
    const table = createTable();
    table.spawn();
    table.answer([callable(GATED)]);
    expect(table.actions()).toEqual([]);
    expect(pending(table)).toMatchObject([
      { id: "r.1.0", server: "lab", tool: "write", arguments: { n: 1 }, reason: "destructive" },
    ]);
    table.decide("r.1.0");
    expect(table.story().slice(2)).toEqual(["turn-answered", "approval-asked", "approval-decided", "call-intent"]);
    expect(table.actions()).toMatchObject([{ type: "call-tool", call: { tool: "write" } }]);
  });

  test("tells the model when it is refused", () => {
    const table = createTable();
    table.spawn();
    table.answer([callable(GATED)]);
    table.decide("r.1.0", { allow: false });
    expect(toolTexts(table)).toEqual([REFUSAL.declined]);
    expect(table.story()).not.toContain("call-intent");
    expect(table.state().sums).toMatchObject({ toolCalls: 1, failedToolCalls: 1, callsStarted: 0 });
  });

  test("is refused when nobody answers in time", () => {
    const table = createTable({ approvalExpireMs: 5_000 });
    table.spawn();
    table.answer([callable(GATED)]);
    table.pass(4_999);
    expect(pending(table)).toHaveLength(1);
    table.pass(1);
    expect(table.story()).toContain("approval-expired");
    expect(toolTexts(table)).toEqual([REFUSAL.expired]);
  });

  test("cannot be allowed after its time, even where the timer has not fired", () => {
    const table = createTable({ approvalExpireMs: 0 });
    table.spawn();
    table.answer([callable(GATED)]);
    expect(table.decide("r.1.0").map(({ record }) => record.type)).not.toContain("approval-decided");
    expect(toolTexts(table)).toEqual([REFUSAL.expired]);
  });

  test("is not asked about when it would fail validation", () => {
    const table = createTable();
    table.spawn();
    table.answer([refused("Error: n must be a number")]);
    expect(table.story()).not.toContain("approval-asked");
  });

  test("a second answer changes nothing, the first can be read", () => {
    const table = createTable();
    table.spawn();
    table.answer([callable(GATED)]);
    table.decide("r.1.0", { allow: true, by: "ann" });
    expect(table.decide("r.1.0", { allow: false, by: "bob" })).toEqual([]);
    expect(settledApproval(table.state(), "r.1.0")).toMatchObject({ decision: { allow: true, by: "ann" } });
  });

  test("an answer is not asked again after a restart, an open question is", () => {
    const table = createTable();
    table.spawn({ parallelToolCalls: true });
    table.answer([callable({ ...GATED, n: 1 }), callable({ ...GATED, n: 2 })]);
    table.decide("r.1.0", { allow: false });
    table.restart();
    expect(pending(table).map(({ id }) => id)).toEqual(["r.1.1"]);
    expect(table.story().filter((type) => type === "approval-asked")).toHaveLength(2);
  });

  test("a decision for other arguments fails closed", () => {
    const table = createTable();
    table.spawn();
    table.answer([callable(GATED)]);
    table.put("r", {
      type: "approval-decided",
      approval: "r.1.0",
      turn: 1,
      index: 0,
      digest: "write 999",
      decision: { allow: true, scope: "once", by: "p", channel: "tool" },
    });
    expect(table.story()).not.toContain("call-intent");
    expect(toolTexts(table)).toEqual([REFUSAL.otherArguments]);
  });
});

describe("scope", () => {
  const twice = (scope: "once" | "run", n = 1) => {
    const table = createTable();
    table.spawn();
    table.answer([callable(GATED)]);
    table.decide("r.1.0", { scope });
    table.outcome(0);
    table.answer([callable({ ...GATED, n })]);
    return table;
  };

  test("once: the same call asks again", () => {
    expect(pending(twice("once")).map(({ id }) => id)).toEqual(["r.2.0"]);
  });

  test("run: the same call with the same arguments is covered, with a decision of its own in the journal", () => {
    const table = twice("run");
    expect(pending(table)).toEqual([]);
    expect(table.journal().filter(({ type }) => type === "approval-decided")).toMatchObject([
      { approval: "r.1.0" },
      { approval: "r.2.0", decision: { from: "r.1.0", allow: true } },
    ]);
    expect(table.actions()).toMatchObject([{ type: "call-tool", turn: 2 }]);
  });

  test("run: changed arguments ask again", () => {
    expect(pending(twice("run", 7))).toHaveLength(1);
  });

  test("tree: covers the other runs of the tree, also when the run that was asked has ended", () => {
    const table = createTable();
    table.spawn();
    table.spawn({}, { id: "kid", parent: "r" });
    table.answer([callable(GATED)]);
    table.decide("r.1.0", { scope: "tree" });
    table.outcome(0);
    table.answer([], { text: "end" });
    table.answer([callable(GATED)], { run: "kid" });
    expect(pending(table, "kid")).toEqual([]);
    expect(table.actions("kid")).toMatchObject([{ type: "call-tool" }]);
  });

  test("run: does not reach other runs of the tree", () => {
    const table = createTable();
    table.spawn();
    table.spawn({}, { id: "kid", parent: "r" });
    table.answer([callable(GATED)]);
    table.decide("r.1.0", { scope: "run" });
    table.answer([callable(GATED)], { run: "kid" });
    expect(pending(table, "kid")).toHaveLength(1);
  });
});

describe("equal pending calls of one tree", () => {
  test("are one question: its answer is recorded once per call, and each is consumed once", () => {
    const table = createTable();
    table.spawn();
    table.spawn({}, { id: "kid", parent: "r" });
    table.answer([callable(GATED)]);
    table.answer([callable(GATED)], { run: "kid" });
    expect(pending(table)[0]?.question).toBe(pending(table, "kid")[0]?.question);
    table.decide("kid.1.0", {}, "kid");
    for (const run of ["r", "kid"]) {
      expect(table.story(run).filter((type) => type === "approval-decided")).toHaveLength(1);
      expect(table.story(run).filter((type) => type === "call-intent")).toHaveLength(1);
    }
  });

  test("other arguments are another question", () => {
    const table = createTable();
    table.spawn();
    table.spawn({}, { id: "kid", parent: "r" });
    table.answer([callable(GATED)]);
    table.answer([callable({ ...GATED, n: 2 })], { run: "kid" });
    table.decide("r.1.0");
    expect(pending(table, "kid")).toHaveLength(1);
  });
});

describe("a call without an outcome after a crash", () => {
  const crashed = (wish: Parameters<typeof callable>[0] = {}) => {
    const table = createTable();
    table.spawn();
    table.answer([callable(wish)]);
    table.restart();
    return table;
  };

  test.each([
    ["read-only", { effect: "read-only" }],
    ["idempotent", { effect: "idempotent" }],
    ["unsafe with onCrash: rerun", { onCrash: "rerun" }],
  ] as const)("is run again under the same key when it is %s", (_name, wish) => {
    const table = crashed(wish);
    expect(table.actions()).toMatchObject([{ type: "call-tool", attempt: 2, idempotencyKey: "r/1/0" }]);
    expect(table.state().sums).toMatchObject({ toolCalls: 1, callsStarted: 1 });
  });

  test("asks when it is unsafe", () => {
    const table = crashed();
    expect(table.actions()).toEqual([]);
    expect(pending(table)).toMatchObject([{ id: "r.1.0.1", reason: "indeterminate" }]);
  });

  test("asks even where the same call was allowed for the whole tree", () => {
    const table = createTable();
    table.spawn();
    table.answer([callable(GATED)]);
    table.decide("r.1.0", { scope: "tree" });
    table.restart();
    expect(pending(table)).toMatchObject([{ reason: "indeterminate" }]);
  });

  test.each([
    ["rerun", { resolution: "rerun" }, "attempt 2"],
    ["rerun, by allow alone", { allow: true }, "attempt 2"],
    ["result", { resolution: "result", result: "it was written" }, "it was written"],
    ["fail", { resolution: "fail" }, REFUSAL.unknownOutcome],
    ["fail, by a refusal alone", { allow: false }, REFUSAL.unknownOutcome],
  ] as const)("%s", (_name, decision, expected) => {
    const table = crashed();
    table.decide("r.1.0.1", decision);
    const [action] = table.actions();
    const seen = action?.type === "call-tool" ? `attempt ${action.attempt}` : toolTexts(table)[0];
    expect(seen).toBe(expected);
  });

  test("cancel cancels the run", () => {
    const table = crashed();
    table.decide("r.1.0.1", { resolution: "cancel" });
    expect(table.end()).toMatchObject({ state: "Cancelled", reason: "cancelled" });
  });

  test("a second crash asks a second time", () => {
    const table = crashed();
    table.decide("r.1.0.1", { resolution: "rerun" });
    table.restart();
    expect(pending(table)).toMatchObject([{ id: "r.1.0.2", reason: "indeterminate" }]);
  });

  test("finished calls of an unfinished round are not run again", () => {
    const table = createTable();
    table.spawn({ ...ASSIGNMENT, parallelToolCalls: true });
    table.answer([callable({ n: 1, effect: "read-only" }), callable({ n: 2, effect: "read-only" })]);
    table.outcome(0);
    table.restart();
    expect(table.actions()).toMatchObject([{ index: 1, attempt: 2 }]);
  });

  test("a turn that was open is asked again", () => {
    const table = createTable();
    table.spawn();
    const before = table.actions();
    table.restart();
    expect(table.actions()).toEqual(before);
    expect(table.story()).not.toContain("resumed");
  });
});
