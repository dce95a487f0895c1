/**
 * What a policy decides. Bookkeeping (runs, ranks, expiries, recognition, resync, kept arrivals) is the same in every
 * policy and stands outside; a policy says in which tiers turns are held, when a replica has room for a tier, how load
 * changes that, which replica a run is bound to, and where a free turn goes.
 *
 * A second policy (spec 9, active-set) adds tiers between the classes (returning runs before first turns), answers
 * `hasRoom` by its gate, binds for as long as a prefix is warm, and returns withdrawals from its own hooks; ranks inside
 * a tier, groups and counts stay as they are.
 */
import type { LoadSample } from "../wire/load.ts";
import type { Replica, Run, Turn } from "./state.ts";
import type { SchedulingConfig } from "./types.ts";

export type Policy = {
  readonly name: SchedulingConfig["policy"];
  /** Number of tiers. Held turns of a lower tier go before all of a higher one that fit on the same replica. */
  readonly tiers: number;
  /** The tier in which a turn is held. May change only in events of its run. */
  tierOf(turn: Turn): number;
  /** Whether the replica can take one more turn of the tier now. Says nothing of models and pins. */
  hasRoom(replica: Replica, tier: number): boolean;
  /** The bound on turns in flight that counts now, or undefined when there is none. */
  limit(replica: Replica): number | undefined;
  /** Whether the run may go only to its replica (while that is healthy and serves what the turn asks for). */
  binds(run: Run): boolean;
  /** A good load sample, or an engine without load that is alive (`sample` undefined). */
  onSample(replica: Replica, sample: LoadSample | undefined, config: SchedulingConfig): void;
  /** The load is stale, or another engine answers: the replica reports no load. */
  onLoadLost(replica: Replica): void;
  /** The engine refused a turn, which is no longer counted as in flight: its queue is full. */
  onPushedBack(replica: Replica): void;
  /**
   * Where a run goes that may go anywhere.
   * @param fitting replicas with room, in the order of the config; not empty.
   */
  place(run: Run, fitting: readonly Replica[]): Replica;
};
