/**
 * Places for requests that are no turns (spec 3, Auxiliary requests): at most so many at once per replica, the fewest in
 * flight first, then a first-in-first-out wait per API and model with a bound on time.
 *
 * S1: a place is taken by `take` and given back by exactly one `release`.
 * S2: a waiter is in exactly one queue until it is placed, given up or timed out; each has one running timer.
 */
import type { Clock } from "../base/clock.ts";
import type { ReplicaId } from "../base/ids.ts";
import { LinkedList, type ListLinks } from "../base/linked-list.ts";
import type { Replica } from "./pool.ts";

/** Where a request could go at this moment: asked again whenever something changes. */
export type Candidates = () => Iterable<Replica>;

export type Waiter = {
  readonly key: string;
  readonly candidates: Candidates;
  readonly onPlaced: (replica: Replica) => void;
  readonly onTimeout: () => void;
  stop: (() => void) | undefined;
  links: ListLinks<Waiter> | undefined;
};

export type SlotOptions = {
  readonly clock: Clock;
  readonly auxiliaryRequestsMax: number;
  readonly auxiliaryWaitMs: number;
};

export class AuxiliarySlots {
  readonly #options: SlotOptions;
  readonly #inFlight = new Map<ReplicaId, number>();
  readonly #queues = new Map<string, LinkedList<"links", Waiter>>();

  constructor(options: SlotOptions) {
    this.#options = options;
  }

  /**
   * Places a request now or as soon as there is room.
   * @param key requests with equal candidates share it; they wait in one queue.
   */
  take(request: Pick<Waiter, "key" | "candidates" | "onPlaced" | "onTimeout">): Waiter {
    const waiter: Waiter = { ...request, stop: undefined, links: undefined };
    // Whoever waits already goes first.
    const replica = this.#queues.has(request.key) ? undefined : this.#free(request.candidates);
    if (replica !== undefined) {
      this.#place(waiter, replica);
      return waiter;
    }
    let queue = this.#queues.get(request.key);
    if (queue === undefined) {
      queue = new LinkedList("links");
      this.#queues.set(request.key, queue);
    }
    queue.append(waiter);
    waiter.stop = this.#options.clock.after(this.#options.auxiliaryWaitMs, () => {
      this.giveUp(waiter);
      waiter.onTimeout();
    });
    return waiter;
  }

  /** The request does not want a place any more. */
  giveUp(waiter: Waiter): void {
    waiter.stop?.();
    waiter.stop = undefined;
    const queue = this.#queues.get(waiter.key);
    if (queue === undefined || !queue.has(waiter)) return;
    queue.remove(waiter);
    if (queue.size === 0) this.#queues.delete(waiter.key);
  }

  release(replica: ReplicaId): void {
    const left = (this.#inFlight.get(replica) ?? 1) - 1;
    if (left === 0) this.#inFlight.delete(replica);
    else this.#inFlight.set(replica, left);
    this.serve();
  }

  /** Places whoever can be placed: called when a place or a replica has become free. */
  serve(): void {
    for (const queue of this.#queues.values()) {
      for (let waiter = queue.first; waiter !== undefined; waiter = queue.first) {
        const replica = this.#free(waiter.candidates);
        if (replica === undefined) break;
        this.giveUp(waiter);
        this.#place(waiter, replica);
      }
    }
  }

  #place(waiter: Waiter, replica: Replica): void {
    const { name } = replica.config;
    this.#inFlight.set(name, (this.#inFlight.get(name) ?? 0) + 1);
    waiter.onPlaced(replica);
  }

  #free(candidates: Candidates): Replica | undefined {
    let best: Replica | undefined;
    let least = this.#options.auxiliaryRequestsMax;
    for (const replica of candidates()) {
      const inFlight = this.#inFlight.get(replica.config.name) ?? 0;
      if (inFlight >= least) continue;
      least = inFlight;
      best = replica;
    }
    return best;
  }
}
