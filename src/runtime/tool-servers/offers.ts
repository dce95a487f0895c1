/**
 * From what a server lists to the tools that sub-agents are offered: what is allowed, what a call does, who is asked
 * (spec 4, Tool servers: effects and trust).
 *
 * One odd entry costs that entry, never the server's other tools.
 */
import type { Effect, JsonObject } from "../../runs/index.ts";
import { matchesPattern } from "../tool-pattern.ts";
import type { OfferedTool } from "./port.ts";
import type { ApprovePolicy, ToolServerConfig } from "./server-config.ts";

export type Offers = {
  readonly tools: readonly OfferedTool[];
  /** Entries that cannot be used, with what is wrong. */
  readonly left: readonly { readonly tool: string; readonly problem: string }[];
};

type Hints = {
  readonly readOnly: boolean | undefined;
  readonly destructive: boolean | undefined;
  readonly idempotent: boolean | undefined;
};

const DESCRIPTION_CHARS_MAX = 8_192;
const SCHEMA_CHARS_MAX = 65_536;

/** @param listed the entries of `tools/list`, as they came. */
export function offersOf(config: ToolServerConfig, listed: readonly unknown[]): Offers {
  const tools: OfferedTool[] = [];
  const left: { tool: string; problem: string }[] = [];
  for (const entry of listed) {
    const name = member(entry, "name");
    const label = typeof name === "string" ? name.slice(0, 100) : "(without a name)";
    const problem = problemOf(entry, tools);
    if (problem !== undefined) left.push({ tool: label, problem });
    else if (isAllowed(config, name as string)) tools.push(offerOf(config, entry as Entry));
  }
  return { tools, left };
}

type Entry = { readonly name: string; readonly inputSchema: JsonObject; readonly [field: string]: unknown };

function problemOf(entry: unknown, before: readonly OfferedTool[]): string | undefined {
  const name = member(entry, "name");
  if (typeof name !== "string" || name === "") return "it has no name";
  if (before.some((tool) => tool.name === name)) return "its name is listed twice";
  const schema = member(entry, "inputSchema");
  if (!isObject(schema)) return "its inputSchema is no object";
  if (schema["type"] !== undefined && schema["type"] !== "object") return "its inputSchema is not of type object";
  if (JSON.stringify(schema).length > SCHEMA_CHARS_MAX) return `its inputSchema is over ${SCHEMA_CHARS_MAX} characters`;
  if (member(member(entry, "execution"), "taskSupport") === "required") return "it can only be called as an MCP task";
  return undefined;
}

function isAllowed({ allow, deny }: ToolServerConfig, name: string): boolean {
  const matches = (pattern: string): boolean => matchesPattern(pattern, name);
  return allow.some(matches) && !deny.some(matches);
}

function offerOf(config: ToolServerConfig, entry: Entry): OfferedTool {
  const { name, inputSchema, description } = entry;
  const said = hintsOf(member(entry, "annotations"));
  const hints = config.trust ? said : restrictive(said);
  return {
    server: config.name,
    name,
    description: typeof description === "string" ? description.slice(0, DESCRIPTION_CHARS_MAX) : "",
    inputSchema,
    ...hints,
    effect: config.effects[name] ?? effectOf(hints),
    onCrash: config.onCrash,
    asks: asksOf(config.approve, hints),
    state: "ok",
  };
}

function hintsOf(annotations: unknown): Hints {
  const hint = (name: string): boolean | undefined => {
    const value = member(annotations, name);
    return typeof value === "boolean" ? value : undefined;
  };
  return {
    readOnly: hint("readOnlyHint"),
    destructive: hint("destructiveHint"),
    idempotent: hint("idempotentHint"),
  };
}

/** Of a server that is not trusted only what makes us more careful. */
function restrictive({ readOnly, destructive, idempotent }: Hints): Hints {
  return {
    readOnly: readOnly === false ? false : undefined,
    destructive: destructive === true ? true : undefined,
    idempotent: idempotent === false ? false : undefined,
  };
}

function effectOf({ readOnly, idempotent }: Hints): Effect {
  if (readOnly === true) return "read-only";
  return idempotent === true ? "idempotent" : "unsafe";
}

function asksOf(approve: ApprovePolicy, { readOnly, destructive }: Hints): OfferedTool["asks"] {
  const explicit = destructive === true && readOnly !== true;
  switch (approve) {
    case "none":
      return undefined;
    case "explicit":
      return explicit ? "destructive" : undefined;
    case "spec":
      // MCP's own default: what says nothing may destroy.
      if (explicit) return "destructive";
      return readOnly === true || destructive === false ? undefined : "policy";
    case "all":
      return explicit ? "destructive" : "policy";
  }
}

function isObject(value: unknown): value is { readonly [field: string]: unknown } {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function member(value: unknown, name: string): unknown {
  return isObject(value) ? value[name] : undefined;
}
