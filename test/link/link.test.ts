/** The link between processes over real sockets, and its frames. */
import { once } from "node:events";
import { connect, createServer, type AddressInfo, type Server, type Socket } from "node:net";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { asDataplaneId, asTurnId } from "../../src/base/ids.ts";
import { FrameSocket, LINK_SOCKET } from "../../src/http/index.ts";
import { LINK_PROTOCOL, type DataplaneMessage } from "../../src/wire/admission.ts";
import { closers, encode, open, startClient, startServer } from "./support.ts";

describe("a link", () => {
  test("carries messages both ways in order, whatever their number", async () => {
    const server = await startServer();
    const { client, messages, log } = startClient(server.port);
    await expect.poll(() => log).toEqual(["linked"]);
    for (let at = 0; at < 5_000; at += 1) client.port.send(open([`t${at}`]));
    await expect.poll(() => server.messages.length).toBe(5_000);
    expect(server.messages.map((message) => (message.type === "open-turns" ? message.turns[0] : ""))).toEqual(
      Array.from({ length: 5_000 }, (_, at) => `t${at}`),
    );
    for (let at = 0; at < 100; at += 1) server.sink?.send({ type: "withdraw", turn: asTurnId(`w${at}`) });
    await expect.poll(() => messages.length).toBe(100);
    expect(messages.at(-1)).toEqual({ type: "withdraw", turn: "w99" });
  });

  test("is made again after the scheduler came back, and says so each time", async () => {
    const first = await startServer();
    const { log } = startClient(first.port);
    await expect.poll(() => log).toEqual(["linked"]);
    await first.server.close();
    await expect.poll(() => log).toEqual(["linked", "lost"]);
    expect(first.lost).toBe(1);
    await startServer({ port: first.port });
    await expect.poll(() => log).toEqual(["linked", "lost", "linked"]);
  });

  test("drops what is sent while it is lost: the state is handed over afterwards", async () => {
    const server = await startServer();
    const { client, log } = startClient(server.port);
    client.port.send(open(["too early"]));
    expect(client.port.linked).toBe(false);
    await expect.poll(() => log).toEqual(["linked"]);
    client.port.send(open(["in time"]));
    await expect.poll(() => server.messages).toEqual([open(["in time"])]);
  });

  test("needs the token", async () => {
    const server = await startServer({ token: "right" });
    const wrong = startClient(server.port, "wrong");
    const none = startClient(server.port);
    const right = startClient(server.port, "right");
    await expect.poll(() => right.log).toEqual(["linked"]);
    expect([...wrong.log, ...none.log]).toEqual([]);
  });

  test("ignores a scheduler of a lower epoch than it has seen", async () => {
    const leader = await startServer({ epoch: 2 });
    const { log } = startClient(leader.port);
    await expect.poll(() => log).toEqual(["linked"]);
    await leader.server.close();
    await expect.poll(() => log).toEqual(["linked", "lost"]);
    const old = await startServer({ epoch: 1, port: leader.port });
    await expect.poll(() => old.server.connections(), { timeout: 3_000 }).toBe(0);
    expect(log).toEqual(["linked", "lost"]);
  });

  test("a dataplane of another protocol is refused in words", async () => {
    const server = await startServer();
    const socket = connect(server.port, "127.0.0.1");
    const frames = new FrameSocket(socket, LINK_SOCKET);
    closers.push(() => frames.close("test"));
    const heard: unknown[] = [];
    frames.onFrame = (value) => void heard.push(value);
    frames.send({ protocol: LINK_PROTOCOL + 1, token: undefined });
    await expect
      .poll(() => heard)
      .toEqual([{ accepted: false, reason: expect.stringContaining(`protocol ${LINK_PROTOCOL}`) as string }]);
  });

  test.each([
    ["garbage", Buffer.from("GET / HTTP/1.1\r\n\r\n")],
    ["a frame that is no JSON", Buffer.concat([Buffer.from([0, 0, 0, 2]), Buffer.from("{[")])],
    ["a frame over the limit", Buffer.from([0x7f, 0xff, 0xff, 0xff])],
    ["a frame that only a peer past its opening may send", Buffer.from([0, 0, 0x23, 0x28])],
    [
      "a message before the opening",
      Buffer.concat([Buffer.from([0, 0, 0, 19]), Buffer.from('[{"type":"welcome"}]'.slice(0, 19))]),
    ],
  ])("closes on %s without harm to others", async (_name, bytes) => {
    const server = await startServer();
    const good = startClient(server.port);
    await expect.poll(() => good.log).toEqual(["linked"]);
    const socket = connect(server.port, "127.0.0.1");
    socket.write(bytes);
    socket.on("error", () => undefined);
    await once(socket, "close");
    expect(good.log).toEqual(["linked"]);
    expect(server.messages).toEqual([]);
  });
});

describe("frames", () => {
  async function pair(
    options: Partial<typeof LINK_SOCKET> = {},
  ): Promise<{ a: Socket; b: Socket; frames: FrameSocket; server: Server }> {
    const server = createServer();
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    const a = connect((server.address() as AddressInfo).port, "127.0.0.1");
    const [b] = (await once(server, "connection")) as [Socket];
    const frames = new FrameSocket(b, { ...LINK_SOCKET, ...options });
    closers.push(() => {
      frames.close("test");
      a.destroy();
      server.close();
    });
    a.on("error", () => undefined);
    return { a, b, frames, server };
  }

  test("are the same however their bytes are split", async () => {
    const { a, frames } = await pair();
    const heard: unknown[] = [];
    frames.onFrame = (value) => void heard.push(value);
    const bytes = Buffer.concat([encode([1, { ü: "é" }]), Buffer.alloc(4), encode([[2], "x"])]);
    const whole: unknown[] = [1, { ü: "é" }, [2], "x"];
    for (let at = 0; at <= bytes.length; at += 1) {
      heard.length = 0;
      a.write(bytes.subarray(0, at));
      await new Promise(setImmediate);
      a.write(bytes.subarray(at));
      await expect.poll(() => heard.length, { interval: 1 }).toBe(whole.length);
      expect(heard).toEqual(whole);
    }
  });

  test("end with the value at which the connection was closed", async () => {
    const { a, frames } = await pair();
    const heard: unknown[] = [];
    frames.onFrame = (value) => {
      heard.push(value);
      frames.close("enough");
    };
    a.write(Buffer.concat([encode([1, 2]), encode([3])]));
    await once(a, "close");
    expect(heard).toEqual([1]);
  });

  test("random pieces give the same values", async () => {
    const { a, frames } = await pair();
    const heard: unknown[] = [];
    frames.onFrame = (value) => void heard.push(value);
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.array(fc.jsonValue(), { minLength: 1 }), { minLength: 1 }),
        fc.nat(),
        async (batches, seed) => {
          heard.length = 0;
          const bytes = Buffer.concat(batches.map(encode));
          const size = 1 + (seed % 17);
          for (let at = 0; at < bytes.length; at += size) a.write(bytes.subarray(at, at + size));
          const values = JSON.parse(JSON.stringify(batches.flat())) as unknown[];
          await expect.poll(() => heard.length, { interval: 1 }).toBe(values.length);
          expect(heard).toEqual(values);
        },
      ),
      { numRuns: 30 },
    );
  });

  test("a peer that falls silent without closing is dead after a while, one that beats is not", async () => {
    const silent = await pair({ deadMs: 200, beatMs: 20 });
    const reasons: string[] = [];
    silent.frames.onClosed = (reason) => void reasons.push(reason);
    await expect.poll(() => reasons).toEqual(["no sign of life for 200 ms"]);

    const alive = await pair({ deadMs: 300, beatMs: 20 });
    const other = new FrameSocket(alive.a, { ...LINK_SOCKET, deadMs: 300, beatMs: 20 });
    closers.push(() => other.close("test"));
    const ended: string[] = [];
    alive.frames.onClosed = (reason) => void ended.push(reason);
    await new Promise((resolve) => {
      setTimeout(resolve, 700);
    });
    expect(ended).toEqual([]);
  });

  test("a peer that does not read is cut off", async () => {
    const { a, frames } = await pair({ sendBytesMax: 1_000_000 });
    a.pause();
    const reasons: string[] = [];
    frames.onClosed = (reason) => void reasons.push(reason);
    const send = (): void => {
      if (reasons.length > 0) return;
      frames.send("x".repeat(500_000));
      setImmediate(send);
    };
    send();
    await expect.poll(() => reasons).toEqual(["the peer does not read"]);
  });
});

test("a hello of a large dataplane passes in one piece", async () => {
  const server = await startServer();
  const { client, log } = startClient(server.port);
  await expect.poll(() => log).toEqual(["linked"]);
  const keys = Array.from({ length: 50_000 }, (_, at) => ({
    run: `run-${at}`,
    principal: "p",
    keys: [{ source: "tool-calls", hash: "x".repeat(22) }],
    ageMs: at,
  }));
  const hello = {
    type: "hello",
    protocol: 1,
    dataplane: asDataplaneId("d"),
    runs: [],
    flights: [],
    keys,
    models: [],
  } as unknown as DataplaneMessage;
  client.port.send(hello);
  await expect.poll(() => server.messages.length, { timeout: 10_000 }).toBe(1);
  expect(server.messages[0]).toEqual(hello);
});
