/** What the prober makes of engines that are well, slow, broken, replaced or not there (spec 2, Load signals; spec 8). */
import type { ServerResponse } from "node:http";
import { describe, expect, test } from "vitest";
import { asReplicaId } from "../../src/base/ids.ts";
import { createProber, type Prober } from "../../src/scheduler/prober.ts";
import type { SchedulerEvent } from "../../src/scheduling/index.ts";
import { REAL_CLOCK, SILENT_LOG } from "../../src/telemetry/index.ts";
import type { EndpointConfig } from "../../src/wire/endpoint.ts";
import { closers, endpoint, engine, METRICS, MODELS, type Answer } from "./engines.ts";

type Probed = Extract<SchedulerEvent, { readonly type: "replica-probed" }>;

function start(endpoints: EndpointConfig[], options: { everyMs?: number; timeoutMs?: number } = {}) {
  const events: SchedulerEvent[] = [];
  const prober: Prober = createProber({
    endpoints,
    clock: REAL_CLOCK,
    log: SILENT_LOG,
    probeEveryMs: options.everyMs ?? 20,
    probeTimeoutMs: options.timeoutMs ?? 1_000,
    connectTimeoutMs: 500,
    emit: (event) => void events.push(event),
  });
  closers.push(() => prober.stop());
  const probed = (replica = "a"): Probed[] =>
    events.filter((event): event is Probed => event.type === "replica-probed" && event.replica === replica);
  return { prober, events, probed };
}

describe("a vLLM engine", () => {
  test("is healthy, recognised, and tells its load, models and APIs at the first probe", async () => {
    const { url } = await engine({
      "/health": 200,
      "/metrics": METRICS,
      "/v1/models": MODELS,
      "/v1/chat/completions": 400,
      "/v1/completions": 422,
    });
    const { prober, probed } = start([endpoint(url)]);
    await prober.start();
    expect(probed()[0]).toMatchObject({
      healthy: true,
      engine: "vllm",
      models: ["m"],
      speaks: ["chat", "completions"],
      load: { running: 2, waiting: 1 },
      replaced: false,
    });
  });

  test("each sample comes after the event that says when its poll was sent", async () => {
    const { url } = await engine({ "/health": 200, "/metrics": METRICS, "/v1/models": MODELS });
    const { prober, events } = start([endpoint(url)]);
    await prober.start();
    await expect.poll(() => events.length).toBeGreaterThan(4);
    for (const [at, event] of events.entries()) {
      expect(event.type).toBe(at % 2 === 0 ? "probe-sent" : "replica-probed");
    }
  });

  test("is asked for its APIs once", async () => {
    const { url, seen } = await engine({
      "/health": 200,
      "/metrics": METRICS,
      "/v1/models": MODELS,
      "/v1/chat/completions": 400,
    });
    const { prober, probed } = start([endpoint(url)]);
    await prober.start();
    await expect.poll(() => probed().length).toBeGreaterThan(3);
    expect(seen.filter((line) => line === "POST /v1/chat/completions")).toHaveLength(1);
  });

  test("whose key is refused is a problem in words", async () => {
    const { url } = await engine({ "/health": 200, "/v1/models": MODELS, "/v1/chat/completions": 401 });
    const { prober, probed } = start([endpoint(url)]);
    await prober.start();
    expect(probed()[0]).toMatchObject({ healthy: true, speaks: ["chat"] });
    expect(prober.problem("a")).toBe("its key is refused (401 at /v1/chat/completions): see apiKey");
  });

  test("whose key is refused is asked again, and the problem is gone once it is taken", async () => {
    const { url, routes } = await engine({ "/health": 200, "/v1/models": MODELS, "/v1/chat/completions": 401 });
    const { prober, probed } = start([endpoint(url)], { everyMs: 1 });
    await prober.start();
    routes["/health"] = 503;
    await expect.poll(() => prober.problem("a")).toBe("/health answered 503");
    routes["/health"] = 200;
    await expect.poll(() => prober.problem("a")).toContain("its key is refused");
    routes["/v1/chat/completions"] = 400;
    await expect.poll(() => prober.problem("a")).toBeUndefined();
    expect(probed().at(-1)?.speaks).toEqual(["chat"]);
  });

  test("speaks each API whose path does not answer that it is not there, whatever else it answers", async () => {
    const { url } = await engine({
      "/health": 200,
      "/v1/models": MODELS,
      "/metrics": METRICS,
      "/v1/chat/completions": 500,
      "/v1/completions": 405,
      "/v1/messages": 422,
      "/v1/responses": 400,
      "/v1/embeddings": 501,
      "/v1/decisions": 200,
    });
    const { prober, probed } = start([endpoint(url)]);
    await prober.start();
    // responses-stateful cannot be asked for: only vLLM keeps them.
    await expect
      .poll(() => probed().at(-1)?.speaks)
      .toEqual(["chat", "messages", "responses", "responses-stateful", "decisions"]);
  });

  test("keeps no responses unless it is vLLM, whatever it serves", async () => {
    const { url } = await engine({
      "/health": 200,
      "/v1/models": MODELS.replace("vllm", "sglang"),
      "/v1/responses": 400,
    });
    const { prober, probed } = start([endpoint(url)]);
    await prober.start();
    expect(probed()[0]).toMatchObject({ engine: "sglang", speaks: ["responses"] });
  });

  test("learns an API whose question broke at the next probe, and does not ask for the others again", async () => {
    const { url, routes, seen } = await engine({
      "/health": 200,
      "/v1/models": MODELS,
      "/v1/chat/completions": 400,
      "/v1/completions": (request) => void request.socket.destroy(),
    });
    const { prober, probed } = start([endpoint(url)]);
    await prober.start();
    expect(probed()[0]?.speaks).toEqual(["chat"]);
    routes["/v1/completions"] = 400;
    await expect.poll(() => probed().at(-1)?.speaks).toEqual(["chat", "completions"]);
    expect(seen.filter((line) => line === "POST /v1/chat/completions")).toHaveLength(1);
  });
});

/** Sends for as long as somebody listens. */
function flood(response: ServerResponse): void {
  const more = (): void => {
    while (!response.destroyed && response.write(`${METRICS}${"#".repeat(60_000)}\n`));
  };
  response.on("drain", more);
  more();
}

describe("what goes wrong stays with one engine", () => {
  test("nobody listens: unhealthy, with the reason", async () => {
    const { prober, probed } = start([endpoint("http://127.0.0.1:1")]);
    await prober.start();
    expect(probed()[0]).toMatchObject({ healthy: false, load: undefined });
    expect(prober.problem("a")).toBe("connection refused");
  });

  test("a metrics page that never ends costs that probe its load, not its health", async () => {
    const { url } = await engine({
      "/health": 200,
      "/v1/models": MODELS,
      "/v1/chat/completions": 400,
      "/metrics": (_request, response) => void response.write("vllm:num_requests_running 2\n"),
    });
    const other = await engine({ "/health": 200, "/metrics": METRICS, "/v1/models": MODELS });
    const { prober, probed } = start([endpoint(url), endpoint(other.url, { name: asReplicaId("b") })], {
      timeoutMs: 300,
    });
    void prober.start();
    await expect.poll(() => probed("b").length, { timeout: 5_000 }).toBeGreaterThan(3);
    await expect.poll(() => probed("a")[0]).toMatchObject({ healthy: true, load: undefined, speaks: ["chat"] });
  });

  test.each<[string, Answer | string]>([
    ["huge", METRICS + "x".repeat(5 * 1024 * 1024)],
    ["broken", "vllm:num_requests_running{ 1\n\0\0"],
    ["an error", (_request, response) => void response.writeHead(500).end(METRICS)],
    ["endless", (_request, response) => flood(response)],
  ])("a metrics page that is %s has no load", async (_name, page) => {
    const { url } = await engine({ "/health": 200, "/v1/models": MODELS, "/metrics": page });
    // The time-out does not help here: the prober must end it by itself.
    const { prober, probed } = start([endpoint(url)], { timeoutMs: 600_000 });
    await prober.start();
    expect(probed()[0]).toMatchObject({ healthy: true, load: undefined });
  });

  test("an engine that is not well is not asked what it speaks", async () => {
    const { url, seen } = await engine({ "/health": 503, "/v1/models": MODELS, "/v1/chat/completions": 400 });
    const { prober, probed } = start([endpoint(url)]);
    await prober.start();
    await expect.poll(() => probed().length).toBeGreaterThan(2);
    expect(seen.filter((line) => line.startsWith("POST"))).toEqual([]);
    expect(probed()[0]?.speaks).toBeUndefined();
  });

  test("a list of models that is no JSON teaches nothing", async () => {
    const { url } = await engine({ "/health": 200, "/v1/models": "<html>", "/metrics": METRICS });
    const { prober, probed } = start([endpoint(url)]);
    await prober.start();
    expect(probed()[0]).toMatchObject({ healthy: true, models: undefined });
  });

  test("health comes and goes", async () => {
    const { url, routes } = await engine({ "/health": 200, "/v1/models": MODELS });
    const { prober, probed } = start([endpoint(url)]);
    await prober.start();
    routes["/health"] = 503;
    await expect.poll(() => probed().at(-1)?.healthy).toBe(false);
    expect(prober.problem("a")).toBe("/health answered 503");
    routes["/health"] = 200;
    await expect.poll(() => probed().at(-1)?.healthy).toBe(true);
    expect(prober.problem("a")).toBeUndefined();
  });
});

test("an engine without a health path is healthy by its list of models", async () => {
  const { url } = await engine({ "/v1/models": JSON.stringify({ data: [{ id: "llama", owned_by: "library" }] }) });
  const { prober, probed } = start([endpoint(url)]);
  await prober.start();
  expect(probed()[0]).toMatchObject({ healthy: true, engine: "ollama", models: ["llama"], load: undefined });
});

test("an engine without a health path is asked for its models also where they are configured", async () => {
  const { url, routes } = await engine({ "/v1/models": MODELS });
  const { prober, probed } = start([endpoint(url, { engine: "ollama", models: ["m"] })]);
  await prober.start();
  expect(probed()[0]).toMatchObject({ healthy: true });
  routes["/v1/models"] = 500;
  await expect.poll(() => prober.problem("a")).toBe("/health answered 404, /v1/models 500");
});

test("a path that somebody configured must be there", async () => {
  const { url } = await engine({ "/v1/models": MODELS });
  const { prober } = start([endpoint(url, { healthPath: "/alive" })]);
  await prober.start();
  expect(prober.problem("a")).toBe("/alive answered 404");
});

test("a single-pass engine is asked for its own routes, at the path of its kind, and never for its load", async () => {
  const { url, seen } = await engine({
    "/health": 200,
    "/v1/models": JSON.stringify({ data: [{ id: "m", owned_by: "sglang" }] }),
    "/v1/classify": 400,
  });
  const { prober, probed } = start([endpoint(url, { kind: "single-pass" })]);
  await prober.start();
  expect(probed()[0]).toMatchObject({ healthy: true, engine: "sglang", speaks: ["classify"], load: undefined });
  expect(seen).not.toContain("GET /metrics");
  expect(seen).not.toContain("POST /v1/chat/completions");
});

test("a router of thirty engines is asked without warnings of the runtime", async () => {
  const warnings: Error[] = [];
  const onWarning = (warning: Error): void => void warnings.push(warning);
  process.on("warning", onWarning);
  closers.push(() => process.off("warning", onWarning));
  const one = await engine({ "/metrics": METRICS });
  const router = await engine({ "/health": 200, "/v1/models": MODELS });
  const loadFrom = Array.from({ length: 30 }, () => one.url);
  const { prober, probed } = start([endpoint(router.url, { engine: "router", loadFrom })], { everyMs: 1 });
  await prober.start();
  await expect.poll(() => probed().length).toBeGreaterThan(3);
  expect(probed()[0]?.load).toMatchObject({ running: 60, waiting: 30 });
  expect(warnings).toEqual([]);
});

test("a router's load is the sum over the engines behind it, unknown when one is", async () => {
  const one = await engine({ "/metrics": METRICS });
  const two = await engine({ "/metrics": METRICS });
  const router = await engine({ "/health": 200, "/v1/models": MODELS });
  const { prober, probed } = start([endpoint(router.url, { engine: "router", loadFrom: [one.url, two.url] })]);
  await prober.start();
  expect(probed()[0]?.load).toMatchObject({ running: 4, waiting: 2 });
  two.routes["/metrics"] = 500;
  await expect.poll(() => probed().at(-1)?.load).toBeUndefined();
});

test("a hosted endpoint gets its key and is never asked what it speaks", async () => {
  const keys: unknown[] = [];
  const health: Answer = (request, response) => {
    keys.push(request.headers.authorization);
    response.end("ok");
  };
  const { url, seen } = await engine({ "/status": health });
  const hosted = endpoint(url, {
    engine: "hosted",
    healthPath: "/status",
    apiKey: "k",
    models: ["big"],
    speaks: ["chat"],
  });
  const { prober, probed } = start([hosted]);
  await prober.start();
  expect(probed()[0]).toMatchObject({ healthy: true, speaks: ["chat"] });
  expect(keys[0]).toBe("Bearer k");
  expect(new Set(seen)).toEqual(new Set(["GET /status"]));
});

describe("another engine behind the same address", () => {
  test("shows by its models", async () => {
    const { url, routes } = await engine({ "/health": 200, "/v1/models": MODELS });
    const { prober, probed } = start([endpoint(url)]);
    await prober.start();
    routes["/v1/models"] = JSON.stringify({ data: [{ id: "other" }] });
    await expect.poll(() => probed().some(({ replaced }) => replaced)).toBe(true);
    expect(probed().filter(({ replaced }) => replaced)).toHaveLength(1);
  });

  test("is asked what it speaks, and what the one before spoke counts until then", async () => {
    const { url, routes } = await engine({ "/health": 200, "/v1/models": MODELS, "/v1/chat/completions": 400 });
    const { prober, probed } = start([endpoint(url)]);
    await prober.start();
    routes["/v1/chat/completions"] = 404;
    routes["/v1/completions"] = 400;
    routes["/v1/models"] = JSON.stringify({ data: [{ id: "other" }] });
    await expect.poll(() => probed().at(-1)?.speaks).toEqual(["completions"]);
    const [at] = [...probed().entries()].find(([, { replaced }]) => replaced) ?? [0];
    expect(probed()[at]?.speaks).toBeUndefined();
  });

  test("is not a router that started again: the caches behind it are as they were", async () => {
    const metrics = (seconds: number): string => `process_start_time_seconds ${seconds}\n`;
    const { url, routes } = await engine({ "/health": 200, "/v1/models": MODELS, "/metrics": metrics(100) });
    const { prober, probed } = start([endpoint(url, { engine: "router" })]);
    await prober.start();
    routes["/metrics"] = metrics(200);
    const rounds = probed().length;
    await expect.poll(() => probed().length).toBeGreaterThan(rounds + 2);
    expect(probed().filter(({ replaced }) => replaced)).toEqual([]);
  });

  test("shows by its start", async () => {
    const { url, routes } = await engine({
      "/health": 200,
      "/v1/models": MODELS,
      "/metrics": `${METRICS}process_start_time_seconds 100\n`,
    });
    const { prober, probed } = start([endpoint(url)]);
    await prober.start();
    routes["/metrics"] = `${METRICS}process_start_time_seconds 200\n`;
    await expect.poll(() => probed().some(({ replaced }) => replaced)).toBe(true);
  });
});

test("probes of one engine never overlap, also when the pool changes during the first one", async () => {
  let open = 0;
  let most = 0;
  const held: ServerResponse[] = [];
  const health: Answer = (_request, response) => {
    open += 1;
    most = Math.max(most, open);
    held.push(response);
    response.on("close", () => {
      open -= 1;
    });
  };
  const { url, seen } = await engine({ "/health": health, "/v1/models": MODELS });
  const { prober, probed } = start([endpoint(url)]);
  void prober.start();
  await expect.poll(() => held.length).toBe(1);
  prober.reconfigure([endpoint(url, { maxInFlight: 3 })]);
  prober.reconfigure([endpoint(url, { maxInFlight: 4 })]);
  for (let round = 0; round < 5; round += 1) {
    await expect.poll(() => held.length).toBe(round + 1);
    held[round]?.end("ok");
    await expect.poll(() => probed().length).toBe(round + 1);
  }
  expect(most).toBe(1);
  expect(seen.filter((line) => line === "POST /v1/chat/completions")).toHaveLength(1);
});

test("another key asks again what the engine speaks", async () => {
  const { url, seen } = await engine({ "/health": 200, "/v1/models": MODELS, "/v1/chat/completions": 400 });
  const { prober, probed } = start([endpoint(url)]);
  await prober.start();
  prober.reconfigure([endpoint(url, { apiKey: "other" })]);
  const asked = (): number => seen.filter((line) => line === "POST /v1/chat/completions").length;
  await expect.poll(asked).toBe(2);
  const rounds = probed().length;
  await expect.poll(() => probed().length).toBeGreaterThan(rounds + 2);
  expect(asked()).toBe(2);
});

test("stopping gives up probes that are under way", async () => {
  const { url } = await engine({ "/health": () => undefined, "/v1/models": MODELS });
  const { prober, events } = start([endpoint(url)], { timeoutMs: 600_000 });
  const first = prober.start();
  await expect.poll(() => events.length).toBe(1);
  await prober.stop();
  await first;
  expect(events).toHaveLength(1);
});

test("endpoints that leave are not probed any more, new ones are at once", async () => {
  const one = await engine({ "/health": 200, "/v1/models": MODELS });
  const two = await engine({ "/health": 200, "/v1/models": MODELS });
  const { prober, probed } = start([endpoint(one.url)]);
  await prober.start();
  prober.reconfigure([endpoint(two.url, { name: asReplicaId("b") })]);
  await expect.poll(() => probed("b").length).toBeGreaterThan(1);
  const count = one.seen.length;
  await expect.poll(() => probed("b").length).toBeGreaterThan(4);
  expect(one.seen.length).toBeLessThanOrEqual(count + 3);
});
