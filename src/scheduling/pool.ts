/** A new configuration of the pool (reload): who is in it, weights, policy numbers. */
import { activeSetOf } from "./active-set-config.ts";
import { reviewRoom, type Step } from "./book.ts";
import { createGroups } from "./groups.ts";
import { releasePlace } from "./places.ts";
import { policyNamed } from "./policies.ts";
import type { Policy } from "./policy.ts";
import { dropPins, regroupAll } from "./probes.ts";
import { rejectOrphans } from "./requests.ts";
import { forgetModelsOf, knowModels, linkServices } from "./services.ts";
import { allRuns, checkWeights, createReplica, weightOf, type Replica, type SchedulerState } from "./state.ts";
import { moveEpoch, setAllShares } from "./token-shares.ts";
import type { ReplicaConfig, SchedulingConfig } from "./types.ts";
import { createWithdrawals } from "./withdrawals.ts";

/** Replicas that left lose pins and room at once; their turns in flight end by themselves and stay counted until then. */
export function configurePool(step: Step, config: SchedulingConfig): void {
  const { state } = step;
  checkWeights(config);
  const policyChanged = config.policy !== state.config.policy;
  const roomChanged = config.pausedRoomMs !== state.config.pausedRoomMs;
  const halfLifeMs = activeSetOf(state.config).shareHalfLifeMs;
  if (halfLifeMs !== activeSetOf(config).shareHalfLifeMs) moveEpoch(state, halfLifeMs);
  state.config = config;
  reweigh(state);
  const kept = new Set(config.replicas.map((row) => row.replica));
  for (const replica of state.replicas.values()) {
    if (replica.configured && !kept.has(replica.config.replica)) remove(step, replica);
  }
  for (const [order, row] of config.replicas.entries()) configure(state, row, order);
  sortByOrder(state);
  for (const replica of state.replicas.values()) if (replica.configured) knowModels(state, replica);
  linkServices(state);
  if (roomChanged) reviewAllRoom(step);
  rejectOrphans(step);
  if (policyChanged) changePolicy(step, policyNamed(config.policy));
  regroupAll(step);
  for (const replica of state.replicas.values()) state.dirty.add(replica);
}

/** Held turns are put into the tiers of the other policy by the caller; runs that are at work or paused keep their places. */
function changePolicy(step: Step, policy: Policy): void {
  const { state } = step;
  for (const run of allRuns(state)) if (run.place !== undefined) releasePlace(step, run.place);
  for (const turn of state.turns.values()) if (turn.state === "flight") step.policy.onLanding(step, turn);
  for (const replica of state.replicas.values()) replica.withdrawals = createWithdrawals();
  step.policy = policy;
  for (const replica of state.replicas.values()) replica.pinned = createGroups(policy.tiers);
  for (const service of state.services.values()) service.groups = createGroups(policy.tiers);
  for (const turn of state.turns.values()) if (turn.state === "flight") policy.onFlying(step, turn);
  for (const run of allRuns(state)) policy.onReported(step, run);
}

function remove(step: Step, replica: Replica): void {
  const { state } = step;
  replica.configured = false;
  replica.healthy = false;
  replica.probed = false;
  replica.load = undefined;
  replica.loadFailures = 0;
  step.policy.onLoadLost(replica);
  dropPins(step, replica);
  step.policy.onReplaced(replica, state.config);
  forgetModelsOf(state, replica);
  if (replica.inFlight === 0) state.replicas.delete(replica.config.replica);
}

function configure(state: SchedulerState, row: ReplicaConfig, order: number): void {
  const known = state.replicas.get(row.replica);
  if (known === undefined) {
    state.replicas.set(row.replica, createReplica(state, row, order));
    return;
  }
  const learnedModels = known.configured && row.models.length === 0;
  const learnedApis = known.configured && row.speaks === undefined;
  if (!learnedModels) known.models = row.models;
  if (!learnedApis) known.speaks = row.speaks;
  known.config = row;
  known.order = order;
  // One that comes back while old turns still run there starts like a new one, with these turns counted.
  known.configured = true;
}

function reweigh(state: SchedulerState): void {
  for (const principal of state.principals.values()) {
    principal.weight = weightOf(state.config, principal.id);
  }
  setAllShares(state);
}

/** Room is kept for a different time now: for some runs again, for some no longer. */
function reviewAllRoom(step: Step): void {
  step.bulk = true;
  for (const run of allRuns(step.state)) reviewRoom(step, run);
  step.state.room.sort((a, b) => a.pausedMs - b.pausedMs);
}

/** Placement walks the replicas in the order of the config; those that left stand last. */
function sortByOrder(state: SchedulerState): void {
  const place = (replica: Replica): number => (replica.configured ? replica.order : Number.MAX_SAFE_INTEGER);
  const sorted = [...state.replicas].sort(([, a], [, b]) => place(a) - place(b));
  state.replicas.clear();
  for (const [id, replica] of sorted) state.replicas.set(id, replica);
}
