import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { countTokens, hashBlocks, renderChat, tokenizeAnswer, tokenTexts } from "../../src/engine/index.ts";
import { renderAnswer } from "../../src/engine/prompt.ts";

const TOOLS = [{ type: "function", function: { name: "lookup", parameters: { type: "object" } } }];

describe("the rendered prompt", () => {
  it("begins with the tools, so that dropping them loses the whole prefix", () => {
    const messages = [{ role: "user", content: "x".repeat(1_000) }];
    const [kept, dropped] = [hashBlocks(renderChat(messages, TOOLS)), hashBlocks(renderChat(messages, undefined))];
    expect(kept[0]).not.toBe(dropped[0]);
  });

  it("is continued by the answer exactly as the next turn renders it", () => {
    const user = { role: "user", content: "What does the river do?" };
    const call = { name: "lookup", arguments: '{"query": "river",  "limit":1}' };
    const answer = { content: "Let me look.", calls: [call] };
    const before = renderChat([user], TOOLS) + renderAnswer(answer);
    const assistant = {
      role: "assistant",
      content: "Let me look.",
      tool_calls: [{ id: "call_1", type: "function", function: call }],
    };
    const after = renderChat([user, assistant, { role: "tool", tool_call_id: "call_1", content: "It flows." }], TOOLS);
    expect(after.startsWith(before)).toBe(true);
  });

  it("does not depend on the ids of tool calls", () => {
    const turn = (id: string): string =>
      renderChat(
        [{ role: "assistant", content: null, tool_calls: [{ id, function: { name: "a", arguments: "{}" } }] }],
        TOOLS,
      );
    expect(turn("call_1")).toBe(turn("call_2"));
  });

  it("joins text parts, gives an image its size, and takes any JSON without failing", () => {
    const parts = [
      { type: "text", text: "see " },
      { type: "image_url", image_url: { url: "data:image/png;base64,AAAA" } },
    ];
    expect(countTokens(renderChat([{ role: "user", content: parts }], undefined))).toBeGreaterThan(576);
    fc.assert(
      fc.property(
        fc.array(fc.jsonValue(), { maxLength: 4 }),
        fc.array(fc.jsonValue(), { maxLength: 2 }),
        (messages, tools) => {
          expect(renderChat(messages, tools)).toMatch(/<\|assistant\|>\n$/);
        },
      ),
    );
  });
});

describe("block hashes", () => {
  it("are equal exactly as far as the texts are", () => {
    fc.assert(
      fc.property(
        fc.string({ maxLength: 600 }),
        fc.string({ maxLength: 300 }),
        fc.string({ maxLength: 300 }),
        (start, one, other) => {
          const [left, right] = [start + one, start + other];
          const [leftHashes, rightHashes] = [hashBlocks(left), hashBlocks(right)];
          for (let at = 0; at < Math.min(leftHashes.length, rightHashes.length); at += 1) {
            const same = left.slice(0, (at + 1) * 64) === right.slice(0, (at + 1) * 64);
            expect(leftHashes[at] === rightHashes[at]).toBe(same);
          }
        },
      ),
    );
  });

  it("cover full blocks of 16 tokens only, and are never 0", () => {
    expect(hashBlocks("a".repeat(63)).length).toBe(0);
    expect(hashBlocks("a".repeat(129)).length).toBe(2);
    const seen = new Set<number>();
    for (let at = 0; at < 20_000; at += 1) seen.add(hashBlocks(String(at).padEnd(64))[0]!);
    expect(seen.size).toBe(20_000);
    expect(seen.has(0)).toBe(false);
  });
});

describe("token texts", () => {
  it("add up to the text and never split a character", () => {
    fc.assert(
      fc.property(fc.string({ unit: "grapheme", maxLength: 200 }), (text) => {
        const pieces = tokenTexts(text);
        expect(pieces.join("")).toBe(text);
        for (const piece of pieces) expect(piece.isWellFormed()).toBe(true);
      }),
    );
  });
});

describe("a tokenized answer", () => {
  const answer = { content: "Looking. ", calls: [{ name: "lookup", arguments: '{"query":"river"}' }] };

  it("carries every character of content and arguments, and a call's name before its arguments", () => {
    const { parts, finish } = tokenizeAnswer(answer, 1_000);
    const of = (kind: string): string =>
      parts.map((part) => (part?.kind === kind && "text" in part ? part.text : "")).join("");
    expect([of("content"), of("arguments"), finish]).toEqual(["Looking. ", '{"query":"river"}', "tool_calls"]);
    const kinds = parts.map((part) => part?.kind);
    expect(kinds.indexOf("call")).toBeLessThan(kinds.indexOf("arguments"));
    expect(parts.at(-1)).toBeUndefined();
  });

  it("costs about what its rendered text costs", () => {
    const { parts, text } = tokenizeAnswer(answer, 1_000);
    expect(Math.abs(parts.length - countTokens(text))).toBeLessThanOrEqual(4);
  });

  it("ends with `length` when it is cut, in the middle of a call too", () => {
    const { parts, finish } = tokenizeAnswer(answer, 14);
    expect([parts.length, finish]).toEqual([14, "length"]);
    expect(tokenizeAnswer({ content: "a", calls: [] }, 2).finish).toBe("stop");
    expect(tokenizeAnswer({ content: "a", calls: [] }, 1).finish).toBe("length");
  });
});
