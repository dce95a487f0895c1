import { describe, expect, test } from "vitest";
import { answerCalls, answerText } from "../fake-dataplane.ts";
import { bench, ended, spawnOne } from "../host-bench.ts";

const messagesOf = (turn: { readonly body: { readonly [key: string]: unknown } }) =>
  turn.body["messages"] as readonly { readonly role: string; readonly content: string }[];

describe("a run", () => {
  test("makes calls that came as text, and shows the engine what it said without them", async () => {
    const world = await bench();
    const handle = await spawnOne(world);
    const call = '<tool_call>{"name": "look", "arguments": {"n": "1"}}</tool_call>';
    answerText(await world.dataplane.nextTurn(), `<think>count first</think>I look.\n${call}`);
    const seen = await world.tools.next();
    expect(seen).toMatchObject({ tool: "look", arguments: { n: 1 } });
    seen.answer({ ok: true, text: "five boats" });
    const second = await world.dataplane.nextTurn();
    expect(messagesOf(second).slice(1)).toEqual([
      {
        role: "assistant",
        content: "<think>count first</think>I look.",
        tool_calls: [{ id: "c00001000", type: "function", function: { name: "look", arguments: '{"n":"1"}' } }],
      },
      { role: "tool", tool_call_id: "c00001000", content: "five boats" },
    ]);
    answerText(second, "<think>five</think>\n\nThere are five.");
    const [result] = await ended(world, [handle]);
    expect(result).toMatchObject({ answer: "There are five.", toolCalls: 1, failedToolCalls: 0 });
  });

  test("refuses a call that does not fit, without asking anybody, and tells the shape", async () => {
    const world = await bench();
    const handle = await spawnOne(world);
    answerCalls(await world.dataplane.nextTurn(), [{ name: "erase", args: { n: "many" } }]);
    const second = await world.dataplane.nextTurn();
    expect(messagesOf(second).at(-1)?.content).toMatch(
      /^Error: the arguments of 'erase' do not fit: n: .*"n"\?: number/,
    );
    answerText(second, "done");
    const [result] = await ended(world, [handle]);
    expect(result).toMatchObject({ state: "Completed", toolCalls: 1, failedToolCalls: 1 });
    expect(world.tools.calls).toEqual([]);
  });

  test("refuses a call as text on its last turn once, and then drops the tools", async () => {
    const world = await bench();
    const handle = await spawnOne(world, { maxToolCalls: 1 });
    const call = '<tool_call>{"name": "look", "arguments": {}}</tool_call>';
    answerText(await world.dataplane.nextTurn(), call);
    (await world.tools.next()).answer({ ok: true, text: "five boats" });
    const last = await world.dataplane.nextTurn();
    expect(last.body["tool_choice"]).toBe("none");
    answerText(last, call);
    const extra = await world.dataplane.nextTurn();
    expect(extra.body["tools"]).toBeUndefined();
    expect(messagesOf(extra).at(-1)?.content).toMatch(/^Error: no tool calls are left/);
    answerText(extra, call);
    const [result] = await ended(world, [handle]);
    expect(result).toMatchObject({ reason: "max_tool_calls", answer: call, turns: 3, toolCalls: 2 });
  });
});
