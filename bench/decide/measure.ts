/** One repeat of one row: a world of a size, warmed up, then every event timed on its own. */
import { PerformanceObserver, performance } from "node:perf_hooks";
import { setImmediate } from "node:timers/promises";
import { decide, snapshot } from "../../src/scheduling/index.ts";
import { World, type WorldSize } from "./world.ts";

export type Sample = {
  readonly seed: number;
  readonly events: number;
  readonly eventsPerSecond: number;
  readonly meanUs: number;
  readonly p50Us: number;
  readonly p99Us: number;
  readonly p999Us: number;
  readonly maxUs: number;
  /** Pauses of the collector in the measured span, the world's own garbage included, ÷ that span. */
  readonly gcShare: number;
  /** CPU time of the process in the measured span, the world's work included, per event. */
  readonly cpuUs: number;
  /** How often the kernel took the CPU away in the measured span: where it is high, wall times are another process's. */
  readonly preempted: number;
  readonly heldTurns: number;
  readonly turnsInFlight: number;
  readonly heapMiB: number;
};

/** Events before the measurement: until the world holds its turns and the code is compiled. */
const WARM_UP = 150_000;

export async function measure(
  size: WorldSize,
  { events, seed }: { readonly events: number; readonly seed: number },
): Promise<Sample> {
  const world = new World(size, seed);
  for (const event of world.begin()) world.state = decide(world.state, event).state;
  for (let at = 0; at < WARM_UP; at += 1) step(world);

  let gcMs = 0;
  const observer = new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) gcMs += entry.duration;
  });
  observer.observe({ entryTypes: ["gc"] });
  const times = new Float64Array(events);
  const cpu = process.cpuUsage();
  const switches = process.resourceUsage().involuntaryContextSwitches;
  const began = performance.now();
  for (let at = 0; at < events; at += 1) times[at] = step(world);
  const spanMs = performance.now() - began;
  const { user, system } = process.cpuUsage(cpu);
  const preempted = process.resourceUsage().involuntaryContextSwitches - switches;
  // The observer is told in a later turn of the event loop.
  await setImmediate();
  await setImmediate();
  observer.disconnect();

  const totalMs = times.reduce((sum, time) => sum + time, 0);
  times.sort();
  const at = (share: number): number => (times[Math.min(events - 1, Math.floor(events * share))] ?? 0) * 1_000;
  const { turns } = snapshot(world.state);
  return {
    seed,
    events,
    eventsPerSecond: (events / totalMs) * 1_000,
    meanUs: (totalMs / events) * 1_000,
    p50Us: at(0.5),
    p99Us: at(0.99),
    p999Us: at(0.999),
    maxUs: at(1),
    gcShare: gcMs / spanMs,
    cpuUs: (user + system) / events,
    preempted,
    heldTurns: turns.held,
    turnsInFlight: turns.inFlight,
    heapMiB: process.memoryUsage().heapUsed / 1_048_576,
  };
}

/** Takes the world's next event; returns what the decision took, in ms, collections that fell into it included. */
export function step(world: World): number {
  const event = world.next();
  const began = performance.now();
  const { state, effects } = decide(world.state, event);
  const took = performance.now() - began;
  world.state = state;
  world.took(effects);
  return took;
}
