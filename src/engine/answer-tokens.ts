/** Which part of an answer each generated token carries. */
import { callHead, CALL_TAIL, END_MARK, renderAnswer } from "./prompt.ts";
import type { Answer } from "./prompt.ts";
import { CHARS_PER_TOKEN, tokenTexts } from "./tokens.ts";

/** What a token adds to the stream; undefined: part of the frame around a call, or the end mark. */
export type TokenPart =
  | { readonly kind: "content"; readonly text: string }
  | { readonly kind: "call"; readonly index: number; readonly name: string }
  | { readonly kind: "arguments"; readonly index: number; readonly text: string };

export type TokenizedAnswer = {
  /** One entry per generated token, at least one. */
  readonly parts: readonly (TokenPart | undefined)[];
  /** What the model generated, as it stands in the next prompt. */
  readonly text: string;
  /** `length`: cut at `maxTokens`. */
  readonly finish: "stop" | "tool_calls" | "length";
};

/** Spreads an answer over tokens and cuts it at `maxTokens` (at least 1). */
export function tokenizeAnswer(answer: Answer, maxTokens: number): TokenizedAnswer {
  const parts: (TokenPart | undefined)[] = tokenTexts(answer.content).map((text) => ({ kind: "content", text }));
  for (const [index, call] of answer.calls.entries()) {
    silence(parts, callHead(call.name).length);
    parts[parts.length - 1] = { kind: "call", index, name: call.name };
    for (const text of tokenTexts(call.arguments)) parts.push({ kind: "arguments", index, text });
    silence(parts, CALL_TAIL.length);
  }
  silence(parts, END_MARK.length);
  const text = renderAnswer(answer);
  if (parts.length <= maxTokens) {
    return { parts, text, finish: answer.calls.length > 0 ? "tool_calls" : "stop" };
  }
  const cut = parts.slice(0, Math.max(1, maxTokens));
  return { parts: cut, text: text.slice(0, cut.length * CHARS_PER_TOKEN), finish: "length" };
}

function silence(parts: (TokenPart | undefined)[], characters: number): void {
  const tokens = Math.ceil(characters / CHARS_PER_TOKEN);
  for (let count = 0; count < tokens; count += 1) parts.push(undefined);
}
