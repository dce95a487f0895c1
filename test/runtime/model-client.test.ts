import { describe, expect, test } from "vitest";
import { createEngineClient } from "../../src/http/index.ts";
import { createModelClient, type TurnOutcome, type TurnRequest } from "../../src/runtime/model-client.ts";
import { chunk, fakeDataplane, FROM_ENGINE, onCleanUp, SSE, TestClock, until, USAGE } from "./fake-dataplane.ts";

const REQUEST: TurnRequest = {
  run: "run-1",
  principal: "ann",
  caller: "käthe",
  serviceClass: "batch",
  model: "m",
  messages: [{ role: "user", content: "hello" }],
  tools: [],
  toolChoice: "auto",
  parallelToolCalls: false,
  maxTokens: 64,
};
const TOOL = { type: "function", function: { name: "look", parameters: { type: "object" } } };

async function setUp() {
  const dataplane = await fakeDataplane();
  const clock = new TestClock();
  const http = createEngineClient({ connectTimeoutMs: 2_000, reusedSocketRetryMs: 0 });
  const client = createModelClient({
    url: dataplane.url,
    token: "secret",
    http,
    clock,
    turnTimeoutMs: 600_000,
    silenceMs: 60_000,
  });
  onCleanUp(() => client.close());
  const ask = (request: Partial<TurnRequest> = {}) => {
    const seen = { generating: false };
    const call = client.ask({ ...REQUEST, ...request }, () => {
      seen.generating = true;
    });
    return { ...call, seen };
  };
  return { dataplane, clock, client, ask };
}

describe("the request", () => {
  test("is a stream with usage, under the run's id, class, principal and caller, with the service's token", async () => {
    const { dataplane, ask } = await setUp();
    const call = ask();
    const { headers, body, response } = await dataplane.nextTurn();
    expect(body).toEqual({
      model: "m",
      messages: [{ role: "user", content: "hello" }],
      stream: true,
      stream_options: { include_usage: true },
      max_tokens: 64,
    });
    expect(headers).toMatchObject({
      "x-luftpause-run-id": "run-1",
      "x-luftpause-class": "batch",
      "x-luftpause-principal": "ann",
      authorization: "Bearer secret",
    });
    expect(Buffer.from(String(headers["x-luftpause-caller"]), "latin1").toString("utf8")).toBe("käthe");
    response.writeHead(200, FROM_ENGINE).end(`${chunk({ content: "x" }, "stop")}data: [DONE]\n\n`);
    await call.outcome;
  });

  test("with tools forbids several calls, unless the run wants them side by side", async () => {
    const { dataplane, ask } = await setUp();
    ask({ tools: [TOOL] });
    ask({ tools: [TOOL], parallelToolCalls: true });
    ask({ tools: [TOOL], toolChoice: "none", maxTokens: 0 });
    const bodies = [await dataplane.nextTurn(), await dataplane.nextTurn(), await dataplane.nextTurn()].map(
      ({ body }) => [body["parallel_tool_calls"], body["tool_choice"], body["max_tokens"]],
    );
    expect(bodies).toEqual(
      expect.arrayContaining([
        [false, undefined, 64],
        [undefined, undefined, 64],
        [false, "none", undefined],
      ]),
    );
  });

  test("does not forbid several calls again where an endpoint has refused the field", async () => {
    const { dataplane, ask } = await setUp();
    const first = ask({ tools: [TOOL] });
    const { response } = await dataplane.nextTurn();
    const error = { error: { message: "unknown field parallel_tool_calls", code: 400 } };
    response.writeHead(400, { "x-luftpause-replica": "engine-a" }).end(JSON.stringify(error));
    expect(await first.outcome).toMatchObject({ kind: "again", afterMs: 0 });
    ask({ tools: [TOOL] });
    expect((await dataplane.nextTurn()).body).not.toHaveProperty("parallel_tool_calls");
  });
});

describe("the answer", () => {
  test("is put together from chunks that are cut anywhere", async () => {
    const { dataplane, ask } = await setUp();
    const call = ask({ tools: [TOOL] });
    const { response } = await dataplane.nextTurn();
    const text = [
      chunk({ role: "assistant", content: "Grüß " }),
      chunk({ content: "dich 🛶" }),
      chunk({ tool_calls: [{ index: 0, id: "a", type: "function", function: { name: "look", arguments: '{"n"' } }] }),
      chunk({
        tool_calls: [
          { index: 0, function: { arguments: ":1}" } },
          { index: 1, id: "b", function: { name: "look" } },
        ],
      }),
      chunk({}, "tool_calls"),
      `data: ${JSON.stringify({ choices: [], ...USAGE })}\n\n`,
      "data: [DONE]\n\n",
    ].join("");
    response.writeHead(200, FROM_ENGINE);
    const bytes = Buffer.from(text, "utf8");
    for (let at = 0; at < bytes.length; at += 7) {
      response.write(bytes.subarray(at, at + 7));
      await new Promise(setImmediate);
    }
    response.end();
    expect(await call.outcome).toMatchObject({
      kind: "answered",
      text: "Grüß dich 🛶",
      calls: [
        { id: "a", name: "look", arguments: '{"n":1}' },
        { id: "b", name: "look", arguments: "" },
      ],
      finish: "tool_calls",
      usage: { promptTokens: 50, completionTokens: 7, cachedTokens: 20 },
      replica: "engine-a",
    });
    expect(call.seen.generating).toBe(true);
  });

  test("of an engine that does not stream is taken whole", async () => {
    const { dataplane, ask } = await setUp();
    const call = ask();
    const { response } = await dataplane.nextTurn();
    const body = { choices: [{ message: { role: "assistant", content: "whole" }, finish_reason: "stop" }] };
    response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(body));
    expect(await call.outcome).toMatchObject({ kind: "answered", text: "whole" });
  });

  test("that ends without saying how counts as a lost engine", async () => {
    const { dataplane, ask } = await setUp();
    const call = ask();
    const { response } = await dataplane.nextTurn();
    response.writeHead(200, FROM_ENGINE).end(chunk({ content: "half" }));
    expect(await call.outcome).toMatchObject({ kind: "failed", failure: "engine-lost" });
  });
});

describe("waiting", () => {
  test("hold comments are life; 60 s without one withdraw the attempt, and it does not count", async () => {
    const { dataplane, clock, ask } = await setUp();
    const call = ask();
    const turn = await dataplane.nextTurn();
    turn.response.writeHead(200, SSE);
    for (let at = 0; at < 5; at += 1) {
      clock.advance(at === 0 ? 0 : 59_000);
      const before = clock.timersSet;
      turn.response.write(": held 59 s\n\n");
      await until("the comment is read and the silence counted anew", () => clock.timersSet > before);
    }
    clock.advance(60_000);
    expect(await call.outcome).toMatchObject({ kind: "again", afterMs: 0 });
    await until("the turn is withdrawn", () => turn.gone);
  });

  test("after its admission an attempt has its time-out, held time is not in it", async () => {
    const { dataplane, clock, ask } = await setUp();
    const call = ask();
    const { response } = await dataplane.nextTurn();
    response.writeHead(200, FROM_ENGINE);
    response.write(chunk({ content: "slow" }));
    await until("the answer has begun", () => call.seen.generating);
    clock.advance(599_000);
    expect(call.partial()).toBe("slow");
    clock.advance(1_000);
    expect(await call.outcome).toMatchObject({ kind: "failed", failure: "engine-error" });
  });

  test("a call that was aborted is withdrawn from the dataplane", async () => {
    const { dataplane, ask } = await setUp();
    const call = ask();
    const turn = await dataplane.nextTurn();
    call.abort();
    await until("the turn is withdrawn", () => turn.gone);
  });
});

describe("errors", () => {
  const own = (code: string, message = "m") => JSON.stringify({ error: { message, type: "t", param: null, code } });
  const row = (
    name: string,
    answer: { status: number; headers?: Record<string, string>; body: string },
    expected: Partial<TurnOutcome>,
  ) => ({ name, answer, expected });
  const ENGINE = { "x-luftpause-replica": "engine-a" };

  test.each([
    row(
      "503 with Retry-After is asked again after it",
      { status: 503, headers: { "retry-after": "5" }, body: own("overloaded") },
      { kind: "again", afterMs: 5_000 },
    ),
    row(
      "429 of an engine without Retry-After is asked again after 1 s",
      { status: 429, headers: ENGINE, body: "{}" },
      { kind: "again", afterMs: 1_000 },
    ),
    row(
      "an engine that could not be reached does not count",
      { status: 502, headers: ENGINE, body: own("engine_unreachable") },
      { kind: "again", afterMs: 1_000 },
    ),
    row(
      "an engine that was lost counts",
      { status: 502, headers: ENGINE, body: own("engine_lost") },
      { kind: "failed", failure: "engine-lost" },
    ),
    row(
      "a 500 of an engine counts as a lost one",
      { status: 500, headers: ENGINE, body: '{"error":"oom"}' },
      { kind: "failed", failure: "engine-lost" },
    ),
    row(
      "a 400 of an engine counts",
      { status: 400, headers: ENGINE, body: '{"object":"error","message":"no template"}' },
      { kind: "failed", failure: "engine-error", message: "no template" },
    ),
    row(
      "an unknown model cannot be mended",
      { status: 404, body: own("model_not_found", "no Generative replica serves model 'm'") },
      { kind: "failed", failure: "refused", message: "no Generative replica serves model 'm'" },
    ),
    row(
      "a body that is too large cannot be mended",
      { status: 413, body: own("body_too_large") },
      { kind: "failed", failure: "refused" },
    ),
    row("a loop cannot be mended", { status: 508, body: own("loop") }, { kind: "failed", failure: "refused" }),
  ])("$name", async ({ answer, expected }) => {
    const { dataplane, ask } = await setUp();
    const call = ask();
    const { response } = await dataplane.nextTurn();
    response.writeHead(answer.status, { "content-type": "application/json", ...answer.headers }).end(answer.body);
    expect(await call.outcome).toMatchObject(expected);
  });

  test.each([
    ["engine_unreachable", { kind: "again" }],
    ["draining", { kind: "again", afterMs: 2_000 }],
    ["engine_lost", { kind: "failed", failure: "engine-lost" }],
    ["model_not_found", { kind: "failed", failure: "refused" }],
    [400, { kind: "failed", failure: "engine-error" }],
    [429, { kind: "again" }],
  ])("after an early 200 the error event %s means the same", async (code, expected) => {
    const { dataplane, ask } = await setUp();
    const call = ask();
    const { response } = await dataplane.nextTurn();
    response.writeHead(200, SSE).write(`: held 10 s\n\ndata: ${JSON.stringify({ error: { message: "m", code } })}\n\n`);
    expect(await call.outcome).toMatchObject(expected);
  });

  test("a dataplane that is away does not count", async () => {
    const http = createEngineClient({ connectTimeoutMs: 2_000, reusedSocketRetryMs: 0 });
    const clock = new TestClock();
    const url = "http://127.0.0.1:1";
    const client = createModelClient({ url, token: undefined, http, clock, turnTimeoutMs: 1, silenceMs: 60_000 });
    expect(await client.ask(REQUEST, () => undefined).outcome).toMatchObject({ kind: "again", afterMs: 1_000 });
    client.close();
  });

  test("a stream that breaks off before the answer is the dataplane's loss, after it began an engine's", async () => {
    const { dataplane, ask } = await setUp();
    const held = ask();
    const first = await dataplane.nextTurn();
    first.response.writeHead(200, SSE).write(": held 10 s\n\n");
    await new Promise(setImmediate);
    first.response.destroy();
    expect(await held.outcome).toMatchObject({ kind: "again" });

    const begun = ask();
    const second = await dataplane.nextTurn();
    second.response.writeHead(200, FROM_ENGINE).write(chunk({ content: "x" }));
    await until("the answer has begun", () => begun.seen.generating);
    second.response.destroy();
    expect(await begun.outcome).toMatchObject({ kind: "failed", failure: "engine-lost" });
  });
});

test("the end of a run is told to the dataplane, and models are read from it", async () => {
  const { dataplane, client } = await setUp();
  client.endRun("a/b", "ann");
  await until("the end has arrived", () => dataplane.ended.length > 0);
  expect(dataplane.ended).toEqual(["a/b"]);
  expect(await client.models()).toEqual(["m"]);
});
