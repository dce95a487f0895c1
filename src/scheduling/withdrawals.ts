/**
 * Preemption before the first byte (spec 9): when an interactive turn comes, the newest batch turn that has sent nothing yet
 * is taken back from the engine and held again; its client sees nothing of it.
 *
 * Not here: what the dataplane does with the request. It answers `withdrawn`, or `too-late` when a byte was on its way.
 *
 * Invariants:
 * W1: `unstarted` of a replica holds exactly its batch turns in flight without a first byte, in the order of their admissions.
 * W2: a turn is withdrawn at most MOST_TIMES, and asked back once at a time.
 * W3: until the engine's load shows a withdrawn attempt gone, it counts as in flight (`leaving`).
 */
import { LinkedList, type ListLinks } from "../base/linked-list.ts";
import type { Step } from "./book.ts";
import type { Replica, Turn } from "./state.ts";

const MOST_TIMES = 2;
/** So many of the newest turns are looked at: behind them stand turns that the engine has long begun. */
const LOOKED_AT = 8;
/** A shorter prefill is over before the request to stop it arrives. */
const PREFILL_MS_MIN = 50;
/** Batch is kept off for at most so long while the interactive turn waits for its first byte. */
const QUIET_MS = 2_000;
/** An engine whose running count has not fallen in so many probes after a withdrawal does not heed aborts. */
const PROBES_TO_HEED = 2;

/** An interactive turn for which a batch turn was taken back: until its first byte no batch turn goes there. */
export type Urgent = {
  readonly replica: Replica;
  readonly turn: Turn;
  readonly untilMs: number;
  urgentLinks: ListLinks<Urgent> | undefined;
};

export type Withdrawals = {
  /** W1. */
  readonly unstarted: LinkedList<"unstartedLinks", Turn>;
  urgent: Urgent | undefined;
  /** Attempts that were withdrawn and may still run in the engine (W3). */
  leaving: number;
  /** Of these, before the last poll was sent. */
  leavingAtProbe: number;
  /** Good probes in a row that did not show them gone. */
  probesUnheeded: number;
  ignoresAborts: boolean;
};

export function createWithdrawals(): Withdrawals {
  return {
    unstarted: new LinkedList<"unstartedLinks", Turn>("unstartedLinks"),
    urgent: undefined,
    leaving: 0,
    leavingAtProbe: 0,
    probesUnheeded: 0,
    ignoresAborts: false,
  };
}

/**
 * Takes back the newest batch turn of a replica that has sent nothing, if there is one worth it.
 * @param prefillMs the estimated prefill of a turn on its replica.
 * @returns whether one was asked back.
 */
export function withdrawNewest(step: Step, replica: Replica, prefillMs: (turn: Turn) => number): boolean {
  const { withdrawals } = replica;
  if (withdrawals.ignoresAborts) return false;
  let looked = 0;
  for (let turn = withdrawals.unstarted.last; turn !== undefined; turn = turn.unstartedLinks?.previous) {
    looked += 1;
    if (looked > LOOKED_AT) return false;
    if (!mayWithdraw(step, turn, prefillMs(turn))) continue;
    turn.askedBack = true;
    step.effects.push({ type: "withdraw-turn", dataplane: turn.dataplane.id, turn: turn.id });
    return true;
  }
  return false;
}

function mayWithdraw(step: Step, turn: Turn, prefillMs: number): boolean {
  if (turn.askedBack || turn.withdrawals >= MOST_TIMES || prefillMs < PREFILL_MS_MIN) return false;
  // One that does not stream sends nothing before its end, however far it is.
  return turn.streams || step.state.nowMs - turn.admittedMs < prefillMs;
}

/** Keeps batch off a replica until an interactive turn there has its first byte. */
export function keepQuiet(step: Step, replica: Replica, turn: Turn): void {
  calmDown(step, replica);
  const urgent: Urgent = { replica, turn, untilMs: step.state.nowMs + QUIET_MS, urgentLinks: undefined };
  replica.withdrawals.urgent = urgent;
  step.state.urgent.append(urgent);
}

/** Batch may go there again. */
function calmDown(step: Step, replica: Replica): void {
  const { urgent } = replica.withdrawals;
  if (urgent === undefined) return;
  replica.withdrawals.urgent = undefined;
  step.state.urgent.remove(urgent);
  step.state.dirty.add(replica);
}

export function passUrgent(step: Step): void {
  const { urgent: all, nowMs } = step.state;
  for (let urgent = all.first; urgent !== undefined && urgent.untilMs <= nowMs; urgent = all.first) {
    calmDown(step, urgent.replica);
  }
}

/** A turn has begun its answer, or is not in flight any more. */
export function noLongerUnstarted(step: Step, turn: Turn): void {
  const { replica } = turn;
  if (replica === undefined) return;
  replica.withdrawals.unstarted.remove(turn);
  if (replica.withdrawals.urgent?.turn === turn) calmDown(step, replica);
}

/** A sample of the engine's running requests came in: has it heeded what was withdrawn before its poll (W3)? */
export function seeLeaving(replica: Replica, running: number | undefined): void {
  const { withdrawals } = replica;
  if (withdrawals.leavingAtProbe === 0) return;
  const gone = running === undefined || running <= replica.inFlightAtProbe;
  withdrawals.probesUnheeded = gone ? 0 : withdrawals.probesUnheeded + 1;
  if (!gone && withdrawals.probesUnheeded < PROBES_TO_HEED) return;
  if (!gone) withdrawals.ignoresAborts = true;
  withdrawals.probesUnheeded = 0;
  withdrawals.leaving -= withdrawals.leavingAtProbe;
  withdrawals.leavingAtProbe = 0;
}
