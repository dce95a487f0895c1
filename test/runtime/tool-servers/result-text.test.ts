import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { resultText } from "../../../src/runtime/tool-servers/result-text.ts";

const said = (...parts: object[]) => ({ content: parts });
const text = (words: string) => ({ type: "text", text: words });

describe("a result as the model sees it", () => {
  test.each([
    ["texts, joined", said(text("one"), text("two")), { ok: true, text: "one\ntwo" }],
    [
      "a picture in words",
      said(text("see:"), { type: "image", data: "QUJDRA==", mimeType: "image/png" }),
      { ok: true, text: "see:\n[image (image/png, 6 bytes): not shown, only text is]" },
    ],
    [
      "a resource with its text",
      said({ type: "resource", resource: { uri: "a://b", text: "inside" } }),
      { ok: true, text: "inside" },
    ],
    [
      "a link in words",
      said({ type: "resource_link", uri: "a://b", name: "notes" }),
      { ok: true, text: "[resource notes: a://b]" },
    ],
    ["what is structured, where there is nothing else", { structuredContent: { n: 1 } }, { ok: true, text: '{"n":1}' }],
    ["words for nothing", said(), { ok: true, text: "(the tool has answered with nothing)" }],
    ["words for an odd result", "odd", { ok: true, text: "(the tool has answered with nothing)" }],
    ["an error, marked", { ...said(text("closed")), isError: true }, { ok: false, text: "Error: closed" }],
    ["an error that says so itself", { ...said(text("error 5")), isError: true }, { ok: false, text: "error 5" }],
    [
      "an error without words",
      { content: [], isError: true },
      { ok: false, text: "Error: the tool failed and does not say why" },
    ],
  ])("is %s", (_name, result, expected) => {
    expect(resultText(result, 10_000)).toEqual(expected);
  });
});

describe("a result that is too long", () => {
  test("keeps its beginning and its end, and says how long it was", () => {
    const whole = `begin ${"x".repeat(5_000)} end`;
    const cut = resultText(said(text(whole)), 300);
    expect(cut.text).toMatch(/^begin x+\n\[… 5010 bytes in all: the middle is left out …\]\nx+ end$/);
    expect(cut.whole).toBe(whole);
  });

  test("never is over the bound, and never cuts through a character", () => {
    fc.assert(
      fc.property(
        // Without the character that a cut one would become.
        fc.string({ unit: "grapheme", minLength: 1, maxLength: 2_000 }).filter((words) => !words.includes("\ufffd")),
        fc.integer({ min: 256, max: 900 }),
        (words, most) => {
          const { text: shown } = resultText(said(text(words)), most);
          expect(Buffer.byteLength(shown)).toBeLessThanOrEqual(
            Math.max(most, Buffer.byteLength("(the tool has answered with nothing)")),
          );
          expect(shown).not.toContain("\ufffd");
        },
      ),
    );
  });
});
