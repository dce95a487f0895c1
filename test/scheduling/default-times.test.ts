/** The scheduling core with the numbers of an empty config: when each expiry strikes, to the millisecond. */
import { beforeEach, describe, expect, test } from "vitest";
import { asCallerId, asDataplaneId, asPrincipalId, asReplicaId, asRunId, asTurnId } from "../../src/base/ids.ts";
import { endpointsOf, schedulingOf } from "../../src/cli/config/resolve.ts";
import { configSchema } from "../../src/cli/config/schema.ts";
import {
  createState,
  decide,
  explain,
  snapshot,
  type SchedulerEffect,
  type SchedulerEvent,
  type SchedulerState,
} from "../../src/scheduling/index.ts";

const config = configSchema.parse({
  endpoints: [{ name: "a", url: "http://127.0.0.1:1", models: ["m"], speaks: ["chat"], maxInFlight: 2 }],
});

// Distributes over the kinds of events, so that a literal is checked against its own kind.
type Untimed<Event> = Event extends SchedulerEvent ? Omit<Event, "nowMs"> : never;

let state: SchedulerState;

function at(nowMs: number, event: Untimed<SchedulerEvent>): readonly SchedulerEffect[] {
  const outcome = decide(state, { ...event, nowMs });
  state = outcome.state;
  return outcome.effects;
}

const dataplane = asDataplaneId("d");

function request(nowMs: number, turn: string, run: string, serviceClass: "interactive" | "batch" = "interactive") {
  return at(nowMs, {
    type: "turn-requested",
    dataplane,
    turn: asTurnId(turn),
    principal: asPrincipalId("p"),
    caller: asCallerId(""),
    class: serviceClass,
    model: "m",
    api: "chat",
    run: asRunId(run),
    keys: [],
    freshRun: asRunId(`fresh-${turn}`),
    side: false,
    heldMs: 0,
  });
}

const finish = (nowMs: number, turn: string, paused: boolean) =>
  at(nowMs, { type: "turn-finished", turn: asTurnId(turn), usage: {}, finishReason: "stop", paused, keys: [] });

const tick = (nowMs: number) => at(nowMs, { type: "ticked" });

beforeEach(() => {
  state = createState(schedulingOf(config, endpointsOf(config)), 0);
  at(0, { type: "dataplane-linked", dataplane, runs: [], flights: [], keys: [], models: [] });
  at(0, {
    type: "replica-probed",
    replica: asReplicaId("a"),
    healthy: true,
    load: undefined,
    models: undefined,
    speaks: undefined,
    engine: "vllm",
    replaced: false,
  });
});

describe("an expiry of the defaults", () => {
  test("room is kept for a paused interactive run for 1,800 s and no longer", () => {
    request(0, "t1", "paused");
    finish(1_000, "t1", true);
    request(2_000, "t2", "other");
    expect(request(3_000, "t3", "batch", "batch")).toEqual([]);
    expect(explain(state, asTurnId("t3"))?.reason).toContain("room kept for 1 paused interactive run");
    for (const nowMs of [500_000, 1_000_000, 1_500_000]) {
      at(nowMs, { type: "turns-named", dataplane, turns: [asTurnId("t2"), asTurnId("t3")] });
    }
    expect(tick(1_800_999)).toEqual([]);
    expect(tick(1_801_000)).toMatchObject([{ type: "admit-turn", turn: "t3" }]);
  });

  test("a turn without a sign of life is dropped after 10 min, one that is named is not", () => {
    request(0, "t1", "r1");
    at(60_000, { type: "turns-named", dataplane, turns: [asTurnId("t1")] });
    tick(659_999);
    expect(snapshot(state).turns.inFlight).toBe(1);
    tick(660_000);
    expect(snapshot(state).turns.inFlight).toBe(0);
  });

  test("a turn that its dataplane does not name any more ends at once", () => {
    request(0, "t1", "r1");
    at(60_000, { type: "turns-named", dataplane, turns: [] });
    expect(snapshot(state).turns.inFlight).toBe(0);
  });

  test("a run without a turn for 30 min is forgotten", () => {
    request(0, "t1", "r1");
    finish(1_000, "t1", false);
    const runs = () => snapshot(state).runCounts.interactive.idle;
    tick(1_800_999);
    expect(runs()).toBe(1);
    tick(1_801_000);
    expect(runs()).toBe(0);
  });

  test.each([
    [59_999, "kept"],
    [60_000, "late"],
  ])("a retry %i ms after the failure finds its place %s", (afterMs, place) => {
    request(0, "full-1", "f1");
    request(0, "full-2", "f2");
    request(10, "lost", "kept");
    at(20, { type: "turn-abandoned", turn: asTurnId("lost"), reason: "client-left" });
    request(1_000, "rival", "late");
    request(20 + afterMs, "retry", "kept");
    const effects = finish(200_000, "full-1", false);
    expect(effects).toMatchObject([{ type: "admit-turn", run: place }]);
  });

  test("a dataplane that is lost keeps its turns in flight counted for 10 s", () => {
    request(0, "t1", "r1");
    at(5_000, { type: "dataplane-lost", dataplane });
    tick(14_999);
    expect(snapshot(state).turns.inFlight).toBe(1);
    tick(15_000);
    expect(snapshot(state).turns.inFlight).toBe(0);
  });
});

test("the host ticks once a second by default", () => {
  expect(config.scheduler.tickMs).toBe(1_000);
});
