/** What a port answers between the moment when it is taken and the moment when all is there. */
import { answerWhole, type Exchange } from "../http/index.ts";
import { errorBody } from "../wire/errors.ts";

const RETRY_AFTER_SECONDS = 1;

/**
 * Nobody is left without an answer: a request that comes too early is told to come again. The process is alive, not ready.
 */
export function answerStarting(exchange: Exchange): void {
  if (exchange.method === "GET" && exchange.path === "/healthz") {
    answerWhole(exchange, 200, [], JSON.stringify({ service: "luftpause", status: "starting" }));
    return;
  }
  if (exchange.method === "GET" && exchange.path === "/readyz") {
    answerWhole(exchange, 503, [], JSON.stringify({ service: "luftpause", status: "starting" }));
    return;
  }
  const message = "luftpause is starting: ask again in a second";
  const body = errorBody("openai", { code: "overloaded", message }, "");
  answerWhole(exchange, 503, ["retry-after", String(RETRY_AFTER_SECONDS)], body);
}
