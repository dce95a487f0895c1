import { describe, expect, it } from "vitest";
import { readArguments } from "../../../src/runtime/mcp/arguments.ts";
import { faceTool, type FaceTool } from "../../../src/runtime/mcp/tool-list.ts";

const read = (tool: string, given: unknown) => readArguments(faceTool(tool) as FaceTool, given);

describe("arguments of the face's tools", () => {
  it.each<[string, unknown, object]>([
    ["spawn", '{"task":"t"}', { task: "t" }],
    [
      "spawn",
      { task: "t", maxToolCalls: "3", parallelToolCalls: "yes" },
      { task: "t", maxToolCalls: 3, parallelToolCalls: true },
    ],
    ["spawn", { task: 42, tools: "lookup", system: null }, { task: "42", tools: ["lookup"] }],
    ["spawn", { tasks: '["a","b"]' }, { tasks: ["a", "b"] }],
    ["await", { handles: "run-1", mode: " ANY " }, { handles: ["run-1"], mode: "any" }],
    // Left out, as a model leaves it out.
    ["spawn", { task: "t", model: "", parent: "", budgetTokens: "" }, { task: "t" }],
    ["status", { handle: "", cursor: "" }, {}],
    // What somebody has to give, or what means something when it is empty, is no such thing.
    ["spawn", { tasks: [""] }, { tasks: [""] }],
    ["approve", { handle: "h", allow: "true", result: "" }, { handle: "h", allow: true, result: "" }],
  ])("%s %j is %j", (tool, given, value) => {
    expect(read(tool, given)).toEqual({ ok: true, value });
  });

  it("a task in a list may be any text, also one that is JSON; one that is a whole entry is that entry", () => {
    const texts = ['{"city":"Rome"}', '["a"]', "{", '{"task":"x","why":"is a text, since an entry has no why"}'];
    expect(read("spawn", { tasks: texts })).toEqual({ ok: true, value: { tasks: texts } });
    expect(read("spawn", { tasks: ['{"task":"x","maxToolCalls":"2"}'] })).toEqual({
      ok: true,
      value: { tasks: [{ task: "x", maxToolCalls: 2 }] },
    });
  });

  it.each<[string, unknown, string]>([
    ["spawn", { task: "t", budgetToken: 5 }, "budgetToken: spawn has no such argument"],
    // A budget that is misspelled would be no budget.
    ["spawn", { tasks: ["a", { task: "b", budgetToken: 5 }] }, "tasks.1.budgetToken: spawn has no such argument"],
    ["spawn", { tasks: [{ task: "a", tasks: ["b"] }] }, "tasks.0.tasks: spawn has no such argument"],
    ["spawn", { task: "t", constructor: 1 }, "constructor: spawn has no such argument"],
    ["run", { tasks: ["a"] }, "tasks: run has no such argument"],
    ["await", { handles: [1, {}] }, "handles.1"],
    ["spawn", { task: "t", budgetTokens: 0 }, "budgetTokens"],
    ["spawn", { task: "t", tools: Array(501).fill("a*") }, "tools"],
    ["status", { limit: 501 }, "limit"],
    ["cancel", [], "arguments: must be an object"],
  ])("%s %j is wrong, with the place and the expected shape", (tool, given, words) => {
    const outcome = read(tool, given);
    expect(outcome).toMatchObject({ ok: false, message: expect.stringContaining(words) as string });
    expect(outcome).toMatchObject({ message: expect.stringContaining("Expected:") as string });
  });
});
