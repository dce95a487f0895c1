/**
 * What a policy decides. Bookkeeping (runs, pins, ranks, expiries, recognition, resync) is the same in every policy and
 * stands outside; a policy says when a replica has room, how load changes that, and where a free turn goes.
 */
import type { ServiceClass } from "../wire/admission.ts";
import type { LoadSample } from "../wire/load.ts";
import type { Replica, Run } from "./state.ts";
import type { SchedulingConfig } from "./types.ts";

export type Policy = {
  readonly name: SchedulingConfig["policy"];
  /** Whether the replica can take one more turn of the class now. Says nothing of models and pins. */
  hasRoom(replica: Replica, serviceClass: ServiceClass): boolean;
  /** The bound on turns in flight that counts now, or undefined when there is none. */
  limit(replica: Replica): number | undefined;
  /** A good load sample, or an engine without load that is alive (`sample` undefined). */
  onSample(replica: Replica, sample: LoadSample | undefined, config: SchedulingConfig): void;
  /** The engine refused a turn: its queue is full. */
  onPushedBack(replica: Replica): void;
  /**
   * Where a run goes that may go anywhere.
   * @param fitting replicas with room, in the order of the config; not empty.
   */
  place(run: Run, fitting: readonly Replica[]): Replica;
};
