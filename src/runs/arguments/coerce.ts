/**
 * Arguments as small models write them, made into what the schema asks for. A value is changed only where it does not fit
 * and has one reading that does; all else stays, and validation says what is wrong with it.
 */
import type { JsonObject } from "../types.ts";
import {
  alternatives,
  allowedTypes,
  fitsType,
  isJsonObject,
  parseJson,
  readText,
  requiredOf,
  resolved,
  type TypeName,
} from "../json/index.ts";

const DEPTH_MAX = 32;
const NUMBER = /^[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$/;
const NOTHING = /^(?:null|none)$/i;

/** Keys into which models wrap all arguments. */
const WRAPPERS: ReadonlySet<string> = new Set(["arguments", "parameters", "input", "args", "kwargs"]);

/** @returns a copy where something changed. */
export function coerceArguments(args: JsonObject, schema: JsonObject): JsonObject {
  return coerced(unwrapped(args, schema), schema, { root: schema, depth: 0 }) as JsonObject;
}

type At = { readonly root: JsonObject; readonly depth: number };

function unwrapped(args: JsonObject, schema: JsonObject): JsonObject {
  const [key, ...others] = Object.keys(args);
  if (key === undefined || others.length > 0 || !WRAPPERS.has(key)) return args;
  const { properties } = schema;
  if (isJsonObject(properties) && Object.hasOwn(properties, key)) return args;
  const found = readText(args[key]);
  return isJsonObject(found) ? found : args;
}

function coerced(value: unknown, schema: unknown, at: At): unknown {
  const found = resolved(schema, at.root);
  if (found === undefined || at.depth > DEPTH_MAX) return value;
  const deeper = { root: at.root, depth: at.depth + 1 };
  const others = alternatives(found);
  if (others.length > 0) return coercedToOne(value, others, deeper);
  const types = allowedTypes(found, at.root);
  const fitting = types === undefined || fitsType(value, types) ? value : converted(value, types);
  if (isJsonObject(fitting)) return coercedMembers(fitting, found, deeper);
  if (Array.isArray(fitting)) return coercedItems(fitting, found, deeper);
  return Array.isArray(found["enum"]) ? choiceOf(fitting, found["enum"]) : fitting;
}

/** The first alternative that the value is of, as it is or as it can be read. */
function coercedToOne(value: unknown, others: readonly unknown[], at: At): unknown {
  const fits = (candidate: unknown, other: unknown): boolean => {
    const types = allowedTypes(other, at.root);
    return types === undefined || fitsType(candidate, types);
  };
  const own = others.filter((other) => fits(value, other));
  if (own.length === 1) return coerced(value, own[0], at);
  // Of several objects the keys tell which is meant: the first whose required ones are there.
  if (own.length > 1) {
    const meant = isJsonObject(value) ? own.find((other) => hasRequired(value, other, at.root)) : undefined;
    return meant === undefined ? value : coerced(value, meant, at);
  }
  for (const other of others) {
    const read = coerced(value, other, at);
    if (fits(read, other)) return read;
  }
  return value;
}

function hasRequired(value: JsonObject, schema: unknown, root: JsonObject): boolean {
  return requiredOf(resolved(schema, root) ?? {}).every((name) => Object.hasOwn(value, name));
}

function coercedMembers(object: JsonObject, schema: JsonObject, at: At): JsonObject {
  const required = requiredOf(schema);
  const { properties, additionalProperties } = schema;
  const members = Object.entries(object).flatMap(([name, value]): readonly (readonly [string, unknown])[] => {
    const known = isJsonObject(properties) && Object.hasOwn(properties, name) ? properties[name] : additionalProperties;
    const read = coerced(value, known, at);
    const types = allowedTypes(known, at.root);
    const isAbsent = read === null || (typeof read === "string" && NOTHING.test(read.trim()));
    // A model writes null for what it leaves out.
    if (isAbsent && !required.includes(name) && types !== undefined && !fitsType(read, types)) return [];
    return [[name, read]];
  });
  return Object.fromEntries(members);
}

function coercedItems(list: readonly unknown[], schema: JsonObject, at: At): readonly unknown[] {
  const { items, prefixItems } = schema;
  const first: readonly unknown[] = Array.isArray(prefixItems) ? prefixItems : Array.isArray(items) ? items : [];
  return list.map((item, index) => coerced(item, index < first.length ? first[index] : items, at));
}

/** A value that is of none of the types, read as one of them. */
function converted(value: unknown, types: ReadonlySet<TypeName>): unknown {
  if (typeof value === "string") {
    const read = fromText(value.trim(), types);
    if (read !== undefined) return read;
    return types.has("null") && NOTHING.test(value.trim()) ? null : value;
  }
  if (typeof value === "number" && types.has("boolean") && (value === 0 || value === 1)) return value === 1;
  if ((typeof value === "number" || typeof value === "boolean") && types.has("string")) return String(value);
  return value;
}

/** Undefined: it can be read as none of them. */
function fromText(text: string, types: ReadonlySet<TypeName>): unknown {
  if ((types.has("number") || types.has("integer")) && NUMBER.test(text)) {
    const number = Number(text);
    // Digits beyond what a number holds exactly would become another number.
    const exact = Number.isSafeInteger(number) || (types.has("number") && /[.eE]/.test(text));
    if (exact && Number.isFinite(number)) return number;
  }
  if (types.has("boolean") && /^(?:true|false)$/i.test(text)) return text.toLowerCase() === "true";
  if (types.has("object") || types.has("array")) {
    const read = parseJson(text)?.value;
    if (types.has("object") && isJsonObject(read)) return read;
    if (types.has("array") && Array.isArray(read)) return read;
  }
  return undefined;
}

/** The only choice that the value is but for case and white space around it. */
function choiceOf(value: unknown, choices: readonly unknown[]): unknown {
  if (typeof value !== "string" || choices.includes(value)) return value;
  const bare = value.trim().toLowerCase();
  const alike = choices.filter((choice) => typeof choice === "string" && choice.toLowerCase() === bare);
  return alike.length === 1 ? alike[0] : value;
}
