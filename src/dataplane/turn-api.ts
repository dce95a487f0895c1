/** The APIs in which a client can ask for a turn, and what is different between them on the proxy's side. */
import type { WireApi } from "../wire/endpoint.ts";
import type { ErrorShape } from "../wire/errors.ts";
import type { TurnApi } from "./turn-state.ts";

/** SDKs ignore comments; `event: ping` makes openai-node throw on these routes (spec 8, Streaming turns). */
const comment = (text: string): string => `: ${text}\n\n`;

const TURN_APIS: { readonly [Api in WireApi]?: TurnApi } = {
  chat: { api: "chat", shape: "openai", keepAlive: comment },
  completions: { api: "completions", shape: "openai", keepAlive: comment },
};

/** How an API is spoken; undefined when its requests are no turns. */
export function turnApi(api: WireApi): TurnApi | undefined {
  return TURN_APIS[api];
}

/** The shape of errors on a path whose API is not known: Anthropic's clients send their version with every request. */
export function shapeOf(exchange: { header(name: string): string | undefined }): ErrorShape {
  if (exchange.header("anthropic-version") !== undefined) return "anthropic";
  return exchange.header("x-goog-api-key") === undefined ? "openai" : "gemini";
}
