/** The host of the core: order, no re-entrance, what a dataplane is told, and what metrics and status show. */
import { describe, expect, test } from "vitest";
import { asCallerId, asDataplaneId, asPrincipalId, asReplicaId, asRunId, asTurnId } from "../../src/base/ids.ts";
import { schedulerMetrics } from "../../src/scheduler/index.ts";
import type { SchedulerMessage } from "../../src/wire/admission.ts";
import { CONFIG, flight, hello, makeScheduler, principal, request } from "./support.ts";

describe("a dataplane", () => {
  test("is welcomed, gets the pool, and is told at once whether its turn is held", () => {
    const { scheduler } = makeScheduler();
    const heard: SchedulerMessage[] = [];
    const session = scheduler.attach({ send: (message) => void heard.push(message) });
    session.receive(hello);
    session.receive(request("t1"));
    expect(heard.map(({ type }) => type)).toEqual(["welcome", "pool", "held"]);
    expect(heard[2]).toEqual({ type: "held", turn: "t1", run: "run-t1", source: "header" });
    session.receive({ type: "explain", turn: asTurnId("t1") });
    expect(heard[3]).toEqual({ type: "explained", turn: "t1", reason: "no healthy replica", place: 1 });
  });

  test("is refused an unknown model in the exact words", () => {
    const { scheduler } = makeScheduler();
    const heard: SchedulerMessage[] = [];
    const session = scheduler.attach({ send: (message) => void heard.push(message) });
    session.receive(hello);
    session.receive({ ...request("t1"), model: "other" });
    expect(heard.at(-1)).toMatchObject({
      type: "rejected",
      run: "run-t1",
      code: "model_not_found",
      message: "no Generative replica serves model 'other'",
    });
  });

  test("that has not said hello is not listened to", () => {
    const { scheduler } = makeScheduler();
    const heard: SchedulerMessage[] = [];
    const session = scheduler.attach({ send: (message) => void heard.push(message) });
    session.receive(request("t1"));
    expect(heard).toEqual([]);
    expect(scheduler.status().turns).toEqual({ held: 0, inFlight: 0 });
  });

  test("that is lost keeps its turns in flight counted for the grace, to the millisecond", () => {
    const { scheduler, clock } = makeScheduler();
    const session = scheduler.attach({ send: () => undefined });
    session.receive({ ...hello, flights: [flight("t1", "r")] });
    expect(scheduler.status().turns.inFlight).toBe(1);
    clock.advance(777);
    session.lost();
    clock.advance(9_999);
    expect(scheduler.status().turns.inFlight).toBe(1);
    clock.advance(1);
    expect(scheduler.status().turns.inFlight).toBe(0);
  });

  test("asks what is known of a run, of its own principal only", () => {
    const { scheduler } = makeScheduler();
    const heard: SchedulerMessage[] = [];
    const session = scheduler.attach({ send: (message) => void heard.push(message) });
    session.receive(hello);
    session.receive(request("t1", "r"));
    session.receive({ type: "run-query", query: 1, run: asRunId("r"), principal });
    session.receive({ type: "run-query", query: 2, run: asRunId("r"), principal: asPrincipalId("other") });
    expect(heard.at(-2)).toMatchObject({
      type: "run-known",
      query: 1,
      view: { run: "r", phase: "held", heldTurns: 1 },
    });
    expect(heard.at(-1)).toEqual({ type: "run-known", query: 2, view: undefined });
  });
});

test("a dataplane that answers inside a delivery is not re-entered: effects leave in the order of events", () => {
  const { scheduler } = makeScheduler();
  const port = scheduler.localPort();
  const order: string[] = [];
  port.attach({
    onLinked: () => port.send(hello),
    onLost: () => undefined,
    onMessage(message) {
      order.push(`enter ${message.type}`);
      if (message.type === "pool") {
        port.send(request("t1"));
        port.send(request("t2"));
      }
      order.push(`leave ${message.type}`);
    },
  });
  expect(order).toEqual([
    "enter welcome",
    "leave welcome",
    "enter pool",
    "enter held",
    "leave held",
    "enter held",
    "leave held",
    "leave pool",
  ]);
});

describe("several dataplanes", () => {
  test("each hear of their own turns, and all of the pool", () => {
    const { scheduler } = makeScheduler();
    const heard: { readonly [name: string]: SchedulerMessage[] } = { d: [], e: [] };
    const [d, e] = ["d", "e"].map((name) => {
      const session = scheduler.attach({ send: (message) => void heard[name]?.push(message) });
      session.receive({ ...hello, dataplane: asDataplaneId(name) });
      return session;
    });
    d?.receive(request("t1"));
    e?.receive(request("t2"));
    scheduler.reconfigure(
      { ...CONFIG, replicas: [...CONFIG.replicas, { ...CONFIG.replicas[0]!, replica: asReplicaId("b") }] },
      [],
    );
    expect(heard["d"]?.map(({ type }) => type)).toEqual(["welcome", "pool", "held", "pool"]);
    expect(heard["e"]?.map(({ type }) => type)).toEqual(["welcome", "pool", "held", "pool"]);
    expect(heard["d"]?.[2]).toMatchObject({ turn: "t1" });
    expect(heard["e"]?.[2]).toMatchObject({ turn: "t2" });
    expect(heard["e"]?.[3]).toMatchObject({ replicas: [{ replica: "a" }, { replica: "b" }] });
  });

  test("a new stream of the same dataplane takes the place of the old one, whose end changes nothing", () => {
    const { scheduler, clock } = makeScheduler();
    const heard: SchedulerMessage[] = [];
    const old = scheduler.attach({ send: () => undefined });
    old.receive({ ...hello, flights: [flight("t1", "r")] });
    const next = scheduler.attach({ send: (message) => void heard.push(message) });
    next.receive({ ...hello, flights: [flight("t1", "r")] });
    old.lost();
    old.receive({ type: "failed", turn: asTurnId("t1"), reason: "internal" });
    clock.advance(60_000);
    expect(scheduler.status().turns.inFlight).toBe(1);
    next.receive(request("t2"));
    expect(heard.at(-1)).toMatchObject({ type: "held", turn: "t2" });
  });

  test("a stream that says hello under another name has left under the first one", () => {
    const { scheduler, clock } = makeScheduler();
    const session = scheduler.attach({ send: () => undefined });
    session.receive({ ...hello, flights: [flight("t1", "r")] });
    session.receive({ ...hello, dataplane: asDataplaneId("other") });
    expect(scheduler.status().dataplanes).toMatchObject([
      { dataplane: "d", linked: false },
      { dataplane: "other", linked: true },
    ]);
    clock.advance(10_000);
    expect(scheduler.status().turns.inFlight).toBe(0);
  });
});

test("a scheduler that has stopped decides nothing any more", async () => {
  const { scheduler, clock } = makeScheduler();
  const heard: SchedulerMessage[] = [];
  const session = scheduler.attach({ send: (message) => void heard.push(message) });
  session.receive(hello);
  await scheduler.stop();
  session.receive(request("t1"));
  session.lost();
  clock.advance(60_000);
  expect(heard.map(({ type }) => type)).toEqual(["welcome", "pool"]);
});

describe("metrics", () => {
  test("count every held turn, also of callers that the status sums up, and name no caller, run or turn", async () => {
    const { scheduler, clock } = makeScheduler();
    await scheduler.start();
    const session = scheduler.attach({ send: () => undefined });
    session.receive(hello);
    for (let at = 0; at < 60; at += 1) {
      session.receive({ ...request(`t${at}`), caller: asCallerId(`caller-${at}`) });
    }
    clock.advance(2_000);
    session.receive({ ...request("late"), class: "batch", caller: asCallerId("caller-late") });
    clock.advance(1_000);
    const page = await schedulerMetrics(scheduler).metrics();
    expect(page).toContain('luftpause_scheduler_turns_held{class="interactive"} 60\n');
    expect(page).toContain('luftpause_scheduler_turns_held{class="batch"} 1\n');
    expect(page).toContain('luftpause_scheduler_longest_held_seconds{class="interactive"} 3\n');
    expect(page).toContain('luftpause_scheduler_longest_held_seconds{class="batch"} 1\n');
    expect(page).toContain('luftpause_scheduler_replica_healthy{replica="a"} 0\n');
    expect(page).not.toMatch(/caller-|run-t|"t1"/);
  });

  test("forget a replica that left the config, and count on over reads", async () => {
    const { scheduler } = makeScheduler();
    const session = scheduler.attach({ send: () => undefined });
    session.receive(hello);
    session.receive({ ...request("t1"), model: "other" });
    const registry = schedulerMetrics(scheduler);
    expect(await registry.metrics()).toContain("luftpause_scheduler_rejected_total 1\n");
    scheduler.reconfigure({ ...CONFIG, replicas: [{ ...CONFIG.replicas[0]!, replica: asReplicaId("b") }] }, []);
    session.receive({ ...request("t2"), model: "other" });
    const page = await registry.metrics();
    expect(page).toContain("luftpause_scheduler_rejected_total 2\n");
    expect(page).toContain('replica="b"');
    expect(page).not.toContain('replica="a"');
  });
});
