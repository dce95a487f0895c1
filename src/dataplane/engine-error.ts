/** What an engine's error says, for the case that it must be told in a stream instead of by its status. */
import type { EventError } from "./error-events.ts";

/** Longest message that is repeated: an engine can answer with a whole page. */
const MESSAGE_CHARACTERS_MAX = 2_000;

/**
 * Reads the error of an engine's answer: `{"error":{…}}` or `{"error":"…"}` of most, vLLM's older `{"message":…}`, and
 * whatever else as text.
 */
export function engineErrorText(answer: {
  readonly status: number;
  readonly body: string;
  readonly replica: string;
}): EventError {
  const { status, body, replica } = answer;
  const parsed = parse(body);
  const inner = isRecord(parsed) ? (parsed["error"] ?? parsed) : undefined;
  const fields = isRecord(inner) ? inner : {};
  const { message = typeof inner === "string" ? inner : undefined, type, code } = fields;
  const said = typeof message === "string" && message !== "" ? message : body.trim();
  return {
    message: (said === "" ? `engine ${replica}: status ${status}` : said).slice(0, MESSAGE_CHARACTERS_MAX),
    type: typeof type === "string" ? type : "upstream_error",
    code: typeof code === "string" || typeof code === "number" ? code : status,
  };
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined; // No JSON: its text is the message.
  }
}

function isRecord(value: unknown): value is { readonly [key: string]: unknown } {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
