/** Which held turn goes first, and what batch leaves free (spec 2). */
import { describe, expect, test } from "vitest";
import { asPrincipalId } from "../../src/base/ids.ts";
import { snapshot } from "../../src/scheduling/index.ts";
import { config, Core, replica } from "./support.ts";

const one = { replicas: [replica("a", { maxInFlight: 1 })] };

/** Turns in the order of their admission while each one ends at once. */
function drain(core: Core, first: string, turns: number): string[] {
  const order: string[] = [];
  let running = first;
  for (let at = 0; at < turns; at += 1) {
    const [admitted = ""] = core.finish(running);
    running = admitted.split(">")[0] ?? "";
    order.push(running);
  }
  return order;
}

describe("rank", () => {
  test("interactive turns go before batch turns, whenever they came", () => {
    const core = Core.up(one);
    core.ask("t0", { run: "0" });
    core.ask("b1", { run: "1", class: "batch" });
    core.after(60_000).ask("i1", { run: "2" });
    expect(drain(core, "t0", 2)).toEqual(["i1", "b1"]);
  });

  test("among equals the earlier arrival goes first, also when it is asked for later", () => {
    const core = Core.up(one);
    core.ask("t0", { run: "0" });
    core.after(10_000).ask("late", { run: "1" });
    core.ask("early", { run: "2", heldMs: 5_000 });
    expect(drain(core, "t0", 2)).toEqual(["early", "late"]);
  });

  test("the caller with fewer turns in flight goes first, over both classes", () => {
    const core = Core.up({ replicas: [replica("a", { maxInFlight: 2 })] });
    core.ask("x1", { run: "x1", caller: "x", class: "batch" });
    core.ask("y1", { run: "y1", caller: "y", class: "batch" });
    core.ask("x2", { run: "x2", caller: "x" });
    core.after(1).ask("y2", { run: "y2", caller: "y" });
    expect(core.finish("y1")).toEqual(["y2>a"]);
  });

  test("principals come before callers: ten callers of one principal share what one caller of another gets", () => {
    const core = Core.up({ replicas: [replica("a", { maxInFlight: 2 })] });
    core.ask("p0", { run: "p0", principal: "p", caller: "c0" });
    core.ask("q0", { run: "q0", principal: "q", caller: "c0" });
    for (let at = 1; at < 10; at += 1) core.ask(`p${at}`, { run: `p${at}`, principal: "p", caller: `c${at}` });
    core.after(1).ask("q1", { run: "q1", principal: "q", caller: "c0" });
    core.ask("q2", { run: "q2", principal: "q", caller: "c0" });
    expect(core.finish("q0")).toEqual(["q1>a"]);
    expect(core.finish("q1")).toEqual(["q2>a"]);
  });

  test("between callers with equal shares the one goes first that waits longer since its last admission", () => {
    const core = Core.up(one);
    core.ask("x0", { run: "x0", caller: "x" });
    for (let at = 1; at < 4; at += 1) core.ask(`x${at}`, { run: `x${at}`, caller: "x" });
    for (let at = 1; at < 4; at += 1) core.after(1).ask(`y${at}`, { run: `y${at}`, caller: "y" });
    // One slot: whoever ends has none in flight. By arrival alone x would have three in a row.
    expect(drain(core, "x0", 6)).toEqual(["x1", "y1", "x2", "y2", "x3", "y3"]);
  });

  test("between principals too: ten callers of one alternate with the only caller of the other", () => {
    const core = Core.up(one);
    core.ask("first", { run: "first", principal: "p", caller: "c9" });
    for (let at = 0; at < 4; at += 1) core.ask(`p${at}`, { run: `p${at}`, principal: "p", caller: `c${at}` });
    for (let at = 0; at < 3; at += 1) core.ask(`q${at}`, { run: `q${at}`, principal: "q" });
    expect(drain(core, "first", 6)).toEqual(["p0", "q0", "p1", "q1", "p2", "q2"]);
  });

  test("a caller that comes back does not go before one that has waited all the time", () => {
    const core = Core.up(one);
    core.ask("x0", { run: "x0", caller: "x" });
    core.ask("x1", { run: "x1", caller: "x" });
    core.ask("b1", { run: "b1", caller: "b" });
    core.ask("c1", { run: "c1", caller: "c" });
    expect(core.finish("x0")).toEqual(["x1>a"]);
    core.ask("x2", { run: "x2", caller: "x" });
    expect(core.finish("x1")).toEqual(["b1>a"]);
    core.ask("b2", { run: "b2", caller: "b" });
    expect(core.finish("b1")).toEqual(["c1>a"]);
    core.ask("c2", { run: "c2", caller: "c" });
    expect(core.finish("c1")).toEqual(["x2>a"]);
  });

  test("a principal's turns in flight are divided by its weight", () => {
    const core = Core.up({
      replicas: [replica("a", { maxInFlight: 4 })],
      principalWeights: [{ principal: asPrincipalId("heavy"), weight: 3 }],
    });
    for (let at = 0; at < 8; at += 1) core.ask(`l${at}`, { run: `l${at}`, principal: "light" });
    for (let at = 0; at < 8; at += 1) core.ask(`h${at}`, { run: `h${at}`, principal: "heavy" });
    // light holds all four; what frees goes to heavy until 1 ÷ 1 stands against 3 ÷ 3.
    const order = ["l0", "l1", "l2"].map((turn) => core.finish(turn)[0]);
    expect(order).toEqual(["h0>a", "h1>a", "h2>a"]);
    expect(core.finish("l3")).toEqual(["l4>a"]);
  });

  test("a weight below 1 works too", () => {
    const core = Core.up({
      replicas: [replica("a", { maxInFlight: 11 })],
      principalWeights: [{ principal: asPrincipalId("tenth"), weight: 0.1 }],
    });
    for (let at = 0; at < 11; at += 1) core.ask(`x${at}`, { run: `x${at}`, principal: "other" });
    core.ask("t0", { run: "t0", principal: "tenth" });
    core.ask("t1", { run: "t1", principal: "tenth" });
    for (let at = 11; at < 22; at += 1) core.ask(`x${at}`, { run: `x${at}`, principal: "other" });
    const order = Array.from({ length: 4 }, (_, at) => core.finish(`x${at}`)[0]);
    // 1 ÷ 0.1 = 10 against the other's ten: t1 has to wait.
    expect(order).toEqual(["t0>a", "x11>a", "x12>a", "x13>a"]);
  });

  test("weights of a reload count for turns that are held already", () => {
    const core = Core.up({ replicas: [replica("a", { maxInFlight: 3 })] });
    core.ask("p0", { run: "p0", principal: "p" });
    core.ask("q0", { run: "q0", principal: "q" });
    core.ask("z", { run: "z", principal: "z" });
    core.ask("p1", { run: "p1", principal: "p" });
    core.ask("q1", { run: "q1", principal: "q" });
    const principalWeights = [{ principal: asPrincipalId("q"), weight: 2 }];
    const replicas = [replica("a", { maxInFlight: 3 })];
    core.feed({ type: "pool-configured", nowMs: 0, config: config({ replicas, principalWeights }) });
    expect(core.finish("z")).toEqual(["q1>a"]);
  });

  test("a weight of 0 is a bug of whoever made the config", () => {
    const principalWeights = [{ principal: asPrincipalId("p"), weight: 0 }];
    expect(() => new Core({ principalWeights })).toThrow("the weight of principal p must be above 0, not 0");
  });
});

describe("who blocks whom", () => {
  test("a turn that fits nowhere does not block those behind it", () => {
    const core = Core.up({ replicas: [replica("a", { maxInFlight: 1 }), replica("b", { models: ["n"] })] });
    core.ask("t0", { run: "0" });
    core.ask("first", { run: "1" });
    expect(core.ask("second", { run: "2", model: "n" })).toEqual(["second>b"]);
  });

  test("no batch turn goes to a replica on which a held interactive turn would fit", () => {
    const core = new Core({ replicas: [replica("a", { maxInFlight: 1 })] });
    core.ask("batch", { run: "1", class: "batch" });
    core.after(1).ask("interactive", { run: "2" });
    expect(core.probe("a")).toEqual(["interactive>a"]);
  });

  test("batch takes what interactive work cannot use", () => {
    const core = Core.up({ replicas: [replica("a", { maxInFlight: 1 }), replica("b", { maxInFlight: 1 })] });
    core.ask("i1", { run: "r" });
    core.pause("i1");
    core.ask("x", { run: "x" });
    core.ask("i2", { run: "r" });
    expect(core.why("i2")).toContain("pinned to a full replica");
    expect(core.ask("b1", { run: "y", class: "batch" })).toEqual(["b1>b"]);
  });

  test("two turns of one run: when a batch turn moves the pin, an interactive one that now fits goes before other batch", () => {
    const core = Core.up({
      replicas: [replica("a", { maxInFlight: 1 }), replica("b", { models: ["m", "n"], maxInFlight: 2 })],
    });
    core.ask("t1", { run: "r" });
    core.pause("t1");
    core.ask("x", { run: "x" });
    core.ask("main", { run: "r" });
    expect(core.where("main")).toBeUndefined();
    expect(core.ask("other-model", { run: "r", model: "n", class: "batch" })).toEqual(["other-model>b", "main>b"]);
  });
});

describe("room for paused interactive runs", () => {
  const three = { replicas: [replica("a", { maxInFlight: 3 })] };

  function pauseTwo(core: Core): void {
    for (const name of ["1", "2"]) {
      core.ask(`p${name}`, { run: `paused${name}` });
      core.pause(`p${name}`);
    }
  }

  test("batch leaves one slot for each; interactive work does not have to", () => {
    const core = Core.up(three);
    pauseTwo(core);
    expect(core.ask("b1", { run: "b1", class: "batch" })).toEqual(["b1>a"]);
    expect(core.ask("b2", { run: "b2", class: "batch" })).toEqual([]);
    expect(core.why("b2")).toBe("room kept for 2 paused interactive runs");
    expect(core.ask("i1", { run: "i1" })).toEqual(["i1>a"]);
  });

  test("a paused run that comes back takes its own room, and gives it back when it ends", () => {
    const core = Core.up(three);
    pauseTwo(core);
    core.ask("b1", { run: "b1", class: "batch" });
    core.ask("b2", { run: "b2", class: "batch" });
    expect(core.ask("p3", { run: "paused1" })).toEqual(["p3>a"]);
    expect(core.finish("p3")).toEqual(["b2>a"]);
  });

  test("paused batch runs get no room", () => {
    const core = Core.up(three);
    core.ask("p", { run: "p", class: "batch" });
    core.pause("p");
    expect(snapshot(core.state).replicas[0]?.keptRoom).toBe(0);
  });

  test("on an open replica there is nothing to keep free", () => {
    const core = Core.up();
    core.ask("p", { run: "p" });
    core.pause("p");
    expect(core.ask("b", { run: "b", class: "batch" })).toEqual(["b>a"]);
  });

  test("the room goes when its time is over, with the next event", () => {
    const core = Core.up({ ...three, pausedRoomMs: 120_000 });
    pauseTwo(core);
    core.ask("b1", { run: "b1", class: "batch" });
    core.ask("b2", { run: "b2", class: "batch" });
    expect(core.after(119_999).start("b1")).toEqual([]);
    expect(core.after(1).start("b1")).toEqual(["b2>a"]);
    expect(snapshot(core.state).replicas[0]?.keptRoom).toBe(0);
  });

  test("a side call of a paused run does not use up its room", () => {
    const core = Core.up(three);
    pauseTwo(core);
    core.ask("title", { run: "paused1", side: true });
    expect(snapshot(core.state).replicas[0]?.keptRoom).toBe(2);
  });

  test("a run that ends while paused gives its room back", () => {
    const core = Core.up(three);
    pauseTwo(core);
    core.ask("b1", { run: "b1", class: "batch" });
    core.ask("b2", { run: "b2", class: "batch" });
    const { run, principal } = [...core.state.principals.values()].flatMap(({ id, runs }) =>
      [...runs.values()].filter((row) => row.id === "paused1").map((row) => ({ run: row.id, principal: id })),
    )[0]!;
    expect(core.feed({ type: "run-ended", nowMs: 0, run, principal })).toEqual(["b2>a"]);
  });
});
