/**
 * What a turn sends to the model. Each turn's messages begin with those of the turn before, byte for byte: the engine's
 * cached prefix stays good. Sentences that are added (budgets, last turn) stand at the end of the last tool result.
 */
import type { Round, RunState, TurnMode } from "./types.ts";

export type ChatMessage =
  | { readonly role: "system" | "user"; readonly content: string }
  | {
      readonly role: "assistant";
      readonly content: string | null;
      readonly tool_calls?: readonly {
        readonly id: string;
        readonly type: "function";
        readonly function: { readonly name: string; readonly arguments: string };
      }[];
    }
  | { readonly role: "tool"; readonly tool_call_id: string; readonly content: string };

export function conversation(run: RunState): readonly ChatMessage[] {
  const { system, task } = run.assignment;
  const opening: ChatMessage[] = system === undefined ? [] : [{ role: "system", content: system }];
  opening.push({ role: "user", content: task });
  return [...opening, ...run.rounds.flatMap(messagesOf)];
}

function messagesOf({ text, calls, notes }: Round): readonly ChatMessage[] {
  const answer: ChatMessage = {
    role: "assistant",
    // What the API itself gives for an answer that is only calls.
    content: text === "" ? null : text,
    tool_calls: calls.map(({ id, name, rawArguments }) => ({
      id,
      type: "function",
      function: { name, arguments: rawArguments },
    })),
  };
  const results = calls.map(({ id, phase, index }): ChatMessage => {
    const result = phase.kind === "done" ? phase.text : "";
    const added = index === calls.length - 1 ? notes : [];
    return { role: "tool", tool_call_id: id, content: [result, ...added].join("\n\n") };
  });
  return [answer, ...results];
}

/** Whether the turn's request carries the run's tools. */
export function carriesTools(mode: TurnMode): boolean {
  return mode !== "toolless" && mode !== "extra";
}
