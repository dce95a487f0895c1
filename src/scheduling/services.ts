/** Which replicas can serve what: models, APIs, and the services (a model by an API) that were asked for. */
import type { WireApi } from "../wire/endpoint.ts";
import { createGroups } from "./groups.ts";
import type { Replica, SchedulerState, Service } from "./state.ts";
import { TIERS } from "./tiers.ts";

/** Remembers the models of a replica, and which replicas a service may use. */
export function knowModels(state: SchedulerState, replica: Replica): void {
  if (replica.config.kind !== "generative") return;
  for (const model of replica.models) {
    let known = state.knownModels.get(model);
    if (known === undefined) {
      known = new Set();
      state.knownModels.set(model, known);
    }
    known.add(replica);
  }
}

/** A model stays known while an endpoint that served it is configured (spec 2, models). */
export function forgetModelsOf(state: SchedulerState, replica: Replica): void {
  for (const [model, known] of state.knownModels) {
    known.delete(replica);
    if (known.size === 0) state.knownModels.delete(model);
  }
}

/** Recomputes which replicas serve what, after models, APIs or the pool changed. */
export function linkServices(state: SchedulerState): void {
  const services = [...state.services.values()];
  for (const service of services) service.replicas = replicasOf(state, service.model, service.api);
  for (const replica of state.replicas.values()) {
    replica.services = services.filter((service) => service.replicas.includes(replica));
  }
}

/** Configured replicas that serve a model by an API, healthy or not, in the order of the config. */
function replicasOf(state: SchedulerState, model: string, api: WireApi): Replica[] {
  return [...state.replicas.values()].filter((replica) => serves(replica, model, api));
}

export function serves(replica: Replica, model: string, api: WireApi): boolean {
  if (!replica.configured || replica.config.kind !== "generative") return false;
  // Until its APIs are learned a replica counts as speaking chat only: every engine does.
  const speaks = replica.speaks === undefined ? api === "chat" : replica.speaks.includes(api);
  return speaks && replica.models.includes(model);
}

/** Whether a replica that once served the model serves the API, or may turn out to when its APIs are learned. */
export function maySpeak(replica: Replica, api: WireApi): boolean {
  return replica.speaks === undefined || replica.speaks.includes(api);
}

export function serviceFor(state: SchedulerState, model: string, api: WireApi): Service {
  const key = `${api}\n${model}`;
  let service = state.services.get(key);
  if (service === undefined) {
    const groups = createGroups(TIERS[state.config.policy]);
    service = { model, api, replicas: replicasOf(state, model, api), groups };
    state.services.set(key, service);
    for (const replica of service.replicas) replica.services.push(service);
  }
  return service;
}
