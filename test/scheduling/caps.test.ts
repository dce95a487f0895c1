/** Admission by the engine's own load (spec 2). */
import { describe, expect, test } from "vitest";
import { asReplicaId } from "../../src/base/ids.ts";
import { snapshot } from "../../src/scheduling/index.ts";
import { Core, probed, replica } from "./support.ts";

const cap = (core: Core, name = "a"): number | null | undefined =>
  snapshot(core.state).replicas.find((row) => row.replica === name)?.cap;

/** Fills replica a with `count` turns of runs of their own. */
function fill(core: Core, count: number): void {
  for (let at = 0; at < count; at += 1) core.ask(`f${at}`, { run: `filler${at}` });
}

describe("the measured cap", () => {
  test("a replica starts open and takes turns without a bound", () => {
    const core = Core.up();
    fill(core, 200);
    expect(core.state.flightCount).toBe(200);
  });

  test("waiting above 0 caps it at what ran in that same sample, at least 1", () => {
    const core = Core.up();
    core.cap("a", 3);
    expect(cap(core)).toBe(3);
    core.probe("a", { load: { running: 0, waiting: 4 } });
    expect(cap(core)).toBe(1);
  });

  test("while capped, waiting lowers the cap to the running count and never raises it", () => {
    const core = Core.up();
    core.cap("a", 3);
    core.cap("a", 9);
    expect(cap(core)).toBe(3);
    core.cap("a", 2);
    expect(cap(core)).toBe(2);
  });

  test("without waiting the cap rises by one per probe under `step`", () => {
    const core = Core.up();
    fill(core, 4);
    core.cap("a", 2);
    core.probe("a", { load: { running: 4, waiting: 0 } });
    expect(cap(core)).toBe(3);
  });

  test("without waiting the cap is removed at once under `at-once`", () => {
    const core = Core.up({ capRelease: "at-once" });
    fill(core, 4);
    core.cap("a", 2);
    core.probe("a", { load: { running: 4, waiting: 0 } });
    expect(cap(core)).toBeNull();
  });

  test("the cap is removed when fewer turns than the cap were in flight at five probes in a row", () => {
    const core = Core.up();
    core.cap("a", 2);
    const seen = Array.from({ length: 5 }, () => {
      core.probe("a", { load: { running: 0, waiting: 0 } });
      return cap(core);
    });
    expect(seen).toEqual([3, 4, 5, 6, null]);
  });

  test("a probe at which the cap was full begins the five anew", () => {
    const core = Core.up();
    core.cap("a", 2);
    for (let at = 0; at < 4; at += 1) core.probe("a", { load: { running: 0, waiting: 0 } });
    expect(cap(core)).toBe(6);
    fill(core, 6);
    core.probe("a", { load: { running: 6, waiting: 0 } });
    for (let at = 0; at < 6; at += 1) core.finish(`f${at}`);
    for (let at = 0; at < 4; at += 1) core.probe("a", { load: { running: 0, waiting: 0 } });
    expect(cap(core)).toBe(11);
  });

  test("a sample speaks for the moment at which its poll was sent", () => {
    const core = Core.up();
    core.cap("a", 1);
    for (let at = 0; at < 4; at += 1) core.probe("a", { load: { running: 0, waiting: 0 } });
    // Idle when the poll goes out, busy when its answer comes: the fifth quiet probe all the same.
    core.feed({ type: "probe-sent", nowMs: core.nowMs, replica: asReplicaId("a") });
    fill(core, 5);
    core.feed(probed(core.nowMs, "a", { load: { running: 0, waiting: 0 } }));
    expect(cap(core)).toBeNull();
  });

  test("a raised cap admits a held turn at that very event", () => {
    const core = Core.up();
    core.cap("a", 1);
    fill(core, 2);
    expect(core.probe("a", { load: { running: 1, waiting: 0 } })).toEqual(["f1>a"]);
  });

  test("a missing waiting count is unknown, not 0: it neither raises nor removes a cap", () => {
    const core = Core.up();
    core.cap("a", 1);
    core.probe("a", { load: { running: 1 } });
    expect(cap(core)).toBe(1);
  });

  test("waiting without a running count caps nothing and keeps the cap that stands", () => {
    const core = Core.up();
    core.probe("a", { load: { waiting: 3 } });
    expect(cap(core)).toBeNull();
    core.cap("a", 2);
    core.probe("a", { load: { waiting: 3 } });
    expect(cap(core)).toBe(2);
  });
});

describe("load that cannot be read", () => {
  test("the last known load counts for two failed probes; at the third the replica reports no load and is open", () => {
    const core = Core.up();
    core.cap("a", 1);
    const row = (): unknown[] => {
      const [first] = snapshot(core.state).replicas;
      return [first?.cap, first?.reportsLoad];
    };
    core.probe("a");
    core.probe("a");
    expect(row()).toEqual([1, true]);
    core.probe("a");
    expect(row()).toEqual([null, false]);
  });

  test("one good sample in between begins the count anew", () => {
    const core = Core.up();
    core.cap("a", 1);
    core.probe("a");
    core.probe("a");
    core.cap("a", 1);
    core.probe("a");
    core.probe("a");
    expect(cap(core)).toBe(1);
  });

  test("samples without a waiting count make the load stale like failed probes", () => {
    const core = Core.up();
    core.cap("a", 1);
    for (let at = 0; at < 3; at += 1) core.probe("a", { load: { running: 1 } });
    expect(cap(core)).toBeNull();
  });

  test("an engine without load is bounded by maxInFlight only, and the smaller of both counts", () => {
    const core = Core.up({ replicas: [replica("a", { maxInFlight: 2 })] });
    fill(core, 3);
    expect(core.state.flightCount).toBe(2);
    core.cap("a", 1);
    core.finish("f0");
    expect(core.state.flightCount).toBe(1);
  });
});

describe("back-pressure", () => {
  test("a refusal lowers the cap to what is in flight without the refused turn, at least 1", () => {
    const core = Core.up();
    fill(core, 3);
    core.pushBack("f2", 1_000);
    expect(cap(core)).toBe(2);
    core.pushBack("f1", 1_000);
    core.pushBack("f0", 1_000);
    expect(cap(core)).toBe(1);
  });

  test("a refusal never raises a cap", () => {
    const core = Core.up();
    fill(core, 4);
    core.cap("a", 1);
    core.pushBack("f3", 1_000);
    expect(cap(core)).toBe(1);
  });

  test("the turn is held again with its old arrival, and not before Retry-After", () => {
    const core = Core.up();
    fill(core, 2);
    core.after(500).ask("later", { run: "later" });
    core.pushBack("f1", 1_000);
    expect(core.why("f1")).toBe("pushed back by its engine, held for 1 more second");
    expect(core.finish("f0")).toEqual([]);
    expect(core.after(999).tick()).toEqual([]);
    expect(core.after(1).tick()).toEqual(["f1>a"]);
    expect(core.why("later")).toBeUndefined();
  });

  test("an engine without load recovers from a refusal: each good probe raises the cap", () => {
    const core = Core.up();
    fill(core, 2);
    core.pushBack("f1", 0);
    expect(cap(core)).toBe(1);
    expect(core.probe("a")).toEqual(["f1>a"]);
  });
});

describe("foreign load", () => {
  const surplus = (core: Core, running: number): string[] => core.probe("a", { load: { running, waiting: 0 } });

  test("counts against the cap when more runs than our own turns at three probes in a row", () => {
    const core = Core.up({ replicas: [replica("a", { maxInFlight: 4 })] });
    surplus(core, 3);
    surplus(core, 2);
    expect(snapshot(core.state).replicas[0]?.foreignLoad).toBe(0);
    surplus(core, 3);
    expect(snapshot(core.state).replicas[0]?.foreignLoad).toBe(2);
    fill(core, 3);
    expect(core.state.flightCount).toBe(2);
    expect(core.why("f2")).toBe("the only replica is full (a: 2 of 4 in flight, foreign load 2)");
  });

  test("goes at the first probe that shows none", () => {
    const core = Core.up({ replicas: [replica("a", { maxInFlight: 1 })] });
    for (let at = 0; at < 3; at += 1) surplus(core, 3);
    surplus(core, 0);
    expect(snapshot(core.state).replicas[0]?.foreignLoad).toBe(0);
  });

  test("never closes a replica to us: one turn may always go", () => {
    const core = Core.up({ replicas: [replica("a", { maxInFlight: 2 })] });
    for (let at = 0; at < 3; at += 1) surplus(core, 9);
    expect(core.ask("t1", { run: "r" })).toEqual(["t1>a"]);
  });

  test("an unknown running count says nothing about it", () => {
    const core = Core.up({ replicas: [replica("a", { maxInFlight: 4 })] });
    for (let at = 0; at < 3; at += 1) surplus(core, 2);
    core.probe("a", { load: { waiting: 0 } });
    expect(snapshot(core.state).replicas[0]?.foreignLoad).toBe(2);
  });
});
