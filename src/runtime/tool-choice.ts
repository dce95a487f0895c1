/** Which tools a run may use, under which names the model knows them, and which of its calls ask a person first. */
import type { RunState, ToolRef } from "../runs/index.ts";
import { matchesPattern } from "./tool-pattern.ts";
import type { OfferedTool } from "./tool-servers/port.ts";

/** What the API allows as the name of a function. */
const FUNCTION_NAME_CHARS_MAX = 64;

/** The offered tool that a run's tool names; undefined: it is not there any more. */
export function toolOf(ref: ToolRef | undefined, offered: readonly OfferedTool[]): OfferedTool | undefined {
  return offered.find(({ server, name }) => server === ref?.server && name === ref.tool);
}

/** `server/tool`, the tool's name alone, or a pattern of either with `*`. */
function matchesTool(pattern: string, tool: { readonly server: string; readonly name: string }): boolean {
  return matchesPattern(pattern, tool.name) || matchesPattern(pattern, `${tool.server}/${tool.name}`);
}

/**
 * The tools that the names and patterns choose, in the order of the offer.
 * @param patterns undefined: all. A pattern that chooses none is given back as `unknown`.
 */
export function chooseTools(
  offered: readonly OfferedTool[],
  patterns: readonly string[] | undefined,
): { readonly tools: readonly ToolRef[]; readonly unknown: readonly string[] } {
  const chosen =
    patterns === undefined ? offered : offered.filter((tool) => patterns.some((pattern) => matchesTool(pattern, tool)));
  const unknown = (patterns ?? []).filter((pattern) => !offered.some((tool) => matchesTool(pattern, tool)));
  const taken = new Set<string>();
  const tools = chosen.map(({ server, name }): ToolRef => {
    const clash = chosen.some((other) => other.server !== server && functionName(other.name) === functionName(name));
    const wanted = functionName(clash ? `${server}__${name}` : name);
    let unique = wanted;
    for (let number = 2; taken.has(unique); number += 1) {
      unique = `${wanted.slice(0, FUNCTION_NAME_CHARS_MAX - 4)}_${number}`;
    }
    taken.add(unique);
    return { server, tool: name, function: unique };
  });
  return { tools, unknown };
}

function functionName(text: string): string {
  return text.replaceAll(/[^a-zA-Z0-9_-]/g, "_").slice(0, FUNCTION_NAME_CHARS_MAX);
}

/** Why a call of this tool asks a person first; undefined: it does not. */
export function asksBecause(run: RunState, tool: OfferedTool): "listed" | "destructive" | "policy" | undefined {
  if (run.assignment.approveTools.some((pattern) => matchesTool(pattern, tool))) return "listed";
  return tool.asks;
}
