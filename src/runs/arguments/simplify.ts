/**
 * A tool's schema as a model sees it: shorter, and in the part of JSON Schema that engines take. Grammars and templates
 * fail on references, on open patterns and on objects without properties, and one such tool would fail every turn of the
 * run. Nothing is lost: calls are validated against the tool's own schema.
 */
import { alternatives, isJsonObject, resolved } from "../json/index.ts";
import type { JsonObject } from "../types.ts";

/** Deeper than this, and in schemas that hold themselves, a value is left open. */
const DEPTH_MAX = 12;
/** What references may make of a schema; beyond it the schema goes out with them. */
const CHARS_MAX = 64 * 1024;
const PLACE_CHARS = 4;

/** Words that say nothing to a model, or that engines refuse. */
const DROPPED: ReadonlySet<string> = new Set([
  "$schema",
  "$id",
  "$anchor",
  "$comment",
  "$defs",
  "definitions",
  "title",
]);

const known = new WeakMap<JsonObject, JsonObject>();

/** The same object for the same schema: what stands at the start of a prompt does not change. */
export function simplifiedSchema(schema: JsonObject): JsonObject {
  const made = known.get(schema) ?? make(schema);
  known.set(schema, made);
  return made;
}

function make(schema: JsonObject): JsonObject {
  const budget = { chars: CHARS_MAX };
  const simple = simplified(schema, schema, 0, budget);
  if (budget.chars < 0) return schema;
  return { ...simple, type: "object", properties: isJsonObject(simple["properties"]) ? simple["properties"] : {} };
}

type Budget = { chars: number };

function simplified(schema: unknown, root: JsonObject, depth: number, budget: Budget): JsonObject {
  const found = resolved(schema, root);
  // A place costs too, or a schema of nothing but references to itself would not end for hours.
  budget.chars -= PLACE_CHARS;
  if (found === undefined || depth > DEPTH_MAX || budget.chars < 0) return {};
  // What stands beside a reference (a description, most often) counts for this place.
  const whole = isJsonObject(schema) && schema !== found ? { ...found, ...without(schema, "$ref") } : found;
  const single = withoutNull(whole, root);
  const inner = (value: unknown): JsonObject => simplified(value, root, depth + 1, budget);
  const members = Object.entries(single)
    .filter(([key, value]) => !DROPPED.has(key) && (key !== "pattern" || isClosedPattern(value)))
    .map(([key, value]): readonly [string, unknown] => {
      if (key === "properties" && isJsonObject(value)) {
        return [key, Object.fromEntries(Object.entries(value).map(([name, each]) => [name, inner(each)]))];
      }
      if (["items", "additionalProperties", "contains", "not"].includes(key) && isJsonObject(value)) {
        return [key, inner(value)];
      }
      const isList = ["anyOf", "oneOf", "allOf", "prefixItems", "items"].includes(key) && Array.isArray(value);
      if (isList) return [key, value.map(inner)];
      budget.chars -= key.length + (JSON.stringify(value)?.length ?? 0);
      return [key, value];
    });
  return Object.fromEntries(members);
}

/** `anyOf: [X, null]` is X: a null for what may be left out is taken anyway. */
function withoutNull(schema: JsonObject, root: JsonObject): JsonObject {
  const others = alternatives(schema);
  const rest = others.filter((other) => resolved(other, root)?.["type"] !== "null");
  const [only, ...more] = rest;
  if (rest.length === others.length || only === undefined || more.length > 0) return schema;
  const { anyOf: _any, oneOf: _one, default: fallback, ...own } = schema;
  const found = resolved(only, root) ?? {};
  return { ...found, ...own, ...(fallback === undefined || fallback === null ? {} : { default: fallback }) };
}

function without(schema: JsonObject, key: string): JsonObject {
  return Object.fromEntries(Object.entries(schema).filter(([name]) => name !== key));
}

/** Grammars (llama.cpp) take patterns of the whole text only, and none that look around. */
function isClosedPattern(pattern: unknown): boolean {
  return typeof pattern === "string" && /^\^.*\$$/s.test(pattern) && !pattern.includes("(?");
}
