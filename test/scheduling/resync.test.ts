/** Links, resync and what time alone ends (spec 2). */
import { describe, expect, test } from "vitest";
import { asCallerId, asDataplaneId, asPrincipalId, asReplicaId, asRunId, asTurnId } from "../../src/base/ids.ts";
import { runView, snapshot } from "../../src/scheduling/index.ts";
import type { FlightReport, RunReport } from "../../src/wire/admission.ts";
import { Core, key, linked, replica } from "./support.ts";

const two = { replicas: [replica("a", { maxInFlight: 1 }), replica("b", { maxInFlight: 1 })] };
const who = { principal: asPrincipalId("p"), caller: asCallerId("c"), class: "interactive" } as const;

const runReport = (run: string, about: Partial<RunReport> = {}): RunReport => ({
  ...who,
  run: asRunId(run),
  phase: "idle",
  replica: asReplicaId("a"),
  quietMs: 100,
  ...about,
});

const flightReport = (turn: string, run: string, about: Partial<FlightReport> = {}): FlightReport => ({
  ...who,
  turn: asTurnId(turn),
  run: asRunId(run),
  model: "m",
  api: "chat",
  source: "header",
  replica: asReplicaId("a"),
  side: false,
  ageMs: 500,
  ...about,
});

const view = (core: Core, run: string) => runView(core.state, who.principal, asRunId(run));
const lose = (core: Core, name = "d"): string[] =>
  core.feed({ type: "dataplane-lost", nowMs: core.nowMs, dataplane: asDataplaneId(name) });

describe("resync after a restart of the scheduler", () => {
  test("pins, kept room and slots are as before", () => {
    const core = Core.up(two);
    const runs = [
      runReport("paused", { phase: "paused", pausedMs: 1_000, quietMs: 1_000, replica: asReplicaId("b") }),
      runReport("idle"),
    ];
    core.feed(linked(0, "d", { runs, flights: [flightReport("t1", "busy")] }));
    expect(snapshot(core.state).replicas.map((row) => [row.turnsInFlight, row.keptRoom])).toEqual([
      [1, 0],
      [0, 1],
    ]);
    expect(core.ask("t2", { run: "paused" })).toEqual(["t2>b"]);
    expect(core.ask("t3", { run: "busy" })).toEqual([]);
    expect(core.why("t3")).toContain("pinned to a full replica (a");
    expect(view(core, "idle")).toMatchObject({ phase: "idle", replica: "a", quietMs: 100 });
  });

  test("a model that a dataplane saw stays known, though its engine is ill while the scheduler starts", () => {
    const core = new Core({ replicas: [replica("a", { models: [] }), replica("b", { models: [] })] });
    core.probe("a", { healthy: false });
    core.probe("b", { models: ["other"] });
    const models = [
      { replica: asReplicaId("a"), models: ["m"] },
      { replica: asReplicaId("b"), models: ["stale"] },
      { replica: asReplicaId("gone"), models: ["lost"] },
    ];
    core.feed(linked(0, "d", { models }));
    expect(core.ask("t1")).toEqual([]);
    expect(core.why("t1")).toBe("no healthy replica");
    expect(core.ask("t2", { model: "stale" })).toEqual(["t2!model_not_found"]);
    expect(core.ask("t3", { model: "lost" })).toEqual(["t3!model_not_found"]);
    expect(core.probe("a", { models: ["m"] })).toEqual(["t1>a"]);
  });

  test("recognition goes on with the keys that dataplanes hand over", () => {
    const core = Core.up(two);
    const keys = [{ run: asRunId("r"), principal: who.principal, keys: [key("tool-calls:x")], ageMs: 5 }];
    core.feed(linked(0, "d", { runs: [runReport("r")], keys }));
    core.ask("t1", { keys: ["tool-calls:x"] });
    expect(view(core, "r")?.turns).toBe(1);
  });

  test("a turn that was in flight before can be given back by its engine", () => {
    const core = Core.up(two);
    core.feed(linked(0, "d", { flights: [flightReport("t1", "r")] }));
    core.probe("a", { healthy: false });
    expect(core.pushBack("t1", 0)).toEqual(["t1>b"]);
  });

  test("room is kept only for what is left of its time", () => {
    const core = Core.up({ ...two, pausedRoomMs: 120_000 });
    const paused = { phase: "paused", quietMs: 100_000, pausedMs: 100_000 } as const;
    core.feed(linked(0, "d", { runs: [runReport("r", paused), runReport("s", { ...paused, pausedMs: 130_000 })] }));
    expect(snapshot(core.state).replicas[0]?.keptRoom).toBe(1);
    core.after(20_000).tick();
    expect(snapshot(core.state).replicas[0]?.keptRoom).toBe(0);
  });

  test("a turn on a replica that is not configured any more is counted until it ends", () => {
    const core = Core.up(two);
    core.feed(linked(0, "d", { flights: [flightReport("t1", "r", { replica: asReplicaId("gone") })] }));
    expect(snapshot(core.state).turns.inFlight).toBe(1);
    core.finish("t1");
    expect(snapshot(core.state).replicas.map((row) => row.replica)).toEqual(["a", "b"]);
  });
});

describe("resync after a short outage", () => {
  test("turns that are still reported go on; those that are not have ended and free their slots", () => {
    const core = Core.up(two);
    core.ask("t1", { run: "r" });
    core.ask("t2", { run: "s" });
    core.ask("held", { run: "h", dataplane: "other" });
    lose(core);
    expect(core.feed(linked(0, "d", { flights: [flightReport("t1", "r")] }))).toEqual(["held>b"]);
    expect(snapshot(core.state).turns.inFlight).toBe(2);
  });

  test("what became of a run during the outage is taken over", () => {
    const core = Core.up(two);
    core.ask("t1", { run: "r" });
    core.after(1_000);
    lose(core);
    core.after(2_000).feed(linked(3_000, "d", { runs: [runReport("r", { phase: "paused", quietMs: 500 })] }));
    expect(view(core, "r")).toMatchObject({ phase: "paused", quietMs: 500 });
    expect(snapshot(core.state).replicas[0]?.keptRoom).toBe(1);
  });

  test("of several dataplanes the latest report wins, in whatever order they come", () => {
    const reports = [
      linked(0, "d1", { runs: [runReport("r", { replica: asReplicaId("a"), quietMs: 9_000 })] }),
      linked(0, "d2", { runs: [runReport("r", { replica: asReplicaId("b"), quietMs: 1_000, phase: "paused" })] }),
    ];
    for (const order of [reports, reports.toReversed()]) {
      const core = Core.up(two);
      for (const report of order) core.feed(report);
      expect(view(core, "r")).toMatchObject({ replica: "b", phase: "paused", quietMs: 1_000 });
    }
  });
});

describe("a lost dataplane", () => {
  test("its held turns leave at once, since it asks for them again", () => {
    const core = Core.up(two);
    for (const name of ["1", "2", "3"]) core.ask(`t${name}`, { run: name });
    expect(snapshot(core.state).turns.held).toBe(1);
    lose(core);
    expect(snapshot(core.state).turns).toEqual({ held: 0, inFlight: 2 });
  });

  test("its turns in flight stay counted for 10 s, then their slots are free", () => {
    const core = Core.up(two);
    core.ask("t1", { run: "1" });
    core.ask("t2", { run: "2" });
    core.ask("t3", { run: "3", dataplane: "other" });
    lose(core);
    expect(core.after(9_999).tick()).toEqual([]);
    expect(core.after(1).tick()).toEqual(["t3>a"]);
    expect(snapshot(core.state).dataplanes.map((row) => row.dataplane)).toEqual(["other"]);
  });

  test("asked again under the same id, an admitted turn is admitted to the same replica, once", () => {
    const core = Core.up(two);
    core.ask("t1", { run: "1" });
    expect(core.ask("t1", { run: "1" })).toEqual(["t1>a"]);
    expect(snapshot(core.state).turns.inFlight).toBe(1);
    core.ask("t2", { run: "2" });
    core.ask("t3", { run: "3" });
    expect(core.ask("t3", { run: "3" })).toEqual([]);
    expect(snapshot(core.state).turns.held).toBe(1);
  });
});

describe("signs of life", () => {
  const named = (core: Core, turns: readonly string[]): string[] =>
    core.feed({ type: "turns-named", nowMs: core.nowMs, dataplane: asDataplaneId("d"), turns: turns.map(asTurnId) });

  test("a turn that its dataplane no longer names ends at once", () => {
    const core = Core.up(two);
    core.ask("t1", { run: "1" });
    core.ask("t2", { run: "2" });
    core.ask("t3", { run: "3" });
    expect(named(core, ["t2", "t3"])).toEqual(["t3>a"]);
  });

  test("a named turn is counted however long it takes", () => {
    const core = Core.up(two);
    core.ask("t1", { run: "1" });
    for (let minute = 0; minute < 45; minute += 1) {
      named(core.after(60_000), ["t1"]);
      core.tick();
    }
    expect(snapshot(core.state).turns.inFlight).toBe(1);
    expect(view(core, "1")?.phase).toBe("generating");
  });

  test("10 min without a sign of life end a turn in flight; held ones do not expire", () => {
    const core = Core.up({ replicas: [replica("a", { maxInFlight: 1 })] });
    core.ask("t1", { run: "1" });
    core.ask("t2", { run: "2" });
    expect(core.after(599_999).tick()).toEqual([]);
    expect(core.after(1).tick()).toEqual(["t2>a"]);
    expect(core.after(599_999).tick()).toEqual([]);
    expect(snapshot(core.state).turns.inFlight).toBe(1);
  });
});

describe("runs", () => {
  test("one without a turn for 30 min is forgotten: its next turn starts unpinned", () => {
    const core = Core.up(two);
    core.ask("t1", { run: "r" });
    core.pause("t1");
    core.after(1_799_999).tick();
    expect(view(core, "r")?.phase).toBe("paused");
    core.after(1).tick();
    expect(view(core, "r")).toBeUndefined();
    core.ask("x", { run: "x" });
    expect(core.ask("t2", { run: "r" })).toEqual(["t2>b"]);
  });

  test("a held turn keeps its run, however long it is held", () => {
    const core = new Core();
    core.ask("t1", { run: "r" });
    core.after(7_200_000).tick();
    expect(view(core, "r")?.phase).toBe("held");
  });

  test("an ended run is forgotten at once, or when its last open turn ends", () => {
    const core = Core.up(two);
    core.ask("t1", { run: "r" });
    core.feed({ type: "run-ended", nowMs: 0, run: asRunId("r"), principal: who.principal });
    expect(view(core, "r")?.phase).toBe("generating");
    core.pause("t1");
    expect(view(core, "r")).toBeUndefined();
    expect(snapshot(core.state).replicas[0]?.keptRoom).toBe(0);
  });

  test("another principal cannot end a run", () => {
    const core = Core.up(two);
    core.ask("t1", { run: "r" });
    core.finish("t1");
    core.feed({ type: "run-ended", nowMs: 0, run: asRunId("r"), principal: asPrincipalId("q") });
    expect(view(core, "r")?.phase).toBe("idle");
  });

  test("nothing is kept of callers and principals that have neither turns nor runs", () => {
    const core = Core.up(two);
    core.ask("t1", { run: "r", caller: "x" });
    core.finish("t1");
    expect(core.state.principals.get(who.principal)?.callers.size).toBe(0);
    core.after(1_800_000).tick();
    expect(core.state.principals.size).toBe(0);
  });
});

test("a turn that was withdrawn before a byte is held again with its arrival; too late changes nothing", () => {
  const core = Core.up({ replicas: [replica("a", { maxInFlight: 1 })] });
  core.ask("t1", { run: "1", class: "batch" });
  core.ask("t2", { run: "2" });
  core.feed({ type: "turn-too-late", nowMs: 0, turn: asTurnId("t1") });
  expect(core.where("t1")).toBe("a");
  expect(core.feed({ type: "turn-withdrawn", nowMs: 0, turn: asTurnId("t1") })).toEqual(["t2>a"]);
  expect(core.place("t1")).toBe(1);
});
