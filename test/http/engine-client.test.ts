/** The client toward engines over real sockets: framing, pooling, the idle race, every malformed answer. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createServer, type AddressInfo, type Server, type Socket } from "node:net";
import { afterEach, describe, expect, test } from "vitest";
import {
  createEngineClient,
  type EngineCall,
  type EngineClient,
  type EngineFailure,
  type EngineHead,
  type EngineTarget,
} from "../../src/http/index.ts";

const closers: (() => unknown)[] = [];
afterEach(() => {
  for (const close of closers.splice(0).toReversed()) close();
});

type Peer = { readonly target: EngineTarget; readonly sockets: Socket[]; readonly requests: string[] };

/** A server that answers each request (a head with a whole body) as it is told. */
async function peer(answer: (socket: Socket, request: string, number: number) => void): Promise<Peer> {
  const sockets: Socket[] = [];
  const requests: string[] = [];
  const server: Server = createServer((socket) => {
    sockets.push(socket);
    socket.setNoDelay(true);
    socket.on("error", () => undefined);
    let text = "";
    socket.on("data", (bytes) => {
      text += bytes.toString("latin1");
      const end = text.indexOf("\r\n\r\n");
      if (end === -1) return;
      const length = Number(/content-length: (\d+)/.exec(text)?.[1] ?? 0);
      if (text.length < end + 4 + length) return;
      const request = text.slice(0, end + 4 + length);
      text = text.slice(request.length);
      requests.push(request);
      answer(socket, request, requests.length);
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  closers.push(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  const { port } = server.address() as AddressInfo;
  return { target: { protocol: "http:", hostname: "127.0.0.1", port, basePath: "" }, sockets, requests };
}

function makeClient(options: { idleMs?: number; retryMs?: number; connectTimeoutMs?: number } = {}): EngineClient {
  const client = createEngineClient({
    connectTimeoutMs: options.connectTimeoutMs ?? 2_000,
    reusedSocketRetryMs: options.retryMs ?? 1_000,
    ...(options.idleMs === undefined ? {} : { idleMs: options.idleMs }),
  });
  closers.push(() => client.close());
  return client;
}

type Result = {
  head: EngineHead | undefined;
  payload: string;
  frames: string;
  ended: boolean;
  failure: EngineFailure | undefined;
};

function send(
  client: EngineClient,
  target: EngineTarget,
  body = "hello",
): { call: EngineCall; result: Result; done: Promise<Result> } {
  const result: Result = { head: undefined, payload: "", frames: "", ended: false, failure: undefined };
  let settle: (value: Result) => void = () => undefined;
  const done = new Promise<Result>((resolve) => {
    settle = resolve;
  });
  const call = client.call(
    target,
    { method: "POST", path: "/v1/x?y=%20", headers: ["x-a", "1"], body: Buffer.from(body) },
    {
      onHead(head) {
        result.head = head;
      },
      onPayload(buffer, start, end) {
        result.payload += buffer.toString("latin1", start, end);
      },
      onFrames(buffer, start, end) {
        result.frames += buffer.toString("latin1", start, end);
      },
      onEnd() {
        expect(result.ended || result.failure !== undefined).toBe(false);
        result.ended = true;
        settle(result);
      },
      onFail(failure) {
        expect(result.ended || result.failure !== undefined).toBe(false);
        result.failure = failure;
        settle(result);
      },
    },
  );
  return { call, result, done };
}

const JSON_ANSWER = 'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 7\r\n\r\n{"a":1}';
const CHUNKED = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n5;ext=1\r\ndefgh\r\n0\r\n\r\n";

describe("a request", () => {
  test("has its path and headers as given, one host, one length, and its body", async () => {
    const { target, requests } = await peer((socket) => socket.write(JSON_ANSWER));
    expect(await send(makeClient(), target).done).toMatchObject({ ended: true, payload: '{"a":1}' });
    expect(requests[0]).toBe(
      `POST /v1/x?y=%20 HTTP/1.1\r\nhost: 127.0.0.1:${target.port}\r\nx-a: 1\r\ncontent-length: 5\r\nconnection: keep-alive\r\n\r\nhello`,
    );
  });

  test("with a large body arrives whole", async () => {
    const { target, requests } = await peer((socket) => socket.write(JSON_ANSWER));
    await send(makeClient(), target, "x".repeat(3_000_000)).done;
    expect(requests[0]?.length).toBeGreaterThan(3_000_000);
  });
});

describe("an answer", () => {
  test.each([
    ["length", JSON_ANSWER, '{"a":1}', ""],
    ["chunks", CHUNKED, "abcdefgh", "3\r\nabc\r\n5;ext=1\r\ndefgh\r\n0\r\n\r\n"],
    [
      "chunks with trailers, which are dropped",
      `${CHUNKED.slice(0, -2)}X-T: 1\r\n\r\n`,
      "abcdefgh",
      "3\r\nabc\r\n5;ext=1\r\ndefgh\r\n0\r\n\r\n",
    ],
    [
      "a last chunk with an extension, which is dropped with its trailers",
      `${CHUNKED.slice(0, -5)}00;x=y\r\nX-T: 1\r\nX-U: 2\r\n\r\n`,
      "abcdefgh",
      "3\r\nabc\r\n5;ext=1\r\ndefgh\r\n0\r\n\r\n",
    ],
    ["no body", "HTTP/1.1 204 No Content\r\n\r\n", "", ""],
    ["an informational one before it", `HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n${JSON_ANSWER}`, '{"a":1}', ""],
  ])("with %s is the same at every split of its bytes", async (_name, bytes, payload, frames) => {
    let at = 0;
    const { target } = await peer((socket) => {
      socket.write(bytes.slice(0, at), "latin1");
      setImmediate(() => socket.write(bytes.slice(at), "latin1"));
    });
    const client = makeClient();
    for (at = 1; at < bytes.length; at += 1) {
      expect(await send(client, target).done).toMatchObject({ ended: true, payload, frames });
    }
    // All of them went over one connection: each answer ended where it ends.
    expect(client.stats()).toMatchObject({ open: 1, idle: 1 });
  });

  test.each([
    ["the first size line", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3", ""],
    ["a size line", CHUNKED.slice(0, CHUNKED.indexOf(";ext") + 3), "3\r\nabc\r\n"],
    ["the last chunk", CHUNKED.slice(0, -4), "3\r\nabc\r\n5;ext=1\r\ndefgh\r\n"],
    ["the trailers", `${CHUNKED.slice(0, -2)}X-T: 1\r\n`, "3\r\nabc\r\n5;ext=1\r\ndefgh\r\n"],
  ])("cut inside %s has given whole frames only: an error of ours may follow them", async (_name, bytes, frames) => {
    // Byte by byte, so that every piece is a read of its own.
    const { target } = await peer((socket) => {
      void (async () => {
        for (const byte of Buffer.from(bytes, "latin1")) {
          socket.write(Buffer.of(byte));
          await new Promise(setImmediate);
        }
        socket.end();
      })();
    });
    const { call, done } = send(makeClient(), target);
    const result = await done;
    expect(result).toMatchObject({ failure: { kind: "lost" }, ended: false, frames });
    expect(call.betweenFrames).toBe(true);
  });

  test("that ends with the connection is whole", async () => {
    const { target } = await peer((socket) => socket.end("HTTP/1.1 200 OK\r\n\r\nall of it"));
    const client = makeClient();
    expect(await send(client, target).done).toMatchObject({ ended: true, payload: "all of it" });
    expect(client.stats().open).toBe(0);
  });

  test.each([
    ["nothing", ""],
    ["half a head", "HTTP/1.1 200 OK\r\nConte"],
    ["less than its length", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"],
    ["an open chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc"],
    ["no last chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"],
  ])("cut after %s is a loss, never an end", async (_name, bytes) => {
    const { target } = await peer((socket) => socket.end(bytes));
    expect(await send(makeClient(), target).done).toMatchObject({ ended: false, failure: { kind: "lost" } });
  });

  test.each([
    ["garbage", "hello\r\n\r\n"],
    ["a folded header", "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n"],
    ["two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"],
    ["a negative length", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"],
    ["a huge length", "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n"],
    ["an unknown encoding", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"],
    ["a chunk size over the limit", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffff\r\n"],
    ["a chunk size that is none", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\n"],
    ["a chunk without its end", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n"],
    // A regular expression that looks for the end of the value needs seconds for this one.
    ["a header of white space", `HTTP/1.1 200 OK\r\nA:${" ".repeat(60_000)}\x01\r\n\r\n`],
    ["another protocol", "HTTP/1.1 101 Switching Protocols\r\n\r\n"],
    ["endless headers", `HTTP/1.1 200 OK\r\n${"A: b\r\n".repeat(20_000)}`],
    ["endless informational answers", "HTTP/1.1 100 Continue\r\n\r\n".repeat(50)],
    ["an endless chunk extension", `HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;${"x".repeat(5_000)}`],
    ["endless trailers", `HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n${"A: b\r\n".repeat(10_000)}`],
  ])("with %s is a loss in words, and its connection is not used again", async (_name, bytes) => {
    const { target } = await peer((socket) => void socket.write(bytes, "latin1"));
    const client = makeClient();
    const { failure } = await send(client, target).done;
    expect(failure?.kind).toBe("lost");
    expect(failure?.reason).toMatch(/^[a-z]/);
    expect(client.stats().open).toBe(0);
  });

  test("with both framings counts by its chunks and ends its connection", async () => {
    const { target } = await peer((socket) =>
      socket.write(CHUNKED.replace("\r\n\r\n", "\r\nContent-Length: 3\r\n\r\n"), "latin1"),
    );
    const client = makeClient();
    expect(await send(client, target).done).toMatchObject({ ended: true, payload: "abcdefgh" });
    expect(client.stats().open).toBe(0);
  });
});

describe("connections", () => {
  test("are used again, but not after close, leftover bytes or HTTP/1.0", async () => {
    const answers = [
      JSON_ANSWER,
      JSON_ANSWER.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n"),
      `${JSON_ANSWER}more`,
      JSON_ANSWER.replace("HTTP/1.1", "HTTP/1.0"),
      JSON_ANSWER,
    ];
    const { target, sockets } = await peer((socket, _request, number) => void socket.write(answers[number - 1] ?? ""));
    const client = makeClient();
    for (let at = 0; at < answers.length; at += 1) expect((await send(client, target).done).ended).toBe(true);
    expect(sockets).toHaveLength(4);
  });

  test("are given up after the idle time, and earlier where the server says how long it waits", async () => {
    const patient = await peer((socket) => void socket.write(JSON_ANSWER));
    const hasty = await peer(
      (socket) => void socket.write(JSON_ANSWER.replace("\r\n\r\n", "\r\nKeep-Alive: timeout=1\r\n\r\n")),
    );
    const client = makeClient({ idleMs: 50 });
    await send(client, patient.target).done;
    expect(client.stats().idle).toBe(1);
    await expect.poll(() => client.stats().idle, { timeout: 3_000 }).toBe(0);
    const other = makeClient();
    await send(other, hasty.target).done;
    await send(other, hasty.target).done;
    expect(hasty.sockets).toHaveLength(2);
  });

  test("serve one call at a time", async () => {
    const { target, sockets } = await peer((socket) => void setTimeout(() => socket.write(JSON_ANSWER), 20));
    const client = makeClient();
    await Promise.all([1, 2, 3].map(() => send(client, target).done));
    expect(sockets).toHaveLength(3);
  });
});

describe("an answer that comes before the whole request was sent", () => {
  const early = "HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno";

  test("is the answer, and the connection is not used again while the rest waits", async () => {
    const sockets: Socket[] = [];
    const server = createServer((socket) => {
      sockets.push(socket);
      socket.on("error", () => undefined);
      socket.once("data", () => {
        socket.pause();
        socket.write(early);
      });
    });
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    closers.push(() => {
      for (const socket of sockets) socket.destroy();
      server.close();
    });
    const { port } = server.address() as AddressInfo;
    const target: EngineTarget = { protocol: "http:", hostname: "127.0.0.1", port, basePath: "" };
    const client = makeClient();
    const body = "x".repeat(30_000_000);
    for (let at = 1; at <= 2; at += 1) {
      expect(await send(client, target, body).done).toMatchObject({
        ended: true,
        payload: "no",
        head: { status: 413 },
      });
      expect(client.stats()).toMatchObject({ open: 0, idle: 0 });
      expect(sockets).toHaveLength(at);
    }
  });

  test("leaves the connection to the next request once the server has taken the rest", async () => {
    const { target, sockets } = await peer((socket) => void socket.write(early));
    const client = makeClient();
    await send(client, target).done;
    await send(client, target).done;
    expect(sockets).toHaveLength(1);
  });
});

describe("a reused connection that fails before any byte of an answer", () => {
  test("is tried once more on a fresh one: almost always the idle race", async () => {
    const { target, sockets } = await peer((socket, _request, number) => {
      if (number === 2) socket.destroy();
      else socket.write(JSON_ANSWER);
    });
    const client = makeClient();
    await send(client, target).done;
    expect(await send(client, target).done).toMatchObject({ ended: true });
    expect(sockets).toHaveLength(2);
    expect(client.stats().retriedOnFresh).toBe(1);
  });

  test("is not tried again when it was fresh, a second time, after a byte, or later than a second", async () => {
    const broken = await peer((socket) => void socket.destroy());
    expect(await send(makeClient(), broken.target).done).toMatchObject({ failure: { kind: "lost" } });
    expect(broken.requests).toHaveLength(1);

    const twice = await peer(
      (socket, _request, number) => void (number === 1 ? socket.write(JSON_ANSWER) : socket.destroy()),
    );
    const client = makeClient();
    await send(client, twice.target).done;
    expect(await send(client, twice.target).done).toMatchObject({ failure: { kind: "lost" } });
    expect(twice.requests).toHaveLength(3);

    const begun = await peer(
      (socket, _request, number) => void (number === 1 ? socket.write(JSON_ANSWER) : socket.end("HTTP/1.1 2")),
    );
    const second = makeClient();
    await send(second, begun.target).done;
    expect(await send(second, begun.target).done).toMatchObject({ failure: { kind: "lost" } });
    expect(begun.requests).toHaveLength(2);

    const late = await peer(
      (socket, _request, number) =>
        void (number === 1 ? socket.write(JSON_ANSWER) : setTimeout(() => socket.destroy(), 100)),
    );
    const third = makeClient({ retryMs: 50 });
    await send(third, late.target).done;
    expect(await send(third, late.target).done).toMatchObject({ failure: { kind: "lost" } });
    expect(late.requests).toHaveLength(2);
  });
});

describe("an engine that is not there", () => {
  test("is unreachable at once when the connection is refused", async () => {
    const target: EngineTarget = { protocol: "http:", hostname: "127.0.0.1", port: 1, basePath: "" };
    expect(await send(makeClient(), target).done).toMatchObject({
      failure: { kind: "unreachable", reason: "connection refused" },
    });
  });

  test("is unreachable after the connect time-out when nobody answers", async () => {
    // The kernel of a listener that never accepts answers no connection once its backlog is full.
    const script = `require("node:net").createServer().listen({ host: "127.0.0.1", port: 0, backlog: 1 }, function () { console.log(this.address().port); })`;
    const child = spawn(process.execPath, ["-e", script], { stdio: ["ignore", "pipe", "ignore"] });
    closers.push(() => child.kill("SIGKILL"));
    const [line] = (await once(child.stdout, "data")) as [Buffer];
    child.kill("SIGSTOP");
    const target: EngineTarget = { protocol: "http:", hostname: "127.0.0.1", port: Number(line), basePath: "" };
    const client = makeClient({ connectTimeoutMs: 300 });
    const calls = Array.from({ length: 6 }, () => send(client, target));
    await expect.poll(() => calls.some(({ result }) => result.failure !== undefined), { timeout: 5_000 }).toBe(true);
    const failed = calls.find(({ result }) => result.failure !== undefined);
    expect(failed?.result.failure).toEqual({ kind: "unreachable", reason: "connect timed out after 0.3 s" });
    for (const { call } of calls) call.abort();
  });
});

describe("a call", () => {
  test("that is aborted closes its connection at once and says nothing more", async () => {
    const { target, sockets } = await peer((socket) => void socket.write(CHUNKED.slice(0, 60), "latin1"));
    const client = makeClient();
    const { call, result } = send(client, target);
    await expect.poll(() => result.payload).toBe("abc");
    const closed = once(sockets[0] as Socket, "close");
    call.abort();
    await closed;
    expect(result).toMatchObject({ ended: false, failure: undefined });
    expect(client.stats().open).toBe(0);
  });

  test.each(["onHead", "onPayload", "onFrames"] as const)(
    "that is aborted from inside %s hears nothing more of the same bytes",
    async (when) => {
      const { target } = await peer((socket) => void socket.write(CHUNKED, "latin1"));
      const client = makeClient();
      const heard: string[] = [];
      const hear = (what: string): void => {
        heard.push(what);
        if (what === when) call.abort();
      };
      const call: EngineCall = client.call(
        target,
        { method: "GET", path: "/", headers: [], body: undefined },
        {
          onHead: () => hear("onHead"),
          onPayload: () => hear("onPayload"),
          onFrames: () => hear("onFrames"),
          onEnd: () => hear("onEnd"),
          onFail: () => hear("onFail"),
        },
      );
      await expect.poll(() => heard).toContain(when);
      await expect.poll(() => client.stats().open).toBe(0);
      expect(heard.filter((what) => what === when)).toHaveLength(1);
      expect(heard.at(-1)).toBe(when);
    },
  );

  test.each([
    ["a line break in a value", { path: "/", headers: ["x-a", "1\r\nx-b: 2"] }],
    ["a space in a name", { path: "/", headers: ["x a", "1"] }],
    ["a space in the path", { path: "/ HTTP/1.1\r\nx: y", headers: [] }],
    ["a path that is none", { path: "x", headers: [] }],
  ])("with %s is a programmer's error: nothing is sent", async (_name, { path, headers }) => {
    const { target, requests } = await peer((socket) => void socket.write(JSON_ANSWER));
    const client = makeClient();
    const silent = { onHead() {}, onPayload() {}, onFrames() {}, onEnd() {}, onFail() {} };
    expect(() => client.call(target, { method: "GET", path, headers, body: undefined }, silent)).toThrow(
      /may not|no spaces/,
    );
    expect(client.stats().open).toBe(0);
    expect(requests).toEqual([]);
  });

  test("that is paused takes nothing until it goes on", async () => {
    const { target, sockets } = await peer((socket) => {
      socket.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
      const more = (): void => {
        while (socket.writable && socket.write(`10000\r\n${"x".repeat(65_536)}\r\n`));
      };
      socket.on("drain", more);
      more();
    });
    const { call, result } = send(makeClient(), target);
    await expect.poll(() => result.payload.length).toBeGreaterThan(0);
    call.pause();
    await expect.poll(() => (sockets[0] as Socket).writableNeedDrain).toBe(true);
    const before = result.payload.length;
    await new Promise((resolve) => {
      setTimeout(resolve, 100);
    });
    expect(result.payload.length).toBe(before);
    call.resume();
    await expect.poll(() => result.payload.length).toBeGreaterThan(before);
    call.abort();
  });

  test("1,000 aborts leave no connection", async () => {
    const { target } = await peer((socket) => void socket.write(CHUNKED.slice(0, 60), "latin1"));
    const client = makeClient();
    const calls = Array.from({ length: 1_000 }, () => send(client, target));
    await expect.poll(() => calls.every(({ result }) => result.payload !== ""), { timeout: 10_000 }).toBe(true);
    for (const { call } of calls) call.abort();
    expect(client.stats().open).toBe(0);
  });
});
