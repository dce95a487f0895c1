/** The route table (spec 3, Routes; spec 7, Tokens and routes). */
import net from "node:net";
import { describe, expect, it } from "vitest";
import { ROUTES } from "../../src/dataplane/index.ts";
import { asReplicaId } from "../../src/base/ids.ts";
import { expectError, startWorld, type World } from "./support.ts";

const OPEN = ["GET /healthz", "GET /readyz", "GET /.well-known/*"];
const BEHIND_TOKEN = [
  "POST /v1/chat/completions",
  "POST /v1/completions",
  "POST /v1/embeddings",
  "POST /v1/decide",
  "GET /v1/models",
  "GET /v1/runs/*",
  "DELETE /v1/runs/*",
  "GET /metrics",
];
const nameOf = (route: { readonly method: string; readonly path: string }): string => `${route.method} ${route.path}`;

describe("the route table", () => {
  it("has every route on one of the two lists, and none besides", () => {
    expect(ROUTES.map(nameOf).sort()).toEqual([...OPEN, ...BEHIND_TOKEN].sort());
  });

  it.each(ROUTES.map((route) => [nameOf(route), route] as const))("guards %s as its list says", async (name, route) => {
    const world = await startWorld({ auth: { token: "secret" } });
    const path = route.path.replace("*", "r-1");
    const without = await world.send({ method: route.method, path }).answer;
    if (OPEN.includes(name)) {
      expect(without.status).not.toBe(401);
    } else {
      expectError(without, { status: 401, code: "invalid_token", type: "authentication_error" });
      const given = world.send({ method: route.method, path, headers: { authorization: "Bearer secret" } });
      if (name !== "GET /v1/runs/*") expect((await given.answer).status).not.toBe(401);
      else given.leave();
    }
  });

  it("opens /metrics with metrics.public", async () => {
    const world = await startWorld({ auth: { token: "secret" }, options: { metricsPublic: true } });
    const answer = await world.send({ method: "GET", path: "/metrics" }).answer;
    expect(answer.status).toBe(200);
    expect(answer.headers["content-type"]).toContain("text/plain");
    expect(answer.text).toContain("luftpause_dataplane_linked 1");
  });

  it("needs the token for unknown paths too", async () => {
    const world = await startWorld({ auth: { token: "secret" } });
    expect((await world.send({ path: "/nowhere" }).answer).status).toBe(401);
  });

  it("answers GET /.well-known/* with 404 as JSON", async () => {
    const world = await startWorld({ auth: { token: "secret" } });
    const answer = await world.send({ method: "GET", path: "/.well-known/oauth-authorization-server" }).answer;
    expectError(answer, { status: 404, code: "route_unknown", type: "not_found_error" });
  });

  it.each([
    ["GET", "/v1/chat/completions", "POST"],
    ["PUT", "/v1/runs/r", "GET, DELETE"],
    ["OPTIONS", "/v1/models", "GET"],
    ["POST", "/healthz", "GET"],
  ])("answers %s %s with 405 and what is allowed", async (method, path, allow) => {
    const world = await startWorld();
    const answer = await world.send({ method, path }).answer;
    expectError(answer, { status: 405, code: "method_not_allowed", type: "invalid_request_error" });
    expect(answer.headers["allow"]).toBe(allow);
  });
});

/** Sends a request line as it is: clients of node tidy paths up. */
function rawStatus(world: World, line: string): Promise<number> {
  return new Promise((resolve, reject) => {
    const socket = net.connect(world.port, "127.0.0.1", () => {
      socket.write(`${line} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}`);
    });
    let text = "";
    socket.on("data", (bytes) => {
      text += bytes.toString("latin1");
    });
    socket.on("error", reject);
    socket.on("close", () => resolve(Number(text.slice(9, 12))));
  });
}

describe("a path", () => {
  it.each([
    "/flush_cache",
    "/update_weights",
    "/abort_request",
    "/metrics/",
    "/v1/chat/completions/",
    "/v1//chat/completions",
    "/v1/../v1/chat/completions",
    "/v1/chat/%63ompletions",
    "/v1/chat%2fcompletions",
    "/V1/chat/completions",
    "/v1/chat/completions;x=1",
    "//v1/chat/completions",
    "/v1/runs/",
    "/v1/runs",
    "/v1/runs/../../flush_cache",
    "/v1/runs/a/b",
    "/.well-known/../v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
  ])("is compared as it was sent, and never proxied when it is not a route: %s", async (path) => {
    const world = await startWorld();
    expect(await rawStatus(world, `POST ${path}`)).toBe(path === "/v1/runs/a/b" ? 405 : 404);
    expect(world.engine.requests).toHaveLength(0);
    expect(world.scheduler.story()).toEqual([]);
  });

  it("in absolute form counts by its path alone", async () => {
    const world = await startWorld();
    expect(await rawStatus(world, "POST http://elsewhere.example/flush_cache")).toBe(404);
  });
});

describe("GET /healthz and GET /readyz", () => {
  it("tell alive from ready: linked and synced, not draining", async () => {
    const world = await startWorld();
    const get = async (path: string): Promise<[number, unknown]> => {
      const answer = await world.send({ method: "GET", path }).answer;
      return [answer.status, answer.json["status"]];
    };
    expect(await get("/healthz")).toEqual([200, "ok"]);
    expect(await get("/readyz")).toEqual([200, "ready"]);
    world.scheduler.lose();
    expect(await get("/healthz")).toEqual([200, "ok"]);
    expect(await get("/readyz")).toEqual([503, "no link to the scheduler"]);
    world.scheduler.link();
    expect(await get("/readyz")).toEqual([200, "ready"]);
    void world.dataplane.drain();
    expect(await get("/readyz")).toEqual([503, "draining"]);
    expect(await get("/healthz")).toEqual([200, "ok"]);
  });
});

describe("GET /v1/models", () => {
  it("lists the models of healthy replicas once each, of both kinds", async () => {
    const world = await startWorld();
    world.pool([
      { models: ["m", "n"] },
      { replica: asReplicaId("b"), models: ["n", "o"] },
      { replica: asReplicaId("c"), kind: "single-pass", models: ["judge"] },
      { replica: asReplicaId("d"), healthy: false, models: ["gone"] },
    ]);
    const answer = await world.send({ method: "GET", path: "/v1/models" }).answer;
    expect(answer.json).toEqual({
      object: "list",
      data: ["m", "n", "o", "judge"].map((id) => ({ id, object: "model", created: 0, owned_by: "luftpause" })),
    });
  });

  it("has Anthropic's shape when its client asks", async () => {
    const world = await startWorld();
    const headers = { "anthropic-version": "2023-06-01" };
    const answer = await world.send({ method: "GET", path: "/v1/models?limit=1000", headers }).answer;
    expect(answer.json).toEqual({
      data: [{ type: "model", id: "m", display_name: "m", created_at: "1970-01-01T00:00:00Z" }],
      has_more: false,
      first_id: "m",
      last_id: "m",
    });
  });
});

describe("/v1/runs/{id}", () => {
  it("asks the scheduler for the run of this principal alone, by its decoded id", async () => {
    const principals = [{ name: "ci" as never, token: "t", classes: ["batch"] as const }];
    const world = await startWorld({ auth: { principals } });
    const view = {
      run: "a/b%" as never,
      class: "batch",
      caller: "" as never,
      phase: "paused",
      replica: undefined,
      heldTurns: 0,
      turnsInFlight: 0,
      turns: 2,
      quietMs: 5,
    } as const;
    world.scheduler.onMessage = (message) => {
      if (message.type === "run-query") world.scheduler.say({ type: "run-known", query: message.query, view });
    };
    const headers = { authorization: "Bearer t" };
    const answer = await world.send({ method: "GET", path: "/v1/runs/a%2Fb%25", headers }).answer;
    expect(answer.json).toEqual({ ...view, replica: null });
    expect(world.scheduler.of("run-query")[0]).toMatchObject({ run: "a/b%", principal: "ci" });
  });

  it.each([
    ["GET", "/v1/runs/%E0%A4%A", 400],
    ["DELETE", "/v1/runs/%", 400],
    ["GET", "/v1/runs/a%20b", 404],
    ["DELETE", "/v1/runs/a%20b", 204],
    ["GET", "/v1/runs/a/b", 404],
  ])("%s %s is %s", async (method, path, status) => {
    const world = await startWorld();
    expect((await world.send({ method, path }).answer).status).toBe(status);
    expect(world.scheduler.of("run-ended")).toEqual([]);
  });

  it("is 204 on DELETE whether the run is known or not, and tells the scheduler", async () => {
    const world = await startWorld();
    const answer = await world.send({ method: "DELETE", path: "/v1/runs/r-1" }).answer;
    expect([answer.status, answer.text]).toEqual([204, ""]);
    expect(world.scheduler.of("run-ended")).toEqual([{ type: "run-ended", run: "r-1", principal: "default" }]);
  });

  it("remembers a DELETE while the scheduler is away, and tells it then", async () => {
    const world = await startWorld();
    world.scheduler.lose();
    expect((await world.send({ method: "DELETE", path: "/v1/runs/r-1" }).answer).status).toBe(204);
    world.scheduler.messages.length = 0;
    world.scheduler.link();
    expect(world.scheduler.messages.map((message) => message.type)).toEqual(["hello", "run-ended"]);
  });

  it("is 503 when the scheduler does not answer, is lost meanwhile, or is away", async () => {
    const world = await startWorld();
    const slow = world.send({ method: "GET", path: "/v1/runs/r" });
    while (world.scheduler.of("run-query").length === 0) await new Promise((resolve) => setImmediate(resolve));
    world.clock.advance(2_000);
    expectError(await slow.answer, { status: 503, code: "overloaded", type: "overloaded_error" });
    const lost = world.send({ method: "GET", path: "/v1/runs/r" });
    while (world.scheduler.of("run-query").length === 1) await new Promise((resolve) => setImmediate(resolve));
    world.scheduler.lose();
    expect((await lost.answer).status).toBe(503);
    expect((await world.send({ method: "GET", path: "/v1/runs/r" }).answer).status).toBe(503);
    expect(world.clock.timerCount).toBe(2);
  });
});
