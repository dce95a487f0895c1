/** The life of a connection: requests one after the other, bounds, closing without losing an answer. */
import { describe, expect, test } from "vitest";
import { answerWhole, type Exchange } from "../../src/http/index.ts";
import { client, startFront } from "./support.ts";

const GET = "GET /v1/x HTTP/1.1\r\nHost: h\r\n\r\n";
const post = (path: string, bytes: number, more = "") =>
  `POST ${path} HTTP/1.1\r\nHost: h\r\n${more}Content-Length: ${bytes}\r\n\r\n`;

/** Answers 200 with the length of the body, 413 over 1,000 bytes. */
function measure(exchange: Exchange): void {
  exchange.readBody(1_000, (body) => {
    if (body === "aborted") return;
    if (body === "too-large") answerWhole(exchange, 413, [], body);
    else answerWhole(exchange, 200, [], `${exchange.path}=${body.length};`);
  });
}

describe("requests on one connection", () => {
  test("thousands in one packet are answered in order: none is served from inside the one before", async () => {
    const { port, front } = await startFront(measure);
    const peer = await client(port);
    const requests = Array.from({ length: 6_000 }, (_, at) => `GET /${at} HTTP/1.1\r\nHost:\r\n\r\n`);
    await peer.send(requests.join(""));
    await expect.poll(() => peer.count(200), { timeout: 10_000 }).toBe(6_000);
    const order = [...peer.text.matchAll(/\/(\d+)=0;/g)].map((match) => Number(match[1]));
    expect(order).toEqual(Array.from({ length: 6_000 }, (_, at) => at));
    expect(front.stats().handedOver).toBe(0);
  });

  test("one behind the last bytes of a body is served", async () => {
    const { port } = await startFront(measure);
    const peer = await client(port);
    await peer.send(`${post("/a", 5)}he`);
    await peer.send(`llo${post("/b", 2)}x`);
    await peer.send(`y${GET}`);
    await expect.poll(() => peer.count(200)).toBe(3);
    expect(peer.text).toMatch(/\/a=5;.*\/b=2;.*\/v1\/x=0;/s);
  });

  test("one that comes while another is being answered waits for its end", async () => {
    const open: Exchange[] = [];
    const { port } = await startFront((exchange) => open.push(exchange));
    const peer = await client(port);
    await peer.send(`${GET}${GET.replace("/v1/x", "/v1/y")}`);
    await expect.poll(() => open.length).toBe(1);
    open[0]?.begin(200, [], { kind: "stream" });
    open[0]?.write(Buffer.from("one"));
    await expect.poll(() => peer.text).toContain("one");
    expect(open).toHaveLength(1);
    open[0]?.end();
    await expect.poll(() => open.map(({ path }) => path)).toEqual(["/v1/x", "/v1/y"]);
  });

  test("a client that pipelines and reads nothing is not served ahead of its reading", async () => {
    let served = 0;
    const body = "x".repeat(100_000);
    const { port } = await startFront((exchange) => {
      served += 1;
      answerWhole(exchange, 200, [], body);
    });
    const peer = await client(port);
    peer.socket.pause();
    await peer.send(GET.repeat(2_000));
    // The kernel's buffers take some megabytes; 200 MB they do not.
    let before = -1;
    await expect
      .poll(() => {
        const same = served === before;
        before = served;
        return same;
      })
      .toBe(true);
    expect(served).toBeLessThan(500);
    let bytes = 0;
    peer.socket.removeAllListeners("data");
    peer.socket.on("data", (part) => {
      bytes += part.length;
    });
    peer.socket.resume();
    await expect.poll(() => served, { timeout: 10_000 }).toBe(2_000);
    await expect.poll(() => bytes, { timeout: 10_000 }).toBeGreaterThan(200_000_000);
  });
});

describe("a body that is refused", () => {
  test.each([true, false])("is never read as further requests (lane %s)", async (lane) => {
    const seen: string[] = [];
    const { port } = await startFront(
      (exchange) => {
        seen.push(exchange.path);
        measure(exchange);
      },
      { lane },
    );
    const peer = await client(port, { allowHalfOpen: true });
    await peer.send(`${post("/a", 5_000)}he`);
    await expect.poll(() => peer.count(413)).toBe(1);
    await peer.send(GET);
    await peer.send(GET);
    peer.socket.end();
    await expect.poll(() => peer.closed, { timeout: 10_000 }).toBe(true);
    expect(seen).toEqual(["/a"]);
    expect(peer.count(200)).toBe(0);
  });

  test.each([
    ["lane", post("/a", 30_000_000)],
    ["node:http", post("/a", 30_000_000, "X-Fold: \t\r\n")],
    ["node:http, in chunks", "POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1c9c380\r\n"],
  ])(
    "does not reset the connection before its client, which is still sending, has the answer (%s)",
    async (_, head) => {
      const { port } = await startFront(measure);
      const peer = await client(port, { allowHalfOpen: true });
      peer.socket.pause();
      await peer.send(head);
      const part = Buffer.alloc(1_000_000, 0x61);
      for (let at = 0; at < 30; at += 1) await peer.send(part);
      expect(peer.error).toBeUndefined();
      peer.socket.resume();
      await expect.poll(() => peer.text).toContain("too-large");
      expect(peer.text).toMatch(/^HTTP\/1\.1 413 .*connection: close\r\n/is);
      peer.socket.end();
      await expect.poll(() => peer.closed, { timeout: 10_000 }).toBe(true);
    },
  );
});

describe("a connection", () => {
  test("gives a client that has ended its side all of an answer that was ended before", async () => {
    let answered = false;
    const { port } = await startFront((exchange) => {
      answerWhole(exchange, 200, [], "x".repeat(20_000_000));
      answered = true;
    });
    const peer = await client(port, { allowHalfOpen: true });
    peer.socket.pause();
    await peer.send(GET);
    await expect.poll(() => answered).toBe(true);
    peer.socket.end(); // Most of the answer still waits in the server.
    await new Promise((resolve) => peer.socket.once("finish", resolve));
    peer.socket.resume();
    await expect.poll(() => peer.closed, { timeout: 10_000 }).toBe(true);
    expect(peer.text.length).toBeGreaterThan(20_000_000);
  });

  test("with a body that trickles is closed at the deadline, though bytes keep coming", async () => {
    const results: unknown[] = [];
    const { port, front } = await startFront((exchange) => exchange.readBody(1_000, (body) => results.push(body)), {
      bodyMs: 200,
    });
    const peer = await client(port);
    await peer.send(post("/a", 1_000));
    const trickle = setInterval(() => peer.socket.write("x"), 20);
    await expect.poll(() => results, { timeout: 5_000 }).toEqual(["aborted"]);
    clearInterval(trickle);
    await expect.poll(() => front.stats().connections).toBe(0);
  });

  test("with a head that trickles is closed at the deadline", async () => {
    const { port, front } = await startFront(measure, { headMs: 200 });
    const peer = await client(port);
    await peer.send("GET / HTTP/1.1\r\nX: ");
    const trickle = setInterval(() => peer.socket.write("x"), 20);
    await expect.poll(() => peer.closed, { timeout: 5_000 }).toBe(true);
    clearInterval(trickle);
    await expect.poll(() => front.stats().connections).toBe(0);
  });

  test("breaks when an answer with a length sends another number of bytes", async () => {
    const { port } = await startFront((exchange) => {
      exchange.begin(200, [], { kind: "length", bytes: 10 });
      exchange.write(Buffer.from("short"));
      exchange.end();
    });
    const peer = await client(port);
    await peer.send(`${GET}${GET}`);
    await expect.poll(() => peer.closed).toBe(true);
    expect(peer.count(200)).toBe(1);
  });

  test("over the bound is refused and counted", async () => {
    const { port, front } = await startFront(measure, { connectionsMax: 2 });
    const first = [await client(port), await client(port)];
    const third = await client(port);
    await expect.poll(() => third.closed).toBe(true);
    expect(front.stats()).toMatchObject({ connections: 2, refused: 1 });
    for (const peer of first) await peer.send(GET);
    await expect.poll(() => first.every((peer) => peer.count(200) === 1)).toBe(true);
  });

  test("a header value that would begin a line of its own is never sent", async () => {
    const thrown: unknown[] = [];
    const { port } = await startFront((exchange) => {
      try {
        exchange.begin(200, ["x-a", "1\r\nset-cookie: evil=1"], { kind: "none" });
      } catch (error) {
        thrown.push(error);
        exchange.breakOff();
      }
    });
    const peer = await client(port);
    await peer.send(GET);
    await expect.poll(() => peer.closed).toBe(true);
    expect(thrown).toHaveLength(1);
    expect(peer.text).toBe("");
  });
});

describe("when the front stops listening", () => {
  test.each([true, false])("idle connections close, and others after their answer (lane %s)", async (lane) => {
    const open: Exchange[] = [];
    const { port, front } = await startFront(
      (exchange) => {
        if (exchange.path === "/v1/x") answerWhole(exchange, 200, [], "x");
        else open.push(exchange);
      },
      { lane },
    );
    const [idle, held, streaming] = [await client(port), await client(port), await client(port)];
    await idle.send(GET);
    await held.send(GET.replace("/v1/x", "/held"));
    await streaming.send(GET.replace("/v1/x", "/streaming"));
    await expect.poll(() => [idle.count(200), open.length]).toEqual([1, 2]);
    for (const exchange of open) if (exchange.path === "/streaming") exchange.begin(200, [], { kind: "stream" });
    await expect.poll(() => streaming.count(200)).toBe(1);

    front.stopListening();
    await expect.poll(() => idle.closed, { timeout: 5_000 }).toBe(true);
    expect([held.closed, streaming.closed]).toEqual([false, false]);
    for (const exchange of open) {
      if (exchange.path === "/streaming") exchange.end();
      else answerWhole(exchange, 503, [], "draining");
    }
    await expect.poll(() => [held.closed, streaming.closed], { timeout: 5_000 }).toEqual([true, true]);
    expect(held.text).toContain("draining");
    expect(streaming.text.endsWith("0\r\n\r\n")).toBe(true);
    await expect.poll(() => front.stats().connections).toBe(0);
  });
});

describe("many connections", () => {
  test("1,000 idle ones stay open and are served", async () => {
    const { port, front } = await startFront(measure);
    const peers = await Promise.all(Array.from({ length: 1_000 }, () => client(port)));
    for (const peer of peers) peer.socket.write(GET);
    await expect.poll(() => peers.every((peer) => peer.count(200) === 1), { timeout: 15_000 }).toBe(true);
    expect(front.stats().connections).toBe(1_000);
    for (const peer of peers) peer.socket.write(GET);
    await expect.poll(() => peers.every((peer) => peer.count(200) === 2), { timeout: 15_000 }).toBe(true);
  });

  test.each([true, false])(
    "1,000 clients that leave are noticed once each, and leave nothing (lane %s)",
    async (lane) => {
      let open = 0;
      let gone = 0;
      const { port, front } = await startFront(
        (exchange) => {
          open += 1;
          exchange.onGone = () => {
            gone += 1;
          };
          if (open % 2 === 0) exchange.begin(200, [], { kind: "stream" });
        },
        { lane },
      );
      const peers = await Promise.all(Array.from({ length: 1_000 }, () => client(port)));
      for (const peer of peers) peer.socket.write(GET);
      await expect.poll(() => open, { timeout: 15_000 }).toBe(1_000);
      for (const [at, peer] of peers.entries()) {
        if (at % 3 === 0) peer.socket.resetAndDestroy();
        else peer.socket.destroy();
      }
      await expect.poll(() => gone, { timeout: 15_000 }).toBe(1_000);
      await expect.poll(() => front.stats().connections, { timeout: 15_000 }).toBe(0);
      expect(gone).toBe(1_000);
    },
  );
});

test("an answer may be silent for longer than an idle connection lives, which is closed after it", async () => {
  const open: Exchange[] = [];
  const { port, front } = await startFront((exchange) => open.push(exchange), { idleMs: 60, stallMs: 60 });
  const peer = await client(port);
  await peer.send(GET);
  // Another connection's whole idle life passes while the answer says nothing, and again between two parts of it.
  const idleOnceMore = async (): Promise<void> => {
    const other = await client(port);
    await other.send(GET);
    await expect.poll(() => open.length).toBe(2);
    const exchange = open.pop();
    exchange?.begin(204, [], { kind: "none" });
    exchange?.end();
    await expect.poll(() => other.closed, { timeout: 5_000 }).toBe(true);
  };
  await expect.poll(() => open.length).toBe(1);
  const running = open[0];
  await idleOnceMore();
  running?.begin(200, [], { kind: "stream" });
  running?.write(Buffer.from("one"));
  await idleOnceMore();
  await expect.poll(() => front.stats().connections).toBe(1);
  running?.end();
  await expect.poll(() => peer.text).toMatch(/one\r\n0\r\n\r\n$/);
  await expect.poll(() => peer.closed, { timeout: 5_000 }).toBe(true);
});
