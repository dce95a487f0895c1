/** The same client toward hosted endpoints, over TLS: certificates are checked, connections are kept, resumed, aborted. */
import { once } from "node:events";
import { createServer as createPlainServer, type AddressInfo, type Socket } from "node:net";
import { createServer, type TLSSocket } from "node:tls";
import { afterEach, describe, expect, test } from "vitest";
import { createEngineClient, type EngineClient, type EngineFailure, type EngineTarget } from "../../src/http/index.ts";
import { CERTIFICATE, KEY, STRANGER } from "../link/certificates.ts";

const closers: (() => unknown)[] = [];
afterEach(() => {
  for (const close of closers.splice(0).toReversed()) close();
});

const CHUNKED = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n5;ext=1\r\ndefgh\r\n0\r\n\r\n";
const JSON_ANSWER = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";

type Peer = { readonly target: EngineTarget; readonly sockets: TLSSocket[] };

async function peer(answer: (socket: TLSSocket, number: number) => void, hostname = "localhost"): Promise<Peer> {
  const sockets: TLSSocket[] = [];
  let requests = 0;
  const server = createServer({ key: KEY, cert: CERTIFICATE }, (socket) => {
    sockets.push(socket);
    socket.setNoDelay(true);
    socket.on("error", () => undefined);
    let text = "";
    socket.on("data", (bytes) => {
      text += bytes.toString("latin1");
      if (!text.endsWith("hello")) return;
      text = "";
      requests += 1;
      answer(socket, requests);
    });
  });
  server.on("tlsClientError", () => undefined);
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  closers.push(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  const { port } = server.address() as AddressInfo;
  return { target: { protocol: "https:", hostname, port, basePath: "" }, sockets };
}

function makeClient(ca: string = CERTIFICATE, connectTimeoutMs = 2_000): EngineClient {
  const client = createEngineClient({ connectTimeoutMs, reusedSocketRetryMs: 1_000, ca });
  closers.push(() => client.close());
  return client;
}

type Result = { status: number; payload: string; frames: string; failure: EngineFailure | undefined };

function send(client: EngineClient, target: EngineTarget) {
  const result: Result = { status: 0, payload: "", frames: "", failure: undefined };
  let settle: (value: Result) => void = () => undefined;
  const done = new Promise<Result>((resolve) => {
    settle = resolve;
  });
  const request = { method: "POST", path: "/v1/x", headers: ["x-a", "1"], body: Buffer.from("hello") };
  const call = client.call(target, request, {
    onHead: ({ status }) => void (result.status = status),
    onPayload: (buffer, start, end) => void (result.payload += buffer.toString("latin1", start, end)),
    onFrames: (buffer, start, end) => void (result.frames += buffer.toString("latin1", start, end)),
    onEnd: () => settle(result),
    onFail(failure) {
      result.failure = failure;
      settle(result);
    },
  });
  return { call, result, done };
}

describe("an https endpoint", () => {
  test.each(["localhost", "127.0.0.1"])("is called by name and by address (%s), frames unchanged", async (hostname) => {
    const { target } = await peer((socket) => void socket.write(CHUNKED), hostname);
    expect(await send(makeClient(), target).done).toEqual({
      status: 200,
      payload: "abcdefgh",
      frames: "3\r\nabc\r\n5;ext=1\r\ndefgh\r\n0\r\n\r\n",
      failure: undefined,
    });
  });

  test("gives the same answer at every split of its bytes, over one connection", async () => {
    let at = 0;
    const { target, sockets } = await peer((socket) => {
      socket.write(CHUNKED.slice(0, at));
      setImmediate(() => socket.write(CHUNKED.slice(at)));
    });
    const client = makeClient();
    for (at = 1; at < CHUNKED.length; at += 1) {
      expect(await send(client, target).done).toMatchObject({ payload: "abcdefgh", failure: undefined });
    }
    expect(sockets).toHaveLength(1);
    expect(client.stats()).toMatchObject({ open: 1, idle: 1 });
  });

  test("sends large answers whole, also to a reader that pauses", async () => {
    const { target } = await peer((socket) => {
      socket.write(`HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n${"x".repeat(3_000_000)}`);
    });
    const { call, result, done } = send(makeClient(), target);
    await expect.poll(() => result.payload.length).toBeGreaterThan(0);
    call.pause();
    await new Promise(setImmediate);
    call.resume();
    expect((await done).payload.length).toBe(3_000_000);
  });

  test("is sent a request once more where its reused connection was closed under it", async () => {
    const { target, sockets } = await peer((socket, number) => {
      if (number === 2) socket.destroy();
      else socket.write(JSON_ANSWER);
    });
    const client = makeClient();
    await send(client, target).done;
    expect(await send(client, target).done).toMatchObject({ payload: "{}", failure: undefined });
    expect(sockets).toHaveLength(2);
    expect(client.stats().retriedOnFresh).toBe(1);
  });

  test("is opened again by the session of the connection before", async () => {
    const reused: unknown[] = [];
    const { target } = await peer((socket) => {
      reused.push(socket.isSessionReused());
      socket.write(JSON_ANSWER.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n"));
    });
    const client = makeClient();
    await send(client, target).done;
    await send(client, target).done;
    expect(reused).toEqual([false, true]);
  });

  test("loses its connection at once when the call is aborted", async () => {
    const { target, sockets } = await peer((socket) => void socket.write(CHUNKED.slice(0, 58)));
    const client = makeClient();
    const { call, result } = send(client, target);
    await expect.poll(() => result.payload).toBe("abc");
    const closed = once(sockets[0] as TLSSocket, "close");
    call.abort();
    await closed;
    expect(client.stats().open).toBe(0);
  });

  test("cut in the middle is a loss, never an end", async () => {
    const { target } = await peer((socket) => socket.end(CHUNKED.slice(0, 58)));
    expect(await send(makeClient(), target).done).toMatchObject({ failure: { kind: "lost" } });
  });
});

describe("an https endpoint that is not what it should be", () => {
  test("with a certificate of a stranger gets nothing", async () => {
    let asked = 0;
    const { target } = await peer(() => {
      asked += 1;
    });
    const { failure } = await send(makeClient(STRANGER), target).done;
    expect(failure?.kind).toBe("unreachable");
    expect(failure?.reason).toMatch(/^its certificate is not accepted \([A-Z_]+\)$/);
    expect(asked).toBe(0);
  });

  test("with a certificate for another name gets nothing", async () => {
    let asked = 0;
    // Another address of the same machine, which the certificate does not name.
    const { target } = await peer(() => {
      asked += 1;
    }, "0.0.0.0");
    const { failure } = await send(makeClient(), target).done;
    expect(asked).toBe(0);
    expect(failure).toEqual({
      kind: "unreachable",
      reason: "its certificate is not accepted (ERR_TLS_CERT_ALTNAME_INVALID)",
    });
  });

  test("that speaks plain http is unreachable in words that say so", async () => {
    const server = createPlainServer((socket) => {
      socket.on("error", () => undefined);
      socket.once("data", () => socket.end("HTTP/1.1 400 Bad Request\r\n\r\n"));
    });
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    closers.push(() => server.close());
    const { port } = server.address() as AddressInfo;
    const target: EngineTarget = { protocol: "https:", hostname: "localhost", port, basePath: "" };
    const { failure } = await send(makeClient(), target).done;
    expect(failure?.kind).toBe("unreachable");
    expect(failure?.reason).toMatch(/^TLS handshake failed/);
  });

  test("that accepts and never shakes hands is unreachable after the connect time-out", async () => {
    const sockets: Socket[] = [];
    const server = createPlainServer((socket) => void sockets.push(socket));
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    closers.push(() => {
      for (const socket of sockets) socket.destroy();
      server.close();
    });
    const { port } = server.address() as AddressInfo;
    const target: EngineTarget = { protocol: "https:", hostname: "localhost", port, basePath: "" };
    expect(await send(makeClient(CERTIFICATE, 200), target).done).toMatchObject({
      failure: { kind: "unreachable", reason: "connect timed out after 0.2 s" },
    });
  });
});
