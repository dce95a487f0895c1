/** Batch turns are taken back before their first byte when an interactive turn comes (spec 9). */
import { expect, test } from "vitest";
import { asReplicaId, asTurnId } from "../../src/base/ids.ts";
import { ActiveCore, replica, type Prompt } from "./active-set-support.ts";

/** Prompts of 10,000 tokens: a second of prefill until a replica has shown better. */
const LONG = 10_000;

function chat(core: ActiveCore, turn: string, about: Prompt = {}): string[] {
  return core.turn(turn, { class: "interactive", tokens: LONG, ...about });
}

const withdrawn = (core: ActiveCore, turn: string): string[] =>
  core.feed({ type: "turn-withdrawn", nowMs: core.nowMs, turn: asTurnId(turn) });

test("the newest batch turn without a first byte is taken back, and goes again after the interactive one's first byte", () => {
  const core = ActiveCore.with({ preempt: true });
  core.turn("one/1", { tokens: LONG });
  core.after(10).turn("two/1", { tokens: LONG });
  expect(chat(core.after(10), "chat/1")).toEqual(["two/1<", "chat/1>a"]);
  expect(withdrawn(core, "two/1")).toEqual([]);
  expect(core.why("two/1")).toBe("an interactive turn waits for its first byte on a");
  expect(core.after(300).start("chat/1")).toEqual(["two/1>a"]);
});

test("what has sent a byte stays, and what is withdrawn keeps its arrival and its place", () => {
  const core = ActiveCore.with({ preempt: true });
  core.turn("one/1", { tokens: LONG });
  core.after(10).turn("two/1", { tokens: LONG });
  core.after(10).start("two/1");
  expect(chat(core, "chat/1")).toEqual(["one/1<", "chat/1>a"]);
  withdrawn(core, "one/1");
  expect(core.state.turns.get(asTurnId("one/1"))?.arrivalMs).toBe(0);
  expect(core.state.replicas.get(asReplicaId("a"))?.live.batchRuns).toBe(2);
});

test("one interactive turn takes back one batch turn", () => {
  const core = ActiveCore.with({ preempt: true });
  for (const run of ["one", "two", "three"]) core.turn(`${run}/1`, { tokens: LONG });
  expect(chat(core, "chat/1")).toEqual(["three/1<", "chat/1>a"]);
  expect(chat(core, "chat2/1")).toEqual(["two/1<", "chat2/1>a"]);
});

test("a turn is withdrawn at most twice", () => {
  const core = ActiveCore.with({ preempt: true });
  core.turn("one/1", { tokens: LONG });
  for (const turn of ["x/1", "y/1"]) {
    expect(chat(core, turn)).toEqual(["one/1<", `${turn}>a`]);
    withdrawn(core, "one/1");
    expect(core.start(turn)).toEqual(["one/1>a"]);
  }
  expect(chat(core, "z/1")).toEqual(["z/1>a"]);
});

test("a turn that was too late is not asked again", () => {
  const core = ActiveCore.with({ preempt: true });
  core.turn("one/1", { tokens: LONG });
  chat(core, "chat/1");
  core.feed({ type: "turn-too-late", nowMs: 0, turn: asTurnId("one/1") });
  expect(chat(core, "chat2/1")).toEqual(["chat2/1>a"]);
});

test("a turn that does not stream is taken back only within its estimated prefill", () => {
  const core = ActiveCore.with({ preempt: true });
  core.turn("one/1", { tokens: LONG, streams: false });
  expect(chat(core.after(1_000), "chat/1")).toEqual(["chat/1>a"]);
  core.turn("two/1", { tokens: LONG, streams: false });
  expect(chat(core.after(999), "chat2/1")).toEqual(["two/1<", "chat2/1>a"]);
});

test("a prefill that is nearly nothing is not worth it: the run's prefix is cached", () => {
  const core = ActiveCore.with({ preempt: true });
  core.turn("one/1", { tokens: LONG });
  core.done("one/1", { promptTokens: LONG });
  core.turn("one/2", { tokens: LONG + 100 });
  expect(chat(core, "chat/1")).toEqual(["chat/1>a"]);
});

test("an interactive turn that is held has a slot freed, at its own replica", () => {
  const core = ActiveCore.with(
    { preempt: true },
    { replicas: [replica("a", { maxInFlight: 1 }), replica("b", { maxInFlight: 1 })] },
  );
  core.turn("one/1", { tokens: LONG });
  chat(core, "chat/1");
  core.done("chat/1", { promptTokens: LONG });
  core.turn("two/1", { tokens: LONG });
  expect(chat(core, "chat/2")).toEqual(["two/1<"]);
  expect(withdrawn(core, "two/1")).toEqual([]);
  // The engine has not shown yet that the attempt is gone: it still counts.
  expect(core.why("chat/2")).toBe("pinned to a full replica (b: 0 of 1 in flight, 1 withdrawn and not yet gone)");
  expect(core.shows("b", { running: 0 })).toEqual(["chat/2>b"]);
});

test("batch is kept off for two seconds at most", () => {
  const core = ActiveCore.with({ preempt: true });
  core.turn("one/1", { tokens: LONG });
  chat(core, "chat/1");
  withdrawn(core, "one/1");
  core.after(1_999);
  expect(core.tick()).toEqual([]);
  core.after(1);
  expect(core.tick()).toEqual(["one/1>a"]);
});

test("an engine that goes on with what was withdrawn is not asked again", () => {
  const core = ActiveCore.with({ preempt: true });
  core.turn("one/1", { tokens: LONG });
  chat(core, "chat/1");
  withdrawn(core, "one/1");
  core.start("chat/1");
  core.shows("a", { running: 3 });
  core.shows("a", { running: 3 });
  core.turn("two/1", { tokens: LONG });
  expect(chat(core, "chat2/1")).toEqual(["chat2/1>a"]);
});

test("switched off: nothing is taken back", () => {
  const core = ActiveCore.with({ preempt: false });
  core.turn("one/1", { tokens: LONG });
  expect(chat(core, "chat/1")).toEqual(["chat/1>a"]);
});

test("a batch turn takes nothing back", () => {
  const core = ActiveCore.with({ preempt: true });
  core.turn("one/1", { tokens: LONG });
  expect(core.turn("two/1", { tokens: LONG })).toEqual(["two/1>a"]);
});
