/** The bounds of the dataplane with their defaults (spec 5), where no other test file has them. */
import net from "node:net";
import { describe, expect, it } from "vitest";
import { asReplicaId } from "../../src/base/ids.ts";
import { DEFAULTS } from "../../src/wire/limits.ts";
import { answerJson, CHAT, endpointOf, EVENTS, LIMITS, startWorld, until } from "./support.ts";

/** Announces a body of some length without sending it, and gives the status of the answer. */
function announce(port: number, bytes: number, headers = ""): Promise<number> {
  return new Promise((resolve, reject) => {
    const socket = net.connect(port, "127.0.0.1", () => {
      socket.write(`POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: ${bytes}\r\n${headers}\r\n`);
    });
    socket.on("error", reject);
    socket.once("data", (answer) => {
      socket.destroy();
      resolve(Number(answer.toString("latin1").slice(9, 12)));
    });
  });
}

describe("the body of a request", () => {
  it("may have 64 MiB; a larger one is refused by its announcement, before it is sent", async () => {
    expect(DEFAULTS.bodyBytesMax).toBe(64 * 1024 * 1024);
    const world = await startWorld();
    expect(await announce(world.port, DEFAULTS.bodyBytesMax + 1)).toBe(413);
    expect(await announce(world.port, DEFAULTS.bodyBytesMax + 1, "expect: 100-continue\r\n")).toBe(413);
    expect(world.scheduler.story()).toEqual([]);
  });

  it.each([true, false])("is counted to the byte (fast lane: %s)", async (lane) => {
    const body = JSON.stringify(CHAT);
    const world = await startWorld({ lane, limits: { bodyBytesMax: body.length } });
    world.engine.onRequest = answerJson;
    expect((await world.send({ body }).answer).status).toBe(200);
    expect((await world.send({ body: `${body} ` }).answer).status).toBe(413);
    const chunked = await world.send({ body: `${body} `, headers: { "transfer-encoding": "chunked" } }).answer;
    expect(chunked.status).toBe(413);
  });

  it("that the client does not finish leaves nothing behind", async () => {
    const world = await startWorld();
    const socket = net.connect(world.port, "127.0.0.1");
    socket.write('POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"model"');
    await until("it is being read", () => world.dataplane.openTurns()[0]?.phase === "reading");
    socket.destroy();
    await until("it is gone", () => world.dataplane.openTurns().length === 0);
    expect(world.scheduler.story()).toEqual([]);
  });
});

describe("the bodies of held turns", () => {
  it("may have 1 GiB together by default", () => {
    expect(DEFAULTS.heldBodyBytesMax).toBe(1024 ** 3);
  });

  it("count while a turn is held, not while it is at an engine, and again when it comes back", async () => {
    const world = await startWorld();
    const bytes = async (): Promise<number> => Number((await world.metric("held_body_bytes")).split(" ")[1]);
    world.scheduler.holdAll();
    const turn = world.chat();
    await until("it is held", () => world.scheduler.of("requested").length === 1);
    expect(await bytes()).toBe(JSON.stringify(CHAT).length);
    world.scheduler.admit();
    expect(await bytes()).toBe(0);
    await until("the engine has it", () => world.engine.requests.length === 1);
    world.engine.replies[0]?.whole(503, {}, "");
    await until("it came back", () => world.scheduler.of("pushed-back").length === 1);
    expect(await bytes()).toBe(JSON.stringify(CHAT).length);
    turn.leave();
    await until("it is given up", () => world.scheduler.of("abandoned").length === 1);
    expect(await bytes()).toBe(0);
  });
});

describe("identity keys", () => {
  it("are swept each minute, 200,000 at most", async () => {
    expect([DEFAULTS.identitySweepMs, DEFAULTS.identityKeysMax]).toEqual([60_000, 200_000]);
    const world = await startWorld({ limits: { identityTtlMs: 30_000, runIdleExpiryMs: 30_000 } });
    world.engine.onRequest = answerJson;
    await world.chat().answer;
    await until("it has ended", () => world.scheduler.of("finished").length === 1);
    const kept = async (): Promise<string> => (await world.metric("runs_remembered")).split(" ")[1] ?? "";
    world.clock.advance(59_999);
    expect(await kept()).toBe("1");
    world.clock.advance(1);
    expect(await kept()).toBe("0");
    expect(await world.metric("keys_remembered")).toContain(" 0");
  });
});

describe("defaults that other tests spell out in time", () => {
  it("are the constants of the spec", () => {
    expect(LIMITS).toMatchObject({
      holdSignAfterMs: 10_000,
      holdSignEveryMs: 10_000,
      holdAnswerBeforeMs: 10_000,
      holdDeadlineNodeMs: 300_000,
      holdDeadlineMs: 600_000,
      linkRetryMs: 1_000,
      retryAfterDefaultMs: 1_000,
      retryAfterHonouredMaxMs: 60_000,
      callerBytesMax: 128,
      runIdBytesMax: 256,
      auxiliaryWaitMs: 10_000,
    });
  });
});

describe("another pool", () => {
  it("applies at once, turns in flight go on, and 1,000 changes leave nothing behind", async () => {
    const world = await startWorld();
    world.engine.onRequest = (_request, reply) => {
      reply.stream();
      reply.chunk(EVENTS[0] + EVENTS[1]);
    };
    const turn = world.chat({ stream: true });
    await until("it flows", () => turn.text().includes("It flows"));
    const timers = world.clock.timerCount;
    for (let round = 0; round < 1_000; round += 1) {
      world.dataplane.reconfigure([endpointOf(`r${round}`, "http://127.0.0.1:9"), endpointOf("b", world.engine.url)]);
    }
    expect(world.clock.timerCount).toBe(timers);
    world.engine.replies[0]?.chunk(EVENTS.slice(2).join(""));
    world.engine.replies[0]?.end();
    expect((await turn.answer).clean).toBe(true);
    world.pool([{ replica: asReplicaId("b") }]);
    world.scheduler.admitAll("b");
    world.engine.onRequest = answerJson;
    const next = await world.chat().answer;
    expect([next.status, next.headers["x-luftpause-replica"]]).toEqual([200, "b"]);
    expect(await world.metric("open_streams")).toContain(" 0");
  });
});
