/** Whether the arguments of a call are what the tool takes, and what the model is told where they are not (spec 4). */
import { Validator, type OutputUnit, type Schema, type SchemaDraft } from "@cfworker/json-schema";
import type { JsonObject } from "../types.ts";
import { coerceArguments } from "./coerce.ts";
import { allowedTypes, fitsType, isJsonObject, pointerPath, shownValue, type TypeName } from "../json/index.ts";
import { shapeOf } from "./shape.ts";

export type FittedArguments =
  | { readonly kind: "fit"; readonly arguments: JsonObject }
  | { readonly kind: "misfit"; readonly text: string };

const PROBLEMS_MAX = 3;
const TYPE_NAMES: ReadonlySet<unknown> = new Set([
  "string",
  "number",
  "integer",
  "boolean",
  "null",
  "object",
  "array",
] satisfies TypeName[]);

/**
 * Coerces a call's arguments and validates them.
 * @param schema the tool's. One that cannot be used is not held against the call: the server then has the last word.
 */
export function fitArguments(tool: string, args: JsonObject, schema: JsonObject): FittedArguments {
  if (isSchemaItself(args, schema)) return misfit(tool, "these are its schema, not values", schema);
  const read = coerceArguments(args, schema);
  const problems = problemsOf(read, schema);
  return problems === undefined ? { kind: "fit", arguments: read } : misfit(tool, problems, schema);
}

function misfit(tool: string, problem: string, schema: JsonObject): FittedArguments {
  const text = `Error: the arguments of '${tool}' do not fit: ${problem}. Expected: ${shapeOf(schema)}`;
  return { kind: "misfit", text };
}

/** Small models send `{"type": "object", "properties": …}`, or for each argument its schema. */
function isSchemaItself(args: JsonObject, schema: JsonObject): boolean {
  const { properties } = schema;
  const known = isJsonObject(properties) ? properties : {};
  if (args["type"] === "object" && isJsonObject(args["properties"]) && !Object.hasOwn(known, "properties")) return true;
  const members = Object.entries(args);
  return members.length > 0 && members.every(([name, value]) => isSchemaOf(value, known[name], schema));
}

function isSchemaOf(value: unknown, known: unknown, root: JsonObject): boolean {
  if (!isJsonObject(value) || !TYPE_NAMES.has(value["type"])) return false;
  const types = allowedTypes(known, root);
  return types !== undefined && !fitsType(value, types);
}

/** What is wrong, in words; undefined: nothing. */
function problemsOf(args: JsonObject, schema: JsonObject): string | undefined {
  const validator = validatorOf(schema);
  if (validator === undefined) return undefined;
  let result;
  try {
    result = validator.validate(args);
  } catch {
    return undefined; // A reference that leads nowhere, a pattern that is none: the schema's fault, not the call's.
  }
  if (result.valid) return undefined;
  // Only the deepest say what is wrong; those above them say that something is.
  const { errors } = result;
  const leaves = errors.filter((one) => !errors.some((other) => other !== one && isBelow(other, one)));
  const said = leaves.map((error) => problemOf(error, args));
  return [...new Set(said)].slice(0, PROBLEMS_MAX).join("; ");
}

function isBelow(one: OutputUnit, other: OutputUnit): boolean {
  return one.keywordLocation.startsWith(`${other.keywordLocation}/`);
}

function problemOf({ instanceLocation, error }: OutputUnit, args: JsonObject): string {
  const path = pointerPath(instanceLocation);
  const text = error.replace(/\.$/, "");
  if (path.length === 0) return text;
  const value = path.reduce<unknown>(
    (at, part) => (at as { readonly [key: string]: unknown } | undefined)?.[part],
    args,
  );
  return `${path.join(".")}: ${text}, it was ${shownValue(value)}`;
}

/** Made once for a schema object: lists of tools are kept for as long as their server runs. */
const validators = new WeakMap<JsonObject, Validator | "unusable">();

function validatorOf(schema: JsonObject): Validator | undefined {
  const known = validators.get(schema) ?? make(schema);
  validators.set(schema, known);
  return known === "unusable" ? undefined : known;
}

function make(schema: JsonObject): Validator | "unusable" {
  try {
    // A copy, since the validator writes into what it is given.
    return new Validator(JSON.parse(JSON.stringify(schema)) as Schema, draftOf(schema["$schema"]), false);
  } catch {
    return "unusable";
  }
}

function draftOf(named: unknown): SchemaDraft {
  const text = typeof named === "string" ? named : "";
  if (text.includes("draft-04")) return "4";
  if (text.includes("draft-06") || text.includes("draft-07")) return "7";
  return text.includes("2019-09") ? "2019-09" : "2020-12";
}
