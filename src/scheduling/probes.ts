/** What a probe changes: health, models, APIs, load. */
import { regroup, setReplica, type Step } from "./book.ts";
import { rejectOrphans } from "./requests.ts";
import { knowModels, linkServices } from "./services.ts";
import { allRuns, type Replica, type Run, type SchedulerState } from "./state.ts";
import type { SchedulerEvent } from "./types.ts";

type Probed = Extract<SchedulerEvent, { readonly type: "replica-probed" }>;

export function probeReplica(step: Step, event: Probed): void {
  const { state } = step;
  const replica = state.replicas.get(event.replica);
  if (replica === undefined || !replica.configured) return;
  if (event.replaced) replaceEngine(step, replica);
  if (event.engine !== undefined) replica.engine = event.engine;
  const servesOther = learn(state, replica, event);
  const flipped = replica.healthy !== event.healthy;
  const first = !replica.probed;
  replica.healthy = event.healthy;
  replica.probed = true;
  if (event.healthy) takeLoad(step, replica, event);
  else loadFailed(step, replica);
  if (servesOther || first) rejectOrphans(step);
  if (flipped || servesOther || event.replaced) regroupAll(step);
  state.dirty.add(replica);
}

/** Another engine answers at the same address: nothing that was known of its cache or load holds any more. */
function replaceEngine(step: Step, replica: Replica): void {
  replica.load = undefined;
  replica.loadFailures = 0;
  step.policy.onLoadLost(replica);
  dropPins(step, replica);
  step.policy.onReplaced(replica, step.state.config);
}

/** No run has its prefix there any more. A pass over all runs: engines are replaced rarely. */
export function dropPins(step: Step, replica: Replica): void {
  for (const run of allRuns(step.state)) {
    if (run.replica === replica) setReplica(step, run, undefined);
    if (run.kept?.avoid === replica) run.kept = { ...run.kept, avoid: undefined };
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
  if (changed) {
    knowModels(state, replica);
    linkServices(state);
  }
  return changed;
}

function sameList(a: readonly string[], b: readonly string[] | undefined): boolean {
  return b !== undefined && a.length === b.length && a.every((value, index) => value === b[index]);
}

function takeLoad(step: Step, replica: Replica, event: Probed): void {
  const { policy, state } = step;
  const { load } = event;
  if (load === undefined) {
    loadFailed(step, replica);
    if (replica.load === undefined) policy.onSample(replica, undefined, state.config);
    return;
  }
  // A sample that says nothing about what waits keeps the last known load for as long as a failed probe would.
  if (load.waiting === undefined) loadFailed(step, replica);
  else replica.loadFailures = 0;
  replica.load = load;
  policy.onSample(replica, load, state.config);
}

/** The last known load counts until it is stale; then the replica reports no load (spec 2, Load signals). */
function loadFailed(step: Step, replica: Replica): void {
  if (replica.load === undefined) return;
  replica.loadFailures += 1;
  if (replica.loadFailures < step.state.config.loadStaleAfterProbes) return;
  replica.load = undefined;
  replica.loadFailures = 0;
  step.policy.onLoadLost(replica);
}

/** Health, models or APIs changed: every held turn stands where it belongs again (I4). Rare, so a pass is fine. */
export function regroupAll(step: Step): void {
  const seen = new Set<Run>();
  for (const turn of step.state.turns.values()) {
    if (turn.state !== "held" || seen.has(turn.run)) continue;
    seen.add(turn.run);
    regroup(step, turn.run);
  }
}
