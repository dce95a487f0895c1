/** What goes wrong on a link between processes: peers that vanish, lie, or do not read; restarts; TLS. */
import { once } from "node:events";
import { connect, createServer, type AddressInfo, type Server, type Socket } from "node:net";
import { describe, expect, test } from "vitest";
import { asDataplaneId, asRunId, asTurnId } from "../../src/base/ids.ts";
import { FrameSocket, LINK_SOCKET } from "../../src/http/index.ts";
import { LINK_PROTOCOL, type SchedulerMessage } from "../../src/wire/admission.ts";
import { CONFIG, flight, hello, makeScheduler, principal, request } from "../scheduler/support.ts";
import { CERTIFICATE, KEY, STRANGER } from "./certificates.ts";
import { closers, encode, open, startClient, startServer } from "./support.ts";

/** Something in between that can fall silent without closing anything, as a network does. */
async function startRelay(target: number): Promise<{ readonly port: number; cut(): void }> {
  const sockets: Socket[] = [];
  let silent = false;
  const server = createServer((near) => {
    const far = connect(target, "127.0.0.1");
    sockets.push(near, far);
    for (const [from, to] of [
      [near, far],
      [far, near],
    ] as const) {
      from.on("data", (bytes) => silent || to.write(bytes));
      from.on("close", () => silent || to.destroy());
      from.on("error", () => undefined);
    }
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  closers.push(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return {
    port: (server.address() as AddressInfo).port,
    cut() {
      silent = true;
    },
  };
}

async function opened(port: number): Promise<Socket> {
  const socket = connect(port, "127.0.0.1");
  socket.on("error", () => undefined);
  closers.push(() => socket.destroy());
  socket.write(encode([{ protocol: LINK_PROTOCOL }]));
  await once(socket, "data");
  return socket;
}

describe("a network that falls silent", () => {
  test("is noticed by both ends with the times that are in service", { timeout: 30_000 }, async () => {
    const server = await startServer();
    const relay = await startRelay(server.port);
    const { log, reasons } = startClient(relay.port, undefined, { linkRetryMs: 60_000 });
    await expect.poll(() => log).toEqual(["linked"]);
    relay.cut();
    await expect.poll(() => log, { timeout: 15_000 }).toEqual(["linked", "lost"]);
    await expect.poll(() => server.lost, { timeout: 15_000 }).toBe(1);
    expect(reasons).toEqual(["no sign of life for 5000 ms"]);
  });

  test("before the scheduler has answered is given up after the connect time-out, and tried again", async () => {
    const server = await startServer();
    const relay = await startRelay(server.port);
    relay.cut();
    const { log, reasons } = startClient(relay.port, undefined, { connectTimeoutMs: 50 });
    await expect.poll(() => server.server.connections()).toBeGreaterThan(2);
    expect(log).toEqual([]);
    expect(reasons).toEqual(["no answer within 50 ms"]);
  });
});

test("a stall of our own, however long, does not count as the peer's silence", async () => {
  const server = await startServer();
  const socket = await opened(server.port);
  const frames = new FrameSocket(socket, { ...LINK_SOCKET, beatMs: 20, deadMs: 200 });
  const reasons: string[] = [];
  frames.onClosed = (reason) => void reasons.push(reason);
  const other = new FrameSocket(await opened(server.port), { ...LINK_SOCKET, beatMs: 20 });
  closers.push(() => frames.close("test"));
  closers.push(() => other.close("test"));
  const end = performance.now() + 600;
  while (performance.now() < end); // Nothing is read or written meanwhile, the peer's beats among it.
  await new Promise((resolve) => void setTimeout(resolve, 50));
  expect(reasons).toEqual([]);
});

describe("a peer that is past the opening", () => {
  test.each([
    ["a message that no dataplane sends", encode([{ type: "welcome", protocol: 1 }])],
    ["a message without a field", encode([{ type: "abandoned", turn: "t" }])],
    ["a message with a field of another kind", encode([{ type: "open-turns", turns: [1] }])],
    ["a frame that is no list", Buffer.concat([Buffer.from([0, 0, 0, 2]), Buffer.from("{}")])],
    ["a frame that is no JSON", Buffer.concat([Buffer.from([0, 0, 0, 2]), Buffer.from("[}")])],
    ["a frame over the limit", Buffer.from([0xff, 0xff, 0xff, 0xff])],
  ])("and sends %s is cut off; what it sent before counts, what it sent after does not", async (_name, bytes) => {
    const server = await startServer();
    const good = startClient(server.port);
    await expect.poll(() => good.log).toEqual(["linked"]);
    const socket = await opened(server.port);
    socket.write(Buffer.concat([encode([open(["before"])]), bytes, encode([open(["after"])])]));
    await once(socket, "close");
    expect(server.messages).toEqual([open(["before"])]);
    expect(server.lost).toBe(1);
    expect(good.log).toEqual(["linked"]);
  });

  test("and brings the core to a fault is cut off, the others are not", async () => {
    const server = await startServer({
      attach: () => ({
        receive(message) {
          if (message.type === "started") throw new Error("a bug of ours");
        },
        lost: () => undefined,
      }),
    });
    const good = startClient(server.port);
    const bad = startClient(server.port, undefined, { linkRetryMs: 60_000 });
    await expect.poll(() => [good.log, bad.log]).toEqual([["linked"], ["linked"]]);
    bad.client.port.send({ type: "started", turn: asTurnId("t") });
    await expect.poll(() => bad.log).toEqual(["linked", "lost"]);
    expect(good.log).toEqual(["linked"]);
  });
});

test("a peer that is refused and does not close is closed", async () => {
  const server: Server = createServer();
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const peer = connect({ port: (server.address() as AddressInfo).port, host: "127.0.0.1", allowHalfOpen: true });
  peer.on("error", () => undefined);
  closers.push(() => {
    peer.destroy();
    server.close();
  });
  const [socket] = (await once(server, "connection")) as [Socket];
  const frames = new FrameSocket(socket, LINK_SOCKET);
  frames.end("refused");
  await once(peer.resume(), "end");
  await expect.poll(() => socket.destroyed, { timeout: 5_000 }).toBe(true);
});

test("a scheduler that says something malformed is left, and asked again", async () => {
  const server = createServer((socket) => {
    socket.on("error", () => undefined);
    socket.write(encode([{ accepted: true, epoch: 1 }]));
    socket.write(encode([{ epoch: 1, message: { type: "admitted", turn: "t" } }]));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  closers.push(() => server.close());
  const { log, reasons, messages } = startClient((server.address() as AddressInfo).port);
  await expect.poll(() => log.length).toBeGreaterThan(3);
  expect(log.slice(0, 4)).toEqual(["linked", "lost", "linked", "lost"]);
  expect(reasons[0]).toBe("malformed message");
  expect(messages).toEqual([]);
});

test("a message of a lower epoch than was seen is not obeyed, a higher one is from then on", async () => {
  const server = createServer((socket) => {
    socket.on("error", () => undefined);
    socket.write(encode([{ accepted: true, epoch: 2 }]));
    for (const epoch of [1, 2, 3, 2, 3]) {
      socket.write(encode([{ epoch, message: { type: "withdraw", turn: `of ${epoch}` } }]));
    }
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  closers.push(() => server.close());
  const { messages } = startClient((server.address() as AddressInfo).port);
  await expect
    .poll(() => messages.map((message) => (message.type === "withdraw" ? message.turn : "")))
    .toEqual(["of 2", "of 3", "of 3"]);
});

test("a client that was closed does not come back", async () => {
  const server = await startServer();
  const closed = startClient(server.port, undefined, { linkRetryMs: 1 });
  await expect.poll(() => closed.log).toEqual(["linked"]);
  closed.client.close();
  await expect.poll(() => server.lost).toBe(1);
  expect(closed.client.port.linked).toBe(false);
  // Time enough for many tries: another client comes and goes.
  const { client, log } = startClient(server.port);
  await expect.poll(() => log).toEqual(["linked"]);
  client.close();
  await expect.poll(() => server.lost).toBe(2);
  expect(closed.log).toEqual(["linked", "lost"]);
  expect(server.server.connections()).toBe(0);
});

test(
  "a stranger that never opens is shut out: silent, with signs of life, or before TLS",
  { timeout: 30_000 },
  async () => {
    const plain = await startServer();
    const secured = await startServer({ tls: { cert: CERTIFICATE, key: KEY } });
    const shutOut = async (port: number, beats: boolean): Promise<void> => {
      const socket = connect(port, "127.0.0.1");
      socket.on("error", () => undefined);
      const timer = setInterval(() => beats && socket.write(Buffer.alloc(4)), 200);
      closers.push(() => {
        clearInterval(timer);
        socket.destroy();
      });
      socket.resume();
      await once(socket, "close", { signal: AbortSignal.timeout(15_000) });
    };
    await Promise.all([shutOut(plain.port, false), shutOut(plain.port, true), shutOut(secured.port, false)]);
  },
);

describe("over TLS", () => {
  const tls = { cert: CERTIFICATE, key: KEY };

  test("the link is made with the right authority, and still needs the token", async () => {
    const server = await startServer({ tls, token: "right" });
    const about = { host: "localhost", tls: { ca: CERTIFICATE } };
    const right = startClient(server.port, "right", about);
    const wrong = startClient(server.port, "wrong", about);
    await expect.poll(() => right.log).toEqual(["linked"]);
    right.client.port.send(open(["t"]));
    await expect.poll(() => server.messages).toEqual([open(["t"])]);
    await expect.poll(() => wrong.reasons).toEqual(["refused: the token is missing or wrong"]);
    expect(wrong.log).toEqual([]);
  });

  test.each([
    ["an authority that does not know the scheduler", { host: "localhost", tls: { ca: STRANGER } }],
    ["no authority of its own", { host: "localhost", tls: { ca: undefined } }],
    ["no TLS", {}],
  ])("a dataplane with %s sends no token and is not linked", async (_name, about) => {
    const server = await startServer({ tls });
    const { log, reasons } = startClient(server.port, "secret", about);
    await expect.poll(() => reasons.length).toBeGreaterThan(0);
    expect(log).toEqual([]);
    expect(server.messages).toEqual([]);
  });

  test("a dataplane that expects TLS does not fall back to a scheduler without", async () => {
    const server = await startServer();
    const { log, reasons } = startClient(server.port, "secret", { host: "localhost", tls: { ca: CERTIFICATE } });
    await expect.poll(() => reasons.length).toBeGreaterThan(0);
    expect(log).toEqual([]);
  });
});

test("a scheduler that starts again knows what its dataplanes know: runs, turns in flight, held turns", async () => {
  const dataplane = { ...hello, dataplane: asDataplaneId("d") };
  const first = makeScheduler(CONFIG);
  const server = await startServer({ attach: (sink) => first.scheduler.attach(sink) });
  const { log, messages, client } = startClient(server.port, undefined, {
    onLinked(linked) {
      const runs = [
        {
          run: asRunId("paused"),
          principal,
          caller: flight("t", "r").caller,
          class: "interactive" as const,
          phase: "paused" as const,
          replica: flight("t", "r").replica,
          quietMs: 5_000,
          pausedMs: 5_000,
        },
      ];
      linked.port.send({ ...dataplane, runs, flights: [flight("t1", "r1")] });
      linked.port.send({ ...request("t2", "r2"), heldMs: 3_000 });
    },
  });
  await expect.poll(() => messages.map(({ type }) => type)).toEqual(["welcome", "pool", "held"]);
  const before = first.scheduler.status();
  await server.server.close();
  await expect.poll(() => log).toEqual(["linked", "lost"]);
  expect(first.scheduler.status().dataplanes).toMatchObject([{ dataplane: "d", linked: false }]);

  const second = makeScheduler(CONFIG);
  await startServer({ attach: (sink) => second.scheduler.attach(sink), port: server.port });
  await expect.poll(() => messages.map(({ type }) => type).slice(3)).toEqual(["welcome", "pool", "held"]);
  expect(second.scheduler.status()).toEqual(before);
  client.port.send({ type: "run-query", query: 1, run: asRunId("paused"), principal });
  const known = (): SchedulerMessage | undefined => messages.find(({ type }) => type === "run-known");
  await expect.poll(known).toMatchObject({ view: { phase: "paused", replica: "a", quietMs: 5_000 } });
});
