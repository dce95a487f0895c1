/** The error event with which a stream of each API fails (spec 3, How a failed stream ends). */
import type { WireApi } from "../wire/endpoint.ts";
import { ERRORS, type ErrorCode } from "../wire/errors.ts";

export type EventError = {
  readonly message: string;
  /** OpenAI's `type`. */
  readonly type: string;
  /** Ours, or whatever the engine gave. */
  readonly code: string | number | null;
};

/**
 * The event that tells an error in the stream of an API, with its blank line: it may stand only behind a whole event.
 * It is one line of data whatever the message holds, since JSON escapes every line break; U+2028 breaks no SSE line.
 */
export function errorEvent(api: WireApi, error: EventError): Buffer {
  const { message, type, code } = error;
  switch (api) {
    case "messages":
      return event("event: error\n", { type: "error", error: { type: anthropicType(code), message } });
    case "responses":
    case "responses-stateful":
      return event("event: error\n", { error: { message, type, code } });
    case "chat":
    case "completions":
    case "embeddings":
    case "classify":
    case "decisions":
      return event("", { error: { message, type, code } });
  }
}

function event(named: string, data: unknown): Buffer {
  return Buffer.from(`${named}data: ${JSON.stringify(data)}\n\n`, "utf8");
}

function anthropicType(code: EventError["code"]): string {
  return typeof code === "string" && Object.hasOwn(ERRORS, code)
    ? ERRORS[code as ErrorCode].anthropicType
    : "api_error";
}
