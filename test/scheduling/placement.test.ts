/** Where turns go: pins, placement, retry, models, health (spec 2). */
import { describe, expect, test } from "vitest";
import { asRunId, SOLE_PRINCIPAL, asPrincipalId } from "../../src/base/ids.ts";
import { runView, snapshot } from "../../src/scheduling/index.ts";
import { config, Core, replica } from "./support.ts";

const two = { replicas: [replica("a", { maxInFlight: 1 }), replica("b", { maxInFlight: 1 })] };

describe("strict pinning", () => {
  test("a paused run is held for its replica although another one is free", () => {
    const core = Core.up(two);
    core.ask("t1", { run: "r" });
    core.pause("t1");
    core.ask("x", { run: "other", class: "interactive" });
    expect(core.where("x")).toBe("a");
    expect(core.ask("t2", { run: "r" })).toEqual([]);
    expect(core.why("t2")).toBe("pinned to a full replica (a: 1 of 1 in flight)");
    expect(core.finish("x")).toEqual(["t2>a"]);
  });

  test("a second turn while one is in flight goes to the same replica", () => {
    const core = Core.up({ replicas: [replica("a"), replica("b")] });
    core.ask("t1", { run: "r" });
    expect(core.ask("t2", { run: "r" })).toEqual(["t2>a"]);
  });

  test("two held turns of a new run: when the first is admitted, the second is bound to the same replica", () => {
    const core = new Core({ replicas: [replica("a", { maxInFlight: 1 }), replica("b")] });
    core.ask("t1", { run: "r" });
    core.ask("t2", { run: "r" });
    expect(core.probe("a")).toEqual(["t1>a"]);
    expect(core.probe("b")).toEqual([]);
    expect(core.finish("t1")).toEqual(["t2>a"]);
  });

  test("a paused run moves when its replica is unhealthy", () => {
    const core = Core.up(two);
    core.ask("t1", { run: "r" });
    core.pause("t1");
    core.probe("a", { healthy: false });
    expect(core.ask("t2", { run: "r" })).toEqual(["t2>b"]);
  });

  test("a turn held for its pinned replica is placed anew at the moment that replica becomes unhealthy", () => {
    const core = Core.up(two);
    core.ask("t1", { run: "r" });
    core.pause("t1");
    core.ask("x", { run: "other" });
    core.ask("t2", { run: "r" });
    expect(core.probe("a", { healthy: false })).toEqual(["t2>b"]);
  });

  test("an idle run may move", () => {
    const core = Core.up(two);
    core.ask("t1", { run: "r" });
    core.finish("t1");
    core.ask("x", { run: "other" });
    expect(core.ask("t2", { run: "r" })).toEqual(["t2>b"]);
  });

  test("a changed engine behind the address drops the pins and the load", () => {
    const core = Core.up(two);
    core.ask("t1", { run: "r" });
    core.pause("t1");
    core.cap("a", 1);
    core.probe("a", { replaced: true });
    expect(snapshot(core.state).replicas[0]).toMatchObject({ cap: null, keptRoom: 0, reportsLoad: false });
    core.ask("x", { run: "other" });
    expect(core.ask("t2", { run: "r" })).toEqual(["t2>b"]);
  });
});

describe("side calls", () => {
  test("neither move the pin nor mark the run paused or idle", () => {
    const core = Core.up(two);
    core.ask("t1", { run: "r" });
    core.finish("t1");
    core.ask("x", { run: "other" });
    expect(core.ask("title", { run: "r", side: true })).toEqual(["title>b"]);
    core.pause("title");
    const view = runView(core.state, asPrincipalId("p"), asRunId("r"));
    expect(view).toMatchObject({ replica: "a", phase: "idle" });
  });

  test("a failed side call leaves a paused run paused, with its room", () => {
    const core = Core.up(two);
    core.ask("t1", { run: "r" });
    core.pause("t1");
    core.ask("title", { run: "r", side: true });
    core.fail("title");
    expect(runView(core.state, asPrincipalId("p"), asRunId("r"))?.phase).toBe("paused");
    expect(snapshot(core.state).replicas[0]?.keptRoom).toBe(1);
  });
});

describe("placement", () => {
  test("a new run goes to the open replica with the fewest turns in flight, then by the order in the config", () => {
    const core = Core.up({ replicas: [replica("a"), replica("b"), replica("c")] });
    const where = ["1", "2", "3", "4"].map((name) => core.ask(`t${name}`, { run: name })[0]);
    expect(where).toEqual(["t1>a", "t2>b", "t3>c", "t4>a"]);
  });

  test("an open replica beats a capped one", () => {
    const core = Core.up({ replicas: [replica("a", { maxInFlight: 50 }), replica("b")] });
    core.ask("t1", { run: "1" });
    expect(core.ask("t2", { run: "2" })).toEqual(["t2>b"]);
    expect(core.where("t1")).toBe("b");
  });

  test("among capped ones the lowest in flight ÷ cap, not the fewest", () => {
    const core = Core.up({ replicas: [replica("a", { maxInFlight: 2 }), replica("b", { maxInFlight: 8 })] });
    const where = ["1", "2", "3", "4"].map((name) => core.ask(`t${name}`, { run: name })[0]);
    // 0/2=0/8: fewest, then order; then b at 0, 1/8, 2/8 under a's 1/2.
    expect(where).toEqual(["t1>a", "t2>b", "t3>b", "t4>b"]);
  });

  test("an idle run goes to its last replica if it fits there, though another one is emptier", () => {
    const core = Core.up({ replicas: [replica("a"), replica("b")] });
    core.ask("t1", { run: "r" });
    core.finish("t1");
    core.ask("x", { run: "x" });
    expect(core.ask("t2", { run: "r" })).toEqual(["t2>a"]);
  });
});

describe("retry", () => {
  test("a failed turn frees its slot and leaves the run idle, so that its retry may go elsewhere", () => {
    const core = Core.up(two);
    core.ask("t1", { run: "r" });
    core.pause("t1");
    core.ask("t2", { run: "r" });
    core.fail("t2");
    core.ask("x", { run: "other" });
    expect(core.where("x")).toBe("a");
    expect(core.ask("t3", { run: "r" })).toEqual(["t3>b"]);
  });

  test("a retry within 60 s takes over the arrival of the failed turn, once", () => {
    const core = Core.up({ replicas: [replica("a", { maxInFlight: 1 })] });
    core.ask("t1", { run: "r" });
    core.after(1_000).ask("early", { run: "early" });
    core.after(10_000).abandon("t1");
    expect(core.where("early")).toBe("a");
    core.ask("between", { run: "between" });
    core.ask("retry", { run: "r" });
    core.ask("second", { run: "r" });
    expect([core.place("retry"), core.place("between"), core.place("second")]).toEqual([1, 2, 3]);
  });

  test("after 60 s the arrival is its own", () => {
    const core = Core.up({ replicas: [replica("a", { maxInFlight: 1 })] });
    core.ask("t1", { run: "r" });
    core.fail("t1");
    core.ask("x", { run: "x" });
    core.after(30_000).ask("between", { run: "between" });
    core.after(30_000).ask("retry", { run: "r" });
    expect(core.place("retry")).toBe(2);
  });

  test("a held turn that was abandoned hands its arrival on too", () => {
    const core = Core.up({ replicas: [replica("a", { maxInFlight: 1 })] });
    core.ask("x", { run: "x" });
    core.ask("t1", { run: "r" });
    core.after(10).ask("between", { run: "between" });
    core.after(10).abandon("t1");
    core.ask("retry", { run: "r" });
    expect(core.place("retry")).toBe(1);
  });

  test("goes to another replica than the one whose connection failed, if another fits", () => {
    const core = Core.up({ replicas: [replica("a"), replica("b")] });
    core.ask("t1", { run: "r" });
    core.fail("t1", "engine-unreachable");
    expect(core.ask("t2", { run: "r" })).toEqual(["t2>b"]);
  });

  test("goes to the same replica when no other fits", () => {
    const core = Core.up();
    core.ask("t1", { run: "r" });
    core.fail("t1", "engine-lost");
    expect(core.ask("t2", { run: "r" })).toEqual(["t2>a"]);
  });

  test("an error of the engine itself is no reason to leave the cache", () => {
    const core = Core.up({ replicas: [replica("a"), replica("b")] });
    core.ask("t1", { run: "r" });
    core.fail("t1", "engine-error");
    expect(core.ask("t2", { run: "r" })).toEqual(["t2>a"]);
  });

  test("abandoned after it was admitted, a turn ends as failed and its slot is free", () => {
    const core = Core.up({ replicas: [replica("a", { maxInFlight: 1 })] });
    core.ask("t1", { run: "r" });
    core.ask("t2", { run: "x" });
    expect(core.abandon("t1")).toEqual(["t2>a"]);
  });
});

describe("models and APIs", () => {
  test("an unknown model is refused at once with the exact words", () => {
    const core = Core.up();
    expect(core.ask("t1", { model: "nope" })).toEqual(["t1!model_not_found"]);
    expect(core.effects[0]).toMatchObject({ message: "no Generative replica serves model 'nope'", run: "fresh-t1" });
    expect(core.state.turns.size).toBe(0);
  });

  test("a model that only a single-pass replica serves is unknown to turns", () => {
    const core = Core.up({ replicas: [replica("a"), replica("s", { kind: "single-pass", models: ["labels", "m"] })] });
    expect(core.ask("t1", { model: "labels" })).toEqual(["t1!model_not_found"]);
    for (let at = 0; at < 3; at += 1) core.ask(`m${at}`, { run: `${at}` });
    expect(snapshot(core.state).replicas[1]?.turnsInFlight).toBe(0);
  });

  test("a configured model is held while its replica is down", () => {
    const core = new Core();
    expect(core.ask("t1")).toEqual([]);
    expect(core.why("t1")).toBe("no healthy replica");
    expect(core.probe("a")).toEqual(["t1>a"]);
  });

  test("models are learned from probes, and one that was seen once stays known", () => {
    const core = new Core({ replicas: [replica("a", { models: [] })] });
    core.probe("a", { healthy: false });
    expect(core.ask("t0")).toEqual(["t0!model_not_found"]);
    core.probe("a", { models: ["m"] });
    expect(core.ask("t1")).toEqual(["t1>a"]);
    core.probe("a", { models: ["other"] });
    expect(core.ask("t2")).toEqual([]);
    expect(core.why("t2")).toBe("no healthy replica");
    expect(core.probe("a", { models: ["m", "other"] })).toEqual(["t2>a"]);
  });

  test("until every endpoint that names its models itself was probed, no model is unknown", () => {
    const core = new Core({ replicas: [replica("a", { models: [] }), replica("b", { models: [] }), replica("c")] });
    expect(core.ask("t1", { model: "big" })).toEqual([]);
    expect(core.why("t1")).toBe("no healthy replica");
    expect(core.ask("t2", { model: "typo" })).toEqual([]);
    expect(core.probe("a", { models: ["other"] })).toEqual([]);
    expect(core.probe("b", { models: ["big"] })).toEqual(["t2!model_not_found", "t1>b"]);
    expect(core.ask("t3", { model: "typo" })).toEqual(["t3!model_not_found"]);
  });

  test("a first probe that fails leaves a model unknown that nobody has seen", () => {
    const core = new Core({ replicas: [replica("a", { models: [] })] });
    expect(core.ask("t1")).toEqual([]);
    expect(core.probe("a", { healthy: false })).toEqual(["t1!model_not_found"]);
  });

  test("an endpoint that comes by a reload may serve any model until it was probed", () => {
    const core = Core.up({ replicas: [replica("a")] });
    core.feed({
      type: "pool-configured",
      nowMs: 0,
      config: config({ replicas: [replica("a"), replica("b", { models: [] })] }),
    });
    expect(core.ask("t1", { model: "new" })).toEqual([]);
    expect(core.probe("b", { models: ["new"] })).toEqual(["t1>b"]);
  });

  test("a seen model survives a reload of the config, but not the removal of its endpoint", () => {
    const core = new Core({ replicas: [replica("a", { models: [] })] });
    core.probe("a", { models: ["m"] });
    core.probe("a", { models: ["other"] });
    const reload = (name: string): string[] =>
      core.feed({
        type: "pool-configured",
        nowMs: core.nowMs,
        config: config({ replicas: [replica(name, { models: [] })] }),
      });
    reload("a");
    expect(core.ask("t1", { run: "r" })).toEqual([]);
    expect(reload("b")).toEqual([]);
    expect(core.probe("b", { models: ["other"] })).toEqual(["t1!model_not_found"]);
  });

  test("a turn goes only to a replica that speaks its API", () => {
    const core = Core.up({ replicas: [replica("a"), replica("b", { speaks: ["chat", "messages"] })] });
    expect(core.ask("t1", { api: "messages" })).toEqual(["t1>b"]);
    expect(core.ask("t2", { run: "r", api: "responses" })).toEqual(["t2!route_unknown"]);
    expect(core.effects[0]).toMatchObject({
      message: "no replica of model 'm' speaks responses: a (chat); b (chat, messages); see `speaks` of the endpoint",
    });
  });

  test("an API that may still be learned holds the turn; once learned otherwise, it is refused", () => {
    const core = new Core({ replicas: [replica("a", { speaks: undefined })] });
    core.probe("a");
    expect(core.ask("t1", { api: "messages" })).toEqual([]);
    expect(core.probe("a", { speaks: ["chat"] })).toEqual(["t1!route_unknown"]);
  });

  test("a turn that an engine gives back after its model left the pool is refused, not held for ever", () => {
    const core = Core.up();
    core.ask("t1");
    core.feed({
      type: "pool-configured",
      nowMs: 0,
      config: config({ replicas: [replica("b", { models: ["other"] })] }),
    });
    expect(core.pushBack("t1", 0)).toEqual(["t1!model_not_found"]);
  });

  test("a replica that leaves the config loses its pins and room at once, its turns in flight end by themselves", () => {
    const core = Core.up(two);
    core.ask("t1", { run: "r" });
    core.pause("t1");
    core.ask("t2", { run: "x" });
    expect(core.where("t2")).toBe("a");
    core.feed({ type: "pool-configured", nowMs: 0, config: config({ replicas: [replica("b")] }) });
    expect(core.ask("t3", { run: "r" })).toEqual(["t3>b"]);
    expect(snapshot(core.state).replicas.map((row) => row.replica)).toEqual(["b", "a"]);
    core.finish("t2");
    expect(snapshot(core.state).replicas.map((row) => row.replica)).toEqual(["b"]);
  });

  test("principals do not see one another's runs: the same id is another run", () => {
    const core = Core.up();
    core.ask("t1", { run: "r", principal: "p" });
    expect(runView(core.state, SOLE_PRINCIPAL, asRunId("r"))).toBeUndefined();
    core.ask("t2", { run: "r", principal: "q" });
    expect(runView(core.state, asPrincipalId("q"), asRunId("r"))).toMatchObject({ turns: 1 });
  });
});
