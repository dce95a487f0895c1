/**
 * A value that is valid against a JSON Schema in a simple way: types, `enum`, `const`, `default`, required and some
 * optional properties, bounds of numbers, strings and arrays, `anyOf`/`oneOf`/`allOf` by their first branch, local
 * `$ref`. Formats and patterns are not met. Deterministic for a seed; depth is bounded.
 */
import type { Random } from "../base/random.ts";
import { placeholderWords } from "./placeholder.ts";

type Schema = Readonly<Record<string, unknown>>;
type Context = { readonly root: Schema; readonly random: Random; readonly stringChars: number };

/** Nested schemas deeper than this get null or an empty value: a recursive schema would have no end. */
const DEPTH_MAX = 6;

/**
 * @param schema any JSON; what is no schema gives `{}`.
 * @param stringChars length that free strings aim at.
 */
export function valueForSchema(schema: unknown, random: Random, stringChars: number): unknown {
  const root = asSchema(schema);
  return valueFor(root, { root, random, stringChars }, 0);
}

function valueFor(given: Schema, context: Context, depth: number): unknown {
  if (depth > DEPTH_MAX) return null;
  const schema = resolve(given, context.root);
  if ("const" in schema) return schema["const"];
  const choices = schema["enum"];
  if (Array.isArray(choices) && choices.length > 0) {
    return choices[context.random.integer(0, choices.length - 1)] as unknown;
  }
  const branch = firstBranch(schema);
  if (branch !== undefined) return valueFor(branch, context, depth + 1);
  switch (typeOf(schema)) {
    case "string":
      return stringFor(schema, context);
    case "integer":
      return Math.floor(numberFor(schema, context.random, 1));
    case "number":
      return numberFor(schema, context.random, 0);
    case "boolean":
      return context.random.next() < 0.5;
    case "array":
      return arrayFor(schema, context, depth);
    case "null":
      return null;
    default:
      return objectFor(schema, context, depth);
  }
}

function stringFor(schema: Schema, { random, stringChars }: Context): string {
  const least = bound(schema["minLength"], 0);
  const most = bound(schema["maxLength"], Infinity);
  const wanted = Math.min(Math.max(stringChars, least), most);
  const text = placeholderWords(random, Math.max(1, Math.min(wanted, 100_000)));
  return text.length > most ? text.slice(0, most) : text;
}

function numberFor(schema: Schema, random: Random, gap: number): number {
  const above = schema["exclusiveMinimum"];
  const below = schema["exclusiveMaximum"];
  let least = typeof above === "number" ? above + (gap === 0 ? 1e-6 : gap) : bound(schema["minimum"], Number.NaN);
  let most = typeof below === "number" ? below - (gap === 0 ? 1e-6 : gap) : bound(schema["maximum"], Number.NaN);
  if (Number.isNaN(least)) least = Number.isNaN(most) ? 1 : most - 9;
  if (Number.isNaN(most)) most = least + 9;
  const [low, high] = [Math.ceil(least), Math.floor(most)];
  return low <= high ? random.integer(low, Math.min(high, low + 1_000)) : least;
}

function arrayFor(schema: Schema, context: Context, depth: number): unknown[] {
  const least = bound(schema["minItems"], 0);
  const most = bound(schema["maxItems"], Math.max(least, 2));
  const items = asSchema(schema["items"]);
  if (depth >= DEPTH_MAX) return [];
  return Array.from({ length: Math.min(Math.max(least, 1), most, 100) }, () => valueFor(items, context, depth + 1));
}

function objectFor(schema: Schema, context: Context, depth: number): Record<string, unknown> {
  const value: Record<string, unknown> = {};
  if (depth >= DEPTH_MAX) return value;
  const properties = asSchema(schema["properties"]);
  const required = new Set(Array.isArray(schema["required"]) ? schema["required"] : []);
  for (const [name, property] of Object.entries(properties)) {
    // An optional property is left out half of the time: agents must not depend on it.
    if (!required.has(name) && context.random.next() < 0.5) continue;
    value[name] = valueFor(asSchema(property), context, depth + 1);
  }
  return value;
}

function resolve(schema: Schema, root: Schema): Schema {
  let current = schema;
  for (let hops = 0; hops < DEPTH_MAX; hops += 1) {
    const reference = current["$ref"];
    if (typeof reference !== "string" || !reference.startsWith("#/")) return current;
    let target: unknown = root;
    for (const part of reference.slice(2).split("/")) target = asSchema(target)[part];
    current = asSchema(target);
  }
  return {};
}

function firstBranch(schema: Schema): Schema | undefined {
  for (const key of ["anyOf", "oneOf", "allOf"]) {
    const branches = schema[key];
    if (Array.isArray(branches) && branches.length > 0) return asSchema(branches[0]);
  }
  return undefined;
}

function typeOf(schema: Schema): string {
  const type: unknown = Array.isArray(schema["type"]) ? schema["type"][0] : schema["type"];
  if (typeof type === "string") return type;
  return schema["items"] === undefined ? "object" : "array";
}

function bound(value: unknown, otherwise: number): number {
  return typeof value === "number" && Number.isFinite(value) ? value : otherwise;
}

function asSchema(value: unknown): Schema {
  return typeof value === "object" && value !== null ? (value as Schema) : {};
}
