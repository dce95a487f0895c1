/** A schema in the few words that a model needs to write the arguments. */
import type { JsonObject } from "../types.ts";
import { alternatives, isJsonObject, requiredOf, resolved } from "../json/index.ts";

const SHAPE_CHARS_MAX = 1_500;
const DEPTH_MAX = 3;
const CHOICES_MAX = 20;

/** Like `{"city": string, "days"?: integer}`; optional arguments have a question mark. */
export function shapeOf(schema: JsonObject): string {
  const shape = objectShape(schema, schema, 0);
  return shape.length > SHAPE_CHARS_MAX ? `${shape.slice(0, SHAPE_CHARS_MAX)}…` : shape;
}

function shape(schema: unknown, root: JsonObject, depth: number): string {
  const found = resolved(schema, root);
  if (found === undefined || depth > DEPTH_MAX + 1) return "any value";
  if ("const" in found) return JSON.stringify(found["const"]);
  if (Array.isArray(found["enum"])) {
    const choices = found["enum"].slice(0, CHOICES_MAX).map((choice) => JSON.stringify(choice));
    return [...choices, ...(found["enum"].length > CHOICES_MAX ? ["…"] : [])].join(" | ");
  }
  const others = alternatives(found);
  if (others.length > 0) return others.map((other) => shape(other, root, depth + 1)).join(" | ");
  const { type } = found;
  if (type === "object" || isJsonObject(found["properties"])) return objectShape(found, root, depth);
  if (type === "array") return depth > DEPTH_MAX ? "array" : `[${shape(found["items"], root, depth + 1)}, …]`;
  if (Array.isArray(type)) return type.join(" | ");
  return typeof type === "string" ? type : "any value";
}

function objectShape(schema: JsonObject, root: JsonObject, depth: number): string {
  const { properties } = schema;
  if (!isJsonObject(properties) || depth > DEPTH_MAX) return depth === 0 ? "{}" : "object";
  const required = requiredOf(schema);
  const members = Object.entries(properties).map(
    ([name, value]) => `${JSON.stringify(name)}${required.includes(name) ? "" : "?"}: ${shape(value, root, depth + 1)}`,
  );
  return `{${members.join(", ")}}`;
}
