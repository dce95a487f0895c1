/**
 * One turn of the example agent: a streamed chat completion, read to its end.
 *
 * I1: a turn without a finish reason did not happen: it throws, and nothing of it reaches the conversation.
 */
import type OpenAI from "openai";
import type {
  ChatCompletionChunk,
  ChatCompletionCreateParamsStreaming,
  ChatCompletionMessageFunctionToolCall,
} from "openai/resources/chat/completions";

export type Turn = {
  readonly text: string;
  readonly toolCalls: readonly ChatCompletionMessageFunctionToolCall[];
  readonly finishReason: string;
  /** The run that luftpause counted the turn to, and the rule that recognised it; undefined at a bare engine. */
  readonly runId: string | undefined;
  readonly runSource: string | undefined;
  readonly replica: string | undefined;
  /** From usage, where the engine sends it. */
  readonly promptTokens: number | undefined;
  readonly cachedTokens: number | undefined;
};

/** The stream ended without saying why: what came of the answer must be dropped. */
export class CutStreamError extends Error {
  override readonly name = "CutStreamError";
}

type Call = { id: string; name: string; arguments: string };

/** @throws what the SDK throws, or CutStreamError. */
export async function streamTurn(
  client: OpenAI,
  request: Omit<ChatCompletionCreateParamsStreaming, "stream" | "stream_options">,
  options: { readonly signal: AbortSignal | undefined; readonly onText: (text: string) => void },
): Promise<Turn> {
  const { data: stream, response } = await client.chat.completions
    .create({ ...request, stream: true, stream_options: { include_usage: true } }, { signal: options.signal ?? null })
    .withResponse();
  let text = "";
  let finishReason: string | undefined;
  let usage: ChatCompletionChunk["usage"];
  const calls: Call[] = [];
  for await (const chunk of stream) {
    usage = chunk.usage ?? usage;
    const choice = chunk.choices[0];
    if (choice === undefined) continue;
    const content = choice.delta.content ?? "";
    if (content !== "") {
      text += content;
      options.onText(content);
    }
    for (const piece of choice.delta.tool_calls ?? []) addPiece(calls, piece);
    finishReason = choice.finish_reason ?? finishReason;
  }
  // The SDK takes an end without [DONE] for an end: the finish reason tells a whole answer from half of one.
  if (finishReason === undefined) throw new CutStreamError("the stream ended without a finish reason");
  const header = (name: string): string | undefined => response.headers.get(name) ?? undefined;
  return {
    text,
    finishReason,
    toolCalls: calls.map(({ id, ...call }) => ({ id, type: "function" as const, function: call })),
    runId: header("x-luftpause-run-id"),
    runSource: header("x-luftpause-run-source"),
    replica: header("x-luftpause-replica"),
    promptTokens: usage?.prompt_tokens,
    cachedTokens: usage?.prompt_tokens_details?.cached_tokens,
  };
}

/** Some engines number every call 0: a new id begins a new call, whatever its index. */
function addPiece(calls: Call[], piece: ChatCompletionChunk.Choice.Delta.ToolCall): void {
  const last = calls.at(-1);
  const begins = last === undefined || (piece.id !== undefined && piece.id !== "" && piece.id !== last.id);
  const call = begins ? { id: piece.id ?? `call_${calls.length}`, name: "", arguments: "" } : last;
  if (begins) calls.push(call);
  call.name += piece.function?.name ?? "";
  call.arguments += piece.function?.arguments ?? "";
}
