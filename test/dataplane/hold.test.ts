import { describe, expect, it } from "vitest";
import { asReplicaId } from "../../src/base/ids.ts";
import {
  answerJson,
  EVENTS,
  expectError,
  LIMITS,
  startWorld,
  streamAll,
  until,
  WHOLE_STREAM,
  type Pending,
  type World,
} from "./support.ts";

/** Starts a turn that the scheduler holds. */
async function held(world: World, fields: object = {}, headers: Record<string, string> = {}): Promise<Pending> {
  world.scheduler.holdAll();
  const before = world.scheduler.of("requested").length;
  const turn = world.chat(fields, headers);
  await until("it is held", () => world.scheduler.of("requested").length === before + 1);
  return turn;
}

const explainAs = (world: World, reason: string, place: number): void => {
  world.scheduler.onMessage = (message) => {
    if (message.type === "explain") world.scheduler.say({ type: "explained", turn: message.turn, reason, place });
  };
};

describe("a held streaming turn", () => {
  it("gets its 200, its run and a comment with the reason and its place after 10 s, then one every 10 s", async () => {
    const world = await startWorld();
    explainAs(world, "all 2 replicas are full", 3);
    const turn = await held(world, { stream: true }, { "x-luftpause-run-id": "my-run" });
    world.clock.advance(9_999);
    expect(turn.status()).toBeUndefined();
    world.clock.advance(1);
    await until("the early answer came", () => turn.text() !== "");
    expect(turn.status()).toBe(200);
    expect(turn.headers()).toMatchObject({
      "content-type": "text/event-stream",
      "x-luftpause-run-id": "my-run",
      "x-luftpause-run-source": "header",
      "x-accel-buffering": "no",
      "cache-control": "no-cache",
    });
    expect(turn.text()).toBe(": held 10 s at place 3: all 2 replicas are full\n\n");
    world.clock.advance(9_999);
    world.clock.advance(1);
    await until("the next sign came", () => turn.text().split("\n\n").length === 3);
    expect(turn.text()).toContain(": held 20 s at place 3: all 2 replicas are full\n\n");
    expect(await world.metric("early_answers_total")).toContain(" 1");
    world.engine.onRequest = streamAll;
    world.scheduler.admit();
    const answer = await turn.answer;
    expect(answer.text.endsWith(`\n\n${WHOLE_STREAM}`)).toBe(true);
    expect(answer.clean).toBe(true);
    expect(world.clock.timerCount).toBe(2);
  });

  it("keeps the client alive during the prefill too, and never after the engine's first body byte", async () => {
    const world = await startWorld();
    explainAs(world, "full", 1);
    const turn = await held(world, { stream: true });
    world.clock.advance(10_000);
    world.scheduler.admit();
    await until("the engine has it", () => world.engine.requests.length === 1);
    world.clock.advance(10_000);
    await until("a sign came", () => turn.text().includes("admitted to a"));
    world.engine.replies[0]?.stream();
    world.clock.advance(10_000);
    await until("a sign came after the head", () => turn.text().split("admitted to a").length >= 3);
    world.engine.replies[0]?.chunk(EVENTS[0]);
    await until("the engine's bytes came", () => turn.text().includes("assistant"));
    const before = turn.text();
    world.clock.advance(60_000);
    world.engine.replies[0]?.chunk(EVENTS[1]);
    await until("more came", () => turn.text().includes("It flows"));
    expect(turn.text()).toBe(before + EVENTS[1]);
    turn.leave();
  });

  it("has no timer and no early answer when it is admitted in time, however long the prefill takes", async () => {
    const world = await startWorld();
    const turn = await held(world, { stream: true });
    world.clock.advance(9_000);
    world.scheduler.admit();
    await until("the engine has it", () => world.engine.requests.length === 1);
    world.clock.advance(120_000);
    expect(turn.status()).toBeUndefined();
    turn.leave();
  });

  it("shows a sign without a reason when the scheduler does not say one within a second", async () => {
    const world = await startWorld();
    const turn = await held(world, { stream: true });
    world.clock.advance(10_000);
    expect(turn.text()).toBe("");
    world.clock.advance(1_000);
    await until("a sign came", () => turn.text() !== "");
    expect(turn.text()).toBe(": held 11 s\n\n");
    turn.leave();
  });

  it("keeps a reason on one line", async () => {
    const world = await startWorld();
    explainAs(world, "pinned to\r\ndata: forged\u2028", 1);
    const turn = await held(world, { stream: true });
    world.clock.advance(10_000);
    await until("a sign came", () => turn.text() !== "");
    expect(turn.text().split("\n")).toHaveLength(3);
    turn.leave();
  });

  it("gets every error in the stream after its early 200, with type, code and message, and no clean end", async () => {
    const world = await startWorld();
    explainAs(world, "full", 1);
    const turn = await held(world, { stream: true });
    world.clock.advance(10_000);
    await until("the early answer came", () => turn.text() !== "");
    world.scheduler.admit();
    await until("the engine has it", () => world.engine.requests.length === 1);
    world.engine.replies[0]?.destroy();
    const answer = await turn.answer;
    expect(answer.text).toMatch(
      /^: held 10 s at place 1: full\n\ndata: \{"error":\{"message":"engine a: connection [^"]+","type":"upstream_error","code":"engine_lost"\}\}\n\n$/,
    );
    expect(answer.clean).toBe(false);
  });

  it("is told a refusal of the scheduler in the stream after its early 200", async () => {
    const world = await startWorld();
    world.scheduler.lose();
    const turn = world.chat({ stream: true });
    await until("it is held", () => world.dataplane.openTurns()[0]?.phase === "held");
    world.clock.advance(10_000);
    await until("the early answer came", () => turn.text() !== "");
    world.scheduler.onRequest = ({ turn: id, freshRun }) => ({
      type: "rejected",
      turn: id,
      run: freshRun,
      source: "new",
      code: "model_not_found",
      message: "no Generative replica serves model 'm'",
    });
    world.scheduler.link();
    const answer = await turn.answer;
    expect(answer.text.split("\n\n")[1]).toBe(
      `data: {"error":{"message":"no Generative replica serves model 'm'","type":"not_found_error","code":"model_not_found"}}`,
    );
    expect(answer.clean).toBe(false);
  });

  it.each([
    [
      { error: { message: "too long", type: "BadRequestError", code: 400 } },
      { message: "too long", type: "BadRequestError", code: 400 },
    ],
    ["boom\nbang", { message: "boom\nbang", type: "upstream_error", code: 500 }],
    ["", { message: "engine a: status 500", type: "upstream_error", code: 500 }],
  ])("is told an engine's own error in the stream after its early 200: %j", async (body, expected) => {
    const world = await startWorld();
    explainAs(world, "full", 1);
    const turn = await held(world, { stream: true });
    world.clock.advance(10_000);
    world.engine.onRequest = (_request, reply) =>
      reply.whole(500, { "content-type": "application/json" }, typeof body === "string" ? body : JSON.stringify(body));
    world.scheduler.admit();
    const answer = await turn.answer;
    expect(JSON.parse(answer.text.split("\n\n")[1]?.slice("data: ".length) ?? "")).toEqual({ error: expected });
    expect(answer.clean).toBe(false);
    expect(world.scheduler.of("failed")).toMatchObject([{ reason: "engine-error" }]);
  });

  it("does not mistake a whole JSON answer for a stream after its early 200", async () => {
    const world = await startWorld();
    explainAs(world, "full", 1);
    const turn = await held(world, { stream: true });
    world.clock.advance(10_000);
    world.engine.onRequest = answerJson;
    world.scheduler.admit();
    const answer = await turn.answer;
    expect(answer.text.split("\n\n")[1]).toContain('"code":"engine_lost"');
    expect(answer.clean).toBe(false);
  });
});

describe("a held turn that does not stream", () => {
  it.each([
    ["a client that says nothing", {}, 590_000],
    ["an SDK on Node", { "x-stainless-lang": "js" }, 290_000],
    ["Node's own fetch", { "user-agent": "node" }, 290_000],
    ["an SDK with a time-out", { "x-stainless-lang": "js", "x-stainless-timeout": "120" }, 110_000],
    ["an SDK with a read time-out", { "x-stainless-read-timeout": "45.5" }, 35_500],
    ["both: the first counts", { "x-stainless-timeout": "60", "x-stainless-read-timeout": "45" }, 50_000],
    ["a time-out under 20 s: at half of it", { "x-stainless-timeout": "19" }, 9_500],
    ["a time-out of exactly 20 s", { "x-stainless-timeout": "20" }, 10_000],
    ["a time-out that is no number", { "x-stainless-timeout": "NaN" }, 590_000],
    ["a time-out of nothing", { "x-stainless-timeout": "0" }, 590_000],
  ])("is answered before the deadline of %s", async (_who, headers, afterMs) => {
    const world = await startWorld();
    const turn = await held(world, {}, headers);
    world.clock.advance(afterMs - 1);
    expect(world.scheduler.of("abandoned")).toHaveLength(0);
    world.clock.advance(1);
    const answer = await turn.answer;
    expectError(answer, { status: 429, code: "hold_deadline", type: "rate_limit_error" });
    expect(answer.headers["retry-after"]).toBe("1");
    expect(world.scheduler.of("abandoned")).toMatchObject([{ reason: "hold-deadline" }]);
    expect(world.engine.requests).toHaveLength(0);
  });

  it("is answered 503 when no healthy replica serves its model", async () => {
    const world = await startWorld();
    world.pool([{ healthy: false }, { replica: asReplicaId("b"), models: ["other"] }]);
    const turn = await held(world);
    world.clock.advance(590_000);
    const answer = await turn.answer;
    expectError(answer, { status: 503, code: "no_healthy_replica", type: "overloaded_error" });
    expect(answer.headers["retry-after"]).toBe("2");
  });

  it("follows limits.holdMaxSeconds where it is a number, and is never answered early with 0", async () => {
    const world = await startWorld({ limits: { holdMaxSeconds: 30 } });
    const turn = await held(world, {}, { "x-stainless-timeout": "500" });
    world.clock.advance(20_000);
    expect((await turn.answer).status).toBe(429);
    const never = await startWorld({ limits: { holdMaxSeconds: 0 } });
    const patient = await held(never, {}, { "x-stainless-timeout": "30" });
    never.clock.advance(3_600_000);
    expect(never.scheduler.of("abandoned")).toEqual([]);
    never.engine.onRequest = answerJson;
    never.scheduler.admit();
    expect((await patient.answer).status).toBe(200);
  });

  it("takes a time-out of years as a long one: timers of Node fire at once beyond 24 days", async () => {
    const delays: number[] = [];
    const world = await startWorld();
    const { clock } = world.options;
    const after = clock.after.bind(clock);
    clock.after = (delayMs, action) => {
      delays.push(delayMs);
      return after(delayMs, action);
    };
    const turn = await held(world, {}, { "x-stainless-timeout": "999999999999" });
    await until("its timer is set", () => delays.some((delayMs) => delayMs > 1e9));
    expect(Math.max(...delays)).toBeLessThanOrEqual(2_147_483_647);
    turn.leave();
  });

  it("never gets an early 200", async () => {
    const world = await startWorld();
    const turn = await held(world);
    world.clock.advance(300_000);
    expect(turn.status()).toBeUndefined();
    world.engine.onRequest = answerJson;
    world.scheduler.admit();
    expect((await turn.answer).status).toBe(200);
  });
});

describe("back-pressure of an engine", () => {
  it.each([429, 503])(
    "holds the turn again under its old arrival after a %s, and the client sees nothing of it",
    async (status) => {
      const world = await startWorld();
      let refusals = 0;
      world.engine.onRequest = (request, reply) => {
        if (refusals === 2) {
          streamAll(request, reply);
          return;
        }
        refusals += 1;
        reply.whole(status, refusals === 1 ? { "retry-after": "7" } : {}, "full");
      };
      const turn = world.chat({ stream: true });
      await until("it was pushed back", () => world.scheduler.of("pushed-back").length === 1);
      expect(world.scheduler.of("pushed-back")[0]).toMatchObject({ retryAfterMs: 7_000 });
      expect(world.dataplane.openTurns()[0]).toMatchObject({ phase: "held", replica: undefined });
      world.scheduler.admit();
      await until("it was pushed back again", () => world.scheduler.of("pushed-back").length === 2);
      expect(world.scheduler.of("pushed-back")[1]).toMatchObject({ retryAfterMs: LIMITS.retryAfterDefaultMs });
      world.scheduler.admit();
      const answer = await turn.answer;
      expect(answer.text).toBe(WHOLE_STREAM);
      // Byte for byte the same request each time.
      const [first, second, third] = world.engine.requests;
      expect(second?.body).toEqual(first?.body);
      expect(third?.body).toEqual(first?.body);
      expect(third?.headers).toEqual(first?.headers);
      expect(world.scheduler.story()).toEqual(["requested", "pushed-back", "pushed-back", "started", "finished"]);
      expect(await world.metric("turns_held_again_total")).toContain('replica="a",why="pushed-back"} 2');
    },
  );

  it.each([
    ["1000", 60_000],
    ["0", 0],
    ["soon", 1_000],
    ["-5", 1_000],
    [new Date(Date.now() - 10_000).toUTCString(), 0],
  ])("honours Retry-After %s up to a minute", async (text, retryAfterMs) => {
    const world = await startWorld();
    world.engine.onRequest = (_request, reply) => reply.whole(429, { "retry-after": text }, "");
    const turn = world.chat();
    await until("it was pushed back", () => world.scheduler.of("pushed-back").length === 1);
    expect(world.scheduler.of("pushed-back")[0]?.retryAfterMs).toBe(retryAfterMs);
    turn.leave();
  });

  it("passes through where no load signal is read, and where the config says so", async () => {
    for (const endpoint of [{ backpressure: "auto" }, { backpressure: "pass" }] as const) {
      const world = await startWorld({ endpoint });
      world.pool([{ reportsLoad: endpoint.backpressure === "pass" }]);
      world.engine.onRequest = (_request, reply) => reply.whole(429, { "retry-after": "9" }, "full");
      const answer = await world.chat({ stream: true }).answer;
      expect([answer.status, answer.text, answer.headers["retry-after"]]).toEqual([429, "full", "9"]);
    }
  });

  it("holds again after an early 200 although the endpoint passes it through", async () => {
    const world = await startWorld({ endpoint: { backpressure: "pass" } });
    explainAs(world, "full", 1);
    const turn = await held(world, { stream: true });
    world.clock.advance(10_000);
    world.engine.onRequest = (_request, reply) => reply.whole(503, {}, "full");
    world.scheduler.admit();
    await until("it was pushed back", () => world.scheduler.of("pushed-back").length === 1);
    world.engine.onRequest = streamAll;
    world.scheduler.admit();
    expect((await turn.answer).text.endsWith(WHOLE_STREAM)).toBe(true);
  });

  it("counts the time in the engine toward the first sign of a turn that was pushed back", async () => {
    const world = await startWorld();
    explainAs(world, "pushed back by its engine", 1);
    const turn = world.chat({ stream: true });
    await until("the engine has it", () => world.engine.requests.length === 1);
    world.clock.advance(12_000);
    world.engine.replies[0]?.whole(503, {}, "full");
    await until("it was pushed back", () => world.scheduler.of("pushed-back").length === 1);
    world.clock.advance(0);
    await until("the early answer came", () => turn.text() !== "");
    expect(turn.text()).toBe(": held 12 s at place 1: pushed back by its engine\n\n");
    turn.leave();
  });

  it("is not repeated at an engine without the scheduler's word", async () => {
    const world = await startWorld();
    world.engine.onRequest = (_request, reply) => reply.whole(503, {}, "full");
    const turn = world.chat();
    await until("it was pushed back", () => world.scheduler.of("pushed-back").length === 1);
    world.clock.advance(60_000);
    expect(world.engine.requests).toHaveLength(1);
    turn.leave();
    await until("it is given up", () => world.scheduler.of("abandoned").length === 1);
    expect(world.engine.requests).toHaveLength(1);
  });
});

describe("a turn that the scheduler wants back", () => {
  it("is given back before a byte came, and goes on elsewhere as the same turn", async () => {
    const world = await startWorld();
    const turn = world.chat({ stream: true });
    await until("the engine has it", () => world.engine.requests.length === 1);
    const id = world.scheduler.lastTurn;
    world.scheduler.say({ type: "withdraw", turn: id });
    await until("the engine's request is closed", () => world.engine.replies[0]?.closed === true);
    expect(world.scheduler.story()).toEqual(["requested", "withdrawn"]);
    world.engine.onRequest = streamAll;
    world.scheduler.admit(id);
    expect((await turn.answer).text).toBe(WHOLE_STREAM);
    await until("the end is reported", () => world.scheduler.of("finished").length === 1);
    expect(world.scheduler.story()).toEqual(["requested", "withdrawn", "started", "finished"]);
  });

  it("stays where it is once the answer has begun", async () => {
    const world = await startWorld();
    const turn = world.chat({ stream: true });
    world.engine.onRequest = (_request, reply) => reply.stream();
    await until("the head came", () => turn.status() === 200);
    world.scheduler.say({ type: "withdraw", turn: world.scheduler.lastTurn });
    expect(world.scheduler.story()).toEqual(["requested", "too-late"]);
    world.engine.replies[0]?.chunk(WHOLE_STREAM);
    world.engine.replies[0]?.end();
    expect((await turn.answer).text).toBe(WHOLE_STREAM);
  });

  it("asks under the same id, with its attempts counted, when the link was lost meanwhile", async () => {
    const world = await startWorld();
    const turn = world.chat({ stream: true });
    await until("the engine has it", () => world.engine.requests.length === 1);
    world.scheduler.say({ type: "withdraw", turn: world.scheduler.lastTurn });
    world.clock.advance(2_500);
    world.scheduler.lose();
    world.engine.onRequest = streamAll;
    world.scheduler.link();
    expect(world.scheduler.of("requested").at(-1)).toMatchObject({ attempt: 1, heldMs: 2_500 });
    expect((await turn.answer).text).toBe(WHOLE_STREAM);
  });
});
