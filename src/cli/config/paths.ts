/** The tree of keys in the schema: for environment names, for "did you mean", for the reference page. */
import type { z } from "zod";
import { configSchema } from "./schema.ts";

export type ConfigPath = {
  /** `limits.drainSeconds`; an element of a list is `endpoints[].url`. */
  readonly path: string;
  readonly about: string;
  readonly fallback: unknown;
  /** The type in words, from the JSON Schema. */
  readonly type: string;
  readonly secret: boolean;
};

type JsonSchema = {
  readonly type?: string;
  readonly properties?: { readonly [key: string]: JsonSchema };
  readonly items?: JsonSchema;
  readonly anyOf?: readonly JsonSchema[];
  readonly enum?: readonly unknown[];
  readonly const?: unknown;
  readonly default?: unknown;
  readonly description?: string;
  readonly secret?: boolean;
};

/** Every key of the config, in the order of the schema. Groups are listed by their members only. */
export function configPaths(jsonSchema: unknown): ConfigPath[] {
  const paths: ConfigPath[] = [];
  const walk = (schema: JsonSchema, prefix: string): void => {
    for (const [key, child] of Object.entries(schema.properties ?? {})) {
      const path = prefix === "" ? key : `${prefix}.${key}`;
      const object = objectOf(child);
      if (object !== undefined && child.type === "object") {
        walk(object, path);
        continue;
      }
      paths.push({
        path,
        about: child.description ?? "",
        fallback: child.default,
        type: typeInWords(child),
        secret: child.secret === true,
      });
      if (object !== undefined) walk(object, path);
      const element = child.items === undefined ? undefined : objectOf(child.items);
      if (element !== undefined) walk(element, `${path}[]`);
    }
  };
  walk(jsonSchema as JsonSchema, "");
  return paths;
}

function objectOf(schema: JsonSchema): JsonSchema | undefined {
  if (schema.properties !== undefined) return schema;
  return schema.anyOf?.find((variant) => variant.properties !== undefined);
}

function typeInWords(schema: JsonSchema): string {
  if (schema.anyOf !== undefined) return schema.anyOf.map(typeInWords).join(" or ");
  if (schema.enum !== undefined) return schema.enum.map(String).join(" | ");
  if (schema.const !== undefined) return JSON.stringify(schema.const).replaceAll(`"`, "");
  if (schema.type === "array") return `list of ${schema.items === undefined ? "any" : typeInWords(schema.items)}`;
  return schema.type ?? "any";
}

/** Environment name of a config path: `limits.drainSeconds` → `LUFTPAUSE_LIMITS__DRAIN_SECONDS` (spec 7, Config). */
export function environmentName(path: string): string {
  const words = path.split(".").map((key) => key.replaceAll(/[A-Z]/g, (letter) => `_${letter}`).toUpperCase());
  return `LUFTPAUSE_${words.join("__")}`;
}

/** Paths that an environment variable or `--set` may name: everything outside lists, groups included. */
export function settablePaths(): ReadonlyMap<string, string> {
  const names = new Map<string, string>();
  const walk = (schema: z.ZodType, prefix: string): void => {
    const shape = shapeOf(schema);
    if (shape === undefined) return;
    for (const [key, child] of Object.entries(shape)) {
      const path = prefix === "" ? key : `${prefix}.${key}`;
      names.set(environmentName(path), path);
      walk(child, path);
    }
  };
  walk(configSchema, "");
  return names;
}

/** The members of a strict object behind its defaults and its null, or undefined. */
function shapeOf(schema: z.ZodType): { readonly [key: string]: z.ZodType } | undefined {
  let current: unknown = schema;
  for (let depth = 0; depth < 8; depth += 1) {
    const def = (current as { readonly def?: { readonly type?: string; readonly innerType?: unknown } }).def;
    if (def === undefined) return undefined;
    if (def.type === "object") return (current as { readonly shape: { readonly [key: string]: z.ZodType } }).shape;
    if (def.innerType === undefined) return undefined;
    current = def.innerType;
  }
  return undefined;
}
