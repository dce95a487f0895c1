/** The engine's own priority (spec 9, Send the engine's own priority). */
import { expect, test } from "vitest";
import type { PriorityOrder } from "../../src/wire/endpoint.ts";
import { ActiveCore, replica } from "./active-set-support.ts";
import { Core } from "./support.ts";

function sent(order: PriorityOrder | undefined, takesPriority: boolean): readonly (number | undefined)[] {
  const core = ActiveCore.with({}, { replicas: [replica("a", { priority: order })] });
  core.shows("a", { takesPriority });
  core.turn("batch/1");
  const [batch] = core.effects;
  core.turn("chat/1", { class: "interactive" });
  const [interactive] = core.effects;
  return [interactive, batch].map((effect) => (effect?.type === "admit-turn" ? effect.priority : Number.NaN));
}

test("auto: where the engine's metrics show that it takes priorities, larger goes first", () => {
  expect(sent("auto", true)).toEqual([1, 0]);
  expect(sent(undefined, true)).toEqual([1, 0]);
  expect(sent("auto", false)).toEqual([undefined, undefined]);
});

test("the order can be set where metrics do not show it, or sending switched off", () => {
  expect(sent("lower-first", false)).toEqual([0, 1]);
  expect(sent("higher-first", false)).toEqual([1, 0]);
  expect(sent("off", true)).toEqual([undefined, undefined]);
});

test("classic sends none", () => {
  const core = Core.up();
  core.probe("a", { load: { running: 0, waiting: 0, takesPriority: true } });
  core.ask("t1");
  expect(core.effects[0]).not.toHaveProperty("priority");
});

test("an engine that takes priorities has neither a turn cap nor kept room; another one has both", () => {
  for (const takesPriority of [true, false]) {
    const core = ActiveCore.with({ bound: "none" });
    core.shows("a", { takesPriority });
    for (const turn of ["x/1", "y/1"]) core.turn(turn, { class: "interactive" });
    core.shows("a", { running: 2, waiting: 3, takesPriority });
    core.done("x/1", {});
    expect(core.turn("batch/1")).toHaveLength(takesPriority ? 1 : 0);
    if (!takesPriority) expect(core.why("batch/1")).toBe("room kept for 1 paused interactive run");
  }
});
