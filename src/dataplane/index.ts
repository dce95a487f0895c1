/** The proxy (spec 3): recognises the run, asks for admission, streams the engine's answer, reports how it went. */
export { createDataplane } from "./service.ts";
export type { Dataplane, DataplaneOptions, OpenTurnView } from "./service.ts";
export type { DataplaneLimits } from "./turn-state.ts";
export { ROUTES } from "./routes.ts";
export type { Route } from "./routes.ts";
export { createLinkClient } from "./link-client.ts";
export type { LinkClient, LinkClientOptions } from "./link-client.ts";
