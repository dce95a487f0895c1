/** The words for a hold, and the state as status shows it (spec 2, Explaining itself; docs/scheduling.md lists the words). */
import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { explain, explainAll, replicaViews, snapshot } from "../../src/scheduling/index.ts";
import { asTurnId } from "../../src/base/ids.ts";
import { Core, replica } from "./support.ts";

/** Holds for every reason, by name. */
function holds(): Map<string, string> {
  const reasons = new Map<string, string>();
  const down = new Core();
  down.ask("t", {});
  reasons.set("no healthy replica", down.why("t")!);

  const single = Core.up({ replicas: [replica("a", { maxInFlight: 2 })] });
  single.ask("p", { run: "p" });
  single.pause("p");
  single.ask("t1", { run: "1", class: "batch", caller: "x" });
  single.ask("b1", { run: "2", class: "batch" });
  reasons.set("room", single.why("b1")!);
  single.ask("i", { run: "3" });
  single.ask("pinned-batch", { run: "1", class: "batch", caller: "y" });
  single.finish("i");
  reasons.set("room at the pin", single.why("pinned-batch")!);
  single.ask("i2", { run: "4" });
  single.ask("i3", { run: "5", caller: "z" });
  single.ask("i4", { run: "6", caller: "z" });
  reasons.set("only replica", single.why("i3")!);
  reasons.set("behind", single.why("i4")!);

  const pair = Core.up({ replicas: [replica("a", { maxInFlight: 1 }), replica("b", { maxInFlight: 1 })] });
  pair.ask("t1", { run: "1" });
  pair.ask("t2", { run: "2" });
  pair.ask("t3", { run: "3" });
  pair.ask("t4", { run: "1" });
  reasons.set("all replicas", pair.why("t3")!);
  reasons.set("pinned", pair.why("t4")!);
  pair.pushBack("t2", 1_500);
  reasons.set("pushed back", pair.why("t2")!);
  return reasons;
}

describe("words for a hold", () => {
  test("each reason has its own words", () => {
    expect(Object.fromEntries(holds())).toEqual({
      "no healthy replica": "no healthy replica",
      room: "room kept for 1 paused interactive run",
      "room at the pin": "room kept for 1 paused interactive run (pinned to a: 1 of 2 in flight)",
      "only replica": "the only replica is full (a: 2 of 2 in flight)",
      behind: "the only replica is full (a: 2 of 2 in flight), behind 1 turn of its caller",
      "all replicas": "all 2 replicas are full",
      pinned: "pinned to a full replica (a: 1 of 1 in flight), behind 1 turn of its caller",
      "pushed back": "pushed back by its engine, held for 2 more seconds",
    });
  });

  test("the docs list every one of them, with numbers as N and names as a", () => {
    const docs = readFileSync(new URL("../../docs/scheduling.md", import.meta.url), "utf8");
    for (const reason of holds().values()) {
      const [first = ""] = reason.split(", behind");
      const pattern = first
        .replaceAll(/\d+/g, "N")
        .replaceAll(/turns\b/g, "turns")
        .replaceAll("runs", "run");
      expect(docs.replaceAll("run(s)", "run").replaceAll("second(s)", "seconds")).toContain(pattern);
    }
  });

  test("a turn that is not held has no explanation", () => {
    const core = Core.up();
    core.ask("t1", {});
    expect(explain(core.state, asTurnId("t1"))).toBeUndefined();
    expect(explain(core.state, asTurnId("unknown"))).toBeUndefined();
  });

  test("all holds at once say what each one says alone, first in rank first", () => {
    const core = Core.up({ replicas: [replica("a", { maxInFlight: 1 })] });
    core.ask("t0", { run: "0" });
    for (let at = 1; at <= 9; at += 1) {
      core.after(1).ask(`t${at}`, { run: `${at}`, class: at % 2 ? "batch" : "interactive", caller: `c${at % 3}` });
    }
    const all = explainAll(core.state);
    expect(all.map((row) => row.place)).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9]);
    for (const row of all) expect(explain(core.state, row.turn)).toEqual(row);
  });
});

describe("status", () => {
  test("lists held turns by class, principal and caller, longest held first, and sums what it does not list", () => {
    const core = Core.up({ replicas: [replica("a", { maxInFlight: 1 })] });
    core.ask("t", { run: "0" });
    for (let at = 0; at < 53; at += 1) core.after(1).ask(`t${at}`, { run: `r${at}`, caller: `c${at}` });
    core.ask("again", { run: "again", caller: "c0" });
    core.after(100);
    core.tick();
    const status = snapshot(core.state);
    expect(status.held).toHaveLength(50);
    expect(status.held[0]).toEqual({
      class: "interactive",
      principal: "p",
      caller: "c0",
      turns: 2,
      longestHeldMs: 152,
      why: "the only replica is full (a: 1 of 1 in flight)",
    });
    expect(status.heldElsewhere).toBe(3);
    expect(status.turns).toEqual({ held: 54, inFlight: 1 });
  });

  test("shows engine gauges, null where the engine says nothing", () => {
    const core = Core.up();
    expect(snapshot(core.state).replicas[0]).toMatchObject({ engineRunning: null, kvUsage: null, reportsLoad: false });
    core.probe("a", { load: { running: 3, waiting: 0, kvUsage: 0.5 } });
    expect(snapshot(core.state).replicas[0]).toMatchObject({
      engineRunning: 3,
      engineWaiting: 0,
      kvUsage: 0.5,
      cacheHitRate: null,
      reportsLoad: true,
    });
  });

  test("dataplanes see configured replicas, single-pass ones included, with what they speak", () => {
    const core = Core.up({ replicas: [replica("a"), replica("s", { kind: "single-pass", speaks: ["classify"] })] });
    expect(replicaViews(core.state).map((row) => [row.replica, row.kind, row.healthy, row.speaks])).toEqual([
      ["a", "generative", true, ["chat"]],
      ["s", "single-pass", true, ["classify"]],
    ]);
  });
});
