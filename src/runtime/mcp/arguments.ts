/**
 * Arguments of the face's tools: coerced like a small model's (strings for numbers, JSON in strings, null for absent), then
 * checked against the schema that `tools/list` shows. Wrong ones give the expected shape, so that the next try is right.
 */
import { Validator, type Schema } from "@cfworker/json-schema";
import { shownValue } from "../../runs/index.ts";
import { FACE_TOOLS, type FaceTool, type ToolName } from "./tool-list.ts";

export type Arguments = { readonly [name: string]: unknown };
type Shape = { readonly [key: string]: unknown };

export type ReadArguments =
  | { readonly ok: true; readonly value: Arguments }
  | { readonly ok: false; readonly message: string };

const VALIDATORS: ReadonlyMap<ToolName, Validator> = new Map(
  FACE_TOOLS.map(({ name, inputSchema }) => [name, new Validator(inputSchema as Schema, "2020-12", false)]),
);

/** @param given as the client sent them. */
export function readArguments(tool: FaceTool, given: unknown): ReadArguments {
  const parsed = typeof given === "string" ? parsedAs("object", given) : given;
  if (parsed === undefined || parsed === null) return checked(tool, {});
  if (typeof parsed !== "object" || Array.isArray(parsed)) return wrong(tool, "arguments: must be an object");
  const object = coerceObject(tool.inputSchema, parsed as Arguments);
  const unknown = unknownIn(tool.inputSchema, object, "");
  if (unknown !== undefined) return wrong(tool, `${unknown}: ${tool.name} has no such argument`);
  return checked(tool, object);
}

/** The first argument that is none, also in the entries of a list: a budget that is misspelled would be no budget. */
function unknownIn(schema: Shape, value: unknown, path: string): string | undefined {
  if (Array.isArray(value)) {
    const items = (schema["items"] ?? {}) as Shape;
    for (const [at, item] of value.entries()) {
      const found = unknownIn(items, item, `${path}${at}.`);
      if (found !== undefined) return found;
    }
    return undefined;
  }
  if (typeof value !== "object" || value === null) return undefined;
  const shape = ((schema["anyOf"] ?? [schema]) as readonly Shape[]).find(({ type }) => type === "object");
  const properties = shape?.["properties"] as { readonly [name: string]: Shape } | undefined;
  if (properties === undefined) return undefined;
  for (const [name, each] of Object.entries(value)) {
    const known = Object.hasOwn(properties, name) ? properties[name] : undefined;
    if (known === undefined) return `${path}${name}`;
    const found = unknownIn(known, each, `${path}${name}.`);
    if (found !== undefined) return found;
  }
  return undefined;
}

function checked(tool: FaceTool, value: Arguments): ReadArguments {
  const result = VALIDATORS.get(tool.name)?.validate(value);
  if (result === undefined || result.valid) return { ok: true, value };
  // The deepest one says what is wrong; those above only say that something is.
  const deepest = result.errors.reduce((one, other) =>
    depthOf(other.instanceLocation) >= depthOf(one.instanceLocation) ? other : one,
  );
  const at = deepest.instanceLocation.replace(/^#\/?/, "").replaceAll("/", ".");
  return wrong(tool, at === "" ? deepest.error : `${at}: ${deepest.error} It was ${shownValue(valueAt(value, at))}.`);
}

function wrong(tool: FaceTool, problem: string): ReadArguments {
  const { properties, required } = tool.inputSchema as FaceTool["inputSchema"] & {
    readonly required: readonly string[];
  };
  const lines = Object.entries(properties).map(([name, schema]) => {
    return `- ${name}${required.includes(name) ? "" : "?"}: ${typeName(schema)}`;
  });
  const shape = lines.length === 0 ? "no arguments" : `\n${lines.join("\n")}`;
  return { ok: false, message: `Wrong arguments for ${tool.name}. ${problem}\nExpected: ${shape}` };
}

function typeName(schema: Shape): string {
  const {
    type,
    enum: choices,
    items,
    anyOf,
  } = schema as {
    readonly type?: string;
    readonly enum?: readonly string[];
    readonly items?: Shape;
    readonly anyOf?: readonly Shape[];
  };
  if (choices !== undefined) return choices.map((choice) => JSON.stringify(choice)).join(" | ");
  if (anyOf !== undefined) return anyOf.map(typeName).join(" | ");
  if (type === "array") return `array of ${items === undefined ? "anything" : typeName(items)}`;
  return type ?? "anything";
}

function coerceObject(schema: Shape, given: Arguments): Arguments {
  const properties = schema["properties"] as { readonly [name: string]: Shape } | undefined;
  const value: { [name: string]: unknown } = {};
  for (const [name, each] of Object.entries(given)) {
    const known = properties?.[name];
    if (each === null) continue;
    if (known === undefined) {
      value[name] = each;
      continue;
    }
    const coerced = coerce(known, each);
    // An empty text is what a model writes to leave something out.
    if (coerced === "" && !mayBeEmpty(schema, name, known)) continue;
    value[name] = coerced;
  }
  return value;
}

/** Texts that somebody has to give, and those that mean something when they are empty. */
function mayBeEmpty(schema: Shape, name: string, known: Shape): boolean {
  const required = schema["required"] as readonly string[] | undefined;
  return known["type"] === "string" && (required?.includes(name) === true || known["minLength"] === 0);
}

function coerce(schema: Shape, value: unknown): unknown {
  const choices = schema["enum"] as readonly string[] | undefined;
  if (choices !== undefined) return typeof value === "string" ? choiceOf(choices, value) : value;
  const { anyOf } = schema as { readonly anyOf?: readonly Shape[] };
  if (anyOf !== undefined) {
    const object = anyOf.find(({ type }) => type === "object");
    return object === undefined ? value : coerceEntry(object, value);
  }
  switch (schema["type"]) {
    case "integer":
    case "number":
      return typeof value === "string" && /^\s*[+-]?\d+(\.\d+)?\s*$/.test(value) ? Number(value) : value;
    case "boolean":
      return typeof value === "string" ? (BOOLEANS.get(value.trim().toLowerCase()) ?? value) : value;
    case "string":
      return typeof value === "number" || typeof value === "boolean" ? String(value) : value;
    case "array": {
      const list = typeof value === "string" ? (parsedAs("array", value) ?? [value]) : value;
      const items = schema["items"] as Shape | undefined;
      if (!Array.isArray(list)) return typeof list === "object" && items !== undefined ? [coerce(items, list)] : list;
      // An empty text is what a model writes for an empty list.
      if (typeof value === "string" && value.trim() === "") return [];
      return items === undefined ? list : list.map((item: unknown) => coerce(items, item));
    }
    case "object": {
      const object = typeof value === "string" ? (parsedAs("object", value) ?? value) : value;
      return typeof object === "object" && object !== null && !Array.isArray(object)
        ? coerceObject(schema, object as Arguments)
        : object;
    }
    default:
      return value;
  }
}

/**
 * A text or an object, either of which is right. A text that is an object's JSON is one only where it is the very object
 * that is asked for: a task may be any text, JSON too.
 */
function coerceEntry(schema: Shape, value: unknown): unknown {
  const object = typeof value === "string" ? parsedAs("object", value) : value;
  if (typeof object !== "object" || object === null || Array.isArray(object)) return value;
  if (typeof value === "string") {
    const known = schema["properties"] as { readonly [name: string]: Shape };
    const required = schema["required"] as readonly string[];
    const names = Object.keys(object);
    if (!required.every((name) => names.includes(name)) || names.some((name) => known[name] === undefined))
      return value;
  }
  return coerceObject(schema, object as Arguments);
}

const BOOLEANS: ReadonlyMap<string, boolean> = new Map([
  ["true", true],
  ["yes", true],
  ["1", true],
  ["false", false],
  ["no", false],
  ["0", false],
]);

function choiceOf(choices: readonly string[], value: string): string {
  const bare = value.trim().toLowerCase();
  return choices.find((choice) => choice === bare) ?? value;
}

function parsedAs(kind: "object" | "array", text: string): unknown {
  if (!text.trim().startsWith(kind === "object" ? "{" : "[")) return undefined;
  try {
    const value: unknown = JSON.parse(text);
    return Array.isArray(value) === (kind === "array") ? value : undefined;
  } catch {
    return undefined;
  }
}

function depthOf(location: string): number {
  return location.split("/").length;
}

function valueAt(value: unknown, at: string): unknown {
  let here = value;
  for (const part of at.split(".")) here = (here as { readonly [key: string]: unknown } | undefined)?.[part];
  return here;
}
