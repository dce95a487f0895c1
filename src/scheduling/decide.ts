/**
 * The scheduling core: `decide(state, event) → { state, effects }`, deterministic, without clock, IO or randomness.
 * All control flow over kinds of events is here; helpers compute.
 */
import type { TurnId } from "../base/ids.ts";
import { unreachable } from "../base/invariant.ts";
import { fail, finish, forgetRun, holdAgain, type Step } from "./book.ts";
import { passTime, tick } from "./expiry.ts";
import { policyNamed } from "./policies.ts";
import { configurePool } from "./pool.ts";
import { probeReplica } from "./probes.ts";
import { remember } from "./recognition.ts";
import { rejectOrphan, requestTurn } from "./requests.ts";
import { linkDataplane, loseDataplane } from "./resync.ts";
import { settle } from "./settle.ts";
import { dataplaneFor, runOf, type SchedulerState } from "./state.ts";
import type { SchedulerEffect, SchedulerEvent } from "./types.ts";

/**
 * Takes one event and returns the effects that the host has to carry out, in order.
 * The state is changed in place and returned; the one passed in must not be used any more.
 * @param event one whose `nowMs` runs backwards counts as at the time of the event before it.
 */
export function decide(
  state: SchedulerState,
  event: SchedulerEvent,
): { readonly state: SchedulerState; readonly effects: readonly SchedulerEffect[] } {
  state.nowMs = Math.max(state.nowMs, event.nowMs);
  const step: Step = { state, policy: policyNamed(state.config.policy), effects: [], bulk: false };
  passTime(step);
  settle(step);
  apply(step, event);
  settle(step);
  if (event.type === "turn-requested") stillHeld(step, event.turn);
  return { state, effects: step.effects };
}

function stillHeld(step: Step, id: TurnId): void {
  const turn = step.state.turns.get(id);
  if (turn?.state === "held") step.policy.onHeld(step, turn);
}

function apply(step: Step, event: SchedulerEvent): void {
  const { state } = step;
  switch (event.type) {
    case "turn-requested":
      requestTurn(step, event);
      return;
    case "turn-finished": {
      const turn = state.turns.get(event.turn);
      if (turn === undefined) return;
      if (turn.state !== "flight") {
        fail(step, turn, "internal");
        return;
      }
      const bounds = { atMs: state.nowMs, keysMax: state.config.identityKeysMax };
      if (event.keys.length > 0) remember(state.recognition, turn.run, event.keys, bounds);
      step.policy.onFinished(step, turn, event);
      finish(step, turn, event.paused);
      return;
    }
    case "turn-started": {
      const turn = state.turns.get(event.turn);
      if (turn === undefined) return;
      turn.aliveMs = state.nowMs;
      if (turn.state !== "flight" || turn.startedMs >= 0) return;
      turn.startedMs = state.nowMs;
      step.policy.onStarted(step, turn);
      return;
    }
    case "turn-failed":
    case "turn-abandoned": {
      const turn = state.turns.get(event.turn);
      if (turn !== undefined) fail(step, turn, event.reason);
      return;
    }
    case "turn-pushed-back": {
      const turn = state.turns.get(event.turn);
      if (turn?.state !== "flight") return;
      step.policy.onPushedBack(holdAgain(step, turn, state.nowMs + event.retryAfterMs));
      rejectOrphan(step, turn);
      return;
    }
    case "turn-withdrawn": {
      const turn = state.turns.get(event.turn);
      if (turn?.state !== "flight") return;
      step.policy.onWithdrawn(step, turn, holdAgain(step, turn, state.nowMs));
      rejectOrphan(step, turn);
      return;
    }
    case "turn-too-late":
      // The turn goes on where it is; nothing was changed when it was asked back.
      return;
    case "turns-named": {
      const dataplane = dataplaneFor(state, event.dataplane);
      dataplane.namedMs = state.nowMs;
      const named = new Set(event.turns);
      for (const turn of dataplane.turns.values()) if (!named.has(turn.id)) fail(step, turn, "internal");
      return;
    }
    case "run-ended": {
      const run = runOf(state, event.principal, event.run);
      if (run === undefined) return;
      if (run.flights > 0 || run.held.length > 0) run.ended = true;
      else forgetRun(step, run);
      return;
    }
    case "probe-sent": {
      const replica = state.replicas.get(event.replica);
      if (replica === undefined) return;
      replica.inFlightAtProbe = replica.inFlight;
      step.policy.onProbeSent(replica);
      return;
    }
    case "replica-probed":
      probeReplica(step, event);
      return;
    case "pool-configured":
      configurePool(step, event.config);
      return;
    case "dataplane-linked":
      linkDataplane(step, event);
      return;
    case "dataplane-lost": {
      const dataplane = state.dataplanes.get(event.dataplane);
      if (dataplane !== undefined) loseDataplane(step, dataplane);
      return;
    }
    case "ticked":
      tick(step);
      // Who stands first where turns are judged one by one may have changed with the shares.
      if (step.policy.judges(step.policy.tiers - 1))
        for (const replica of state.replicas.values()) state.dirty.add(replica);
      return;
    default:
      unreachable(event);
  }
}
