/** What a probe changes: health, models, APIs, load; and what a new configuration of the pool changes. */
import { dropRoom, fail, regroup, type Step } from "./book.ts";
import { forgetLoad } from "./classic.ts";
import { createReplica, knowModels, linkServices, type Replica, type SchedulerState } from "./state.ts";
import type { SchedulerEvent, SchedulingConfig } from "./types.ts";

type Probed = Extract<SchedulerEvent, { readonly type: "replica-probed" }>;

export function probeReplica(step: Step, event: Probed): void {
  const { state } = step;
  const replica = state.replicas.get(event.replica);
  if (replica === undefined || !replica.configured) return;
  replica.probed = true;
  if (event.replaced) replaceEngine(step, replica);
  if (event.engine !== undefined) replica.engine = event.engine;
  const servesOther = learn(state, replica, event);
  const wasHealthy = replica.healthy;
  replica.healthy = event.healthy;
  if (event.healthy) takeLoad(step, replica, event);
  else loadFailed(replica, state.config);
  if (wasHealthy !== event.healthy || servesOther || event.replaced) regroupAll(step);
  step.dirty.add(replica);
}

/** Another engine answers at the same address: nothing that was known of its cache or load holds any more. */
function replaceEngine(step: Step, replica: Replica): void {
  forgetLoad(replica);
  for (const run of step.state.runs.values()) {
    if (run.replica !== replica) continue;
    dropRoom(step, run);
    run.replica = undefined;
  }
}

/** Takes over learned models and APIs; returns whether the replica now serves something else. */
function learn(state: SchedulerState, replica: Replica, event: Probed): boolean {
  let changed = false;
  if (event.models !== undefined && replica.config.models.length === 0 && !sameList(event.models, replica.models)) {
    replica.models = event.models;
    changed = true;
  }
  if (event.speaks !== undefined && replica.config.speaks === undefined && !sameList(event.speaks, replica.speaks)) {
    replica.speaks = event.speaks;
    changed = true;
  }
  if (changed) knowModels(state, replica);
  return changed;
}

function sameList(a: readonly string[], b: readonly string[] | undefined): boolean {
  return b !== undefined && a.length === b.length && a.every((value, index) => value === b[index]);
}

function takeLoad(step: Step, replica: Replica, event: Probed): void {
  const { policy, state } = step;
  if (event.load !== undefined) {
    replica.load = event.load;
    replica.loadFailures = 0;
    policy.onSample(replica, event.load, state.config);
    return;
  }
  loadFailed(replica, state.config);
  if (replica.load === undefined) policy.onSample(replica, undefined, state.config);
}

/** The last known load counts until it is stale; then the replica reports no load (spec 2, Load signals). */
function loadFailed(replica: Replica, config: SchedulingConfig): void {
  if (replica.load === undefined) return;
  replica.loadFailures += 1;
  if (replica.loadFailures >= config.loadStaleAfterProbes) {
    forgetLoad(replica);
    replica.loadFailures = 0;
  }
}

/** Health or models changed: every held turn stands where it belongs again (I4). Rare, so a pass over all is fine. */
function regroupAll(step: Step): void {
  const seen = new Set();
  for (const turn of step.state.turns.values()) {
    if (turn.state !== "held" || seen.has(turn.run)) continue;
    seen.add(turn.run);
    regroup(step, turn.run);
  }
}

/** A new configuration: replicas that left lose pins and room at once, their turns in flight end by themselves. */
export function configurePool(step: Step, config: SchedulingConfig): void {
  const { state } = step;
  state.config = config;
  for (const principal of state.principals.values()) {
    principal.weight = config.principalWeights.find((row) => row.principal === principal.id)?.weight ?? 1;
  }
  const kept = new Set(config.replicas.map((row) => row.replica));
  for (const [id, replica] of state.replicas) {
    if (kept.has(id)) continue;
    replica.configured = false;
    replica.healthy = false;
    for (const run of state.runs.values()) {
      if (run.replica === replica) dropRoom(step, run);
    }
    if (replica.inFlight === 0) state.replicas.delete(id);
  }
  for (const [order, row] of config.replicas.entries()) {
    const replica = state.replicas.get(row.replica);
    if (replica === undefined) {
      state.replicas.set(row.replica, createReplica(row, order));
      continue;
    }
    replica.config = row;
    replica.order = order;
    replica.configured = true;
    if (row.models.length > 0) replica.models = row.models;
    if (row.speaks !== undefined) replica.speaks = row.speaks;
  }
  sortByOrder(state);
  state.knownModels.clear();
  for (const replica of state.replicas.values()) if (replica.configured) knowModels(state, replica);
  linkServices(state);
  rejectOrphans(step);
  regroupAll(step);
  for (const replica of state.replicas.values()) step.dirty.add(replica);
}

/** Placement walks the replicas in the order of the config. */
function sortByOrder(state: SchedulerState): void {
  const sorted = [...state.replicas].sort(
    ([, a], [, b]) => Number(b.configured) - Number(a.configured) || a.order - b.order,
  );
  state.replicas.clear();
  for (const [id, replica] of sorted) state.replicas.set(id, replica);
}

/** A held turn whose model left the configuration would be held for ever. */
function rejectOrphans(step: Step): void {
  const { state } = step;
  for (const turn of state.turns.values()) {
    if (turn.state === "flight" || state.knownModels.has(turn.model)) continue;
    step.effects.push({
      type: "reject-turn",
      dataplane: turn.dataplane.id,
      turn: turn.id,
      run: turn.run.id,
      source: turn.source,
      code: "model_not_found",
      message: `no Generative replica serves model '${turn.model}'`,
    });
    fail(step, turn, "internal");
  }
}
