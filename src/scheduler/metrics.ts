/** What the scheduler shows over HTTP (spec 7, One port): status and metrics, for `up` and for the separate service. */
import { Counter, Gauge, Registry } from "../telemetry/index.ts";
import type { Scheduler } from "./service.ts";

/** Instruments read from the scheduler when the page is asked for; labels are replica names and classes only. */
export function schedulerMetrics(scheduler: Scheduler): Registry {
  const registry = new Registry();
  const registers = [registry];
  const events = new Counter({ name: "luftpause_scheduler_events_total", help: "Events decided.", registers });
  const admitted = new Counter({ name: "luftpause_scheduler_admitted_total", help: "Turns admitted.", registers });
  const rejected = new Counter({ name: "luftpause_scheduler_rejected_total", help: "Turns rejected.", registers });
  const leftOut = new Counter({
    name: "luftpause_scheduler_event_log_left_out_total",
    help: "Events that the decision log could not take: the disk was too slow, or failed.",
    registers,
  });
  const gauge = (name: string, help: string, labelNames: readonly string[]) =>
    new Gauge({ name: `luftpause_scheduler_${name}`, help, labelNames: [...labelNames], registers });
  const inFlight = gauge("replica_turns_in_flight", "Turns in flight on a replica.", ["replica"]);
  const limit = gauge("replica_limit", "Bound on turns in flight; absent while open.", ["replica"]);
  const room = gauge("replica_kept_room", "Paused interactive runs for which room is kept.", ["replica"]);
  const foreign = gauge("replica_foreign_load", "Requests in the engine that are not ours.", ["replica"]);
  const healthy = gauge("replica_healthy", "1 while the replica is healthy.", ["replica"]);
  const held = gauge("turns_held", "Held turns.", ["class"]);
  const longest = gauge("longest_held_seconds", "How long the longest held turn is held.", ["class"]);
  const runs = gauge("runs", "Known runs by phase.", ["class", "phase"]);
  const keys = gauge("identity_keys", "Keys by which runs are recognised.", []);
  gauge("up", "Always 1.", []).set(1);

  const before = { events: 0, admitted: 0, rejected: 0, leftOut: 0 };
  const read = registry.metrics.bind(registry);
  registry.metrics = () => {
    const now = scheduler.counts();
    events.inc(now.events - before.events);
    admitted.inc(now.admitted - before.admitted);
    rejected.inc(now.rejected - before.rejected);
    leftOut.inc(now.leftOut - before.leftOut);
    Object.assign(before, now);
    const status = scheduler.status();
    // A replica that left the config leaves the page with it.
    for (const metric of [inFlight, limit, room, foreign, healthy, held, longest]) metric.reset();
    for (const row of status.replicas) {
      const { replica } = row;
      inFlight.set({ replica }, row.turnsInFlight);
      if (row.limit !== null) limit.set({ replica }, row.limit);
      room.set({ replica }, row.keptRoom);
      foreign.set({ replica }, row.foreignLoad);
      healthy.set({ replica }, row.healthy ? 1 : 0);
    }
    for (const serviceClass of ["interactive", "batch"] as const) {
      held.set({ class: serviceClass }, status.heldByClass[serviceClass].turns);
      const { longestHeldMs } = status.heldByClass[serviceClass];
      longest.set({ class: serviceClass }, longestHeldMs / 1000);
      for (const [phase, count] of Object.entries(status.runCounts[serviceClass])) {
        runs.set({ class: serviceClass, phase }, count);
      }
    }
    keys.set(status.identityKeys);
    return read();
  };
  return registry;
}
