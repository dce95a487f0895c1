/**
 * The engines as the dataplane sees them: where each one is (from the config) and what it is like at the moment (from
 * the scheduler's latest `pool`). It does not place turns: that is the scheduler's.
 */
import type { ReplicaId } from "../base/ids.ts";
import { invariant } from "../base/invariant.ts";
import type { EngineTarget } from "../http/index.ts";
import type { ReplicaView } from "../wire/admission.ts";
import type { EndpointConfig, EngineKind, WireApi } from "../wire/endpoint.ts";

export type Replica = {
  readonly config: EndpointConfig;
  readonly target: EngineTarget;
  /** Undefined until the scheduler has named it. */
  view: ReplicaView | undefined;
};

export class Pool {
  #replicas: ReadonlyMap<ReplicaId, Replica>;
  #views: readonly ReplicaView[] = [];

  constructor(endpoints: readonly EndpointConfig[]) {
    this.#replicas = replicasOf(endpoints);
  }

  /** Another pool, as after a reload. Turns at an endpoint that left go on there: they hold it themselves. */
  reconfigure(endpoints: readonly EndpointConfig[]): void {
    this.#replicas = replicasOf(endpoints);
    this.update(this.#views);
  }

  get(replica: ReplicaId): Replica | undefined {
    return this.#replicas.get(replica);
  }

  all(): Iterable<Replica> {
    return this.#replicas.values();
  }

  /** The scheduler's view of the whole pool, as it sent it last. */
  get views(): readonly ReplicaView[] {
    return this.#views;
  }

  update(views: readonly ReplicaView[]): void {
    this.#views = views;
    for (const replica of this.#replicas.values()) replica.view = undefined;
    for (const view of views) {
      const replica = this.#replicas.get(view.replica);
      if (replica !== undefined) replica.view = view;
    }
  }

  /** Whether a healthy generative replica could serve such a turn: then a held turn meets contention, not absence. */
  hasCapacity(model: string, api: WireApi): boolean {
    for (const { kind, healthy, models, speaks } of this.#views) {
      if (kind === "generative" && healthy && models.includes(model) && speaks.includes(api)) return true;
    }
    return false;
  }

  /** Names of healthy generative models, once each, in the order of the pool. */
  healthyModels(): readonly string[] {
    const names = new Set<string>();
    for (const view of this.#views) if (view.healthy) for (const model of view.models) names.add(model);
    return [...names];
  }
}

function replicasOf(endpoints: readonly EndpointConfig[]): ReadonlyMap<ReplicaId, Replica> {
  const replicas = new Map<ReplicaId, Replica>();
  for (const config of endpoints) {
    invariant(!replicas.has(config.name), `endpoint '${config.name}' is configured twice`);
    replicas.set(config.name, { config, target: targetOf(config.url), view: undefined });
  }
  return replicas;
}

/** What is behind an endpoint: as configured, else as the prober found out. */
export function engineOf(replica: Replica): EngineKind {
  const { engine } = replica.config;
  return engine === "auto" ? (replica.view?.engine ?? "unknown") : engine;
}

/** Whether the engine's own 429 and 503 hold the turn again (spec 3, Back-pressure). */
export function holdsBackpressure(replica: Replica): boolean {
  const { backpressure } = replica.config;
  return backpressure === "auto" ? replica.view?.reportsLoad === true : backpressure === "hold";
}

/** @throws TypeError when the text is no URL: the config was validated before. */
function targetOf(url: string): EngineTarget {
  const parsed = new URL(url);
  invariant(parsed.protocol === "http:" || parsed.protocol === "https:", `endpoint ${url} is neither http nor https`);
  const standardPort = parsed.protocol === "https:" ? 443 : 80;
  return {
    protocol: parsed.protocol,
    hostname: parsed.hostname.replace(/^\[(.*)\]$/, "$1"),
    port: parsed.port === "" ? standardPort : Number(parsed.port),
    basePath: parsed.pathname.replace(/\/+$/, ""),
  };
}
