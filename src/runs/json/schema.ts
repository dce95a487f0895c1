/** Reading JSON schemas: what a value may be. Only references inside the schema are followed. */
import type { JsonObject } from "../types.ts";
import { isJsonObject } from "./object.ts";
import { pointerPath } from "./pointer.ts";

export type TypeName = "string" | "number" | "integer" | "boolean" | "null" | "object" | "array";

const REFERENCES_MAX = 16;
/** Alternatives inside alternatives; those that hold themselves would be followed as a tree. */
const ALTERNATIVES_DEPTH_MAX = 4;

/** The schema that a reference inside `root` names. */
export function resolved(schema: unknown, root: JsonObject): JsonObject | undefined {
  let found = schema;
  for (let step = 0; step < REFERENCES_MAX; step += 1) {
    if (!isJsonObject(found)) return undefined;
    const reference = found["$ref"];
    if (typeof reference !== "string") return found;
    if (!reference.startsWith("#")) return undefined;
    found = pointerPath(reference).reduce<unknown>(
      (at, part) => (isJsonObject(at) && Object.hasOwn(at, part) ? at[part] : undefined),
      root,
    );
  }
  return undefined;
}

/** `anyOf` and `oneOf`. */
export function alternatives(schema: JsonObject): readonly unknown[] {
  return ["anyOf", "oneOf"].flatMap((key): readonly unknown[] => (Array.isArray(schema[key]) ? schema[key] : []));
}

/** What a value may be; undefined: anything, or the schema does not say. */
export function allowedTypes(schema: unknown, root: JsonObject): ReadonlySet<TypeName> | undefined {
  return typesOf(schema, root, 0);
}

function typesOf(schema: unknown, root: JsonObject, depth: number): ReadonlySet<TypeName> | undefined {
  const found = resolved(schema, root);
  if (found === undefined || depth > ALTERNATIVES_DEPTH_MAX) return undefined;
  const { type } = found;
  if (typeof type === "string") return new Set([type as TypeName]);
  if (Array.isArray(type)) return new Set(type as TypeName[]);
  const values = Array.isArray(found["enum"]) ? found["enum"] : "const" in found ? [found["const"]] : undefined;
  if (values !== undefined) return new Set(values.map(typeOf));
  if (isJsonObject(found["properties"])) return new Set(["object"] as const);
  const others = alternatives(found).map((other) => typesOf(other, root, depth + 1));
  if (others.length === 0 || others.includes(undefined)) return undefined;
  return new Set(others.flatMap((types) => [...(types ?? [])]));
}

function typeOf(value: unknown): TypeName {
  if (value === null) return "null";
  if (Array.isArray(value)) return "array";
  switch (typeof value) {
    case "string":
    case "boolean":
    case "number":
      return typeof value as TypeName;
    default:
      return "object";
  }
}

/** Whether a value is of one of these types; an integer is a number too. */
export function fitsType(value: unknown, types: ReadonlySet<TypeName>): boolean {
  const type = typeOf(value);
  return types.has(type) || (type === "number" && types.has("integer") && Number.isInteger(value));
}

/** The schema of one argument; undefined: the schema does not name it. */
export function propertySchema(root: JsonObject, name: string, of: unknown = root): JsonObject | undefined {
  const properties = resolved(of, root)?.["properties"];
  if (!isJsonObject(properties) || !Object.hasOwn(properties, name)) return undefined;
  return resolved(properties[name], root) ?? {};
}

/** Names of the arguments that must be there. */
export function requiredOf(schema: JsonObject): readonly string[] {
  const { required } = schema;
  return Array.isArray(required) ? required.filter((name) => typeof name === "string") : [];
}
