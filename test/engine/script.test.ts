import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { createRandom } from "../../src/base/random.ts";
import { scriptChatAnswer, TESTBED_WORLD, tokenizeAnswer } from "../../src/engine/index.ts";
import type { Answer } from "../../src/engine/index.ts";
import { valueForSchema } from "../../src/engine/schema-value.ts";

const TOOL = {
  type: "function",
  function: {
    name: "lookup",
    parameters: {
      type: "object",
      properties: { query: { type: "string" }, limit: { type: "integer", minimum: 1, maximum: 5 } },
      required: ["query", "limit"],
    },
  },
};

type Script = Parameters<typeof scriptChatAnswer>[0];

function answer(messages: readonly unknown[], overrides: Partial<Script> = {}): Answer {
  return scriptChatAnswer({
    messages,
    tools: [TOOL],
    toolChoice: "auto",
    parallelCalls: true,
    answerSchema: undefined,
    seed: 1,
    world: TESTBED_WORLD,
    overrides: {},
    ...overrides,
  });
}

/** Plays an agent to its final answer: tool calls of each turn, and the answer. */
function playAgent(task: string, overrides: Partial<Script> = {}): { readonly calls: number; readonly text: string } {
  const messages: unknown[] = [{ role: "user", content: task }];
  let calls = 0;
  for (let turn = 0; turn < 20; turn += 1) {
    const { content, calls: made } = answer(messages, overrides);
    if (made.length === 0) return { calls, text: content };
    calls += made.length;
    messages.push({
      role: "assistant",
      content,
      tool_calls: made.map((call, at) => ({ id: `${turn}-${at}`, function: call })),
    });
    for (const at of made.keys()) messages.push({ role: "tool", tool_call_id: `${turn}-${at}`, content: "a result" });
  }
  throw new Error("the agent does not come to an end");
}

describe("a scripted agent", () => {
  it("makes as many calls as its beginning says, whatever the tools answer", () => {
    for (const calls of [0, 1, 2, 5])
      expect(playAgent("task", { overrides: { calls, parallel: 1 } }).calls).toBe(calls);
  });

  it("draws the number of calls with the shares of the testbed", () => {
    const counts = [0, 0, 0, 0];
    for (let at = 0; at < 1_000; at += 1) counts[playAgent(`task ${at}`).calls]! += 1;
    for (const [calls, weight] of TESTBED_WORLD.callWeights.entries()) {
      expect(Math.abs(counts[calls]! / 1_000 - weight / 101)).toBeLessThan(0.05);
    }
  });

  it("answers the same to the same conversation, and differently with another seed", () => {
    const messages = [
      { role: "system", content: "s" },
      { role: "user", content: "question" },
    ];
    expect(answer(messages)).toEqual(answer(structuredClone(messages)));
    const others = [2, 3, 4, 5].map((seed) => JSON.stringify(answer(messages, { seed })));
    expect(others.some((other) => other !== JSON.stringify(answer(messages)))).toBe(true);
  });

  it("calls only tools that are offered, with arguments that fit their schema", () => {
    const { calls } = answer([{ role: "user", content: "x" }], { overrides: { calls: 1 } });
    expect(calls[0]?.name).toBe("lookup");
    const given = JSON.parse(calls[0]?.arguments ?? "") as { query: unknown; limit: unknown };
    expect(typeof given.query).toBe("string");
    expect([1, 2, 3, 4, 5]).toContain(given.limit);
  });

  it("calls nothing without tools, something when it must, and the named tool when it must that one", () => {
    const messages = [{ role: "user", content: "x" }];
    expect(answer(messages, { tools: [], overrides: { calls: 3 } }).calls).toEqual([]);
    expect(answer(messages, { toolChoice: "required", overrides: { calls: 0 } }).calls.length).toBe(1);
    const other = { type: "function", function: { name: "other", parameters: { type: "object" } } };
    const named = answer(messages, { tools: [TOOL, other], toolChoice: { name: "other" } });
    expect(named.calls.map((call) => call.name)).toEqual(["other"]);
  });

  it("calls in parallel only where it may", () => {
    const messages = [{ role: "user", content: "x" }];
    const overrides = { calls: 3, parallel: 3 };
    const made = answer(messages, { overrides }).calls;
    expect(made.length).toBe(3);
    expect(new Set(made.map((call) => call.arguments)).size).toBe(3);
    expect(answer(messages, { overrides, parallelCalls: false }).calls.length).toBe(1);
  });

  it("gives an answer of exactly the wanted length", () => {
    for (const answerTokens of [2, 5, 17, 40, 333]) {
      const { content } = answer([{ role: "user", content: "x" }], { overrides: { calls: 0, answerTokens } });
      expect(tokenizeAnswer({ content, calls: [] }, 10_000).parts.length).toBe(answerTokens);
    }
  });

  it("has turns of about the testbed's mean length", () => {
    const lengths = Array.from({ length: 300 }, (_, at) => {
      const made = answer([{ role: "user", content: `task ${at}` }], { overrides: { calls: 1, parallel: 1 } });
      return tokenizeAnswer(made, 10_000).parts.length;
    });
    const mean = lengths.reduce((sum, length) => sum + length, 0) / lengths.length;
    expect(Math.abs(mean - TESTBED_WORLD.callTokens)).toBeLessThan(TESTBED_WORLD.callTokens * 0.15);
  });
});

describe("a value for a schema", () => {
  it("keeps to types, enums, bounds and required properties", () => {
    const schema = {
      type: "object",
      required: ["city", "unit", "days", "deep", "tags", "flag", "ratio"],
      properties: {
        city: { type: "string", minLength: 3, maxLength: 8 },
        unit: { enum: ["c", "f"] },
        days: { type: "integer", exclusiveMinimum: 2, maximum: 4 },
        ratio: { type: "number", minimum: 0.25, maximum: 0.5 },
        flag: { type: "boolean" },
        tags: { type: "array", items: { $ref: "#/$defs/tag" }, minItems: 2, maxItems: 3 },
        deep: { anyOf: [{ type: "object", properties: { x: { const: 7 } }, required: ["x"] }, { type: "null" }] },
      },
      $defs: { tag: { type: ["string", "null"], maxLength: 4 } },
    };
    fc.assert(
      fc.property(fc.integer(), (seed) => {
        const value = valueForSchema(schema, createRandom(seed), 20) as Record<string, unknown>;
        expect(String(value["city"]).length).toBeGreaterThanOrEqual(3);
        expect(String(value["city"]).length).toBeLessThanOrEqual(8);
        expect(["c", "f"]).toContain(value["unit"]);
        expect([3, 4]).toContain(value["days"]);
        expect(value["ratio"]).toBe(0.25);
        expect(value["deep"]).toEqual({ x: 7 });
        expect(typeof value["flag"]).toBe("boolean");
        const tags = value["tags"] as readonly string[];
        expect(tags.length === 2 || tags.length === 3).toBe(true);
        for (const tag of tags) expect(tag.length).toBeLessThanOrEqual(4);
      }),
    );
  });

  it("comes to an end on schemas that contain themselves, and on what is no schema", () => {
    const loop = { $ref: "#" };
    const tree = {
      type: "object",
      required: ["left"],
      properties: { left: { anyOf: [{ $ref: "#" }, { type: "null" }] } },
    };
    for (const schema of [loop, tree, { $ref: "#/nowhere" }, null, 7, "text", [], undefined]) {
      expect(() => JSON.stringify(valueForSchema(schema, createRandom(1), 10))).not.toThrow();
    }
    fc.assert(
      fc.property(fc.jsonValue(), (schema) => {
        valueForSchema(schema, createRandom(3), 10);
      }),
    );
  });
});
