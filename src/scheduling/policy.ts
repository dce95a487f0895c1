/**
 * What a policy decides. Bookkeeping (runs, ranks, expiries, recognition, resync, kept arrivals) is the same in every
 * policy and stands outside; a policy says in which tiers turns are held, when a replica has room for a tier and takes a
 * turn, how load changes that, which replica a run is bound to, and where a free turn goes. It learns what becomes of runs
 * and turns by its hooks.
 *
 * A policy that judges single turns (`takes`) judges the first of a tier at a replica, and who stands behind it waits: a
 * large run is not overtaken for ever by small ones.
 */
import type { LoadSample } from "../wire/load.ts";
import type { Step } from "./book.ts";
import type { Replica, Run, SchedulerState, Turn } from "./state.ts";
import type { SchedulerEvent, SchedulingConfig } from "./types.ts";

export type TurnFinished = Extract<SchedulerEvent, { readonly type: "turn-finished" }>;

export type Policy = {
  readonly name: SchedulingConfig["policy"];
  /** Number of tiers. Held turns of a lower tier go before all of a higher one that fit on the same replica. */
  readonly tiers: number;
  /** The tier in which a turn is held. May change only in events of its run. */
  tierOf(turn: Turn): number;
  /** Whether the replica can take one more turn of the tier now. Says nothing of models and pins. */
  hasRoom(replica: Replica, tier: number): boolean;
  /** Why a replica is shut for a tier, whatever fits, for people; undefined: it is not. */
  shut(replica: Replica, tier: number): string | undefined;
  /** Whether a replica with room for its tier takes this turn. */
  takes(state: SchedulerState, turn: Turn, replica: Replica): boolean;
  /** Whether turns of the tier are judged one by one, so that each has to be ranked first. */
  judges(tier: number): boolean;
  /** Makes the replica take the turn, if that is in the policy's power. Asked only when no turn of the tier is taken anywhere. */
  makeRoom(step: Step, turn: Turn, replica: Replica): boolean;
  /** Why a replica with room does not take the turn, for people. */
  obstacle(state: SchedulerState, turn: Turn, replica: Replica): string;
  /** The bound on turns in flight that counts now, or undefined when there is none. */
  limit(replica: Replica): number | undefined;
  /** The priority with which the turn goes to the replica's engine, or undefined for none. */
  priority(turn: Turn, replica: Replica): number | undefined;
  /** Whether the run may go only to its replica (while that is healthy and serves what the turn asks for). */
  binds(run: Run): boolean;
  /** A load poll was sent: the sample that follows speaks for this moment. */
  onProbeSent(replica: Replica): void;
  /** A good load sample, or an engine without load that is alive (`sample` undefined). */
  onSample(replica: Replica, sample: LoadSample | undefined, config: SchedulingConfig): void;
  /** The load is stale, or another engine answers: the replica reports no load. */
  onLoadLost(replica: Replica): void;
  /** Another engine answers there, or the replica left the pool: no run has its prefix there any more. */
  onReplaced(replica: Replica, config: SchedulingConfig): void;
  /** The engine refused a turn, which is no longer counted as in flight: its queue is full. */
  onPushedBack(replica: Replica): void;
  /**
   * Where a run goes that may go anywhere.
   * @param fitting replicas with room, in the order of the config; not empty.
   */
  place(run: Run, fitting: readonly Replica[]): Replica;
  /** Asked for; not in a group so far. */
  onRequested(step: Step, turn: Turn): void;
  /** Asked for, and held after all that this event could admit. */
  onHeld(step: Step, turn: Turn): void;
  /** Is in flight now, admitted or reported; its run's replica is set. */
  onFlying(step: Step, turn: Turn): void;
  /** The answer has begun. */
  onStarted(step: Step, turn: Turn): void;
  /** Ended well; still counted as in flight. */
  onFinished(step: Step, turn: Turn, event: TurnFinished): void;
  /** Is about to be no longer in flight, however it ended. */
  onLanding(step: Step, turn: Turn): void;
  /** Was taken back from the replica before its first byte, and is held again. */
  onWithdrawn(step: Step, turn: Turn, replica: Replica): void;
  /** A turn of the run has ended or was given back: whether it comes back may have changed. */
  onEnded(step: Step, run: Run): void;
  /** A dataplane reports the run, without open turns. */
  onReported(step: Step, run: Run): void;
  /** The run's replica is about to become another one, or none. */
  onMoving(step: Step, run: Run): void;
  /** The room that was kept for a paused interactive run is given up: it did not come back in time. */
  onRoomExpired(step: Step, run: Run): void;
  /** The run is forgotten; it has no open turns. */
  onForgotten(step: Step, run: Run): void;
  /** Called with every event, before it. */
  onTime(step: Step): void;
};
