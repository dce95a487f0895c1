/** Requests that are no turns (spec 3, Auxiliary requests). */
import { describe, expect, it } from "vitest";
import { asReplicaId } from "../../src/base/ids.ts";
import { DEFAULTS } from "../../src/wire/limits.ts";
import { endpointOf, expectError, startEngine, startWorld, until, type TestEngine, type World } from "./support.ts";

const INPUT = { model: "e", input: "x" };
const embed = (world: World, headers = {}) => world.send({ path: "/v1/embeddings", body: INPUT, headers });
const decide = (world: World, headers = {}) =>
  world.send({ path: "/v1/decide?x=1", body: { model: "judge", input: "x" }, headers });

async function embeddings(
  limits: Partial<typeof DEFAULTS> = {},
): Promise<{ world: World; a: TestEngine; b: TestEngine }> {
  const a = await startEngine();
  const b = await startEngine();
  const world = await startWorld({ limits, endpoints: [endpointOf("a", a.url), endpointOf("b", b.url)] });
  world.pool([{ models: ["e"] }, { replica: asReplicaId("b"), models: ["e"] }]);
  return { world, a, b };
}

async function singlePass(fields: Parameters<typeof endpointOf>[2] = {}): Promise<World> {
  const world = await startWorld({ endpoint: { kind: "single-pass", ...fields } });
  world.pool([{ kind: "single-pass", models: ["judge"], speaks: ["classify"] }]);
  return world;
}

describe("embeddings", () => {
  it("go to the replica with the fewest in flight, without the scheduler", async () => {
    const { world, a, b } = await embeddings();
    const answers = [embed(world), embed(world), embed(world)];
    await until("all are out", () => a.requests.length + b.requests.length === 3);
    expect([a.requests.length, b.requests.length]).toEqual([2, 1]);
    for (const reply of [...a.replies, ...b.replies])
      reply.whole(200, { "content-type": "application/json" }, '{"data":[1.0]}');
    for (const one of answers) expect((await one.answer).text).toBe('{"data":[1.0]}');
    expect(a.requests[0]?.path).toBe("/v1/embeddings");
    expect(a.requests[0]?.body.toString()).toBe(JSON.stringify(INPUT));
    expect(world.scheduler.story()).toEqual([]);
  });

  it("are at most auxiliaryRequestsMax at once per replica; the next wait in order, and go when a place is free", async () => {
    expect(DEFAULTS.auxiliaryRequestsMax).toBe(32);
    const { world, a, b } = await embeddings({ auxiliaryRequestsMax: 1 as never });
    const answers = ["1", "2", "3", "4"].map((id) => embed(world, { "x-id": id }));
    await until("two are out", () => a.requests.length + b.requests.length === 2);
    await until("the others wait", () => world.clock.timerCount === 4);
    const first = a.requests.length === 1 ? a : b;
    first.replies[0]?.whole(200, {}, "{}");
    await until("the third is out", () => first.requests.length === 2);
    first.replies[1]?.whole(200, {}, "{}");
    await until("the fourth is out", () => first.requests.length === 3);
    for (const engine of [a, b]) engine.replies.at(-1)?.whole(200, {}, "{}");
    const statuses = await Promise.all(answers.map(async (one) => (await one.answer).status));
    expect(statuses).toEqual([200, 200, 200, 200]);
    expect(world.clock.timerCount).toBe(2);
  });

  it("wait at most 10 s, then 503 overloaded; one that leaves gives up its place in the queue", async () => {
    const { world, a, b } = await embeddings({ auxiliaryRequestsMax: 1 as never });
    const out = [embed(world), embed(world)];
    await until("two are out", () => a.requests.length + b.requests.length === 2);
    const waiting = embed(world);
    const leaving = embed(world);
    await until("two wait", () => world.clock.timerCount === 4);
    leaving.leave();
    await until("one has left", () => world.clock.timerCount === 3);
    world.clock.advance(DEFAULTS.auxiliaryWaitMs - 1);
    expect(waiting.status()).toBeUndefined();
    world.clock.advance(1);
    const answer = await waiting.answer;
    expectError(answer, { status: 503, code: "overloaded", type: "overloaded_error" });
    expect(answer.headers["retry-after"]).toBe("5");
    expect(answer.headers["x-luftpause-run-id"]).toBeUndefined();
    for (const one of out) one.leave();
    await until("the engines see them leave", () => a.replies[0]?.closed === true && b.replies[0]?.closed === true);
    expect(await world.metric("held_body_bytes")).toContain(" 0");
  });

  it("are 404 for a model that no replica has, and wait for a healthy one otherwise", async () => {
    const { world, a } = await embeddings();
    const unknown = await world.send({ path: "/v1/embeddings", body: { model: "x", input: "" } }).answer;
    expectError(unknown, { status: 404, code: "model_not_found", type: "not_found_error" });
    world.pool([{ models: ["e"], healthy: false }]);
    const waiting = embed(world);
    await until("it waits", () => world.clock.timerCount === 3);
    world.pool([{ models: ["e"], healthy: true }]);
    await until("it goes", () => a.requests.length === 1);
    a.replies[0]?.whole(200, {}, "{}");
    expect((await waiting.answer).status).toBe(200);
  });

  it("wait while an endpoint was not asked yet what it has, and are 404 once it is known that none has the model", async () => {
    const { world, a } = await embeddings();
    const typo = world.send({ path: "/v1/embeddings", body: { model: "x", input: "" } });
    expectError(await typo.answer, { status: 404, code: "model_not_found", type: "not_found_error" });
    world.pool([
      { models: [], healthy: false, probed: false },
      { replica: asReplicaId("b"), models: [], healthy: false, probed: false },
    ]);
    const early = embed(world);
    await until("it waits", () => world.clock.timerCount === 3);
    const lost = world.send({ path: "/v1/embeddings", body: { model: "x", input: "" } });
    await until("both wait", () => world.clock.timerCount === 4);
    world.pool([{ models: ["e"] }, { replica: asReplicaId("b"), models: [] }]);
    await until("it goes", () => a.requests.length === 1);
    a.replies[0]?.whole(200, {}, "{}");
    expect((await early.answer).status).toBe(200);
    world.clock.advance(DEFAULTS.auxiliaryWaitMs);
    expectError(await lost.answer, { status: 404, code: "model_not_found", type: "not_found_error" });
  });

  it("give their place back when the client leaves, the engine fails, or the answer is an error", async () => {
    const { world, a, b } = await embeddings({ auxiliaryRequestsMax: 1 as never });
    const leaving = embed(world);
    await until("it is out", () => a.requests.length === 1);
    leaving.leave();
    await until("the engine sees it", () => a.replies[0]?.closed === true);
    a.onRequest = (_request, reply) => reply.destroy();
    expectError(await embed(world).answer, { status: 502, code: "engine_lost", type: "upstream_error" });
    a.onRequest = (_request, reply) => reply.whole(429, { "retry-after": "3" }, "busy");
    const busy = await embed(world).answer;
    expect([busy.status, busy.text, busy.headers["retry-after"]]).toEqual([429, "busy", "3"]);
    a.onRequest = (_request, reply) => reply.whole(200, {}, "{}");
    expect((await embed(world).answer).status).toBe(200);
    expect(b.requests).toHaveLength(0);
  });

  it("are refused while draining, those that wait too; those at an engine may end", async () => {
    const { world, a, b } = await embeddings({ auxiliaryRequestsMax: 1 as never });
    const out = [embed(world), embed(world)];
    await until("two are out", () => a.requests.length + b.requests.length === 2);
    const waiting = embed(world);
    await until("one waits", () => world.clock.timerCount === 3);
    let drained = false;
    void world.dataplane.drain().then(() => {
      drained = true;
    });
    expectError(await waiting.answer, { status: 503, code: "draining", type: "overloaded_error" });
    expectError(await embed(world).answer, { status: 503, code: "draining", type: "overloaded_error" });
    expect(drained).toBe(false);
    for (const engine of [a, b]) engine.replies[0]?.whole(200, {}, "{}");
    for (const one of out) expect((await one.answer).status).toBe(200);
    await until("it is drained", () => drained);
  });

  it("have the bounds of turns: body, held bytes, JSON, encoding", async () => {
    const { world } = await embeddings({ bodyBytesMax: 40 as never, heldBodyBytesMax: 10 as never });
    const ask = (body: string, headers = {}) => world.send({ path: "/v1/embeddings", body, headers }).answer;
    expect((await ask("x".repeat(41))).json.error?.["code"]).toBe("body_too_large");
    expect((await ask("{")).json.error?.["code"]).toBe("invalid_json");
    expect((await ask("{}")).json.error?.["code"]).toBe("missing_model");
    expect((await ask(JSON.stringify(INPUT), { "content-encoding": "br" })).json.error?.["code"]).toBe(
      "unsupported_encoding",
    );
    expect((await ask(JSON.stringify(INPUT))).json.error?.["code"]).toBe("overloaded");
  });
});

describe("/v1/decide", () => {
  it.each([
    ["vllm", undefined, "/classify?x=1"],
    ["sglang", undefined, "/v1/classify?x=1"],
    ["vllm", "/own/path", "/own/path?x=1"],
  ] as const)(
    "goes to a single-pass replica (%s, classifyPath %s) and brings its body back unchanged",
    async (engine, classifyPath, path) => {
      const world = await singlePass({ engine, classifyPath });
      const body = '{"data":[{"index":0, "label":"yes","probs":[0.10,0.90]}]}';
      world.engine.onRequest = (_request, reply) => reply.whole(200, { "content-type": "application/json" }, body);
      const answer = await decide(world, { "x-luftpause-run-id": "r" }).answer;
      expect(answer.text).toBe(body);
      expect(answer.headers["x-luftpause-run-id"]).toBe("r");
      expect(world.engine.requests[0]?.path).toBe(path);
      expect(world.scheduler.story()).toEqual([]);
    },
  );

  it("is 404 with its own words for a model that no single-pass replica has", async () => {
    const world = await singlePass();
    world.pool([{ models: ["judge"] }]);
    const answer = await world.send({ path: "/v1/decide", body: { model: "other", input: "x" } }).answer;
    expectError(answer, {
      status: 404,
      code: "model_not_found",
      type: "not_found_error",
      message: "no SinglePass replica serves model 'other'",
    });
    expect(answer.headers["x-luftpause-run-id"]).toMatch(/^run-/);
  });

  it("never goes to a generative replica, nor a turn's slot is taken", async () => {
    const world = await startWorld();
    const answer = await world.send({ path: "/v1/decide", body: { model: "m", input: "x" } }).answer;
    expect(answer.json.error?.["message"]).toBe("no SinglePass replica serves model 'm'");
  });

  it("waits for a healthy replica, then 503 no_healthy_replica", async () => {
    const world = await singlePass();
    world.pool([{ kind: "single-pass", models: ["judge"], healthy: false }]);
    const waiting = decide(world);
    await until("it waits", () => world.clock.timerCount === 3);
    world.clock.advance(10_000);
    const answer = await waiting.answer;
    expectError(answer, { status: 503, code: "no_healthy_replica", type: "overloaded_error" });
    expect(answer.headers["x-luftpause-run-id"]).toMatch(/^run-/);
  });

  it("names a run on every answer, and checks the headers as turns do", async () => {
    const world = await singlePass();
    const badRun = await decide(world, { "x-luftpause-run-id": "a,b" }).answer;
    expect([badRun.status, badRun.json.error?.["code"]]).toEqual([400, "bad_run_id"]);
    expect(badRun.headers["x-luftpause-run-id"]).toMatch(/^run-/);
    const badClass = await decide(world, { "x-luftpause-class": "x" }).answer;
    expect([badClass.status, badClass.json.error?.["code"]]).toEqual([400, "bad_class"]);
    await world.engine.close();
    const unreachable = await decide(world, { "x-luftpause-run-id": "r" }).answer;
    expectError(unreachable, {
      status: 502,
      code: "engine_unreachable",
      type: "upstream_error",
      message: /^engine a: /,
    });
    expect(unreachable.headers["x-luftpause-run-id"]).toBe("r");
  });

  it("closes the engine's request when the client leaves", async () => {
    const world = await singlePass();
    const leaving = decide(world);
    await until("the engine has it", () => world.engine.requests.length === 1);
    leaving.leave();
    await until("the engine sees it", () => world.engine.replies[0]?.closed === true);
  });
});
