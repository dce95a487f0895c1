/** Answers of our own that belong to no turn: errors of routes, and small JSON bodies. */
import { answerWhole, type Exchange } from "../http/index.ts";
import { errorBody, ERRORS, type LuftpauseError } from "../wire/errors.ts";
import { retryAfterHeader, type RetryAfterLimits } from "./answer-headers.ts";
import { shapeOf } from "./turn-api.ts";

/**
 * Answers a request with an error, unless the client has left.
 * @param headers besides those that the error has by itself.
 */
export function answerError(
  exchange: Exchange,
  error: LuftpauseError,
  limits: RetryAfterLimits,
  headers: readonly string[] = [],
): void {
  if (exchange.over) return;
  const own = [...headers, ...retryAfterHeader(error.code, limits)];
  if (error.code === "invalid_token") own.push("www-authenticate", "Bearer");
  answerWhole(exchange, ERRORS[error.code].status, own, errorBody(shapeOf(exchange), error, ""));
}

export function answerJson(exchange: Exchange, status: number, body: unknown): void {
  if (!exchange.over) answerWhole(exchange, status, [], JSON.stringify(body));
}
