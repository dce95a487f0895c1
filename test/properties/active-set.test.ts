/** Laws of `policy: active-set` over random sequences of events. Invariants are checked after every event. */
import * as fc from "fast-check";
import { expect, test } from "vitest";
import {
  ACTIVE_SET_DEFAULTS,
  createState,
  decide,
  eventLine,
  explainAll,
  freeze,
  headerLine,
  replay,
  snapshot,
  thaw,
  type ActiveSetConfig,
  type SchedulerEvent,
  type SchedulingConfig,
} from "../../src/scheduling/index.ts";
import { LiveWorld } from "../scheduling/live-world.ts";
import { eventFor, operations, WORLDS } from "../scheduling/random-events.ts";
import { probed } from "../scheduling/support.ts";

const RUNS = { numRuns: Number(process.env["LUFTPAUSE_RUNS"] ?? 60) };

/** Every mechanism on or off by chance: an ablation must keep the laws too. */
const switches: fc.Arbitrary<ActiveSetConfig> = fc
  .record({
    bound: fc.constantFrom("pool", "survival", "both", "none"),
    ceiling: fc.constantFrom(0.85, 0.3),
    growth: fc.boolean(),
    limitAtFirst: fc.constantFrom(6, 1),
    sliceFactor: fc.constantFrom(100, 0, 1),
    workConservingBelow: fc.constantFrom(5, 0, 1),
    preempt: fc.boolean(),
    tokenShares: fc.boolean(),
    placeLeastMs: fc.constantFrom(10_000, 500),
  } as const)
  .map((chosen) => ({ ...ACTIVE_SET_DEFAULTS, ...chosen }));

/** A random history over one of the pools, as concrete events. */
const histories = fc.tuple(fc.constantFrom(...WORLDS), switches, operations(120)).map(([pool, activeSet, steps]) => {
  const active = (config: SchedulingConfig): SchedulingConfig => ({ ...config, policy: "active-set", activeSet });
  const config = active(pool);
  const world = new LiveWorld(config);
  const events: SchedulerEvent[] = [];
  const take = (event: SchedulerEvent | undefined): void => {
    if (event === undefined) return;
    const next =
      event.type === "pool-configured"
        ? { ...event, config: event.nowMs % 3 === 0 ? event.config : active(event.config) }
        : event;
    events.push(next);
    world.decide(next);
  };
  for (const row of config.replicas) take(probed(0, row.replica));
  for (const [number, step] of steps.entries()) take(eventFor(world, step, number));
  return { config, events, end: world.state };
});

test("invariants hold after every event, whatever is switched off, and every hold can be explained", () => {
  fc.assert(
    fc.property(histories, ({ end }) => {
      for (const { reason, place } of explainAll(end)) {
        expect(reason).toMatch(/^[a-z]/);
        expect(place).toBeGreaterThan(0);
      }
      expect(["active-set", "classic"]).toContain(snapshot(end).policy);
    }),
    RUNS,
  );
});

test("replay = live: a log that begins anywhere gives every effect again", () => {
  fc.assert(
    fc.property(histories, fc.nat(119), ({ config, events }, from) => {
      let state = createState(config, 0);
      const begin = from % Math.max(1, events.length);
      let lines: string[] = [];
      for (const [at, event] of events.entries()) {
        if (at === begin) lines = [headerLine(state, { version: "1", wallClock: "" })];
        const decided = decide(state, event);
        state = decided.state;
        lines.push(eventLine(event, decided.effects));
      }
      if (lines.length === 0) return;
      const outcome = replay(lines, { version: "1", force: false });
      expect(outcome).toMatchObject({ kind: "same", events: events.length - begin });
    }),
    RUNS,
  );
});

test("freeze(thaw(x)) = x", () => {
  fc.assert(
    fc.property(histories, ({ end }) => {
      const frozen = JSON.stringify(freeze(end));
      expect(JSON.stringify(freeze(thaw(JSON.parse(frozen))))).toBe(frozen);
    }),
    RUNS,
  );
});
