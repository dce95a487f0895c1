/** What time alone ends: waits after a refusal, kept room, quiet runs, turns without a sign of life, dataplanes that did not come back. */
import { fail, forgetRun, hold, markFitting, reviewRoom, touch, type Step } from "./book.ts";
import { sweep } from "./recognition.ts";
import { noLongerMatter } from "./token-shares.ts";
import { dropIdleCaller, type Dataplane } from "./state.ts";

export function tick(step: Step): void {
  const { state } = step;
  const { config, nowMs } = state;
  for (let run = state.expiry.first; run !== undefined && nowMs - run.lastMs >= config.runIdleExpiryMs;) {
    // A run with open turns is not quiet, however long the turn takes.
    if (run.flights > 0 || run.held.length > 0) touch(state, run);
    else forgetRun(step, run);
    run = state.expiry.first;
  }
  for (const dataplane of state.dataplanes.values()) {
    if (!dataplane.linked && nowMs - dataplane.lostMs >= config.dataplaneGraceMs) dropDataplane(step, dataplane);
    else if (nowMs - dataplane.namedMs >= config.turnExpiryMs) expireTurns(step, dataplane);
  }
  for (const caller of noLongerMatter(state)) {
    caller.tokens = 0;
    dropIdleCaller(state, caller);
  }
  sweep(state.recognition, nowMs, config.identityTtlMs);
}

/** A dataplane that did not come back: its turns in flight have failed. */
function dropDataplane(step: Step, dataplane: Dataplane): void {
  for (const turn of dataplane.turns.values()) fail(step, turn, "internal");
  step.state.dataplanes.delete(dataplane.id);
}

/** A dataplane that has stopped naming its turns: those in flight for as long have no sign of life (spec 2). */
function expireTurns(step: Step, dataplane: Dataplane): void {
  const { nowMs, config } = step.state;
  for (const turn of dataplane.turns.values()) {
    if (turn.state === "flight" && nowMs - turn.aliveMs >= config.turnExpiryMs) fail(step, turn, "internal");
  }
}

/** What has come due since the event before: looked at with every event, since events carry the time. */
export function passTime(step: Step): void {
  const { state } = step;
  const { config, nowMs, delayed, room } = state;
  // Turns whose Retry-After has passed are held again.
  for (let turn = delayed.top; turn !== undefined && turn.notBeforeMs <= nowMs; turn = delayed.top) {
    delayed.remove(turn);
    hold(step, turn);
    markFitting(step, turn);
  }
  // Runs that did not come back in time get no room any more (I5).
  for (let run = room.first; run !== undefined && nowMs - run.pausedMs >= config.pausedRoomMs; run = room.first) {
    reviewRoom(step, run);
    step.policy.onRoomExpired(step, run);
  }
  step.policy.onTime(step);
}
