/** Which run a key belongs to (spec 8, Which run is this?; spec 2, Recognition is shared). */
import { describe, expect, test } from "vitest";
import { asRunId, asTurnId } from "../../src/base/ids.ts";
import { runOfTurn, snapshot } from "../../src/scheduling/index.ts";
import { Core, replica, type Ask } from "./support.ts";

/** Asks for a turn and says which run it was recognised as, by which rule. */
function recognised(core: Core, turn: string, about: Ask): string {
  core.ask(turn, about);
  const found = runOfTurn(core.state, asTurnId(turn));
  return `${found?.run} ${found?.source}`;
}

/** A turn with keys, ended with keys. */
function turn(core: Core, name: string, ask: Ask, left: readonly string[]): string {
  const found = recognised(core, name, ask);
  core.finish(name, { paused: true, keys: left });
  return found;
}

describe("strong keys", () => {
  test("the tool calls of an answer lead the next turn to its run, whatever dataplane it comes through", () => {
    const core = Core.up();
    turn(core, "t1", {}, ["tool-calls:x"]);
    expect(recognised(core, "t2", { keys: ["tool-calls:x"], dataplane: "other" })).toBe("fresh-t1 tool-calls");
  });

  test("the run id header needs no table and goes before every key", () => {
    const core = Core.up();
    turn(core, "t1", {}, ["tool-calls:x"]);
    expect(recognised(core, "t2", { run: "mine", keys: ["tool-calls:x"] })).toBe("mine header");
  });

  test("first hit wins", () => {
    const core = Core.up();
    turn(core, "t1", { run: "one" }, ["tool-calls:x"]);
    turn(core, "t2", { run: "two" }, ["response-id:y"]);
    expect(recognised(core, "t3", { keys: ["response-id:y", "tool-calls:x"] })).toBe("two response-id");
  });

  test("two live runs with the same key: no answer from that rule, the next rule decides", () => {
    const core = Core.up();
    turn(core, "t1", { run: "one" }, ["tool-calls:same", "tool-calls:ids"]);
    turn(core, "t2", { run: "two" }, ["tool-calls:same"]);
    const keys = ["tool-calls:same", "tool-calls:ids"];
    expect(recognised(core, "t3", { keys })).toBe("fresh-t3 new");
    turn(core, "t4", { run: "three" }, ["body:z"]);
    expect(recognised(core, "t5", { keys: [...keys, "body:z"] })).toBe("three body");
  });

  test("the fallback (ids and names) counts when the full key misses and exactly one live run has left it", () => {
    const core = Core.up();
    turn(core, "t1", { run: "one" }, ["tool-calls:full", "tool-calls:ids"]);
    expect(recognised(core, "t2", { keys: ["tool-calls:reserialised", "tool-calls:ids"] })).toBe("one tool-calls");
  });

  test("when one of two runs is forgotten, the key is the other one's again", () => {
    const core = Core.up();
    turn(core, "t1", { run: "one" }, ["tool-calls:same"]);
    turn(core, "t2", { run: "two" }, ["tool-calls:same"]);
    const principal = [...core.state.principals.keys()][0]!;
    core.feed({ type: "run-ended", nowMs: 0, run: asRunId("two"), principal });
    expect(recognised(core, "t3", { keys: ["tool-calls:same"] })).toBe("one tool-calls");
  });

  test("a key that three runs have left stays without an answer, even when only one of them is live", () => {
    const core = Core.up();
    for (const run of ["one", "two", "three"]) turn(core, `t-${run}`, { run }, ["tool-calls:0"]);
    const principal = [...core.state.principals.keys()][0]!;
    for (const run of ["two", "three"]) core.feed({ type: "run-ended", nowMs: 0, run: asRunId(run), principal });
    expect(recognised(core, "t4", { keys: ["tool-calls:0"] })).toBe("fresh-t4 new");
  });

  test("a key never leads to another principal's run", () => {
    const core = Core.up();
    turn(core, "t1", { run: "one", principal: "p" }, ["tool-calls:x", "prefix~:x"]);
    expect(recognised(core, "t2", { principal: "q", keys: ["tool-calls:x", "prefix~:x"] })).toBe("fresh-t2 new");
  });

  test("a turn that is asked for again after an outage keeps its fresh run", () => {
    const core = Core.up({ replicas: [replica("a", { maxInFlight: 1 })] });
    core.ask("x", { run: "x", dataplane: "other" });
    core.ask("t1", {});
    const dataplane = core.state.turns.get(asTurnId("t1"))!.dataplane.id;
    core.feed({ type: "dataplane-lost", nowMs: 0, dataplane });
    core.feed({ type: "dataplane-linked", nowMs: 0, dataplane, runs: [], flights: [], keys: [], models: [] });
    expect(recognised(core, "t1", {})).toBe("fresh-t1 new");
    expect(snapshot(core.state).runCounts.interactive).toMatchObject({ held: 1, generating: 1, idle: 0 });
  });
});

describe("bounds", () => {
  test("keys live for their time, and a run that leaves one again renews it", () => {
    const core = Core.up({ identityTtlMs: 10_000 });
    turn(core, "t1", { run: "one" }, ["tool-calls:x", "tool-calls:y"]);
    turn(core.after(6_000), "t2", { run: "one" }, ["tool-calls:x"]);
    core.after(6_000);
    expect(recognised(core, "t3", { keys: ["tool-calls:y"] })).toBe("fresh-t3 new");
    expect(recognised(core, "t4", { keys: ["tool-calls:x"] })).toBe("one tool-calls");
    core.tick();
    expect(snapshot(core.state).identityKeys).toBe(1);
  });

  test("the oldest key goes when there are too many, and a renewed one is not the oldest", () => {
    const core = Core.up({ identityKeysMax: 2 });
    turn(core, "t1", { run: "one" }, ["tool-calls:x", "tool-calls:y", "tool-calls:x", "tool-calls:z"]);
    expect(snapshot(core.state).identityKeys).toBe(2);
    expect(recognised(core, "t2", { keys: ["tool-calls:y"] })).toBe("fresh-t2 new");
    expect(recognised(core, "t3", { keys: ["tool-calls:x"] })).toBe("one tool-calls");
  });

  test("weak keys stand apart: however many, they push no strong key out", () => {
    const core = Core.up({ identityKeysMax: 2 });
    turn(core, "t1", { run: "one" }, ["tool-calls:x"]);
    turn(core, "t2", { run: "one" }, ["prefix~:1", "prefix~:2", "prefix~:3", "prefix~:4"]);
    expect(recognised(core, "t3", { keys: ["tool-calls:x"] })).toBe("one tool-calls");
  });
});

describe("weak rules", () => {
  const pool = { replicas: [replica("a"), replica("b")] };

  test("an own-loop chat without tools is one run from its second turn on", () => {
    const core = Core.up(pool);
    expect(turn(core, "t1", {}, ["prefix~:u1"])).toBe("fresh-t1 new");
    expect(turn(core, "t2", { keys: ["prefix~:u1"] }, ["prefix~:u1a1u2"])).toBe("fresh-t1 prefix");
    expect(turn(core, "t3", { keys: ["prefix~:u1a1u2", "prefix~:u1"] }, [])).toBe("fresh-t1 prefix");
  });

  test("sixteen identical fan-out runs are sixteen runs; each is recognised once its answers differ", () => {
    const core = Core.up(pool);
    const names = Array.from({ length: 16 }, (_, at) => `${at}`);
    for (const name of names) core.ask(`t${name}`, { keys: [] });
    for (const name of names) core.finish(`t${name}`, { paused: false, keys: ["prefix~:opening"] });
    // The common opening answers nothing: the second turns are runs of their own.
    for (const name of names) {
      expect(recognised(core, `u${name}`, { keys: ["prefix~:opening"] })).toBe(`fresh-u${name} new`);
    }
    for (const name of names) core.finish(`u${name}`, { keys: [`prefix~:answer-${name}`] });
    for (const name of names) {
      const keys = [`prefix~:answer-${name}`, "prefix~:opening"];
      expect(recognised(core, `v${name}`, { keys })).toBe(`fresh-u${name} prefix`);
    }
  });

  test("several turns at once from one prefix: the first goes on with the run, the others are runs that prefer its replica", () => {
    const core = Core.up(pool);
    core.ask("x", { run: "x" });
    turn(core, "t1", {}, ["prefix~:history"]);
    core.finish("x");
    expect(core.state.replicas.size).toBe(2);
    expect(recognised(core, "branch1", { keys: ["prefix~:history"] })).toBe("fresh-t1 prefix");
    expect(recognised(core, "branch2", { keys: ["prefix~:history"] })).toBe("fresh-branch2 new");
    // Replica a is empty; the prefix is on b.
    expect([core.where("branch1"), core.where("branch2")]).toEqual(["b", "b"]);
  });

  test("a side call that is open does not make the next turn a branch", () => {
    const core = Core.up(pool);
    turn(core, "t1", {}, ["prefix~:u1"]);
    core.ask("title", { run: "fresh-t1", side: true });
    expect(recognised(core, "t2", { keys: ["prefix~:u1"] })).toBe("fresh-t1 prefix");
  });

  test("a prompt cache key alone never says which run it is, it says where the prefix may be", () => {
    const core = Core.up(pool);
    core.ask("x", { run: "x" });
    turn(core, "t1", { keys: ["prompt-cache-key~:p"] }, ["prompt-cache-key~:p"]);
    core.finish("x");
    expect(recognised(core, "t2", { keys: ["prompt-cache-key~:p"] })).toBe("fresh-t2 new");
    expect(core.where("t2")).toBe("b");
  });

  test("a run with a prompt cache key is recognised by its own prefix, which confirms it", () => {
    const core = Core.up(pool);
    turn(core, "t1", { keys: ["prompt-cache-key~:p"] }, ["prompt-cache-key~:p", "prefix~:u1"]);
    const keys = ["prompt-cache-key~:p", "prefix~:u1"];
    expect(recognised(core, "t2", { keys })).toBe("fresh-t1 prefix");
  });

  test("a strong and a weak key with the same hash are different keys", () => {
    const core = Core.up(pool);
    turn(core, "t1", { run: "one" }, ["tool-calls:h"]);
    expect(recognised(core, "t2", { keys: ["prefix~:h"] })).toBe("fresh-t2 new");
  });
});
