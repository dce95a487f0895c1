/** What the prober makes of engines that are well, slow, broken, replaced or not there (spec 2, Load signals; spec 8). */
import { once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, describe, expect, test } from "vitest";
import { asReplicaId } from "../../src/base/ids.ts";
import { createProber, type Prober } from "../../src/scheduler/prober.ts";
import type { SchedulerEvent } from "../../src/scheduling/index.ts";
import { REAL_CLOCK, SILENT_LOG } from "../../src/telemetry/index.ts";
import type { EndpointConfig } from "../../src/wire/endpoint.ts";

type Probed = Extract<SchedulerEvent, { readonly type: "replica-probed" }>;
type Answer = (request: IncomingMessage, response: ServerResponse) => void;

const closers: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closers.splice(0).toReversed()) await close();
});

const MODELS = JSON.stringify({ object: "list", data: [{ id: "m", owned_by: "vllm" }] });
const METRICS = "vllm:num_requests_running 2\nvllm:num_requests_waiting 1\n";

/** An engine whose routes can be changed at any time; what is not named is 404. */
async function engine(routes: { [path: string]: Answer | string | number }): Promise<{
  url: string;
  routes: typeof routes;
  seen: string[];
}> {
  const seen: string[] = [];
  const server = createServer((request, response) => {
    seen.push(`${request.method} ${request.url}`);
    const route = routes[request.url ?? ""] ?? 404;
    if (typeof route === "function") route(request, response);
    else if (typeof route === "number") response.writeHead(route).end();
    else response.end(route);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  closers.push(() => {
    server.closeAllConnections();
    server.close();
  });
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, routes, seen };
}

const endpoint = (url: string, more: Partial<EndpointConfig> = {}): EndpointConfig => ({
  name: asReplicaId("a"),
  url,
  kind: "generative",
  engine: "auto",
  models: [],
  apiKey: undefined,
  healthPath: "/health",
  loadFrom: [],
  maxInFlight: undefined,
  speaks: "auto",
  backpressure: "auto",
  splice: true,
  classifyPath: undefined,
  labels: [],
  forwardHeaders: [],
  ...more,
});

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
    expect(prober.problem("a")).toBe("its key is refused (401)");
  });
});

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
    await expect.poll(() => probed("a")[0]).toMatchObject({ healthy: true, load: undefined });
  });

  test.each([
    ["huge", "x".repeat(5 * 1024 * 1024)],
    ["broken", "vllm:num_requests_running{ 1\n\0\0"],
    ["an error", 500],
  ])("a metrics page that is %s has no load", async (_name, page) => {
    const { url } = await engine({ "/health": 200, "/v1/models": MODELS, "/metrics": page });
    const { prober, probed } = start([endpoint(url)]);
    await prober.start();
    expect(probed()[0]).toMatchObject({ healthy: true, load: undefined });
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
