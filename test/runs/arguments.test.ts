import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { fitArguments, simplifiedSchema, type JsonObject } from "../../src/runs/index.ts";

const object = (properties: JsonObject, more: JsonObject = {}): JsonObject => ({ type: "object", properties, ...more });

function fitted(args: JsonObject, schema: JsonObject): unknown {
  const result = fitArguments("t", args, schema);
  return result.kind === "fit" ? result.arguments : result.text;
}

const SCHEMA = object(
  {
    count: { type: "integer" },
    ratio: { type: "number" },
    on: { type: "boolean" },
    name: { type: "string" },
    tags: { type: "array", items: { type: "string" } },
    place: object({ x: { type: "number" } }),
    unit: { type: "string", enum: ["Celsius", "Fahrenheit"] },
    either: { anyOf: [{ type: "integer" }, { type: "null" }] },
    any: {},
  },
  { required: [] },
);

describe("coercion", () => {
  test.each<[string, JsonObject, JsonObject]>([
    ["a number in a text", { count: "3", ratio: " 2.5 " }, { count: 3, ratio: 2.5 }],
    ["a whole number written with a point", { count: "3.0" }, { count: 3 }],
    ["Python's booleans", { on: "True" }, { on: true }],
    ["0 and 1 as booleans", { on: 0 }, { on: false }],
    ["a number for a text", { name: 42 }, { name: "42" }],
    ["a boolean for a text", { name: true }, { name: "true" }],
    ["a list in a text", { tags: '["a", 1]' }, { tags: ["a", "1"] }],
    ["an object in a text, as Python writes it", { place: "{'x': '1'}" }, { place: { x: 1 } }],
    ["null for what is left out", { count: null, name: null, place: "None" }, {}],
    ["a choice in another case", { unit: " celsius" }, { unit: "Celsius" }],
    ["a number for one of several types", { either: "7" }, { either: 7 }],
    ["null where it is allowed", { either: null }, { either: null }],
    ["the word null for null", { either: "null" }, { either: null }],
    ["what may be anything stays", { any: "3" }, { any: "3" }],
    ["a text that looks like a number stays a text", { name: "3" }, { name: "3" }],
    ["arguments inside a key of their own", { parameters: { count: "3" } }, { count: 3 }],
  ])("%s", (_name, args, means) => {
    expect(fitted(args, SCHEMA)).toEqual(means);
  });

  test("a key that the schema has is no wrapper", () => {
    const schema = object({ input: object({ a: { type: "string" } }) });
    expect(fitted({ input: { a: 1 } }, schema)).toEqual({ input: { a: "1" } });
  });

  test("an integer that a number cannot hold exactly becomes no other number", () => {
    expect(fitted({ name: "12345678901234567890" }, SCHEMA)).toEqual({ name: "12345678901234567890" });
    expect(fitted({ count: "12345678901234567890" }, SCHEMA)).toMatch(/^Error: the arguments of 't' do not fit: count/);
  });

  test("references and alternatives are followed", () => {
    const schema = object(
      { at: { $ref: "#/$defs/point" }, shape: { oneOf: [{ $ref: "#/$defs/point" }, { $ref: "#/$defs/line" }] } },
      {
        $defs: {
          point: object({ x: { type: "number" } }, { required: ["x"] }),
          line: object({ length: { type: "number" } }, { required: ["length"] }),
        },
      },
    );
    expect(fitted({ at: { x: "1" }, shape: { length: "2" } }, schema)).toEqual({ at: { x: 1 }, shape: { length: 2 } });
  });

  test("a schema that holds itself ends", () => {
    const schema = object({ node: { $ref: "#" }, n: { type: "integer" } });
    expect(fitted({ node: { node: { n: "1" } } }, schema)).toEqual({ node: { node: { n: 1 } } });
  });

  test("alternatives that hold themselves end, and are shown", () => {
    const many = Array.from({ length: 8 }, () => ({ $ref: "#/$defs/any" }));
    const schema = object({ a: { $ref: "#/$defs/any" } }, { required: ["b"], $defs: { any: { anyOf: many } } });
    const loose = object({ a: { $ref: "#/$defs/any" } }, { $defs: { any: { anyOf: many } } });
    expect(fitted({ a: "x" }, loose)).toEqual({ a: "x" });
    expect(fitted({}, schema)).toContain('Expected: {"a"?: any value');
  });

  test("what fits is not changed, and coercing twice is coercing once", () => {
    const value = fc.record(
      {
        count: fc.integer(),
        ratio: fc.double({ noNaN: true, noDefaultInfinity: true }).map((number) => number + 0),
        on: fc.boolean(),
        name: fc.string(),
        tags: fc.array(fc.string()),
        unit: fc.constantFrom("Celsius", "Fahrenheit"),
        either: fc.option(fc.integer()),
        any: fc.jsonValue(),
      },
      { requiredKeys: [] },
    );
    fc.assert(
      fc.property(value, (args) => {
        expect(fitted(args, SCHEMA)).toEqual(args);
      }),
    );
    const loose = fc.dictionary(fc.constantFrom(...Object.keys(SCHEMA["properties"] as object)), fc.jsonValue());
    fc.assert(
      fc.property(loose, (args) => {
        const once = fitArguments("t", args, SCHEMA);
        if (once.kind === "fit") expect(fitted(once.arguments, SCHEMA)).toEqual(once.arguments);
      }),
    );
  });

  test("what is given is never written to", () => {
    const args = Object.freeze({ count: "3", place: Object.freeze({ x: "1" }) });
    expect(fitted(args, Object.freeze(structuredClone(SCHEMA)))).toEqual({ count: 3, place: { x: 1 } });
  });
});

describe("validation", () => {
  test("says what, where, and what is expected", () => {
    const schema = object({ city: { type: "string" }, days: { type: "integer", maximum: 7 } }, { required: ["city"] });
    expect(fitted({ days: 9 }, schema)).toBe(
      `Error: the arguments of 't' do not fit: Instance does not have required property "city"; ` +
        `days: 9 is greater than 7, it was 9. Expected: {"city": string, "days"?: integer}`,
    );
  });

  test("a large schema is shown shortly", () => {
    const properties = Object.fromEntries(
      Array.from({ length: 500 }, (_, at) => [`argument_${at}`, { type: "string" }]),
    );
    expect(String(fitted({}, object(properties, { required: ["argument_0"] }))).length).toBeLessThan(2_000);
  });

  test.each([
    ["its own schema", { type: "object", properties: { city: { type: "string" } } }],
    ["a schema for each argument", { city: { type: "string" } }],
  ])("%s instead of arguments is told", (_name, args) => {
    expect(fitted(args, object({ city: { type: "string" } }))).toContain("these are its schema, not values");
  });

  test("an argument that may be an object with a type is not taken for a schema", () => {
    const args = { field: { type: "string" } };
    expect(fitted(args, object({ field: { type: "object" } }))).toEqual(args);
  });

  test.each([
    ["an invalid pattern", object({ a: { type: "string", pattern: "[" } })],
    ["a reference that leads nowhere", object({ a: { $ref: "#/$defs/none" } })],
    ["a reference to elsewhere", object({ a: { $ref: "https://example.org/schema" } })],
  ])("a schema with %s does not hide its tool", (_name, schema) => {
    expect(fitted({ a: "x" }, schema)).toEqual({ a: "x" });
  });

  test("draft 4's limits are understood", () => {
    const schema = {
      $schema: "http://json-schema.org/draft-04/schema#",
      ...object({ n: { type: "integer", minimum: 0, exclusiveMinimum: true } }),
    };
    expect(fitted({ n: 0 }, schema)).toContain("do not fit");
    expect(fitted({ n: 1 }, schema)).toEqual({ n: 1 });
  });
});

describe("the schema that engines get", () => {
  test("has no references, titles, open patterns or nulls", () => {
    const schema = {
      $schema: "https://json-schema.org/draft/2020-12/schema",
      title: "Arguments",
      type: "object",
      required: ["at"],
      properties: {
        at: { $ref: "#/$defs/point", description: "where" },
        zip: { type: "string", title: "Zip", pattern: "\\d+" },
        code: { type: "string", pattern: "^[A-Z]{2}$" },
        days: { anyOf: [{ type: "integer" }, { type: "null" }], default: null, description: "how long" },
      },
      $defs: { point: { type: "object", title: "Point", properties: { x: { type: "number" } } } },
    };
    expect(simplifiedSchema(schema)).toEqual({
      type: "object",
      required: ["at"],
      properties: {
        at: { type: "object", properties: { x: { type: "number" } }, description: "where" },
        zip: { type: "string" },
        code: { type: "string", pattern: "^[A-Z]{2}$" },
        days: { type: "integer", description: "how long" },
      },
    });
  });

  test("keeps an argument that is called like a word of the language", () => {
    const schema = object({ title: { type: "string" }, pattern: { type: "string" }, definitions: { type: "array" } });
    expect(simplifiedSchema(schema)).toEqual(schema);
  });

  test("of a tool without arguments is an object without properties", () => {
    expect(simplifiedSchema({})).toEqual({ type: "object", properties: {} });
  });

  test("ends, and stays small, when a schema holds itself", () => {
    const twice = { a: { $ref: "#" }, b: { $ref: "#" }, note: { type: "string", description: "x".repeat(50) } };
    const schema = object(twice);
    const simple = simplifiedSchema(schema);
    expect(JSON.stringify(simple).length).toBeLessThan(100_000);
    expect(simple["type"]).toBe("object");
  });

  test("ends where it is nothing but references to itself", () => {
    const names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    const schema = { properties: Object.fromEntries(names.map((name) => [name, { $ref: "#" }])) };
    expect(simplifiedSchema(schema)).toBe(schema);
  });

  test("is the same object each time, so that a prompt begins the same", () => {
    expect(simplifiedSchema(SCHEMA)).toBe(simplifiedSchema(SCHEMA));
  });
});
