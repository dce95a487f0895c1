/**
 * Wires the services: which ones run in this process, how they reach one another, and which routes one port serves.
 * The services know nothing of each other (see ARCHITECTURE.md).
 */
import { randomBytes } from "node:crypto";
import { asDataplaneId, asPrincipalId } from "../base/ids.ts";
import { createDataplane, type Dataplane } from "../dataplane/index.ts";
import { answerWhole, createAuth, createEngineClient, type Authenticate, type Exchange } from "../http/index.ts";
import { createEventLog, createScheduler, type Scheduler } from "../scheduler/index.ts";
import { createLog, REAL_CLOCK, type Log, type Registry } from "../telemetry/index.ts";
import type { AdmissionPort, ServiceClass } from "../wire/admission.ts";
import type { EndpointConfig } from "../wire/endpoint.ts";
import { errorBody } from "../wire/errors.ts";
import { authOf, limitsOf, schedulingOf } from "./config/resolve.ts";
import type { Config } from "./config/schema.ts";
import { CommandError, EXIT } from "./exit.ts";
import { version } from "./version.ts";

/** A log on stderr: readable on a terminal, JSON else. Stdout belongs to what a command prints. */
export function logFor(config: Config, service: string): Log {
  return createLog({
    write: (line) => process.stderr.write(`${line}\n`),
    level: config.logs.level,
    pretty: process.stderr.isTTY,
    wallMs: Date.now,
    service,
  });
}

export function makeScheduler(config: Config, endpoints: readonly EndpointConfig[]): Scheduler {
  const { scheduler, limits } = config;
  const log = logFor(config, "scheduler");
  const eventLog =
    scheduler.eventLog === null
      ? undefined
      : createEventLog({ ...scheduler.eventLog, version: version(), wallMs: Date.now, log });
  try {
    return createScheduler({
      config: schedulingOf(config, endpoints),
      endpoints,
      clock: REAL_CLOCK,
      log,
      tickMs: scheduler.tickMs,
      probeEveryMs: scheduler.probeEveryMs,
      probeTimeoutMs: scheduler.probeTimeoutMs,
      connectTimeoutMs: limits.connectTimeoutMs,
      eventLog,
    });
  } catch (error) {
    const { code, path } = error as NodeJS.ErrnoException;
    if (code === undefined || path === undefined) throw error;
    throw new CommandError(EXIT.config, `scheduler.eventLog.path: ${path} cannot be written (${code})`);
  }
}

export type DataplaneParts = { readonly dataplane: Dataplane; close(): void };

export function makeDataplane(
  config: Config,
  endpoints: readonly EndpointConfig[],
  port: AdmissionPort,
): DataplaneParts {
  const limits = limitsOf(config);
  const engineClient = createEngineClient(limits);
  // New at every start: a restarted process is another dataplane, whose predecessor's turns are dropped.
  const id = `dp-${randomBytes(6).toString("hex")}`;
  const dataplane = createDataplane({
    dataplane: asDataplaneId(id),
    endpoints,
    limits: { ...limits, holdMaxSeconds: config.limits.holdMaxSeconds },
    port,
    clock: REAL_CLOCK,
    authenticate: createAuth(authOf(config)),
    classesOf: classesOf(config),
    engineClient,
    log: logFor(config, "dataplane"),
    hop: id,
    metricsPublic: config.metrics.public,
  });
  return {
    dataplane,
    close() {
      dataplane.close();
      engineClient.close();
    },
  };
}

function classesOf(config: Config): (principal: string) => readonly ServiceClass[] | undefined {
  const rows = new Map<string, readonly ServiceClass[]>(
    config.principals.map(({ name, classes }) => [asPrincipalId(name), classes]),
  );
  return (principal) => rows.get(principal);
}

/** A route that is not the dataplane's own. */
export type ExtraRoute = {
  readonly method: "GET";
  readonly path: string;
  readonly guard: "open" | "metrics" | "token";
  readonly answer: (exchange: Exchange) => void;
};

/**
 * Answers the extra routes, and passes everything else on.
 * @param rest undefined where there is nothing else: unknown paths are then a 404 behind the token.
 */
export function withRoutes(
  config: Config,
  routes: readonly ExtraRoute[],
  rest: ((exchange: Exchange) => void) | undefined,
): (exchange: Exchange) => void {
  const authenticate: Authenticate = createAuth(authOf(config));
  const byPath = new Map(routes.map((route) => [route.path, route]));
  return (exchange) => {
    const route = byPath.get(exchange.path);
    if (route === undefined && rest !== undefined) {
      rest(exchange);
      return;
    }
    const guard = route?.guard ?? "token";
    const open = guard === "open" || (guard === "metrics" && config.metrics.public);
    if (!open && authenticate(exchange) === undefined) {
      const message = "no valid token: send it as `Authorization: Bearer …`";
      refuse(exchange, 401, "invalid_token", message, ["www-authenticate", "Bearer"]);
    } else if (route === undefined) {
      refuse(exchange, 404, "route_unknown", `no route ${exchange.method} ${exchange.path.slice(0, 200)}`);
    } else if (exchange.method !== route.method) {
      const message = `this route takes ${route.method}, not ${exchange.method}`;
      refuse(exchange, 405, "method_not_allowed", message, ["allow", route.method]);
    } else {
      route.answer(exchange);
    }
  };
}

function refuse(
  exchange: Exchange,
  status: number,
  code: "invalid_token" | "route_unknown" | "method_not_allowed",
  message: string,
  headers: readonly string[] = [],
): void {
  answerWhole(exchange, status, headers, errorBody("openai", { code, message }, ""));
}

/** @param runs the runtime's tree for whoever asks, where a runtime is in the process (spec 7, One port). */
export function statusRoute(scheduler: Scheduler, runs?: (exchange: Exchange) => unknown): ExtraRoute {
  return {
    method: "GET",
    path: "/status",
    guard: "token",
    answer(exchange) {
      const more = runs === undefined ? {} : { runs: runs(exchange) };
      answerWhole(exchange, 200, [], JSON.stringify({ ...scheduler.status(), ...more }));
    },
  };
}

/** One page of several services, each series with its service as a label. */
export function metricsRoute(registries: { readonly [service: string]: Registry }, log: Log): ExtraRoute {
  for (const [service, registry] of Object.entries(registries)) registry.setDefaultLabels({ service });
  return {
    method: "GET",
    path: "/metrics",
    guard: "metrics",
    answer(exchange) {
      Promise.all(Object.values(registries).map((registry) => registry.metrics())).then(
        (pages) => answerWhole(exchange, 200, [], pages.join("\n"), "text/plain; version=0.0.4; charset=utf-8"),
        (error: unknown) => {
          log("error", "metrics-fault", { error: String(error) });
          answerWhole(exchange, 500, [], errorBody("openai", { code: "internal", message: "no metrics" }, ""));
        },
      );
    },
  };
}

export function healthRoute(path: "/healthz" | "/readyz", check: () => { ok: boolean; status: string }): ExtraRoute {
  return {
    method: "GET",
    path,
    guard: "open",
    answer(exchange) {
      const { ok, status } = check();
      // How luftpause knows itself when it looks for engines on a machine.
      answerWhole(exchange, ok ? 200 : 503, [], JSON.stringify({ service: "luftpause", status }));
    },
  };
}
