/** The headers of an answer: the engine's end-to-end ones as they came, and ours (spec 3, Headers and Forwarding). */
import { ERRORS, type ErrorCode } from "../wire/errors.ts";
import { HEADER } from "../wire/headers.ts";
import { namedInConnection } from "./request-headers.ts";

/** Hop by hop, or set by our own front. `date` is ours: two would disagree. */
const DROPPED = new Set([
  "connection",
  "keep-alive",
  "te",
  "trailer",
  "transfer-encoding",
  "upgrade",
  "content-length",
  "date",
]);
const VALUE = /^[\t\x20-\x7e\x80-\xff]*$/;

export type AnswerKind = {
  /** `text/event-stream`. */
  readonly sse: boolean;
  /** The body is compressed although we asked for it plain: nothing may be read out of it or cut from it. */
  readonly encoded: boolean;
};

/** What kind of body the engine announces. */
export function answerKind(rawHeaders: readonly string[]): AnswerKind {
  let sse = false;
  let encoded = false;
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const name = rawHeaders[at] ?? "";
    if (name.length === 12 && name.toLowerCase() === "content-type") {
      sse = /^text\/event-stream(?:[\s;]|$)/i.test(rawHeaders[at + 1] ?? "");
    } else if (name.length === 16 && name.toLowerCase() === "content-encoding") {
      encoded = (rawHeaders[at + 1] ?? "").toLowerCase() !== "identity";
    }
  }
  return { sse, encoded };
}

/** Value of the first header of a lower-case name. */
export function headerOf(rawHeaders: readonly string[], name: string): string | undefined {
  for (let at = 0; at < rawHeaders.length; at += 2) {
    if (rawHeaders[at]?.toLowerCase() === name) return rawHeaders[at + 1];
  }
  return undefined;
}

/**
 * Copies the engine's end-to-end headers behind ours. The engine client has checked them.
 * @param headers ours, to be completed.
 * @param sse a stream gets our own cache-control.
 */
export function copyEngineHeaders(headers: string[], rawHeaders: readonly string[], sse: boolean): void {
  const named = namedInConnection(rawHeaders);
  let servers = 0;
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const name = rawHeaders[at] ?? "";
    const value = rawHeaders[at + 1] ?? "";
    const lower = name.toLowerCase();
    if (DROPPED.has(lower) || lower.startsWith("x-luftpause-") || lower.startsWith("proxy-")) continue;
    if (named !== undefined && named.includes(lower)) continue;
    if (sse && (lower === "cache-control" || lower === "x-accel-buffering")) continue;
    if (lower === "server") {
      servers += 1;
      if (servers > 1) continue;
    }
    headers.push(name, value);
  }
  if (sse) headers.push("x-accel-buffering", "no", "cache-control", "no-cache");
}

/** What our own headers on an answer to a turn say; undefined members are left out. */
export type TurnHeaders = {
  readonly run: string | undefined;
  readonly source: string | undefined;
  readonly replica: string | undefined;
  /** Only when it was lowered. */
  readonly loweredClass: string | undefined;
  readonly spliced: string | undefined;
};

/** Our headers, names and values alternating. A value that may not stand in a header is left out. */
export function turnHeaders(turn: TurnHeaders): string[] {
  const headers: string[] = [];
  add(headers, HEADER.runId, turn.run);
  add(headers, HEADER.runSource, turn.source);
  add(headers, HEADER.replica, turn.replica);
  add(headers, HEADER.class, turn.loweredClass);
  add(headers, HEADER.spliced, turn.spliced);
  return headers;
}

function add(headers: string[], name: string, value: string | undefined): void {
  if (value !== undefined && VALUE.test(value)) headers.push(name, value);
}

/** Headers of an early 200: a stream of which no engine has said anything yet. */
export function earlyAnswerHeaders(turn: Pick<TurnHeaders, "run" | "source" | "loweredClass">): string[] {
  const headers = ["content-type", "text/event-stream"];
  headers.push(...turnHeaders({ ...turn, replica: undefined, spliced: undefined }));
  headers.push("x-accel-buffering", "no", "cache-control", "no-cache");
  return headers;
}

export type RetryAfterLimits = {
  readonly retryAfterSentMinSeconds: number;
  readonly retryAfterSentMaxSeconds: number;
};

/** The Retry-After header of an error, where it has one: whole seconds within the bounds that clients honour. */
export function retryAfterHeader(code: ErrorCode, limits: RetryAfterLimits): string[] {
  const seconds = ERRORS[code].retryAfterSeconds;
  if (seconds === undefined) return [];
  const { retryAfterSentMinSeconds: least, retryAfterSentMaxSeconds: most } = limits;
  return ["retry-after", String(Math.max(least, Math.min(most, Math.round(seconds))))];
}
