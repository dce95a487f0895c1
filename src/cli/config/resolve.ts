/** The validated config as the options of each service: names typed, addresses normalised, units as the code has them. */
import { totalmem } from "node:os";
import { asPrincipalId, asReplicaId } from "../../base/ids.ts";
import type { AuthOptions } from "../../http/index.ts";
import type { ToolServerConfig } from "../../runtime/index.ts";
import { ACTIVE_SET_PAUSED_ROOM_SECONDS, type SchedulingConfig } from "../../scheduling/index.ts";
import type { EndpointConfig } from "../../wire/endpoint.ts";
import { DEFAULTS, type Limits } from "../../wire/limits.ts";
import type { Config, EndpointEntry, ToolServerEntry } from "./schema.ts";

export function endpointsOf(config: Config): EndpointConfig[] {
  return config.endpoints.map(resolveEndpoint);
}

function resolveEndpoint(entry: EndpointEntry): EndpointConfig {
  const { engine, speaks } = entry;
  return {
    name: asReplicaId(entry.name),
    url: baseUrl(entry.url),
    kind: entry.kind,
    engine: engine === "auto" && entry.loadFrom.length > 0 ? "router" : engine,
    models: entry.models,
    apiKey: entry.apiKey,
    healthPath: entry.healthPath,
    loadFrom: entry.loadFrom.map(baseUrl),
    maxInFlight: entry.maxInFlight ?? undefined,
    // A hosted endpoint is never probed for what it speaks (spec 8).
    speaks: engine === "hosted" && speaks === "auto" ? ["chat"] : speaks,
    backpressure: entry.backpressure,
    priority: entry.priority,
    splice: entry.splice,
    classifyPath: entry.classifyPath === "auto" ? undefined : entry.classifyPath,
    labels: entry.labels,
    forwardHeaders: entry.forwardHeaders.map((name) => name.toLowerCase()),
  };
}

/** Without a trailing slash, and without the `/v1` that is easily copied along from an SDK's base URL. */
function baseUrl(url: string): string {
  return url.replace(/\/+$/, "").replace(/\/v1$/, "");
}

export function schedulingOf(config: Config, endpoints: readonly EndpointConfig[]): SchedulingConfig {
  const { scheduler, limits } = config;
  return {
    policy: config.policy,
    capRelease: config.capRelease,
    pausedRoomMs: pausedRoomSeconds(config) * 1000,
    activeSet: config.activeSet,
    turnExpiryMs: scheduler.turnExpiryMs,
    dataplaneGraceMs: scheduler.dataplaneGraceMs,
    runIdleExpiryMs: scheduler.runIdleExpiryMs,
    arrivalKeptMs: scheduler.arrivalKeptMs,
    loadStaleAfterProbes: scheduler.loadStaleAfterProbes,
    identityTtlMs: limits.identityTtlMs,
    identityKeysMax: limits.identityKeysMax,
    principalWeights: config.principals.map(({ name, weight }) => ({ principal: asPrincipalId(name), weight })),
    replicas: endpoints.map(({ name, kind, models, speaks, maxInFlight, priority }) => ({
      replica: name,
      kind,
      models,
      speaks: speaks === "auto" ? undefined : speaks,
      maxInFlight,
      priority,
    })),
  };
}

function pausedRoomSeconds({ pausedRoomSeconds: given, policy }: Config): number {
  if (given !== "by-policy") return given;
  return policy === "active-set" ? ACTIVE_SET_PAUSED_ROOM_SECONDS : DEFAULTS.pausedRoomSeconds;
}

export function toolServersOf(config: Config): ToolServerConfig[] {
  return config.tools.map(resolveToolServer);
}

function resolveToolServer(entry: ToolServerEntry): ToolServerConfig {
  const { name, url, command, args, env, headers, timeoutSeconds, ...same } = entry;
  return {
    ...same,
    name,
    transport: url === null ? { kind: "stdio", command: command ?? "", args, env } : { kind: "http", url, headers },
    timeoutMs: timeoutSeconds * 1000,
  };
}

export function authOf(config: Config): AuthOptions {
  return {
    token: config.token,
    serviceToken: config.serviceToken,
    principals: config.principals.map(({ name, token, classes }) => ({ name: asPrincipalId(name), token, classes })),
  };
}

/** Whether any token is configured: without one only loopback may be bound. */
export function hasToken(config: Config): boolean {
  return config.token !== undefined || config.principals.length > 0;
}

/** Every number of the constants table as configured; the bodies of held turns also by this machine's memory. */
export function limitsOf(config: Config): Limits {
  const { limits, scheduler, dataplane } = config;
  const { holdMaxSeconds: _deadline, ...numbers } = limits;
  const { link: _link, linkTls: _tls, listen: _listen, eventLog: _log, ...schedulerNumbers } = scheduler;
  return {
    ...DEFAULTS,
    ...numbers,
    ...schedulerNumbers,
    openTurnsEveryMs: dataplane.openTurnsEveryMs,
    linkRetryMs: dataplane.linkRetryMs,
    pausedRoomSeconds: pausedRoomSeconds(config),
    heldBodyBytesMax: Math.min(limits.heldBodyBytesMax, Math.floor(totalmem() / 4)),
  };
}

/** What the runtime shows the dataplane. */
export function runtimeTokenOf(config: Config): string | undefined {
  return config.runtime.serviceToken ?? serviceTokenOf(config);
}

/** What our own services show one another: the service token, else the single one. */
export function serviceTokenOf(config: Config): string | undefined {
  return config.serviceToken ?? config.token;
}
