/** What a model's answer means: its text, and its calls with a judgement each (spec 4, Reliable tool calls). */
import type { JsonObject, Judgement, MadeCall, RunState, TurnMode } from "../runs/index.ts";
import type { RawCall } from "./chat-answer.ts";
import { digestOfJson } from "./digest.ts";
import { asksBecause } from "./tool-choice.ts";
import type { OfferedTool } from "./tool-servers/port.ts";

export function digestOfCall(server: string, tool: string, args: JsonObject): string {
  return digestOfJson([server, tool, args]);
}

export function readAnswer(
  run: RunState,
  answer: { readonly text: string; readonly calls: readonly RawCall[]; readonly finish: string },
  around: { readonly offered: readonly OfferedTool[]; readonly mode: TurnMode },
): { readonly text: string; readonly calls: readonly MadeCall[] } {
  const calls = answer.calls.map((call, index): MadeCall => {
    const id = call.id === "" ? `call_${index}` : call.id;
    const { judgement, rawArguments } = judge(run, call, around.offered);
    return { id, name: call.name, rawArguments, judgement };
  });
  return { text: answer.text, calls };
}

function judge(
  run: RunState,
  call: RawCall,
  offered: readonly OfferedTool[],
): { readonly judgement: Judgement; readonly rawArguments: string } {
  const ref = run.assignment.tools.find((tool) => tool.function === call.name);
  const tool = offered.find(({ server, name }) => server === ref?.server && name === ref.tool);
  let args: unknown;
  try {
    args = JSON.parse(call.arguments.trim() === "" ? "{}" : call.arguments) as unknown;
  } catch {
    args = undefined;
  }
  const rawArguments = args === undefined ? "{}" : call.arguments.trim() === "" ? "{}" : call.arguments;
  const refused = (text: string) => ({ judgement: { kind: "refused", text } as const, rawArguments });
  if (ref === undefined) {
    const names = run.assignment.tools.map((known) => known.function).join(", ");
    return refused(`Error: there is no tool '${call.name.slice(0, 100)}'. Tools: ${names}`);
  }
  if (tool === undefined) return refused(`Error: the tool '${call.name}' is not available any more`);
  if (typeof args !== "object" || args === null || Array.isArray(args)) {
    return refused(`Error: the arguments of '${call.name}' must be one JSON object`);
  }
  const { server, effect, onCrash } = tool;
  const found = args as JsonObject;
  const digest = digestOfCall(server, tool.name, found);
  const asks = asksBecause(run, tool);
  return {
    judgement: { kind: "callable", server, tool: tool.name, arguments: found, digest, effect, onCrash, asks },
    rawArguments,
  };
}
