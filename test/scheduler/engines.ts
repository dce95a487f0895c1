/** Engines as the prober meets them: each route answers what a test says. */
import { once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach } from "vitest";
import { asReplicaId } from "../../src/base/ids.ts";
import type { EndpointConfig } from "../../src/wire/endpoint.ts";

export type Answer = (request: IncomingMessage, response: ServerResponse) => void;

export const closers: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closers.splice(0).toReversed()) await close();
});

export const MODELS = JSON.stringify({ object: "list", data: [{ id: "m", owned_by: "vllm" }] });
export const METRICS = "vllm:num_requests_running 2\nvllm:num_requests_waiting 1\n";

/** An engine whose routes can be changed at any time; what is not named is 404. */
export async function engine(routes: { [path: string]: Answer | string | number }): Promise<{
  url: string;
  routes: typeof routes;
  seen: string[];
}> {
  const seen: string[] = [];
  const server = createServer((request, response) => {
    seen.push(`${request.method} ${request.url}`);
    const route = routes[request.url ?? ""] ?? 404;
    if (typeof route === "function") route(request, response);
    else if (typeof route === "number") response.writeHead(route).end();
    else response.end(route);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  closers.push(() => {
    server.closeAllConnections();
    server.close();
  });
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, routes, seen };
}

export const endpoint = (url: string, more: Partial<EndpointConfig> = {}): EndpointConfig => ({
  name: asReplicaId("a"),
  url,
  kind: "generative",
  engine: "auto",
  models: [],
  apiKey: undefined,
  healthPath: "/health",
  loadFrom: [],
  maxInFlight: undefined,
  speaks: "auto",
  backpressure: "auto",
  priority: "auto",
  splice: true,
  classifyPath: undefined,
  labels: [],
  forwardHeaders: [],
  ...more,
});
