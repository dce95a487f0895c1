/** Laws of the scheduling core over random sequences of events. The checks look at effects from outside, not at its books. */
import * as fc from "fast-check";
import { expect, test } from "vitest";
import { asReplicaId, asRunId, type ReplicaId } from "../../src/base/ids.ts";
import {
  createState,
  decide,
  eventLine,
  headerLine,
  replay,
  runView,
  snapshot,
  type SchedulerEffect,
  type SchedulerEvent,
  type SchedulerState,
  type SchedulingConfig,
} from "../../src/scheduling/index.ts";
import type { FlightReport, KeyReport, RunReport } from "../../src/wire/admission.ts";
import { PlainClassic } from "../scheduling/plain-classic.ts";
import { eventFor, operations, WORLDS } from "../scheduling/random-events.ts";
import { brief, config, Core, finished, key, linked, probed, replica, requested } from "../scheduling/support.ts";

const RUNS = { numRuns: Number(process.env["LUFTPAUSE_RUNS"] ?? 60) };

/** A random history over one of the pools, as concrete events. */
const histories = fc.tuple(fc.constantFrom(...WORLDS), operations(120)).map(([world, steps]) => {
  const plain = new PlainClassic(world, 0);
  const events: SchedulerEvent[] = [];
  const take = (event: SchedulerEvent | undefined): void => {
    if (event === undefined) return;
    // Time passes in an event of its own, so that admissions which it brings are not mixed up with those of the event.
    const tick = { type: "ticked", nowMs: event.nowMs } as const;
    for (const next of event.nowMs > plain.nowMs ? [tick, event] : [event]) {
      events.push(next);
      plain.decide(next);
    }
  };
  for (const row of world.replicas) take(probed(0, row.replica));
  for (const [number, step] of steps.entries()) take(eventFor(plain, step, number));
  return { world, events };
});

type Watched = {
  readonly state: SchedulerState;
  readonly event: SchedulerEvent;
  readonly effects: readonly SchedulerEffect[];
  /** Admissions, without those that only repeat an old one for a turn that was asked for again. */
  readonly admitted: readonly Extract<SchedulerEffect, { readonly type: "admit-turn" }>[];
};

type History = { readonly world: SchedulingConfig; readonly events: readonly SchedulerEvent[] };

function* watch({ world, events }: History): Generator<Watched> {
  let state = createState(world, 0);
  for (const event of events) {
    const known = event.type === "turn-requested" ? state.turns.get(event.turn) : undefined;
    const repeated = known?.state === "flight" ? known.id : undefined;
    const decided = decide(state, event);
    state = decided.state;
    const { effects } = decided;
    const admitted = effects.filter((effect) => effect.type === "admit-turn").filter(({ turn }) => turn !== repeated);
    yield { state, event, effects, admitted };
  }
}

test("conservation: every turn that was asked for is admitted, held, refused or ended, exactly once at a time", () => {
  fc.assert(
    fc.property(histories, (history) => {
      const open = new Map<string, "held" | "flight">();
      for (const { state, event, effects, admitted } of watch(history)) {
        if (event.type === "turn-requested" && !open.has(event.turn)) open.set(event.turn, "held");
        if (event.type === "turn-pushed-back" || event.type === "turn-withdrawn") open.set(event.turn, "held");
        for (const effect of admitted) {
          expect(open.get(effect.turn)).toBe("held");
          open.set(effect.turn, "flight");
        }
        for (const effect of effects) {
          if (effect.type !== "reject-turn") continue;
          expect(open.get(effect.turn)).toBe("held");
          open.delete(effect.turn);
        }
        // What left without an effect left by an event that ends turns; nothing comes back by itself.
        for (const turn of open.keys()) if (!state.turns.has(turn as never)) open.delete(turn);
        for (const turn of state.turns.values()) {
          const reported = event.type === "dataplane-linked" && event.flights.some((flight) => flight.turn === turn.id);
          if (reported) open.set(turn.id, "flight");
          expect(open.get(turn.id)).toBe(turn.state === "flight" ? "flight" : "held");
        }
        const { turns, replicas } = snapshot(state);
        expect(turns.held + turns.inFlight).toBe(open.size);
        expect(replicas.reduce((sum, row) => sum + row.turnsInFlight, 0)).toBe(turns.inFlight);
      }
    }),
    RUNS,
  );
});

test("no admission over capacity, to an unhealthy replica, or to one that does not serve the turn", () => {
  fc.assert(
    fc.property(histories, (history) => {
      for (const { state, admitted } of watch(history)) {
        const status = new Map(snapshot(state).replicas.map((row) => [row.replica, row]));
        for (const effect of admitted) {
          const row = status.get(effect.replica)!;
          expect(row.healthy && row.kind === "generative").toBe(true);
          const bound = Math.max(1, (row.limit ?? Number.POSITIVE_INFINITY) - row.foreignLoad);
          expect(row.turnsInFlight).toBeLessThanOrEqual(bound);
          const turn = state.turns.get(effect.turn);
          if (turn === undefined) continue;
          expect(row.models).toContain(turn.model);
          expect(state.replicas.get(effect.replica)?.speaks ?? ["chat"]).toContain(turn.api);
        }
      }
    }),
    RUNS,
  );
});

test("pin respected: a run that generates or is paused goes only to its replica while that is healthy and serves it", () => {
  const freeing = ["finished", "failed", "abandoned", "pushed-back", "withdrawn"].map((end) => `turn-${end}`);
  const changing = ["replica-probed", "pool-configured", "dataplane-linked"];
  const mayFree = [...changing, ...freeing, "turns-named", "dataplane-lost", "ticked"];
  fc.assert(
    fc.property(histories, (history) => {
      let bound = new Map<string, ReplicaId>();
      for (const { state, event, admitted } of watch(history)) {
        for (const effect of admitted) {
          const turn = state.turns.get(effect.turn);
          const home = turn === undefined ? undefined : bound.get(`${turn.run.principal.id} ${turn.run.id}`);
          // Only runs that were bound before and that this event cannot have set free.
          if (turn === undefined || home === undefined || mayFree.includes(event.type)) continue;
          const replica = state.replicas.get(home);
          const serves = replica?.models.includes(turn.model) && (replica.speaks ?? ["chat"]).includes(turn.api);
          if (replica?.healthy === true && serves === true) expect(effect.replica).toBe(home);
          // A turn for a model that its home does not serve moves the pin, for the next one in this very event too.
          if (!turn.side) bound.set(`${turn.run.principal.id} ${turn.run.id}`, effect.replica);
        }
        bound = new Map();
        for (const { id, runs } of state.principals.values()) {
          for (const run of runs.values()) {
            const view = runView(state, id, run.id);
            const isBound = view?.phase === "generating" || view?.phase === "paused";
            if (isBound && view.replica !== undefined) bound.set(`${id} ${run.id}`, view.replica);
          }
        }
      }
    }),
    RUNS,
  );
});

test("room kept: after a batch admission a capped replica still has a slot for each paused interactive run", () => {
  fc.assert(
    fc.property(histories, (history) => {
      for (const { state, admitted } of watch(history)) {
        for (const row of snapshot(state).replicas) {
          const last = admitted.findLast((effect) => effect.replica === row.replica);
          if (last === undefined || state.turns.get(last.turn)?.class !== "batch" || row.limit === null) continue;
          expect(row.turnsInFlight + row.keptRoom).toBeLessThanOrEqual(Math.max(1, row.limit - row.foreignLoad));
        }
      }
    }),
    RUNS,
  );
});

test("replay = live: a log that begins anywhere gives every effect again", () => {
  fc.assert(
    fc.property(histories, fc.nat(119), ({ world, events }, from) => {
      let state = createState(world, 0);
      const begin = from % Math.max(1, events.length);
      let lines: string[] = [];
      for (const [at, event] of events.entries()) {
        if (at === begin) lines = [headerLine(state, { version: "1", wallClock: "" })];
        const decided = decide(state, event);
        state = decided.state;
        lines.push(eventLine(event, decided.effects));
      }
      if (lines.length === 0) return;
      expect(replay(lines, { version: "1", force: false })).toMatchObject({
        kind: "same",
        events: events.length - begin,
      });
    }),
    RUNS,
  );
});

test("the same history gives the same effects, however often", () => {
  fc.assert(
    fc.property(histories, (history) => {
      const all = (): string => JSON.stringify([...watch(history)].map(({ effects }) => effects));
      expect(all()).toBe(all());
    }),
    { numRuns: 20 },
  );
});

/** What a dataplane with these turns would hand over. */
function reportsOf(state: SchedulerState): { runs: RunReport[]; flights: FlightReport[]; keys: KeyReport[] } {
  const runs: RunReport[] = [];
  for (const { id: principal, runs: known } of state.principals.values()) {
    for (const run of known.values()) {
      const { caller, class: serviceClass, last, replica: home, lastMs, pausedMs } = run;
      runs.push({
        run: run.id,
        principal,
        caller,
        class: serviceClass,
        phase: last,
        replica: home?.config.replica,
        quietMs: state.nowMs - lastMs,
        ...(last === "paused" ? { pausedMs: state.nowMs - pausedMs } : {}),
      });
    }
  }
  const flights = [...state.turns.values()]
    .filter((turn) => turn.state === "flight")
    .map((turn) => ({
      turn: turn.id,
      run: turn.run.id,
      principal: turn.run.principal.id,
      caller: turn.caller.id,
      class: turn.class,
      model: turn.model,
      api: turn.api,
      source: turn.source,
      replica: turn.replica!.config.replica,
      side: turn.side,
      ageMs: state.nowMs - turn.arrivalMs,
    }));
  const runKeys = runs
    .slice(0, 3)
    .map(({ run, principal }, at) => ({ run, principal, keys: [key(`tool-calls:r${at}`)], ageMs: 0 }));
  return { runs, flights, keys: runKeys };
}

test("resync = never restarted: a fresh scheduler that is told everything has the same pins, phases, room and slots", () => {
  fc.assert(
    fc.property(histories, ({ world, events }) => {
      let live = createState(world, 0);
      for (const event of events) {
        // A dataplane reports where its turns ran; random reports and replaced engines make that another story.
        const knownHere = ["pool-configured", "dataplane-linked"].includes(event.type);
        if (!knownHere && !(event.type === "replica-probed" && event.replaced)) live = decide(live, event).state;
      }
      const { nowMs } = live;
      // Held turns are dropped with the link and asked for again; here they are dropped on both sides.
      for (const dataplane of live.dataplanes.keys()) {
        live = decide(live, { type: "dataplane-lost", nowMs, dataplane }).state;
      }
      let fresh = createState(world, nowMs);
      for (const { config: row, healthy, models, speaks } of live.replicas.values()) {
        fresh = decide(fresh, probed(nowMs, row.replica, { healthy, models, speaks })).state;
      }
      fresh = decide(fresh, linked(nowMs, "d", reportsOf(live))).state;
      const seen = (state: SchedulerState): unknown => ({
        replicas: snapshot(state).replicas.map((row) => [row.replica, row.turnsInFlight, row.keptRoom]),
        counts: snapshot(state).runCounts,
        runs: [...live.principals.values()].flatMap(({ id, runs }) =>
          [...runs.keys()].toSorted().map((run) => {
            const { turns, ...view } = runView(state, id, asRunId(run)) ?? { turns: 0 };
            return view;
          }),
        ),
      });
      expect(seen(fresh)).toEqual(seen(live));
    }),
    RUNS,
  );
});

const GROUPS = fc.array(fc.integer({ min: 1, max: 30 }), { minLength: 2, maxLength: 6 });

/** Callers with so many held batch or interactive turns each; then turns end one by one, the oldest first. */
function serve(backlogs: readonly number[], slots: number, serviceClass: "interactive" | "batch"): string[] {
  const core = Core.up({ replicas: [replica("a", { maxInFlight: slots })] });
  for (let at = 0; at < slots; at += 1) core.ask(`first${at}`, { run: `first${at}`, caller: "first" });
  for (const [caller, turns] of backlogs.entries()) {
    for (let at = 0; at < turns; at += 1) {
      core.ask(`${caller}/${at}`, { run: `${caller}/${at}`, caller: `c${caller}`, class: serviceClass });
    }
  }
  const running = Array.from({ length: slots }, (_, at) => `first${at}`);
  const order: string[] = [];
  for (let next = running.shift(); next !== undefined; next = running.shift()) {
    for (const admission of core.finish(next)) {
      const turn = admission.split(">")[0]!;
      order.push(turn);
      running.push(turn);
    }
  }
  return order;
}

test("no starvation: with finite demand every held turn is admitted, in both classes", () => {
  fc.assert(
    fc.property(
      GROUPS,
      fc.integer({ min: 1, max: 4 }),
      fc.constantFrom("interactive", "batch"),
      (backlogs, slots, serviceClass) => {
        const order = serve(backlogs, slots, serviceClass);
        expect(order).toHaveLength(backlogs.reduce((sum, turns) => sum + turns, 0));
      },
    ),
    { numRuns: 30 },
  );
});

test("fairness: of k backlogged callers of equal weight none waits for more than k admissions", () => {
  fc.assert(
    fc.property(GROUPS, fc.integer({ min: 1, max: 4 }), (backlogs, slots) => {
      const order = serve(backlogs, slots, "interactive").map((turn) => Number(turn.split("/")[0]));
      for (const [caller, turns] of backlogs.entries()) {
        const places = order.flatMap((owner, place) => (owner === caller ? [place] : []));
        expect(places).toHaveLength(turns);
        // While it has held turns it is admitted at least once in k admissions: k - 1 of others may stand between.
        const gaps = places.map((place, at) => place - (places[at - 1] ?? -1));
        expect(Math.max(...gaps)).toBeLessThanOrEqual(backlogs.length);
      }
    }),
    { numRuns: 40 },
  );
});

test("fairness: a caller with 5,000 held turns does not hold up fifty callers with one each", () => {
  let state = createState(config({ replicas: [replica("a", { maxInFlight: 10 })] }), 0);
  const feed = (event: SchedulerEvent): string[] => {
    const decided = decide(state, event);
    state = decided.state;
    return brief(decided.effects);
  };
  feed(probed(0, "a"));
  for (let at = 0; at < 5_010; at += 1) feed(requested(0, `big${at}`, { run: `big${at}`, caller: "big" }));
  for (let at = 0; at < 50; at += 1) feed(requested(1, `small${at}`, { run: `small${at}`, caller: `c${at}` }));
  const order: string[] = [];
  for (let at = 0; at < 10; at += 1) order.push(...feed(finished(2, `big${at}`)));
  for (let at = 0; at < 45; at += 1) order.push(...feed(finished(3, order[at]!.split(">")[0]!)));
  // Ten slots: at most every tenth admission or so goes to the big caller until all fifty were served.
  expect(order.filter((turn) => turn.startsWith("small"))).toHaveLength(50);
  expect(state.replicas.get(asReplicaId("a"))?.inFlight).toBe(10);
});
