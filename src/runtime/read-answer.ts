/**
 * What a model's answer means: its text, and its calls with a judgement each (spec 4, Reliable tool calls).
 *
 * A1: the tool gets exactly the arguments that were judged, and that a person is asked about.
 * A2: what goes back to the engine as the call's arguments is always one JSON object: templates fail on anything else, and
 *     then every later turn of the run.
 * A3: calls written as text count only in turns that sent tools.
 */
import {
  carriesTools,
  fitArguments,
  isJsonObject,
  readText,
  recoverCalls,
  type JsonObject,
  type Judgement,
  type MadeCall,
  type RunState,
  type TextCall,
  type ToolRef,
  type TurnMode,
} from "../runs/index.ts";
import type { RawCall } from "./chat-answer.ts";
import { digestOfJson } from "./digest.ts";
import { asksBecause, toolOf } from "./tool-choice.ts";
import type { OfferedTool } from "./tool-servers/port.ts";

export type ReadAnswer = {
  readonly text: string;
  readonly calls: readonly MadeCall[];
  /** How calls were written that came as text. */
  readonly recovered: string | undefined;
  /** Something in the text begins like a call, and could not be read as one. */
  readonly leftAsText: boolean;
};

export type Around = {
  readonly offered: readonly OfferedTool[];
  readonly mode: TurnMode;
  /** Of the turn, from 1. */
  readonly turn: number;
};

type Answer = { readonly text: string; readonly calls: readonly RawCall[]; readonly finish: string };

export function digestOfCall(server: string, tool: string, args: JsonObject): string {
  return digestOfJson([server, tool, args]);
}

export function readAnswer(run: RunState, answer: Answer, around: Around): ReadAnswer {
  const schemaOf = (name: string): JsonObject | undefined =>
    carriesTools(around.mode) ? toolOf(refOf(run, name), around.offered)?.inputSchema : undefined;
  // Text without a marker is a call only where the engine saw none, and where it could be nothing else.
  const acceptsBare = ({ name, arguments: args }: TextCall): boolean =>
    answer.calls.length === 0 && fitArguments(name, args, schemaOf(name) ?? {}).kind === "fit";
  const found = recoverCalls(answer.text, schemaOf, acceptsBare);
  const parsed = answer.calls.map((call) => readParsed(run, call, answer.finish));
  const written = found.calls.map(readWritten);
  // Parsers leave a call in the text, or one beside those that they gave.
  const added = written.filter((call) => !parsed.some((other) => isSameCall(call, other)));
  const ids = new Set<string>();
  const calls = [...parsed, ...added].map((call, index): MadeCall => {
    const id = call.id === "" || ids.has(call.id) ? madeId(around.turn, index) : call.id;
    ids.add(id);
    return { id, name: call.name, rawArguments: call.raw, judgement: judge(run, call, around.offered) };
  });
  // A round keeps its thinking: the template knows what to do with it. An answer is for people.
  // Thinking that does not end is all there is to show.
  const ending = calls.length > 0 || found.content === "" ? answer.text : found.content;
  return {
    text: found.calls.length > 0 ? found.kept : ending,
    calls,
    recovered: added.length > 0 ? found.format : undefined,
    leftAsText: found.unread,
  };
}

/** A call before its judgement. */
type Written = {
  readonly id: string;
  readonly name: string;
  /** A2. */
  readonly raw: string;
  /** Undefined: what the model wrote is no object; `problem` says what it is. */
  readonly args: JsonObject | undefined;
  readonly problem: string;
};

function readWritten({ id = "", name, arguments: args }: TextCall): Written {
  return { id, name, raw: JSON.stringify(args), args, problem: "" };
}

function readParsed(run: RunState, call: RawCall, finish: string): Written {
  const name = cleanName(run, call.name);
  const args = objectIn(call.arguments);
  const problem =
    finish === "length"
      ? "the call was cut off at the token limit of an answer: call again with shorter arguments"
      : "the arguments must be one JSON object";
  const isStrict = args !== undefined && isStrictObject(call.arguments);
  return { id: call.id, name, raw: isStrict ? call.arguments : JSON.stringify(args ?? {}), args, problem };
}

/** Engines' parsers leave a channel's marker at the name, or the namespace before it. */
function cleanName(run: RunState, written: string): string {
  if (refOf(run, written) !== undefined) return written;
  const bare = written
    .replace(/<\|.*$/s, "")
    .trim()
    .replace(/^functions\./, "");
  return refOf(run, bare) === undefined ? written : bare;
}

/** Nothing, or null, is a call without arguments; an object may be wrapped in a text once more. */
function objectIn(written: string): JsonObject | undefined {
  if (written.trim() === "") return {};
  const inner = readText(readText(written));
  if (inner === null) return {};
  return isJsonObject(inner) ? inner : undefined;
}

function isStrictObject(text: string): boolean {
  try {
    return isJsonObject(JSON.parse(text));
  } catch {
    return false;
  }
}

function isSameCall(one: Written, other: Written): boolean {
  return one.name === other.name && digestOfJson(one.args) === digestOfJson(other.args);
}

/** Nine letters and digits, as Mistral's templates want an id, and no other call of the run has it. */
function madeId(turn: number, index: number): string {
  return `c${turn.toString(36).padStart(5, "0")}${index.toString(36).padStart(3, "0")}`;
}

function refOf(run: RunState, name: string): ToolRef | undefined {
  return run.assignment.tools.find((tool) => tool.function === name);
}

function judge(run: RunState, call: Written, offered: readonly OfferedTool[]): Judgement {
  const refused = (text: string): Judgement => ({ kind: "refused", text });
  const ref = refOf(run, call.name);
  const tool = toolOf(ref, offered);
  if (ref === undefined) {
    const names = run.assignment.tools.map((known) => known.function).join(", ");
    return refused(`Error: there is no tool '${call.name.slice(0, 100)}'. Tools: ${names}`);
  }
  if (tool === undefined) return refused(`Error: the tool '${call.name}' is not available any more`);
  if (call.args === undefined) return refused(`Error: '${call.name}' was not called: ${call.problem}`);
  const fitted = fitArguments(call.name, call.args, tool.inputSchema);
  if (fitted.kind === "misfit") return refused(fitted.text);
  const { server, effect, onCrash } = tool;
  const args = fitted.arguments;
  const digest = digestOfCall(server, tool.name, args);
  const asks = asksBecause(run, tool);
  return { kind: "callable", server, tool: tool.name, arguments: args, digest, effect, onCrash, asks }; // A1
}
