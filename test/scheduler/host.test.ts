/** Host, prober and core together, over real sockets: what an engine's probes do to turns (spec 2, Load signals). */
import { expect, test } from "vitest";
import { asReplicaId, asRunId, asTurnId } from "../../src/base/ids.ts";
import type { Scheduler } from "../../src/scheduler/index.ts";
import type { SchedulingConfig } from "../../src/scheduling/index.ts";
import type { SchedulerMessage } from "../../src/wire/admission.ts";
import { endpoint, engine, METRICS, MODELS } from "./engines.ts";
import { CONFIG, flight, hello, makeScheduler, principal, request, stops } from "./support.ts";

/** As a config that leaves models and APIs to the prober. */
const LEARNED: SchedulingConfig = {
  ...CONFIG,
  replicas: CONFIG.replicas.map((row) => ({ ...row, models: [], speaks: undefined, maxInFlight: undefined })),
};

const WELL = { "/health": 200, "/v1/models": MODELS, "/metrics": METRICS, "/v1/chat/completions": 400 } as const;

/** The clock stands; each call lets the next probe be sent and waits until its answer has been decided. */
function prober(scheduler: Scheduler, clock: { advance(ms: number): void }): (times?: number) => Promise<void> {
  return async (times = 1) => {
    for (let at = 0; at < times; at += 1) {
      const { events } = scheduler.counts();
      clock.advance(2_000);
      // Two ticks, `probe-sent` and `replica-probed`.
      await expect.poll(() => scheduler.counts().events, { timeout: 10_000, interval: 5 }).toBe(events + 4);
    }
  };
}

async function start(routes: { [path: string]: string | number } = { ...WELL }) {
  const one = await engine(routes);
  const { scheduler, clock } = makeScheduler(LEARNED, undefined, [endpoint(one.url)]);
  const messages: SchedulerMessage[] = [];
  const session = scheduler.attach({ send: (message) => void messages.push(message) });
  session.receive(hello);
  await scheduler.start();
  return { scheduler, clock, session, messages, routes: one.routes, probe: prober(scheduler, clock) };
}

test("the last known load counts for two failed probes and is stale at the third", async () => {
  const { scheduler, routes, probe } = await start();
  const row = () => scheduler.status().replicas[0];
  expect(row()).toMatchObject({ reportsLoad: true, engineRunning: 2, engineWaiting: 1, cap: 2 });
  routes["/metrics"] = 500;
  await probe(2);
  expect(row()).toMatchObject({ healthy: true, reportsLoad: true, engineWaiting: 1, cap: 2 });
  await probe();
  expect(row()).toMatchObject({ healthy: true, reportsLoad: false, engineWaiting: null, cap: null });
  routes["/metrics"] = METRICS;
  await probe();
  expect(row()).toMatchObject({ reportsLoad: true, cap: 2 });
});

test("a held turn goes out when its engine becomes healthy, and none while it is not", async () => {
  const { scheduler, session, messages, routes, probe } = await start({ ...WELL, "/health": 503 });
  session.receive({ ...request("t1"), model: "m" });
  // The model is not known before the first good probe.
  expect(messages.at(-1)).toMatchObject({ type: "rejected", code: "model_not_found" });
  routes["/health"] = 200;
  await probe();
  session.receive(request("t2"));
  expect(messages.at(-1)).toMatchObject({ type: "admitted", turn: "t2", replica: "a" });
  routes["/health"] = 503;
  await probe();
  session.receive(request("t3"));
  expect(messages.at(-1)).toMatchObject({ type: "held", turn: "t3" });
  expect(scheduler.status().problems).toEqual({ a: "/health answered 503" });
  routes["/health"] = 200;
  await probe();
  expect(messages.findLast(({ type }) => type === "admitted")).toMatchObject({ turn: "t3" });
  expect(scheduler.status().problems).toEqual({});
});

test("admissions of one event go out together, before what they cause", async () => {
  const one = await engine({ ...WELL, "/health": 503 });
  const config = { ...CONFIG, replicas: CONFIG.replicas.map((row) => ({ ...row, maxInFlight: 2 })) };
  const { scheduler, clock } = makeScheduler(config, undefined, [endpoint(one.url, { maxInFlight: 2 })]);
  const order: string[] = [];
  const port = scheduler.localPort();
  port.attach({
    onLinked: () => port.send(hello),
    onLost: () => undefined,
    onMessage(message) {
      if (message.type !== "admitted") return;
      order.push(`in ${message.turn}`);
      // Frees a slot for t3 while t2's admission, of the same event, is still to be delivered.
      if (message.turn === "t1") port.send({ type: "failed", turn: message.turn, reason: "engine-unreachable" });
      order.push(`out ${message.turn}`);
    },
  });
  await scheduler.start();
  for (const turn of ["t1", "t2", "t3"]) port.send(request(turn));
  one.routes["/health"] = 200;
  clock.advance(2_000);
  await expect.poll(() => order).toEqual(["in t1", "out t1", "in t2", "out t2", "in t3", "out t3"]);
});

test("dataplanes hear of the pool at every change, and only then", async () => {
  const { messages, routes, probe } = await start();
  const pools = () => messages.filter((message) => message.type === "pool");
  expect(pools().at(-1)?.replicas[0]).toMatchObject({
    healthy: true,
    engine: "vllm",
    models: ["m"],
    speaks: ["chat"],
    reportsLoad: true,
  });
  const before = pools().length;
  await probe(3);
  expect(pools()).toHaveLength(before);
  routes["/health"] = 500;
  await probe();
  expect(pools()).toHaveLength(before + 1);
  expect(pools().at(-1)?.replicas[0]).toMatchObject({ healthy: false, models: ["m"] });
});

test("an engine that started again has no run's prefix any more", async () => {
  const routes = { ...WELL, "/metrics": `${METRICS}process_start_time_seconds 100\n` };
  const { session, messages, routes: live, probe } = await start(routes);
  session.receive({ ...hello, flights: [flight("t1", "r")] });
  session.receive({ type: "finished", turn: asTurnId("t1"), usage: {}, finishReason: "stop", paused: true, keys: [] });
  const ask = () => {
    session.receive({ type: "run-query", query: 1, run: asRunId("r"), principal });
    return messages.findLast((message) => message.type === "run-known")?.view;
  };
  await probe();
  expect(ask()).toMatchObject({ phase: "paused", replica: "a" });
  live["/metrics"] = `${METRICS}process_start_time_seconds 200\n`;
  await probe();
  expect(ask()).toMatchObject({ phase: "paused", replica: undefined });
});

test("an engine that never answers holds up neither the others nor the end of the service", async () => {
  const deaf = await engine({ "/health": () => undefined });
  const well = await engine({ ...WELL });
  const config = {
    ...LEARNED,
    replicas: ["a", "b"].map((name) => ({ ...LEARNED.replicas[0]!, replica: asReplicaId(name) })),
  };
  const { scheduler } = makeScheduler(config, undefined, [
    endpoint(deaf.url),
    endpoint(well.url, { name: asReplicaId("b") }),
  ]);
  stops.push(() => scheduler.stop());
  const started = scheduler.start();
  await expect.poll(() => scheduler.status().replicas[1]?.healthy).toBe(true);
  expect(scheduler.status().replicas[0]?.healthy).toBe(false);
  await started;
  expect(scheduler.status().problems).toEqual({ a: "timed out" });
});

test("a pool is probed all over the period, each engine once in it", async () => {
  const names = ["a", "b", "c", "d"];
  const asked: string[] = [];
  const engines = await Promise.all(
    names.map((name) =>
      engine({
        ...WELL,
        "/health": (_request, response) => {
          asked.push(name);
          response.end();
        },
      }),
    ),
  );
  const replicas = names.map((name) => ({ ...LEARNED.replicas[0]!, replica: asReplicaId(name) }));
  const endpoints = engines.map(({ url }, at) => endpoint(url, { name: replicas[at]!.replica }));
  const { scheduler, clock } = makeScheduler({ ...LEARNED, replicas }, undefined, endpoints);
  await scheduler.start();
  expect(asked.splice(0).toSorted()).toEqual(names);
  for (let quarter = 0; quarter < 8; quarter += 1) {
    clock.advance(500);
    const { events } = scheduler.counts();
    await expect.poll(() => asked.splice(0)).toEqual([names[quarter % 4]]);
    await expect.poll(() => scheduler.counts().events).toBe(events + 1);
  }
});

test("the problems of a pool are those of the pool that counts", async () => {
  const one = await engine({ ...WELL, "/health": 503 });
  const { scheduler } = await start();
  const name = asReplicaId("b");
  scheduler.reconfigure({ ...LEARNED, replicas: [{ ...LEARNED.replicas[0]!, replica: name }] }, [
    endpoint(one.url, { name }),
  ]);
  await expect.poll(() => scheduler.status().problems).toEqual({ b: "/health answered 503" });
});
