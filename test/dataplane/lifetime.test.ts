/** Draining, the link's heartbeat, and what is left when clients leave in crowds. */
import { describe, expect, it } from "vitest";
import { DEFAULTS } from "../../src/wire/limits.ts";
import { EVENTS, expectError, startWorld, streamAll, until, WHOLE_STREAM, type World } from "./support.ts";

/** Timers that a dataplane without turns has: naming open turns, sweeping keys. */
const IDLE_TIMERS = 2;

const nothingIsLeft = async (world: World): Promise<void> => {
  await until("no turn is open", () => world.dataplane.openTurns().length === 0);
  await until("no request is open at the engine", () => world.engine.replies.every((reply) => reply.closed));
  expect(world.options.engineClient.stats().open).toBe(0);
  expect(world.clock.timerCount).toBe(IDLE_TIMERS);
  expect(await world.metric("held_body_bytes")).toContain(" 0");
  expect(await world.metric("turns_in_flight")).toContain(" 0");
  // Each turn that was asked for was reported as ended exactly once.
  const ended = [
    ...world.scheduler.of("failed"),
    ...world.scheduler.of("abandoned"),
    ...world.scheduler.of("finished"),
  ];
  expect(ended.map((message) => message.turn).sort()).toEqual(
    world.scheduler
      .of("requested")
      .map((message) => message.turn)
      .sort(),
  );
};

describe("a storm of clients that leave", () => {
  it("leaves no call, no timer and no turn: 200 held turns", async () => {
    const world = await startWorld();
    world.scheduler.holdAll();
    const turns = Array.from({ length: 200 }, (_, at) => world.chat({ stream: at % 2 === 0 }));
    await until("all are held", () => world.scheduler.of("requested").length === 200);
    world.clock.advance(10_000);
    for (const turn of turns) turn.leave();
    await nothingIsLeft(world);
    expect(world.engine.requests).toHaveLength(0);
    expect(world.scheduler.of("abandoned")).toHaveLength(200);
  });

  it("leaves no call, no timer and no turn: 200 turns in every state", async () => {
    const world = await startWorld();
    world.engine.onRequest = (request, reply) => {
      const kind = Number(request.headers["x-kind"]);
      if (kind === 1) reply.stream();
      if (kind === 2) {
        reply.stream();
        reply.chunk(EVENTS[0] + EVENTS[1]);
      }
      if (kind === 3) {
        reply.stream();
        reply.raw(`${EVENTS[0].length.toString(16)}\r\n${EVENTS[0].slice(0, 40)}`);
      }
      if (kind === 4) reply.stream({ "content-type": "application/json" }, 500);
    };
    const turns = Array.from({ length: 200 }, (_, at) => world.chat({ stream: true }, { "x-kind": String(at % 5) }));
    await until("all are at the engine", () => world.engine.requests.length === 200);
    for (const [at, turn] of turns.entries()) setTimeout(() => turn.leave(), at % 7);
    await nothingIsLeft(world);
  });

  it("ends each turn once when client and engine leave at the same moment", async () => {
    const world = await startWorld();
    world.engine.onRequest = (_request, reply) => {
      reply.stream();
      reply.chunk(EVENTS[0] + EVENTS[1]);
    };
    const turns = Array.from({ length: 50 }, () => world.chat({ stream: true }));
    await until("all flow", () => turns.every((turn) => turn.text().includes("It flows")));
    for (const [at, turn] of turns.entries()) {
      turn.leave();
      world.engine.replies[at]?.destroy();
    }
    await nothingIsLeft(world);
  });

  it("gives every held body back: capacity is what it was after 500 times in and out", async () => {
    const world = await startWorld({ limits: { heldBodyBytesMax: 2_000 } });
    world.scheduler.holdAll();
    for (let round = 0; round < 50; round += 1) {
      const before = world.scheduler.of("abandoned").length;
      const turns = Array.from({ length: 10 }, () => world.chat());
      await until("all are held", () => world.scheduler.of("requested").length === before + 10);
      for (const turn of turns) turn.leave();
      await until("all are given up", () => world.scheduler.of("abandoned").length === before + 10);
    }
    await nothingIsLeft(world);
  });

  it("ignores an admission, a withdrawal and an explanation for a turn that has left", async () => {
    const world = await startWorld();
    world.scheduler.holdAll();
    const turn = world.chat({ stream: true });
    await until("it is held", () => world.scheduler.of("requested").length === 1);
    turn.leave();
    await until("it is given up", () => world.scheduler.of("abandoned").length === 1);
    const id = world.scheduler.lastTurn;
    world.scheduler.admit(id);
    world.scheduler.say({ type: "withdraw", turn: id });
    world.scheduler.say({ type: "explained", turn: id, reason: "x", place: 1 });
    expect(world.scheduler.story()).toEqual(["requested", "abandoned"]);
    await nothingIsLeft(world);
  });

  it("ignores a second admission of a turn that is in flight", async () => {
    const world = await startWorld();
    const turn = world.chat({ stream: true });
    await until("the engine has it", () => world.engine.requests.length === 1);
    world.scheduler.admit();
    world.engine.replies[0]?.stream();
    world.engine.replies[0]?.chunk(WHOLE_STREAM);
    world.engine.replies[0]?.end();
    expect((await turn.answer).text).toBe(WHOLE_STREAM);
    expect(world.engine.requests).toHaveLength(1);
  });
});

describe("draining", () => {
  it("answers held turns, refuses new ones, lets streams end, and then is done", async () => {
    const world = await startWorld();
    world.engine.onRequest = (_request, reply) => {
      reply.stream();
      reply.chunk(EVENTS[0] + EVENTS[1]);
    };
    const streaming = world.chat({ stream: true });
    await until("it flows", () => streaming.text().includes("It flows"));
    world.scheduler.holdAll();
    const plain = world.chat();
    const early = world.chat({ stream: true });
    await until("both are held", () => world.scheduler.of("requested").length === 3);
    world.clock.advance(11_000);
    await until("one has its early answer", () => early.text() !== "");
    let drained = false;
    const drain = world.dataplane.drain().then(() => {
      drained = true;
    });
    expect(world.dataplane.ready()).toEqual({ ready: false, reason: "draining" });
    const refused = await plain.answer;
    expectError(refused, { status: 503, code: "draining", type: "overloaded_error" });
    expect(refused.headers["retry-after"]).toBe("2");
    const broken = await early.answer;
    expect(broken.text.split("\n\n")[1]).toMatch(
      /^data: \{"error":\{"message":"[^"]+","type":"overloaded_error","code":"draining"\}\}$/,
    );
    expect(broken.clean).toBe(false);
    expectError(await world.chat().answer, { status: 503, code: "draining", type: "overloaded_error" });
    expect(world.scheduler.of("abandoned").map((message) => message.reason)).toEqual(["draining", "draining"]);
    expect(drained).toBe(false);
    world.engine.replies[0]?.chunk(EVENTS.slice(2).join(""));
    world.engine.replies[0]?.end();
    const whole = await streaming.answer;
    expect([whole.text, whole.clean]).toEqual([WHOLE_STREAM, true]);
    await drain;
    expect(world.clock.timerCount).toBe(IDLE_TIMERS);
  });

  it("breaks streams off after drainSeconds, with the error event", async () => {
    expect(DEFAULTS.drainSeconds).toBe(30);
    const world = await startWorld();
    world.engine.onRequest = (_request, reply) => {
      reply.stream();
      reply.chunk(EVENTS[0] + EVENTS[1]);
    };
    const streaming = world.chat({ stream: true });
    await until("it flows", () => streaming.text().includes("It flows"));
    const drain = world.dataplane.drain();
    world.clock.advance(29_999);
    expect(world.dataplane.openTurns()).toHaveLength(1);
    world.clock.advance(1);
    await drain;
    const answer = await streaming.answer;
    expect(answer.text).toContain('"code":"draining"');
    expect(answer.clean).toBe(false);
    await until("the engine sees it", () => world.engine.replies[0]?.closed === true);
    expect(world.scheduler.of("failed")).toMatchObject([{ reason: "draining" }]);
  });

  it("does not hold a turn again that an engine pushes back", async () => {
    const world = await startWorld();
    const turn = world.chat();
    await until("the engine has it", () => world.engine.requests.length === 1);
    const drain = world.dataplane.drain();
    world.engine.replies[0]?.whole(503, {}, "full");
    expectError(await turn.answer, { status: 503, code: "draining", type: "overloaded_error" });
    await drain;
  });

  it("is done at once when nothing is open, and begins when the scheduler asks", async () => {
    const world = await startWorld();
    world.scheduler.say({ type: "drain" });
    expect(world.dataplane.ready().reason).toBe("draining");
    await world.dataplane.drain();
  });

  it("ends everything at once on close", async () => {
    const world = await startWorld();
    world.engine.onRequest = (_request, reply) => reply.stream();
    const streaming = world.chat({ stream: true });
    await until("the head came", () => streaming.status() === 200);
    world.dataplane.close();
    expect((await streaming.answer).clean).toBe(false);
    expect(world.clock.timerCount).toBe(0);
  });
});

describe("the link", () => {
  it("hears hello before anything else", async () => {
    const world = await startWorld();
    expect(world.scheduler.messages[0]).toEqual({
      type: "hello",
      protocol: 1,
      dataplane: "dp",
      runs: [],
      flights: [],
      keys: [],
      models: [],
    });
  });

  it("names the open turns every 60 s, held ones too", async () => {
    expect(DEFAULTS.openTurnsEveryMs).toBe(60_000);
    const world = await startWorld();
    const flight = world.chat({ stream: true });
    await until("the engine has it", () => world.engine.requests.length === 1);
    world.scheduler.holdAll();
    const held = world.chat();
    await until("the other is held", () => world.scheduler.of("requested").length === 2);
    world.clock.advance(60_000);
    expect(world.scheduler.of("open-turns").at(-1)?.turns).toEqual(
      world.scheduler.of("requested").map((one) => one.turn),
    );
    flight.leave();
    held.leave();
    await until("both have ended", () => world.dataplane.openTurns().length === 0);
    world.clock.advance(60_000);
    expect(world.scheduler.of("open-turns").at(-1)?.turns).toEqual([]);
  });

  it("is not asked again for a turn that it holds", async () => {
    const world = await startWorld();
    world.scheduler.holdAll();
    const turn = world.chat();
    await until("it is held", () => world.scheduler.of("requested").length === 1);
    world.clock.advance(30_000);
    expect(world.scheduler.of("requested")).toHaveLength(1);
    turn.leave();
  });

  it("asks again for a recognised run by its id, and keeps the rule that found it", async () => {
    const world = await startWorld();
    world.scheduler.onRequest = ({ turn }) => ({ type: "held", turn, run: "found" as never, source: "tool-calls" });
    const turn = world.chat({ stream: true });
    await until("it is held", () => world.scheduler.of("requested").length === 1);
    world.engine.onRequest = streamAll;
    world.scheduler.lose();
    world.scheduler.admitAll();
    world.scheduler.link();
    expect(world.scheduler.of("requested")[1]?.run).toBe("found");
    const answer = await turn.answer;
    expect(answer.headers).toMatchObject({ "x-luftpause-run-id": "found", "x-luftpause-run-source": "tool-calls" });
    expect(await world.metric("runs_recognised_total")).toBe(
      'luftpause_dataplane_runs_recognised_total{source="tool-calls"} 1',
    );
  });
});

describe("metrics", () => {
  it("have bounded labels: no client makes a series", async () => {
    const world = await startWorld();
    world.engine.onRequest = streamAll;
    const series = async (): Promise<number> =>
      (await world.dataplane.metrics.metrics()).split("\n").filter((line) => line !== "" && !line.startsWith("#"))
        .length;
    await world.chat({ stream: true }).answer;
    await until("it has ended", () => world.dataplane.openTurns().length === 0);
    const before = await series();
    await Promise.all(
      Array.from(
        { length: 50 },
        (_, at) =>
          world.chat(
            { stream: true, model: `m${at}` },
            { "x-luftpause-caller": `c${at}`, "x-luftpause-run-id": `r${at}` },
          ).answer,
      ),
    );
    await until("all have ended", () => world.dataplane.openTurns().length === 0);
    // One more: the rule `header` has recognised runs.
    expect(await series()).toBe(before + 1);
  });

  it("count a turn by how it ended, with its first token, its bytes and its time held", async () => {
    const world = await startWorld();
    world.scheduler.holdAll();
    const turn = world.chat({ stream: true }, { "x-luftpause-class": "batch" });
    await until("it is held", () => world.scheduler.of("requested").length === 1);
    world.clock.advance(4_000);
    world.engine.onRequest = (_request, reply) => reply.stream();
    world.scheduler.admit();
    await until("the head came", () => turn.status() === 200);
    world.clock.advance(1_000);
    world.engine.replies[0]?.chunk(WHOLE_STREAM);
    world.engine.replies[0]?.end();
    await turn.answer;
    await until("it has ended", () => world.dataplane.openTurns().length === 0);
    expect(await world.metric("turns_total")).toContain('{outcome="finished",class="batch"} 1');
    expect(await world.metric("held_seconds_sum")).toContain('{class="batch"} 4');
    expect(await world.metric("first_token_seconds_sum")).toContain('{class="batch"} 5');
    expect(await world.metric("answer_bytes_total")).toContain(` ${WHOLE_STREAM.length}`);
  });
});
