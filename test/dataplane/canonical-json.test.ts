import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { canonicalJson } from "../../src/dataplane/canonical-json.ts";
import { anyValue, literal } from "./json-texts.ts";

const ENGINE = '{"b": 1.0, "a":"x",  "2":"z"}';

describe("the canonical form of arguments", () => {
  it.each([
    ["LangChain JS and the AI SDK", '{"2":"z","b":1,"a":"x"}'],
    ["openai-node, which echoes the text", ENGINE],
    ["Python's json.dumps", '{"b": 1.0, "a": "x", "2": "z"}'],
    ["Python's json.dumps with sorted keys and an indent", '{\n  "2": "z",\n  "a": "x",\n  "b": 1.0\n}'],
    ["json.dumps after a round through a float", '{"b": 1e0, "a": "x", "2": "z"}'],
    ["a client that escapes", '{"b":1.0,"\\u0061":"\\u0078","2":"z"}'],
  ])("is the same for %s", (_, text) => {
    expect(canonicalJson(text)).toBe('{"2":"z","a":"x","b":1}');
    expect(canonicalJson(text)).toBe(canonicalJson(ENGINE));
  });

  it.each([
    ['{"x":"é"}', '{"x": "\\u00e9"}'],
    ['{"x":"😀"}', '{"x": "\\ud83d\\ude00"}'],
    ['{"x":"/"}', '{"x":"\\/"}'],
    ['{"x":100}', '{"x":1e2}'],
    ['{"x":0}', '{"x":-0.0}'],
    ['{"x":10000000000000000000000}', '{"x":1e+22}'],
    ['{"x":0.1}', '{"x":1.0e-1}'],
    ["{}", ""],
    ["{}", " \n"],
    [' [1, {"b":2,"a":1}] ', '[1,{"a":1,"b":2}]'],
  ])("is the same for %j and %j", (one, other) => {
    expect(canonicalJson(one)).toBe(canonicalJson(other));
  });

  it.each([
    ['{"x":1}', '{"x":"1"}'],
    ['{"x":12345678901234567890}', '{"x":12345678901234567891}'],
    ['{"x":9007199254740992}', '{"x":9007199254740993}'],
    ['{"x":1e400}', '{"x":null}'],
    ['{"x":1e400}', '{"x":1e500}'],
    ['{"x":null}', "{}"],
    ['{"x":[]}', '{"x":{}}'],
    ['{"x":"a"}', '{"x":"A"}'],
    ['{"x":[1,2]}', '{"x":[2,1]}'],
    ["not json", "not  json"],
    ['{"x":', '{"x": '],
  ])("keeps %j and %j apart", (one, other) => {
    expect(canonicalJson(one)).not.toBe(canonicalJson(other));
  });

  it.each(["not json", '{"x":', "{'x':1}", '{"x":NaN}'])(
    "of %j, which does not parse, is the text as it is",
    (text) => {
      expect(canonicalJson(text)).toBe(text);
    },
  );

  it("of very deep, very long and very large values is the text as it is, and comes without delay", () => {
    const deep = "[".repeat(100_000) + "]".repeat(100_000);
    const long = `{"x":"${"y".repeat(1_100_000)}" }`;
    expect(canonicalJson(deep)).toBe(deep);
    expect(canonicalJson(long)).toBe(long);
    const digits = "9".repeat(500_000);
    expect(canonicalJson(`[ ${digits} ]`)).toBe(`[${digits}]`);
  });

  it("knows no special names", () => {
    expect(canonicalJson('{"toString":1,"__proto__":{"a":1},"constructor":2}')).toBe(
      '{"__proto__":{"a":1},"constructor":2,"toString":1}',
    );
  });

  it("is the same however a value is written, says the same as the text, and is its own canonical form", () => {
    const value = fc.jsonValue({ maxDepth: 4 });
    fc.assert(
      fc.property(
        value.chain((of) => fc.tuple(fc.constant(of), writtenOddly(of))),
        ([of, odd]) => {
          const canonical = canonicalJson(odd);
          expect(canonical).toBe(canonicalJson(JSON.stringify(of)));
          expect(canonicalJson(canonical)).toBe(canonical);
        },
      ),
      { numRuns: 1_000 },
    );
    fc.assert(
      fc.property(anyValue, (text) => {
        expect(JSON.parse(canonicalJson(text))).toEqual(
          JSON.parse(text, (_, part: unknown) => (part === 0 ? 0 : part)),
        );
      }),
      { numRuns: 1_000 },
    );
  });
});

/** A value in another order of keys, with other spaces and escapes. */
function writtenOddly(value: unknown): fc.Arbitrary<string> {
  if (typeof value === "string") return literal(value);
  if (typeof value !== "object" || value === null) return fc.constant(JSON.stringify(value));
  const space = fc.constantFrom("", " ", "\n");
  if (Array.isArray(value)) {
    return fc
      .tuple(space, ...value.map((element) => writtenOddly(element)))
      .map(([gap, ...elements]) => `[${gap}${elements.join(`${gap},`)}${gap}]`);
  }
  const members = Object.entries(value).map(([key, member]) => fc.tuple(literal(key), writtenOddly(member)));
  return fc
    .tuple(space, fc.tuple(...members))
    .chain(([gap, all]) => fc.tuple(fc.constant(gap), fc.shuffledSubarray(all, { minLength: all.length })))
    .map(([gap, all]) => `{${gap}${all.map(([key, text]) => `${key}${gap}:${text}`).join(`${gap},`)}}`);
}
