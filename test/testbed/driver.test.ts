import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { Clock } from "../../src/base/clock.ts";
import { createRandom } from "../../src/base/random.ts";
import {
  abort,
  createEngine,
  nextEventAtMs,
  paramsForProfile,
  PROFILES,
  step,
  submit,
} from "../../src/engine/index.ts";
import type { Discipline, Engine, EngineEvent, EngineRequest } from "../../src/engine/index.ts";
import { createDriver, MACHINE_CLOCK } from "../../src/testbed/driver.ts";
import { request } from "../engine/support.ts";

type Act = { readonly atMs: number } & ({ readonly submit: EngineRequest } | { readonly abort: string });

function laptop(discipline: Discipline, kvTokens: number): Engine {
  return createEngine(paramsForProfile(discipline, PROFILES["laptop-1b-x2"], { kvTokens, maxRunning: 4 }), 0);
}

/** The same acts at the same moments under a virtual clock. */
function replay(engine: Engine, acts: readonly Act[]): EngineEvent[] {
  const events: EngineEvent[] = [];
  for (const act of acts) {
    for (let next = nextEventAtMs(engine); next !== undefined && next < act.atMs; next = nextEventAtMs(engine)) {
      events.push(...step(engine, next));
    }
    events.push(...step(engine, act.atMs));
    if ("submit" in act) submit(engine, act.submit, act.atMs);
    else events.push(...abort(engine, act.abort, act.atMs));
  }
  for (let next = nextEventAtMs(engine); next !== undefined; next = nextEventAtMs(engine))
    events.push(...step(engine, next));
  return events;
}

/** A clock whose timers fire late, by up to `lateMs`, as on a busy machine. */
function lateClock(seed: number, lateMs: number): Clock & { run(): void; at(atMs: number, action: () => void): void } {
  const random = createRandom(seed);
  let now = 1_000;
  let order = 0;
  const timers = new Map<number, { readonly atMs: number; readonly action: () => void }>();
  const set = (atMs: number, action: () => void): number => {
    order += 1;
    timers.set(order, { atMs, action });
    return order;
  };
  return {
    nowMs: () => now,
    after(delayMs, action) {
      const id = set(now + Math.max(0, delayMs) + random.next() * lateMs, action);
      return () => timers.delete(id);
    },
    at: (atMs, action) => void set(1_000 + atMs, action),
    run() {
      for (;;) {
        const next = [...timers].toSorted((one, other) => one[1].atMs - other[1].atMs || one[0] - other[0])[0];
        if (next === undefined) return;
        timers.delete(next[0]);
        now = Math.max(now, next[1].atMs);
        next[1].action();
      }
    },
  };
}

const jobs = fc.array(
  fc.record({
    atMs: fc.integer({ min: 0, max: 2_000 }),
    prompt: fc.integer({ min: 1, max: 400 }),
    output: fc.integer({ min: 1, max: 40 }),
    abortAfterMs: fc.option(fc.integer({ min: 0, max: 800 }), { nil: undefined }),
  }),
  { minLength: 1, maxLength: 10 },
);

describe("the driver", () => {
  it.each(["vllm", "sglang", "slots"] as const)(
    "gives the events of a virtual clock, byte for byte, when its timers are late (%s)",
    (discipline) => {
      fc.assert(
        fc.property(jobs, fc.integer(), fc.constantFrom(0.1, 1, 3), (given, seed, timeScale) => {
          const clock = lateClock(seed, 40);
          const events: EngineEvent[] = [];
          const acts: Act[] = [];
          const engine = laptop(discipline, 1_200);
          const driver = createDriver({ engine, clock, timeScale, onEvents: (some) => void events.push(...some) });
          for (const [at, { atMs, prompt, output, abortAfterMs }] of given.entries()) {
            const wanted = request(`r${at}`, { prompt, output });
            clock.at(atMs * timeScale, () => {
              driver.submit(wanted);
              acts.push({ atMs: engine.nowMs, submit: wanted });
            });
            if (abortAfterMs === undefined) continue;
            clock.at((atMs + abortAfterMs) * timeScale, () => {
              driver.abort(`r${at}`);
              acts.push({ atMs: engine.nowMs, abort: `r${at}` });
            });
          }
          clock.run();
          // D1: a record of the moments is enough to play it again.
          for (const [at, act] of acts.entries()) expect(act.atMs).toBeGreaterThan(acts[at - 1]?.atMs ?? -1);
          expect(JSON.stringify(events)).toBe(JSON.stringify(replay(laptop(discipline, 1_200), acts)));
        }),
        { numRuns: 60 },
      );
    },
  );

  it("gives the events of a virtual clock under the machine's own timers", async () => {
    const events: EngineEvent[] = [];
    const acts: Act[] = [];
    const engine = laptop("sglang", 1_200);
    const ended = Promise.withResolvers<void>();
    const onEvents = (some: readonly EngineEvent[]): void => {
      events.push(...some);
      if (engine.counters.finished === 6) ended.resolve();
    };
    const driver = createDriver({ engine, clock: MACHINE_CLOCK, timeScale: 0.2, onEvents });
    for (let at = 0; at < 6; at += 1) {
      const wanted = request(`r${at}`, { prompt: 200 + at, output: 20 + at });
      driver.submit(wanted);
      acts.push({ atMs: engine.nowMs, submit: wanted });
      await new Promise((resolve) => setImmediate(resolve));
    }
    await ended.promise;
    expect(JSON.stringify(events)).toBe(JSON.stringify(replay(laptop("sglang", 1_200), acts)));
  });

  it("sets no timer while the engine has nothing to do", () => {
    let timers = 0;
    const clock = lateClock(1, 1);
    const counted: Clock = {
      nowMs: () => clock.nowMs(),
      after: (delayMs, action) => ((timers += 1), clock.after(delayMs, action)),
    };
    const driver = createDriver({
      engine: laptop("vllm", 1_200),
      clock: counted,
      timeScale: 1,
      onEvents: () => undefined,
    });
    driver.catchUp();
    expect(timers).toBe(0);
    driver.submit(request("a", { prompt: 10, output: 3 }));
    clock.run();
    // One to begin, one per step.
    expect(timers).toBe(4);
    driver.catchUp();
    expect(timers).toBe(4);
  });

  it("lets no simulated time pass while it is frozen", () => {
    const clock = lateClock(1, 0);
    const events: EngineEvent[] = [];
    const engine = laptop("vllm", 1_200);
    const driver = createDriver({ engine, clock, timeScale: 1, onEvents: (some) => void events.push(...some) });
    driver.submit(request("a", { prompt: 10, output: 3 }));
    clock.at(20, () => driver.freeze(true));
    let thawedMs = 0;
    clock.at(90_000, () => {
      driver.freeze(false);
      thawedMs = driver.nowMs();
    });
    clock.run();
    const finished = events.at(-1);
    expect(finished?.kind).toBe("finished");
    expect(finished?.atMs).toBeLessThan(100);
    expect(thawedMs).toBeCloseTo(20, 6);
    expect(clock.nowMs()).toBeGreaterThan(90_000);
  });
});
