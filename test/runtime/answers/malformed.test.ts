import { describe, expect, test } from "vitest";
import { ChatAnswerBuilder } from "../../../src/runtime/chat-answer.ts";
import { readAnswer, type ReadAnswer } from "../../../src/runtime/read-answer.ts";
import { SseReader } from "../../../src/runtime/sse-reader.ts";
import { MALFORMED, type Answer } from "./malformed.ts";
import { OFFERED, runWithTools } from "./tools.ts";

const event = (value: unknown): string => `data: ${JSON.stringify(value)}\n\n`;
const delta = (value: object, finish: string | null = null): string =>
  event({ choices: [{ index: 0, delta: value, finish_reason: finish }] });

/** The stream of an engine, with the text in pieces of three letters. */
function streamOf({ text = "", parsed = [], finish = "stop" }: Answer): Buffer {
  const pieces = text.match(/.{1,3}/gs) ?? [];
  const calls = parsed.flatMap(({ id, name, arguments: args }, index) => [
    delta({ tool_calls: [{ index, id, type: "function", function: { name } }] }),
    ...(args === undefined ? [] : [delta({ tool_calls: [{ index, function: { arguments: args } }] })]),
  ]);
  const events = [...pieces.map((content) => delta({ content })), ...calls, delta({}, finish), "data: [DONE]\n\n"];
  return Buffer.from(events.join(""));
}

function readParts(parts: readonly Buffer[]): ReadAnswer {
  const sse = new SseReader();
  const builder = new ChatAnswerBuilder();
  for (const part of parts) {
    const pieces = sse.push(part);
    if (pieces === "too-long") throw new Error("too long");
    for (const piece of pieces) {
      if (piece.kind === "data" && piece.data !== "[DONE]") builder.add(JSON.parse(piece.data));
    }
  }
  return readAnswer(runWithTools(), builder.answer(), { offered: OFFERED, mode: "tools", turn: 1 });
}

describe.each(MALFORMED)("$name ($source)", (answer) => {
  const bytes = streamOf(answer);
  const whole = readParts([bytes]);
  const { calls = [], refused, text = "", ids, leftAsText = false } = answer.means;

  test("means what the model meant", () => {
    const made = whole.calls.flatMap(({ name, judgement }) =>
      judgement.kind === "callable" ? [{ name, args: judgement.arguments }] : [],
    );
    expect(made).toEqual(calls);
    const told = whole.calls.flatMap(({ judgement }) => (judgement.kind === "refused" ? [judgement.text] : []));
    expect(told).toEqual(refused === undefined ? [] : [expect.stringMatching(refused)]);
    expect(whole.text.trim()).toBe(text);
    expect(whole.leftAsText).toBe(leftAsText);
    if (ids !== undefined) expect(whole.calls.map(({ id }) => id)).toEqual(ids);
  });

  test("goes back to the engine as JSON objects, under ids of their own", () => {
    for (const { rawArguments } of whole.calls) expect(JSON.parse(rawArguments)).toBeTypeOf("object");
    const seen = whole.calls.map(({ id }) => id);
    expect(new Set(seen).size).toBe(seen.length);
    expect(seen).not.toContain("");
  });

  test("means the same in two parts, wherever they are cut", () => {
    for (let at = 1; at < bytes.length; at += 1) {
      const cut = readParts([bytes.subarray(0, at), bytes.subarray(at)]);
      if (JSON.stringify(cut) !== JSON.stringify(whole)) expect(cut, `cut at byte ${at}`).toEqual(whole);
    }
  });
});
