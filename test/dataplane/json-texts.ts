/** Request bodies as texts, written in the odd ways that JSON allows, and bytes that are nearly JSON. For fast-check. */
import * as fc from "fast-check";

const space = fc.constantFrom("", "", "", " ", "\n", "\t\r\n ");

/** A string literal in which some characters are written as escapes. */
export const literal = (text: string): fc.Arbitrary<string> =>
  fc.array(fc.nat({ max: 9 }), { minLength: text.length, maxLength: text.length }).map((dice) => {
    const written = Array.from({ length: text.length }, (_, at) => {
      const character = text.charAt(at);
      const hex = text.charCodeAt(at).toString(16).padStart(4, "0");
      if (dice[at] === 0) return `\\u${hex}`;
      if (dice[at] === 1) return `\\u${hex.toUpperCase()}`;
      if (character === "/" && dice[at] === 2) return "\\/";
      return JSON.stringify(character).slice(1, -1);
    });
    return `"${written.join("")}"`;
  });

const text = fc.oneof(
  fc.string({ unit: "binary", maxLength: 12 }),
  fc.constantFrom('{"model":"x"}', "]}", 'a"b\\c', "é漢字😀", "\u2028", "x".repeat(70)),
);

/** Any string literal. */
const anyString = text.chain(literal);

const number = fc.constantFrom("0", "-0", "1.0", "-12", "1e3", "2E-7", "1.5e+10", "12345678901234567890", "1e400");
const scalar = fc.oneof(number, anyString, fc.constantFrom("true", "false", "null"));

const list = (elements: readonly string[], gap: string): string => `[${gap}${elements.join(`${gap},${gap}`)}${gap}]`;
const object = (members: readonly (readonly [string, string])[], gap: string): string =>
  `{${gap}${members.map(([key, value]) => `${key}${gap}:${gap}${value}`).join(`,${gap}`)}${gap}}`;

/** An object of members whose names and values are given, in any order, some of them twice or not at all. */
const objectOf = (members: { readonly [name: string]: fc.Arbitrary<string> }): fc.Arbitrary<string> => {
  const member = fc
    .constantFrom(...Object.keys(members))
    .chain((name) => fc.tuple(literal(name), members[name] ?? fc.constant("null")));
  const odd = fc.tuple(fc.oneof(anyString, literal("")), fc.oneof(scalar, fc.constant("[]"), fc.constant("{}")));
  const most = fc.array(fc.oneof({ weight: 6, arbitrary: member }, { weight: 1, arbitrary: odd }), { maxLength: 7 });
  return fc.tuple(most, space).map(([chosen, gap]) => object(chosen, gap));
};

const listOf = (element: fc.Arbitrary<string>): fc.Arbitrary<string> =>
  fc.tuple(fc.array(element, { maxLength: 4 }), space).map(([elements, gap]) => list(elements, gap));

/** Any JSON value. */
export const anyValue: fc.Arbitrary<string> = fc.letrec<{ value: string }>((tie) => ({
  value: fc.oneof(
    { depthSize: "small", withCrossShrink: true },
    scalar,
    listOf(tie("value")),
    fc
      .tuple(fc.array(fc.tuple(anyString, tie("value")), { maxLength: 4 }), space)
      .map(([members, gap]) => object(members, gap)),
  ),
})).value;

const either = (usual: fc.Arbitrary<string>): fc.Arbitrary<string> =>
  fc.oneof({ weight: 8, arbitrary: usual }, { weight: 1, arbitrary: anyValue });

const described = objectOf({
  name: either(fc.constantFrom("f", "get_weather").chain(literal)),
  arguments: either(fc.constantFrom("", "{}", '{"a":1}').chain(literal)),
  input: either(anyString),
});
const call = objectOf({
  id: either(fc.constantFrom("0", "call_0", "f:0").chain(literal)),
  type: literal("function"),
  function: either(described),
  custom: either(described),
});
const message = objectOf({
  role: either(fc.constantFrom("user", "assistant", "assistant", "tool", "system", "developer", "").chain(literal)),
  content: anyValue,
  tool_calls: either(listOf(either(call))),
});

/** The body of a turn: mostly as clients send it, but with everything that JSON allows. */
export const anyBody: fc.Arbitrary<string> = fc
  .tuple(
    objectOf({
      model: either(fc.constantFrom("m", "", "org/model").chain(literal)),
      stream: either(fc.constantFrom("true", "false")),
      stream_options: either(
        objectOf({ include_usage: either(fc.constantFrom("true", "false", "null")), other: anyValue }),
      ),
      messages: either(listOf(either(message))),
      temperature: number,
    }),
    space,
    space,
  )
  .map(([body, before, after]) => before + body + after);

/** A body with a few bytes changed, taken out or put in: mostly no JSON any more, sometimes not even UTF-8. */
export const nearlyBody: fc.Arbitrary<Buffer> = fc
  .tuple(
    fc.oneof(anyBody, anyValue),
    fc.array(
      fc.tuple(
        fc.nat({ max: 400 }),
        fc.constantFrom("change", "insert", "remove"),
        fc.oneof(fc.constantFrom(...Buffer.from('"\\{}[]:,0-+.eEtu n\n')), fc.nat({ max: 255 })),
      ),
      { minLength: 1, maxLength: 3 },
    ),
  )
  .map(([body, edits]) => {
    const bytes = [...Buffer.from(body)];
    for (const [position, kind, byte] of edits) {
      const at = position % (bytes.length + 1);
      if (kind === "insert") bytes.splice(at, 0, byte);
      else bytes.splice(at, 1, ...(kind === "change" ? [byte] : []));
    }
    return Buffer.from(bytes);
  });
