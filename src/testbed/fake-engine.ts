/**
 * The simulated engine as an HTTP server: a host around the pure model in src/engine (spec 6, Simulated engine).
 * It owns the sockets and the clock; what the model answers and when is decided there.
 */
import { createServer } from "node:http";
import type { IncomingMessage, Server, ServerResponse } from "node:http";
import type { AddressInfo, Socket } from "node:net";
import { load } from "../engine/index.ts";
import type { Counters } from "../engine/index.ts";
import { createContext } from "./context.ts";
import type { Context } from "./context.ts";
import { errorBody } from "./engine-errors.ts";
import { faultNumber, parseFaults } from "./faults.ts";
import type { FaultName } from "./faults.ts";
import { sendText } from "./http-io.ts";
import {
  bannerText,
  faultsRoute,
  faultTexts,
  healthRoute,
  identityBody,
  loadsRoute,
  metricsRoute,
  modelsRoute,
  statsRoute,
} from "./info-routes.ts";
import { resolveOptions } from "./options.ts";
import type { FakeEngineOptions, ResolvedOptions } from "./options.ts";
import type { RequestCounts, RequestRecord } from "./recorder.ts";
import { abortRoute, classifyRoute, turnRoute } from "./turn-route.ts";

/** What a simulated engine saw and does. */
type FakeEngineStats = RequestCounts & {
  /** In the batch, and waiting inside the engine, at this moment. */
  readonly running: number;
  readonly waiting: number;
  readonly usedTokens: number;
  readonly kvTokens: number;
  readonly counters: Readonly<Counters>;
  /** Sockets that are connected. */
  readonly connections: number;
  /** The last requests to turn and classify routes, oldest first. */
  readonly requests: readonly RequestRecord[];
};

export type FakeEngine = {
  readonly name: string;
  /** Base address without `/v1`. */
  readonly url: string;
  readonly host: string;
  readonly port: number;
  stats(): FakeEngineStats;
  /**
   * Resolves with the stats as soon as `holds` is true of them, looked at after every change.
   * @throws Error that shows the counts when `withinMs` (default 5,000) passes without.
   */
  until(holds: (stats: FakeEngineStats) => boolean, withinMs?: number): Promise<FakeEngineStats>;
  /**
   * Turns one switch on, or off with `false`.
   * @throws RangeError that names the known ones when the name or the value is wrong.
   */
  setFault(name: FaultName, value?: string | number | boolean): void;
  /** Destroys every connection, as a killed engine does, but goes on listening. */
  dropConnections(): void;
  /** Stops listening and destroys every connection, as `kill -9` does. Idempotent. */
  close(): Promise<void>;
};

/** uvicorn, in front of vLLM and SGLang, closes idle connections after this long and does not say so. */
const KEEP_ALIVE_MS = 5_000;

/**
 * Starts a simulated engine and resolves once it listens.
 * @throws RangeError when an option is wrong, Error with a `code` when the port cannot be had.
 */
export async function startFakeEngine(options: FakeEngineOptions = {}): Promise<FakeEngine> {
  const resolved = resolveOptions(options);
  if (typeof resolved === "string") throw new RangeError(`fake engine: ${resolved}`);
  const context = createContext(resolved, options.clock);
  const parsed = parseFaults(resolved.faults, "engine");
  if (parsed.kind === "ok") context.setFaults(parsed.faults);
  const connections = new Set<Socket>();
  const server = createServer({ keepAliveTimeout: KEEP_ALIVE_MS, keepAliveTimeoutBuffer: 0, requestTimeout: 0 });
  server.on("connection", (socket) => {
    connections.add(socket);
    socket.on("close", () => connections.delete(socket));
    socket.on("error", () => socket.destroy()); // a client that resets is part of the day
  });
  server.on("request", requestHandler(context));
  await listen(server, resolved);
  return handleOf(context, server, connections);
}

function listen(server: Server, { host, port }: ResolvedOptions): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once("error", reject);
    server.listen({ host, port, backlog: 4_096 }, () => {
      server.off("error", reject);
      resolve();
    });
  });
}

type Route = (
  context: Context,
  request: IncomingMessage,
  response: ServerResponse,
  path: string,
) => void | Promise<void>;

const ROUTES: { readonly [route: string]: Route } = {
  "GET /": (context, _request, response) => sendText(response, 200, bannerText(context), "text/plain; charset=utf-8"),
  "GET /health": (context, _request, response) => healthRoute(context, response),
  "GET /metrics": (context, _request, response) => metricsRoute(context, response),
  "GET /v1/models": (context, _request, response) => modelsRoute(context, response),
  "POST /v1/chat/completions": (context, request, response, path) =>
    turnRoute(context, "chat", { request, response, path }),
  "POST /v1/completions": (context, request, response, path) =>
    turnRoute(context, "completions", { request, response, path }),
  "GET /fake/stats": (context, _request, response) => statsRoute(context, response),
  "GET /fake/faults": (context, request, response) => faultsRoute(context, request, response),
  "POST /fake/faults": (context, request, response) => faultsRoute(context, request, response),
};

const SGLANG_ROUTES: { readonly [route: string]: Route } = {
  "GET /health_generate": (context, _request, response) => healthRoute(context, response),
  "GET /v1/loads": (context, _request, response) => loadsRoute(context, response),
  "POST /abort_request": (context, request, response, path) => abortRoute(context, { request, response, path }),
};

const classify: Route = (context, request, response, path) => classifyRoute(context, { request, response, path });

function routeOf({ options }: Context, route: string): Route | undefined {
  if (options.dialect === "single-pass") {
    if (route === "POST /classify" || route === "POST /v1/classify") return classify;
    if (route.startsWith("POST /v1/")) return undefined;
  }
  return ROUTES[route] ?? (options.dialect === "sglang" ? SGLANG_ROUTES[route] : undefined);
}

function requestHandler(context: Context): (request: IncomingMessage, response: ServerResponse) => void {
  const served = new WeakMap<Socket, number>();
  return (request, response) => {
    const { socket } = request;
    const before = served.get(socket) ?? 0;
    served.set(socket, before + 1);
    if (before > 0 && context.faults().has("drop-reused")) {
      socket.destroy();
      return;
    }
    // uvicorn announces neither that it keeps the connection nor for how long.
    response.removeHeader("connection");
    response.setHeader("server", "uvicorn");
    response.on("finish", () => {
      const idleMs = faultNumber(context.faults(), "close-idle");
      if (idleMs !== undefined) setTimeout(() => socket.destroy(), idleMs).unref();
    });
    const path = (request.url ?? "/").split("?")[0] ?? "/";
    const act = (): void => dispatch(context, request, response, path);
    // The way back from a freeze must stay open.
    if (path.startsWith("/fake/")) act();
    else context.whenThawed(act);
  };
}

function dispatch(context: Context, request: IncomingMessage, response: ServerResponse, path: string): void {
  if (response.destroyed) return;
  const { options } = context;
  const fail = (status: number, message: string): void => {
    sendText(response, status, errorBody(options.dialect, { status, message }));
  };
  if (needsKey(path) && options.apiKey !== undefined && request.headers.authorization !== `Bearer ${options.apiKey}`) {
    sendText(response, 401, '{"error":"Unauthorized"}');
    return;
  }
  const route = routeOf(context, `${request.method} ${path}`);
  if (route === undefined) {
    const identity = request.method === "GET" ? identityBody(context, path) : undefined;
    if (identity !== undefined) sendText(response, 200, JSON.stringify(identity));
    else if (routeOf(context, `POST ${path}`) !== undefined) sendText(response, 405, '{"detail":"Method Not Allowed"}');
    else sendText(response, 404, '{"detail":"Not Found"}');
    return;
  }
  // A throw here is a bug of the simulator: the client sees it as an engine's failure, and stderr has the reason.
  const broken = (reason: unknown): void => {
    process.emitWarning(
      `simulated engine '${options.name}': ${String(reason instanceof Error ? reason.stack : reason)}`,
    );
    fail(500, "the simulated engine failed; its standard error says why");
  };
  try {
    Promise.resolve(route(context, request, response, path)).catch(broken);
  } catch (reason) {
    broken(reason);
  }
}

/** vLLM and SGLang guard their APIs with the key, not health and metrics. */
function needsKey(path: string): boolean {
  return !["/", "/health", "/health_generate", "/metrics"].includes(path) && !path.startsWith("/fake/");
}

function handleOf(context: Context, server: Server, connections: Set<Socket>): FakeEngine {
  const { options, recorder, driver, engine } = context;
  const { port } = server.address() as AddressInfo;
  const shownHost = options.host.includes(":") ? `[${options.host}]` : options.host;
  const watchers = new Set<() => void>();
  recorder.onChange = () => {
    for (const watch of watchers) watch();
  };
  const stats = (): FakeEngineStats => ({
    ...recorder.counts(),
    ...load(engine),
    counters: { ...engine.counters },
    connections: connections.size,
    requests: recorder.last(),
  });
  const drop = (): void => {
    for (const socket of connections) socket.destroy();
  };
  return {
    name: options.name,
    url: `http://${shownHost}:${port}`,
    host: options.host,
    port,
    stats,
    until: (holds, withinMs = 5_000) =>
      new Promise((resolve, reject) => {
        const watch = (): void => {
          const now = stats();
          if (!holds(now)) return;
          stop();
          resolve(now);
        };
        // Sockets and gauges change without a record's change.
        const poll = setInterval(watch, 20);
        const deadline = setTimeout(() => {
          stop();
          const { requests: _requests, counters: _counters, ...counts } = stats();
          reject(
            new Error(`fake engine '${options.name}': not within ${withinMs} ms; it has ${JSON.stringify(counts)}`),
          );
        }, withinMs);
        const stop = (): void => {
          clearInterval(poll);
          clearTimeout(deadline);
          watchers.delete(watch);
        };
        watchers.add(watch);
        watch();
      }),
    setFault(name, value = true) {
      const others = faultTexts(context.faults()).filter((text) => text.split("=")[0] !== name);
      const wanted = value === false ? [] : [value === true ? name : `${name}=${value}`];
      const parsed = parseFaults([...others, ...wanted], "engine");
      if (parsed.kind === "invalid") throw new RangeError(`fake engine: ${parsed.message}`);
      context.setFaults(parsed.faults);
    },
    dropConnections: drop,
    close: () =>
      new Promise((resolve) => {
        driver.stop();
        server.close(() => resolve());
        drop();
      }),
  };
}
