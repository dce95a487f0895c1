import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { abort, nextEventAtMs, promptTokensMax, step, submit } from "../../src/engine/index.ts";
import type { Discipline, Engine, EngineEvent } from "../../src/engine/index.ts";
import { plainEngine, request } from "./support.ts";

const DISCIPLINES: readonly Discipline[] = ["vllm", "sglang", "slots", "single-pass"];

type Job = {
  readonly atMs: number;
  readonly prompt: number;
  readonly output: number;
  readonly max: number;
  readonly priority: number;
  readonly family: number;
  readonly shared: number;
  readonly abortAfterMs: number | undefined;
};

const job: fc.Arbitrary<Job> = fc.record({
  atMs: fc.integer({ min: 0, max: 3_000 }),
  prompt: fc.integer({ min: 1, max: 150 }),
  output: fc.integer({ min: 1, max: 80 }),
  max: fc.integer({ min: 1, max: 120 }),
  priority: fc.integer({ min: -2, max: 2 }),
  family: fc.integer({ min: 0, max: 2 }),
  shared: fc.integer({ min: 0, max: 9 }),
  abortAfterMs: fc.option(fc.integer({ min: 0, max: 500 }), { nil: undefined, freq: 4 }),
});

const world = fc.record({
  jobs: fc.array(job, { minLength: 1, maxLength: 14 }),
  kvTokens: fc.integer({ min: 96, max: 480 }),
  maxRunning: fc.integer({ min: 1, max: 6 }),
  chunkTokens: fc.integer({ min: 16, max: 128 }),
  queueMax: fc.integer({ min: 1, max: 8 }),
  priorityScheduling: fc.boolean(),
});

type World = typeof world extends fc.Arbitrary<infer Value> ? Value : never;

function engineOf(discipline: Discipline, { jobs: _jobs, ...params }: World): Engine {
  return plainEngine(discipline, { ...params, prefixCaching: discipline !== "single-pass", contextTokens: 400 });
}

/** Submits and aborts at the jobs' times; `looks` are further moments at which the driver happens to look. */
function run(
  engine: Engine,
  jobs: readonly Job[],
  options: { readonly exact: boolean; readonly looks: readonly number[] },
) {
  const { discipline } = engine.params;
  const events: EngineEvent[] = [];
  const taken = new Set<string>();
  const acts = jobs
    .flatMap((one, at) => {
      const atMs = one.atMs + at * 0.001; // distinct moments, as the driver gives them
      const shape = { ...one, output: discipline === "single-pass" ? 0 : one.output, family: String(one.family) };
      const start = {
        atMs,
        act: () => submit(engine, request(`r${at}`, shape), atMs) === undefined && taken.add(`r${at}`),
      };
      if (one.abortAfterMs === undefined) return [start];
      const endMs = atMs + one.abortAfterMs + 0.0005;
      return [start, { atMs: endMs, act: () => events.push(...abort(engine, `r${at}`, endMs)) }];
    })
    .concat(options.looks.map((atMs) => ({ atMs, act: () => 0 })))
    .toSorted((one, other) => one.atMs - other.atMs);
  for (const { atMs, act } of acts) {
    if (options.exact) {
      for (let next = nextEventAtMs(engine); next !== undefined && next < atMs; next = nextEventAtMs(engine)) {
        events.push(...step(engine, next));
        checkMemory(engine);
      }
    }
    events.push(...step(engine, atMs));
    act();
    checkMemory(engine);
  }
  for (let next = nextEventAtMs(engine); next !== undefined; next = nextEventAtMs(engine)) {
    events.push(...step(engine, options.exact ? next : next + 77));
    checkMemory(engine);
  }
  return { events, taken };
}

function checkMemory(engine: Engine): void {
  const { kv, running, waiting, params, sequences } = engine;
  expect(running.length).toBeLessThanOrEqual(params.maxRunning);
  expect(running.length + waiting.length).toBe(sequences.size);
  if (params.discipline === "slots") {
    expect(engine.slots.filter((slot) => slot.sequence !== undefined).length).toBe(running.length);
    return;
  }
  const held = new Map<number, number>();
  for (const sequence of running) {
    expect(sequence.blocks.length * 16).toBeGreaterThanOrEqual(sequence.computedTokens + sequence.scheduledTokens);
    expect(new Set(sequence.blocks).size).toBe(sequence.blocks.length);
    for (const block of sequence.blocks) held.set(block, (held.get(block) ?? 0) + 1);
  }
  for (const sequence of waiting) expect(sequence.blocks).toEqual([]);
  expect(kv.blockCount - kv.freeCount).toBe(held.size);
  for (const [block, refs] of held) expect(kv.refs[block]).toBe(refs);
}

describe.each(DISCIPLINES)("the %s engine, whatever arrives", (discipline) => {
  it("ends every request that it took exactly once, and answers it whole unless it was aborted", () => {
    fc.assert(
      fc.property(world, (given) => {
        const engine = engineOf(discipline, given);
        const { events, taken } = run(engine, given.jobs, { exact: true, looks: [] });
        const ends = events.filter((event) => event.kind === "finished" || event.kind === "aborted");
        expect(ends.map((event) => event.id).toSorted()).toEqual([...taken].toSorted());
        const room = promptTokensMax(engine) + 1;
        for (const event of ends) {
          if (event.kind !== "finished") continue;
          const { prompt, output, max } = given.jobs[Number(event.id.slice(1))]!;
          const wanted = discipline === "single-pass" ? 0 : Math.min(output, max, room - prompt);
          expect(event.generated).toBe(wanted);
        }
        expect(engine.counters.finished + engine.counters.aborted).toBe(taken.size);
        expect(engine.counters.refused).toBe(given.jobs.length - taken.size);
        expect(engine.kv.freeCount).toBe(engine.kv.blockCount);
      }),
      { numRuns: 120 },
    );
  });

  it("never finds more in its cache than the prompt, its last token excepted", () => {
    fc.assert(
      fc.property(world, (given) => {
        const { events } = run(engineOf(discipline, given), given.jobs, { exact: true, looks: [] });
        const generated = new Map<string, number>();
        for (const event of events) {
          if (event.kind === "token") generated.set(event.id, event.generated);
          if (event.kind !== "admitted") continue;
          const { prompt } = given.jobs[Number(event.id.slice(1))]!;
          // After a preemption the generated tokens belong to what must be computed again.
          expect(event.cachedTokens).toBeLessThan(prompt + (generated.get(event.id) ?? 0));
        }
      }),
      { numRuns: 60 },
    );
  });

  it("generates the tokens of a request one after the other, each later than the last", () => {
    fc.assert(
      fc.property(world, (given) => {
        const { events } = run(engineOf(discipline, given), given.jobs, { exact: true, looks: [] });
        const last = new Map<string, { generated: number; atMs: number }>();
        let clockMs = 0;
        for (const event of events) {
          if (event.kind !== "token") continue;
          expect(event.atMs).toBeGreaterThanOrEqual(clockMs);
          clockMs = event.atMs;
          const before = last.get(event.id) ?? { generated: 0, atMs: -1 };
          expect(event.generated).toBe(before.generated + 1);
          expect(event.atMs).toBeGreaterThan(before.atMs);
          last.set(event.id, event);
        }
      }),
      { numRuns: 60 },
    );
  });

  it("gives the same events however late and however often it is looked at", () => {
    fc.assert(
      fc.property(world, fc.array(fc.integer({ min: 0, max: 5_000 }), { maxLength: 40 }), (given, looks) => {
        const exact = run(engineOf(discipline, given), given.jobs, { exact: true, looks: [] });
        const late = run(engineOf(discipline, given), given.jobs, { exact: false, looks });
        expect(JSON.stringify(late.events)).toBe(JSON.stringify(exact.events));
      }),
      { numRuns: 80 },
    );
  });
});
