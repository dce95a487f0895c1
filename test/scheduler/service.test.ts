/** The host of the core: order, no re-entrance, what a dataplane is told, and the decision log. */
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterEach, describe, expect, test } from "vitest";
import { asCallerId, asDataplaneId, asPrincipalId, asReplicaId, asRunId, asTurnId } from "../../src/base/ids.ts";
import { createEventLog, createScheduler, type EventLog, type Scheduler } from "../../src/scheduler/index.ts";
import { replay, type SchedulingConfig } from "../../src/scheduling/index.ts";
import { SILENT_LOG } from "../../src/telemetry/index.ts";
import type { DataplaneMessage, SchedulerMessage, TurnRequest } from "../../src/wire/admission.ts";

const CONFIG: SchedulingConfig = {
  policy: "classic",
  capRelease: "step",
  pausedRoomMs: 1_800_000,
  turnExpiryMs: 600_000,
  dataplaneGraceMs: 10_000,
  runIdleExpiryMs: 1_800_000,
  arrivalKeptMs: 60_000,
  loadStaleAfterProbes: 3,
  identityTtlMs: 1_800_000,
  identityKeysMax: 1_000,
  principalWeights: [],
  replicas: [{ replica: asReplicaId("a"), kind: "generative", models: ["m"], speaks: ["chat"], maxInFlight: 1 }],
};

const principal = asPrincipalId("p");
const hello: DataplaneMessage = {
  type: "hello",
  protocol: 1,
  dataplane: asDataplaneId("d"),
  runs: [],
  flights: [],
  keys: [],
};

function request(turn: string, run = `run-${turn}`): TurnRequest {
  return {
    type: "requested",
    turn: asTurnId(turn),
    principal,
    caller: asCallerId(""),
    class: "interactive",
    model: "m",
    api: "chat",
    run: asRunId(run),
    keys: [],
    freshRun: asRunId(`fresh-${turn}`),
    side: false,
    heldMs: 0,
    attempt: 0,
  };
}

/** A clock that stands until it is moved; timers run in order of time. */
function fakeClock() {
  let now = 0;
  const timers = new Set<{ at: number; action: () => void }>();
  return {
    nowMs: () => now,
    after(delayMs: number, action: () => void) {
      const timer = { at: now + delayMs, action };
      timers.add(timer);
      return () => void timers.delete(timer);
    },
    advance(ms: number) {
      const end = now + ms;
      for (;;) {
        const next = [...timers].filter(({ at }) => at <= end).toSorted((a, b) => a.at - b.at)[0];
        if (next === undefined) break;
        timers.delete(next);
        now = next.at;
        next.action();
      }
      now = end;
    },
  };
}

const stops: (() => unknown)[] = [];
afterEach(async () => {
  for (const stop of stops.splice(0).toReversed()) await stop();
});

function makeScheduler(
  config = CONFIG,
  eventLog?: EventLog,
): { scheduler: Scheduler; clock: ReturnType<typeof fakeClock> } {
  const clock = fakeClock();
  const scheduler = createScheduler({
    config,
    // No endpoint is probed here: the tests speak for the replicas through `attach` and the pool's own config.
    endpoints: [],
    clock,
    log: SILENT_LOG,
    tickMs: 1_000,
    probeEveryMs: 2_000,
    probeTimeoutMs: 2_000,
    connectTimeoutMs: 2_000,
    eventLog,
  });
  stops.push(() => scheduler.stop());
  return { scheduler, clock };
}

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
    session.receive({
      ...hello,
      type: "hello",
      protocol: 1,
      dataplane: asDataplaneId("d"),
      runs: [],
      keys: [],
      flights: [
        {
          turn: asTurnId("t1"),
          run: asRunId("r"),
          principal,
          caller: asCallerId(""),
          class: "interactive",
          replica: asReplicaId("a"),
          side: false,
          ageMs: 5,
          model: "m",
          api: "chat",
          source: "header",
        },
      ],
    });
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

describe("the decision log", () => {
  test("replays to the same effects, each file on its own, also after rotation", async () => {
    const folder = mkdtempSync(path.join(tmpdir(), "luftpause-log-"));
    stops.push(() => rmSync(folder, { recursive: true }));
    const file = path.join(folder, "decisions.log");
    const eventLog = createEventLog({
      path: file,
      bytesMax: 20_000,
      filesMax: 3,
      version: "1",
      wallMs: () => 0,
      log: SILENT_LOG,
    });
    const { scheduler, clock } = makeScheduler(CONFIG, eventLog);
    const session = scheduler.attach({ send: () => undefined });
    session.receive(hello);
    for (let at = 0; at < 300; at += 1) {
      clock.advance(10);
      session.receive(request(`t${at}`, `r${at % 7}`));
      if (at % 3 === 0) session.receive({ type: "abandoned", turn: asTurnId(`t${at}`), reason: "client-left" });
      // Lets the writer's stream go on between events, as it would between reads of a socket.
      if (at % 50 === 0) await new Promise(setImmediate);
    }
    await eventLog.close();
    const files = readdirSync(folder).toSorted();
    expect(files).toEqual(["decisions.log", "decisions.log.1", "decisions.log.2"]);
    for (const name of files) {
      const lines = readFileSync(path.join(folder, name), "utf8").split("\n");
      expect(replay(lines, { version: "1", force: false })).toMatchObject({ kind: "same" });
    }
  });

  test("of another version is refused unless forced, and a changed effect is found", async () => {
    const folder = mkdtempSync(path.join(tmpdir(), "luftpause-log-"));
    stops.push(() => rmSync(folder, { recursive: true }));
    const file = path.join(folder, "decisions.log");
    const eventLog = createEventLog({
      path: file,
      bytesMax: 1_000_000,
      filesMax: 2,
      version: "1",
      wallMs: () => 0,
      log: SILENT_LOG,
    });
    const { scheduler } = makeScheduler(CONFIG, eventLog);
    const session = scheduler.attach({ send: () => undefined });
    session.receive(hello);
    session.receive({ ...request("t1"), model: "other" });
    await eventLog.close();
    const lines = readFileSync(file, "utf8").split("\n");
    expect(replay(lines, { version: "2", force: false })).toMatchObject({ kind: "refused" });
    expect(replay(lines, { version: "2", force: true })).toMatchObject({ kind: "same", events: 2, effects: 1 });
    const changed = lines.map((line) => line.replace("reject-turn", "admit-turn"));
    expect(replay(changed, { version: "1", force: false })).toMatchObject({ kind: "differs", line: 3 });
    expect(replay(["hello"], { version: "1", force: false })).toMatchObject({ kind: "broken" });
  });
});
