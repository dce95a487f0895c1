/** When the client of a held non-streaming turn will give up, as far as it says so (spec 8, Non-streaming turns). */
import type { Exchange } from "../http/index.ts";

export type DeadlineLimits = {
  /** A number overrides what the client shows; 0: a held turn is never answered early. */
  readonly holdMaxSeconds: number | "auto";
  readonly holdAnswerBeforeMs: number;
  readonly holdDeadlineNodeMs: number;
  readonly holdDeadlineMs: number;
};

/** Timers of Node fire at once beyond 2^31 − 1 ms: a client that names a year must not be answered at once. */
const DEADLINE_MAX_MS = 2_147_483_647;
/** What Node's own fetch, and the client behind it, call themselves. */
const NODE_AGENT = /^(?:node|undici)(?:$|[\s/])/i;

/** After how many milliseconds from its arrival a held turn is answered; undefined: never early. */
export function holdAnswerAfterMs(exchange: Exchange, limits: DeadlineLimits): number | undefined {
  if (limits.holdMaxSeconds === 0) return undefined;
  const deadlineMs = Math.min(DEADLINE_MAX_MS, clientDeadlineMs(exchange, limits));
  const before = limits.holdAnswerBeforeMs;
  return deadlineMs < 2 * before ? deadlineMs / 2 : deadlineMs - before;
}

function clientDeadlineMs(exchange: Exchange, limits: DeadlineLimits): number {
  if (limits.holdMaxSeconds !== "auto") return limits.holdMaxSeconds * 1000;
  const named =
    secondsOf(exchange.header("x-stainless-timeout")) ?? secondsOf(exchange.header("x-stainless-read-timeout"));
  if (named !== undefined) return named * 1000;
  const onNode = exchange.header("x-stainless-lang") === "js" || NODE_AGENT.test(exchange.header("user-agent") ?? "");
  return onNode ? limits.holdDeadlineNodeMs : limits.holdDeadlineMs;
}

/** A positive number of seconds; anything else says nothing. */
function secondsOf(text: string | undefined): number | undefined {
  if (text === undefined || !/^\d{1,12}(?:\.\d{1,9})?$/.test(text)) return undefined;
  const seconds = Number(text);
  return seconds > 0 ? seconds : undefined;
}
