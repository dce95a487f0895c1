/**
 * What a chat template makes of a request: one text, tool definitions at its start. The answer of one turn is rendered
 * as the assistant message of the next, so that a continued conversation shares its prefix as it does in a real engine.
 * Takes any JSON: what it does not understand it renders as JSON, as it came.
 */

/** A tool call as the model writes it; `arguments` is JSON text, byte for byte as it was streamed. */
export type ToolCall = { readonly name: string; readonly arguments: string };

/** The answer of one turn. */
export type Answer = { readonly content: string; readonly calls: readonly ToolCall[] };

/** Marks where the assistant stops; four characters, so that it costs one token. */
export const END_MARK = "<|>\n";

/** Stands for an image in the prompt: about 580 tokens, as much as a small vision encoder takes. */
const IMAGE_CHARS = 2_304;

/**
 * The prompt of a chat request up to the point where the assistant begins.
 * @param tools left out (SGLang under `tool_choice: "none"`) by passing undefined.
 */
export function renderChat(messages: readonly unknown[], tools: readonly unknown[] | undefined): string {
  let text = tools === undefined || tools.length === 0 ? "" : `<|tools|>${JSON.stringify(tools)}\n`;
  for (const message of messages) text += renderMessage(message);
  return `${text}<|assistant|>\n`;
}

/** An answer as it stands in the next prompt, after `<|assistant|>\n`. */
export function renderAnswer(answer: Answer): string {
  return (
    answer.content + answer.calls.map((call) => callHead(call.name) + call.arguments + CALL_TAIL).join("") + END_MARK
  );
}

/** Opening of a call in the rendered answer; its arguments follow, then `CALL_TAIL`. */
export function callHead(name: string): string {
  return `\n<tool_call>{"name": ${JSON.stringify(name)}, "arguments": `;
}

export const CALL_TAIL = "}</tool_call>";

function renderMessage(message: unknown): string {
  const { role, content, tool_calls: calls } = asRecord(message);
  const text = renderContent(content);
  if (role === "assistant") {
    const known = Array.isArray(calls) ? calls.map(asToolCall) : [];
    return `<|assistant|>\n${renderAnswer({ content: text, calls: known })}`;
  }
  return `<|${typeof role === "string" ? role : "user"}|>\n${text}${END_MARK}`;
}

function renderContent(content: unknown): string {
  if (typeof content === "string") return content;
  if (content === undefined || content === null) return "";
  if (!Array.isArray(content)) return JSON.stringify(content);
  return content
    .map((part: unknown) => {
      const { type, text, image_url: image } = asRecord(part);
      if (type === "text" && typeof text === "string") return text;
      if (type === "image_url") return renderImage(JSON.stringify(image ?? ""));
      return JSON.stringify(part);
    })
    .join("");
}

// The start of the address and its length tell images apart; the rest of an inlined one would only cost time.
function renderImage(address: string): string {
  return `<|image ${address.length} ${address.slice(-64)}|>`.padEnd(IMAGE_CHARS, ".");
}

function asToolCall(value: unknown): ToolCall {
  const { name, arguments: given } = asRecord(asRecord(value)["function"]);
  return {
    name: typeof name === "string" ? name : "",
    arguments: typeof given === "string" ? given : JSON.stringify(given ?? {}),
  };
}

function asRecord(value: unknown): Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null ? (value as Readonly<Record<string, unknown>>) : {};
}
