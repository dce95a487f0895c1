/**
 * Policy `classic`: admission by the engine's own load, the parity rules of spec 2.
 *
 * A replica starts open. A probe that shows requests waiting inside the engine caps it at what ran at that moment;
 * without any waiting the cap is raised by one per probe (`step`) or removed (`at-once`). A configured `maxInFlight` is a
 * cap like a measured one; the smaller counts. Batch leaves room for paused interactive runs wherever there is a cap.
 */
import { invariant } from "../base/invariant.ts";
import type { LoadSample } from "../wire/load.ts";
import type { Policy } from "./policy.ts";
import type { Replica, Run } from "./state.ts";
import { TIERS } from "./tiers.ts";
import type { SchedulingConfig } from "./types.ts";

/** The cap is removed when fewer than `cap` turns were in flight at this many probes in a row. */
const QUIET_PROBES = 5;
/** Foreign load counts when it was seen at this many probes in a row. */
const FOREIGN_PROBES = 3;

const INTERACTIVE = 0;
const BATCH = 1;

export const classic: Policy = {
  name: "classic",
  tiers: TIERS.classic,

  tierOf(turn) {
    return turn.class === "interactive" ? INTERACTIVE : BATCH;
  },

  hasRoom(replica, tier) {
    if (!replica.configured || !replica.healthy) return false;
    const bound = classic.limit(replica);
    if (bound === undefined) return true;
    // Foreign load counts against the cap, but never closes a replica to us: a cap is at least 1.
    const ours = Math.max(1, bound - replica.foreign);
    // Paused interactive runs will come back: batch leaves one slot free for each of them.
    return tier === INTERACTIVE ? replica.inFlight < ours : replica.inFlight + 1 + replica.keptRoom <= ours;
  },

  shut: () => undefined,
  judges: () => false,
  takes: () => true,
  makeRoom: () => false,
  obstacle: () => "",

  limit(replica) {
    return cappedLimit(replica);
  },

  priority: () => undefined,

  binds(run) {
    return run.flights > 0 || run.last === "paused";
  },

  onProbeSent: nothing,

  onSample(replica, sample, config) {
    if (sample?.running !== undefined) countForeign(replica, sample.running);
    // Without any load signal only a refusal can have capped it, and being alive is the best news there is.
    if (sample === undefined) raise(replica, config);
    else if (sample.waiting !== undefined) takeWaiting(replica, sample, sample.waiting, config);
  },

  onLoadLost(replica) {
    replica.cap = undefined;
    replica.quietProbes = 0;
    replica.surpluses = [];
    replica.foreign = 0;
  },

  onReplaced: nothing,

  onPushedBack(replica) {
    replica.quietProbes = 0;
    replica.cap = Math.min(replica.cap ?? Number.POSITIVE_INFINITY, Math.max(1, replica.inFlight));
  },

  place(run, fitting) {
    const candidates = avoiding(run, fitting);
    if (run.replica !== undefined && candidates.includes(run.replica)) return run.replica;
    let best = candidates[0];
    invariant(best, "placement needs a replica with room");
    for (const candidate of candidates) {
      if (emptier(candidate, best, cappedLimit)) best = candidate;
    }
    return best;
  },

  onRequested: nothing,
  onHeld: nothing,
  onFlying: nothing,
  onStarted: nothing,
  onFinished: nothing,
  onLanding: nothing,
  onWithdrawn: nothing,
  onEnded: nothing,
  onReported: nothing,
  onMoving: nothing,
  onRoomExpired: nothing,
  onForgotten: nothing,
  onTime: nothing,
};

/** Nothing but turns in flight counts here. */
function nothing(): void {}

function cappedLimit({ cap, config }: Replica): number | undefined {
  const { maxInFlight } = config;
  if (cap === undefined) return maxInFlight;
  return maxInFlight === undefined ? cap : Math.min(cap, maxInFlight);
}

function takeWaiting(replica: Replica, sample: LoadSample, waiting: number, config: SchedulingConfig): void {
  if (waiting === 0) {
    raise(replica, config);
    return;
  }
  replica.quietProbes = 0;
  // Unknown is not 0: without a running count there is nothing to cap at, and a cap that stands stays.
  if (sample.running === undefined) return;
  replica.cap = Math.max(1, Math.min(replica.cap ?? Number.POSITIVE_INFINITY, sample.running));
}

/** A retry goes to another replica than the one whose connection just failed, if another fits. */
export function avoiding(run: Run, fitting: readonly Replica[]): readonly Replica[] {
  const avoid = run.kept?.avoid;
  if (avoid === undefined) return fitting;
  const others = fitting.filter((replica) => replica !== avoid);
  return others.length > 0 ? others : fitting;
}

/** Open before capped; capped by in flight ÷ cap; then fewest in flight; the order of the config is the caller's. */
export function emptier(a: Replica, b: Replica, limit: (replica: Replica) => number | undefined): boolean {
  const boundA = limit(a);
  const boundB = limit(b);
  if (boundA === undefined || boundB === undefined) {
    if (boundA !== boundB) return boundA === undefined;
    return a.inFlight < b.inFlight;
  }
  const difference = (a.inFlight + a.foreign) / boundA - (b.inFlight + b.foreign) / boundB;
  return difference === 0 ? a.inFlight < b.inFlight : difference < 0;
}

function raise(replica: Replica, config: SchedulingConfig): void {
  if (replica.cap === undefined) return;
  replica.quietProbes = replica.inFlightAtProbe < replica.cap ? replica.quietProbes + 1 : 0;
  if (config.capRelease === "at-once" || replica.quietProbes >= QUIET_PROBES) {
    replica.cap = undefined;
    replica.quietProbes = 0;
    return;
  }
  replica.cap += 1;
}

/** Running requests beyond our own at the moment of the poll; what was seen at every one of the last probes counts. */
function countForeign(replica: Replica, running: number): void {
  const surplus = running - replica.inFlightAtProbe;
  replica.surpluses = surplus > 0 ? [...replica.surpluses, surplus].slice(-FOREIGN_PROBES) : [];
  replica.foreign = replica.surpluses.length < FOREIGN_PROBES ? 0 : Math.min(...replica.surpluses);
}
