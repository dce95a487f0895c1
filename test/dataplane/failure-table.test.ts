/**
 * Each row of the failure table (spec 3, When something fails) over real sockets. The titles are the rows of
 * docs/failure-table.md; docs.test.ts compares the two.
 */
import net from "node:net";
import { describe, expect, it } from "vitest";
import { FAILURE_ROWS } from "./failure-rows.ts";
import {
  answerJson,
  CHAT,
  endpointOf,
  EVENTS,
  expectError,
  startWorld,
  streamAll,
  until,
  WHOLE_STREAM,
  type World,
} from "./support.ts";

/** A port of this machine on which nothing listens. */
async function deadPort(): Promise<number> {
  const server = net.createServer();
  await new Promise<void>((resolve) => {
    server.listen(0, "127.0.0.1", resolve);
  });
  const { port } = server.address() as net.AddressInfo;
  await new Promise((resolve) => {
    server.close(resolve);
  });
  return port;
}

const settled = (world: World): boolean => world.dataplane.openTurns().length === 0;
const lastData = (text: string): unknown => {
  const line = text
    .trimEnd()
    .split("\n")
    .findLast((one) => one.startsWith("data: "));
  return JSON.parse((line ?? "data: null").slice(6));
};

describe(FAILURE_ROWS.leftWhileHeld, () => {
  it.each([true, false])("withdraws the turn and reaches no engine (stream: %s)", async (stream) => {
    const world = await startWorld();
    world.scheduler.holdAll();
    const turn = world.chat({ stream });
    await until("it is held", () => world.scheduler.of("requested").length === 1);
    turn.leave();
    await until("it is given up", () => settled(world));
    expect(world.scheduler.story()).toEqual(["requested", "abandoned"]);
    expect(world.scheduler.of("abandoned")[0]).toMatchObject({ reason: "client-left" });
    // An admission that was on its way finds nobody.
    world.scheduler.admit();
    expect(world.engine.requests).toHaveLength(0);
    expect(world.scheduler.story()).toEqual(["requested", "abandoned"]);
    expect(await world.metric("turns_total")).toContain('outcome="client-left-held",class="interactive"} 1');
  });
});

describe(FAILURE_ROWS.leftMidStream, () => {
  it.each([
    ["before the head", () => undefined],
    ["before the first byte", (_request: unknown, reply: { stream(): void }) => reply.stream()],
    [
      "in the stream",
      (_request: unknown, reply: { stream(): void; chunk(text: string): void }) => {
        reply.stream();
        reply.chunk(EVENTS[0] + EVENTS[1]);
      },
    ],
  ] as const)("closes the engine's request at once: %s", async (_when, onRequest) => {
    const world = await startWorld();
    world.engine.onRequest = onRequest;
    const turn = world.chat({ stream: true });
    await until("the engine has it", () => world.engine.requests.length === 1);
    if (_when === "in the stream") await until("bytes came", () => turn.text().includes("It flows"));
    turn.leave();
    await until("the engine's socket is closed", () => world.engine.replies[0]?.closed === true);
    await until("the turn has ended", () => settled(world));
    expect(world.scheduler.of("failed")).toMatchObject([{ reason: "client-left" }]);
    expect(world.scheduler.of("finished")).toEqual([]);
  });

  it("closes a whole answer's request too", async () => {
    const world = await startWorld();
    const turn = world.chat({ stream: false });
    await until("the engine has it", () => world.engine.requests.length === 1);
    turn.leave();
    await until("the engine's socket is closed", () => world.engine.replies[0]?.closed === true);
    expect(world.scheduler.of("failed")).toMatchObject([{ reason: "client-left" }]);
  });

  it("tells SGLang by the request's id as well, with the engine's key", async () => {
    const world = await startWorld({ endpoint: { engine: "sglang", apiKey: "engine-key" } });
    world.engine.onRequest = (request, reply) => {
      if (request.path === "/abort_request") {
        reply.whole(200, {}, "");
        return;
      }
      reply.stream();
      reply.chunk(EVENTS[0] + EVENTS[1]);
    };
    const turn = world.chat({ stream: true });
    await until("bytes came", () => turn.text().includes("It flows"));
    turn.leave();
    await until("the engine is told", () => world.engine.requests.length === 2);
    expect(world.engine.requests[1]).toMatchObject({ method: "POST", path: "/abort_request" });
    expect(world.engine.requests[1]?.headers["authorization"]).toBe("Bearer engine-key");
    expect(JSON.parse(world.engine.requests[1]?.body.toString() ?? "")).toEqual({ rid: "chatcmpl-1" });
  });
});

describe(FAILURE_ROWS.unreachable, () => {
  it.each([true, false])(
    "answers 502 at once when refused, and reports started and failed (stream: %s)",
    async (stream) => {
      const world = await startWorld({ endpoints: [endpointOf("a", `http://127.0.0.1:${await deadPort()}`)] });
      const answer = await world.chat({ stream }).answer;
      expectError(answer, {
        status: 502,
        code: "engine_unreachable",
        type: "upstream_error",
        message: "engine a: connection refused",
      });
      expect(answer.headers["x-luftpause-replica"]).toBe("a");
      expect(answer.headers["x-luftpause-run-id"]).toMatch(/^run-/);
      expect(world.scheduler.story()).toEqual(["requested", "started", "failed"]);
      expect(world.scheduler.of("failed")[0]).toMatchObject({ reason: "engine-unreachable" });
      expect(await world.metric("engine_errors_total")).toContain('replica="a",kind="unreachable"} 1');
    },
  );

  it("answers 502 engine_lost when the engine closes without a byte of an answer", async () => {
    const world = await startWorld();
    world.engine.onRequest = (_request, reply) => reply.destroy();
    const answer = await world.chat().answer;
    expectError(answer, {
      status: 502,
      code: "engine_lost",
      type: "upstream_error",
      message: /^engine a: connection /,
    });
    expect(world.scheduler.of("failed")[0]).toMatchObject({ reason: "engine-lost" });
  });

  it("answers 502 when the engine's answer is no HTTP", async () => {
    const world = await startWorld();
    world.engine.onRequest = (_request, reply) => reply.raw("SSH-2.0-OpenSSH_9.9\r\n\r\n");
    expectError(await world.chat().answer, {
      status: 502,
      code: "engine_lost",
      type: "upstream_error",
      message: /^engine a: /,
    });
  });

  it("gives the connect time-out of 2 s to the engine client", async () => {
    const { limits } = (await startWorld()).options;
    expect(limits.connectTimeoutMs).toBe(2_000);
  });
});

describe(FAILURE_ROWS.diesMidStream, () => {
  it.each([
    [true, false],
    [true, true],
    [false, false],
    [false, true],
  ])("sends the error event between events, then breaks off (fast lane: %s, splice: %s)", async (lane, splice) => {
    const world = await startWorld({ lane, endpoint: { splice } });
    world.engine.onRequest = (_request, reply) => {
      reply.stream();
      reply.chunk(EVENTS[0] + EVENTS[1]);
    };
    const turn = world.chat({ stream: true });
    await until("bytes came", () => turn.text().includes("It flows"));
    world.engine.replies[0]?.destroy();
    const answer = await turn.answer;
    expect(answer.status).toBe(200);
    expect(answer.text.startsWith(EVENTS[0] + EVENTS[1])).toBe(true);
    expect(answer.clean).toBe(false);
    expect(answer.text).not.toContain("[DONE]");
    expect(lastData(answer.text)).toEqual({
      error: { message: expect.stringMatching(/^engine a: connection /), type: "upstream_error", code: "engine_lost" },
    });
    expect(world.scheduler.story()).toEqual(["requested", "started", "failed"]);
    expect(world.scheduler.of("failed")[0]).toMatchObject({ reason: "engine-lost" });
    expect(await world.metric("turns_total")).toContain('outcome="engine_lost",class="interactive"} 1');
  });

  it.each([true, false])("breaks off at once inside an event (fast lane: %s)", async (lane) => {
    const world = await startWorld({ lane });
    const cut = EVENTS[1].slice(0, 60);
    world.engine.onRequest = (_request, reply) => {
      reply.stream();
      reply.chunk(EVENTS[0] + cut);
    };
    const turn = world.chat({ stream: true });
    await until("bytes came", () => turn.text().endsWith(cut));
    world.engine.replies[0]?.destroy();
    const answer = await turn.answer;
    expect(answer.text).toBe(EVENTS[0] + cut);
    expect(answer.clean).toBe(false);
  });

  it("puts no event into a chunk of the engine that is not whole", async () => {
    const world = await startWorld();
    const part = EVENTS[0];
    world.engine.onRequest = (_request, reply) => {
      reply.stream();
      // The chunk announces more than comes: its payload so far ends an event, its frame is open.
      reply.raw(`${(part.length + 50).toString(16)}\r\n${part}`);
    };
    const turn = world.chat({ stream: true });
    await until("bytes came", () => turn.text() === part);
    world.engine.replies[0]?.destroy();
    const answer = await turn.answer;
    expect(answer.text).toBe(part);
    expect(answer.clean).toBe(false);
  });

  it.each([
    ["chunked", true],
    ["chunked", false],
    ["close-delimited", true],
  ])("does not end cleanly when the engine ends without a finish (%s, fast lane: %s)", async (how, lane) => {
    const world = await startWorld({ lane });
    world.engine.onRequest = (_request, reply) => {
      if (how === "chunked") {
        reply.stream();
        reply.chunk(EVENTS[0] + EVENTS[1]);
        reply.end();
      } else {
        reply.raw(`HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n${EVENTS[0]}${EVENTS[1]}`);
        setImmediate(() => reply.destroy());
      }
    };
    const answer = await world.chat({ stream: true }).answer;
    expect(answer.clean).toBe(false);
    expect(answer.text.startsWith(EVENTS[0] + EVENTS[1])).toBe(true);
    expect(lastData(answer.text)).toMatchObject({ error: { code: "engine_lost" } });
    expect(world.scheduler.of("failed")).toMatchObject([{ reason: "engine-lost" }]);
  });

  it("lets a stream without [DONE] end well when the model said why it stopped", async () => {
    const world = await startWorld();
    const text = EVENTS.slice(0, 4).join("");
    world.engine.onRequest = (_request, reply) => {
      reply.stream();
      reply.chunk(text);
      reply.end();
    };
    const answer = await world.chat({ stream: true }).answer;
    expect(answer.text).toBe(text);
    expect(answer.clean).toBe(true);
    expect(world.scheduler.of("finished")).toHaveLength(1);
  });

  it("breaks off a whole answer that is cut", async () => {
    const world = await startWorld();
    world.engine.onRequest = (_request, reply) => {
      reply.raw(`HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{"choices":[`);
    };
    const turn = world.chat();
    await until("bytes came", () => turn.text() !== "");
    world.engine.replies[0]?.destroy();
    const answer = await turn.answer;
    expect(answer.text).toBe('{"choices":[');
    expect(answer.clean).toBe(false);
    expect(world.scheduler.of("failed")).toMatchObject([{ reason: "engine-lost" }]);
  });
});

describe(FAILURE_ROWS.engineError, () => {
  it.each([400, 404, 422, 429, 500, 503])(
    "passes %s with its body and headers, and frees the slot at once",
    async (status) => {
      const world = await startWorld({ endpoint: { backpressure: "pass" } });
      const body = `{"object":"error","message":"no \\u00e9, 1.0","code":${status}}`;
      world.engine.onRequest = (_request, reply) =>
        reply.whole(status, { "content-type": "application/json", "retry-after": "17", "x-request-id": "r-1" }, body);
      const answer = await world.chat({ stream: true }).answer;
      expect(answer.status).toBe(status);
      expect(answer.text).toBe(body);
      expect(answer.headers).toMatchObject({ "retry-after": "17", "x-request-id": "r-1", "x-luftpause-replica": "a" });
      expect(answer.headers["x-luftpause-run-id"]).toMatch(/^run-/);
      expect(world.scheduler.story()).toEqual(["requested", "started", "failed"]);
      expect(world.scheduler.of("failed")[0]).toMatchObject({ reason: "engine-error" });
    },
  );

  it("frees the slot although the error's body never ends", async () => {
    const world = await startWorld();
    world.engine.onRequest = (_request, reply) => {
      reply.stream({ "content-type": "application/json" }, 500);
      reply.chunk('{"error":');
    };
    const turn = world.chat();
    await until("the scheduler knows", () => world.scheduler.of("failed").length === 1);
    turn.leave();
    await until("the turn has ended", () => settled(world));
    expect(world.scheduler.of("failed")).toHaveLength(1);
    await until("the engine's socket is closed", () => world.engine.replies[0]?.closed === true);
  });
});

describe(FAILURE_ROWS.unknownModel, () => {
  it("passes the scheduler's refusal on as 404 and records no turn", async () => {
    const world = await startWorld();
    world.scheduler.onRequest = ({ turn, freshRun, model }) => ({
      type: "rejected",
      turn,
      run: freshRun,
      source: "new",
      code: "model_not_found",
      message: `no Generative replica serves model '${model}'`,
    });
    const answer = await world.chat({ model: "é" }).answer;
    expectError(answer, {
      status: 404,
      code: "model_not_found",
      type: "not_found_error",
      message: "no Generative replica serves model 'é'",
    });
    expect(answer.headers["x-luftpause-run-id"]).toMatch(/^run-/);
    expect(world.scheduler.story()).toEqual(["requested"]);
    expect(world.engine.requests).toHaveLength(0);
  });
});

describe(FAILURE_ROWS.schedulerDown, () => {
  it("waits as if held, asks again each second under the same id, and hands its state over first", async () => {
    const world = await startWorld();
    world.scheduler.onRequest = () => undefined;
    world.engine.onRequest = streamAll;
    const turn = world.chat({ stream: true });
    await until("it is asked for", () => world.scheduler.of("requested").length === 1);
    world.clock.advance(1_000);
    world.clock.advance(1_000);
    expect(new Set(world.scheduler.of("requested").map((one) => one.turn)).size).toBe(1);
    expect(world.scheduler.of("requested").map((one) => one.heldMs)).toEqual([0, 1_000, 2_000]);
    world.scheduler.lose();
    expect(world.dataplane.ready()).toEqual({ ready: false, reason: "no link to the scheduler" });
    world.clock.advance(5_000);
    expect(world.scheduler.of("requested")).toHaveLength(3);
    world.scheduler.messages.length = 0;
    world.scheduler.admitAll();
    world.scheduler.link();
    expect(world.scheduler.messages.map((one) => one.type).slice(0, 2)).toEqual(["hello", "requested"]);
    expect(world.scheduler.of("requested")[0]).toMatchObject({ heldMs: 7_000 });
    expect((await turn.answer).text).toBe(WHOLE_STREAM);
  });

  it("takes a turn that comes while the scheduler is away, and shows it signs of life", async () => {
    const world = await startWorld();
    world.engine.onRequest = streamAll;
    world.scheduler.lose();
    const turn = world.chat({ stream: true });
    await until("it is open", () => world.dataplane.openTurns().length === 1);
    await until("it is held", () => world.dataplane.openTurns()[0]?.phase === "held");
    world.clock.advance(10_000);
    await until("the early answer came", () => turn.text().includes("\n\n"));
    expect(turn.text()).toBe(": held 10 s: the scheduler cannot be reached, asking again each second\n\n");
    // Nobody has said which run it is.
    expect(turn.headers()?.["x-luftpause-run-id"]).toBeUndefined();
    world.scheduler.link();
    expect((await turn.answer).text.endsWith(WHOLE_STREAM)).toBe(true);
  });

  it("hands over runs, turns in flight and reported keys on reconnect", async () => {
    const world = await startWorld();
    const toolCall = `data: {"id":"c","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"f","arguments":"{}"}}]},"finish_reason":null}]}\n\n`;
    const finish = `data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\ndata: [DONE]\n\n`;
    world.engine.onRequest = (_request, reply) => {
      reply.stream();
      reply.chunk(toolCall + finish);
      reply.end();
    };
    await world.chat({ stream: true }, { "x-luftpause-run-id": "r1", "x-luftpause-caller": "me" }).answer;
    await until("it has finished", () => world.scheduler.of("finished").length === 1);
    expect(world.scheduler.of("finished")[0]?.paused).toBe(true);
    const keys = world.scheduler.of("finished")[0]?.keys ?? [];
    expect(keys.map((key) => key.source)).toContain("tool-calls");
    world.engine.onRequest = (_request, reply) => reply.stream();
    world.clock.advance(3_000);
    const open = world.chat({ stream: true }, { "x-luftpause-run-id": "r2", "x-luftpause-class": "batch" });
    await until("the second is in flight", () => world.engine.requests.length === 2);
    world.clock.advance(500);
    world.scheduler.lose();
    world.scheduler.link();
    const hello = world.scheduler.of("hello").at(-1);
    expect(hello?.runs).toMatchObject([
      { run: "r1", caller: "me", class: "interactive", phase: "paused", replica: "a", quietMs: 3_500, pausedMs: 3_500 },
      { run: "r2", caller: "", class: "batch", phase: "idle", replica: "a", quietMs: 500 },
    ]);
    expect(hello?.flights).toMatchObject([
      { run: "r2", class: "batch", replica: "a", side: false, ageMs: 500, model: "m", api: "chat", source: "header" },
    ]);
    expect(hello?.keys).toEqual([{ run: "r1", principal: "default", keys, ageMs: 3_500 }]);
    // A turn in flight is not asked for again.
    expect(world.scheduler.of("requested")).toHaveLength(2);
    open.leave();
  });
});

describe(FAILURE_ROWS.badRequest, () => {
  it.each([
    ["no body", "", {}, "invalid_json", null],
    ["bad JSON", '{"model":', {}, "invalid_json", null],
    ["no model", '{"messages":[]}', {}, "missing_model", "model"],
    ["a bad class", JSON.stringify(CHAT), { "x-luftpause-class": "urgent" }, "bad_class", "x-luftpause-class"],
    ["a bad run id", JSON.stringify(CHAT), { "x-luftpause-run-id": "a,b" }, "bad_run_id", "x-luftpause-run-id"],
    [
      "a long run id",
      JSON.stringify(CHAT),
      { "x-luftpause-run-id": "r".repeat(257) },
      "bad_run_id",
      "x-luftpause-run-id",
    ],
    ["two run ids", JSON.stringify(CHAT), { "x-luftpause-run-id": ["a", "b"] }, "bad_run_id", "x-luftpause-run-id"],
    [
      "two classes",
      JSON.stringify(CHAT),
      { "x-luftpause-class": ["batch", "batch"] },
      "bad_class",
      "x-luftpause-class",
    ],
  ])("answers 400 that names the field: %s", async (_what, body, headers, code, param) => {
    const world = await startWorld();
    const answer = await world.send({ body, headers }).answer;
    expectError(answer, { status: 400, code, type: "invalid_request_error" });
    expect(answer.json.error?.["param"]).toBe(param);
    expect(answer.headers["x-luftpause-run-id"]).toMatch(/^run-/);
    expect(world.scheduler.story()).toEqual([]);
    expect(settled(world)).toBe(true);
  });
});

describe("a body of a few bytes", () => {
  it.each(["{", "{}", "[]", "1", '""', "nul", "{}\n"])("is a 400 wherever it lies in its buffer: %s", async (body) => {
    const world = await startWorld();
    // Paths of different length shift the body against the words of the read buffer.
    for (let shift = 0; shift < 4; shift += 1) {
      const path = `/v1/chat/completions?${"x".repeat(shift)}`;
      expect((await world.send({ body, path }).answer).status).toBe(400);
    }
  });
});

describe(FAILURE_ROWS.badToken, () => {
  it.each([
    ["none", {}],
    ["a wrong one", { authorization: "Bearer wrong" }],
    ["a word without a token", { authorization: "bearer" }],
    ["not ASCII", { authorization: "Bearer \u00fc" }],
    ["of another kind", { authorization: "Basic c2VjcmV0", "x-api-key": "secret" }],
  ])("answers 401 and does nothing else: %s", async (_what, headers) => {
    const world = await startWorld({ auth: { token: "secret" } });
    const answer = await world.chat({}, headers).answer;
    expectError(answer, { status: 401, code: "invalid_token", type: "authentication_error" });
    expect(answer.headers["www-authenticate"]).toBe("Bearer");
    expect(answer.headers["x-luftpause-run-id"]).toBeUndefined();
    expect(answer.text).not.toContain("secret");
    expect(world.scheduler.story()).toEqual([]);
  });

  it.each([
    ["authorization", "Bearer secret"],
    ["x-api-key", "secret"],
    ["x-goog-api-key", "secret"],
  ])("takes the token as %s, and never passes it on", async (name, value) => {
    const world = await startWorld({ auth: { token: "secret" } });
    world.engine.onRequest = answerJson;
    expect((await world.chat({}, { [name]: value }).answer).status).toBe(200);
    expect(JSON.stringify(world.engine.requests[0]?.headers)).not.toContain("secret");
  });
});
