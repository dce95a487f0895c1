/** What may stand in a stream besides the engine's bytes: the error event of each API (spec 3, How a failed stream ends). */
import type { WireApi } from "../wire/endpoint.ts";

export type EventError = {
  readonly message: string;
  /** OpenAI's `type`. */
  readonly type: string;
  readonly code: string;
};

/** The event that tells an error in the stream of an API, with its blank line. JSON text: no line break can be inside. */
export function errorEvent(api: WireApi, error: EventError): Buffer {
  const { message, type, code } = error;
  const named = api === "responses" || api === "messages" ? "event: error\n" : "";
  return Buffer.from(`${named}data: ${JSON.stringify({ error: { message, type, code } })}\n\n`, "utf8");
}
