/**
 * The lane against node:http, without sockets: for any bytes, what the lane takes as a request node:http takes as the
 * same request, ending at the same byte; everything else the lane leaves to node:http, unread.
 */
import { createServer, type IncomingMessage } from "node:http";
import { type Socket } from "node:net";
import { Duplex } from "node:stream";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { answerWhole } from "../../src/http/index.ts";
import { LaneConnection } from "../../src/http/lane.ts";

/** A socket whose other side is the test: takes what it is fed, and drops what is written to it. */
class Wire extends Duplex {
  written = "";
  override _read(): void {}
  override _write(bytes: Buffer, _encoding: string, done: () => void): void {
    this.written += bytes.toString("latin1");
    done();
  }
  setTimeout(): this {
    return this;
  }
  setNoDelay(): this {
    return this;
  }
}

type Seen = {
  readonly method: string;
  readonly target: string;
  readonly rawHeaders: readonly string[];
  readonly body: string;
};

/** Lets everything happen that bytes already fed can cause: both parsers work within ticks and microtasks. */
async function settle(): Promise<void> {
  for (let at = 0; at < 3; at += 1) await new Promise(setImmediate);
}

/** What the lane takes of the bytes, and what it hands over, if it does. */
async function byLane(pieces: readonly Buffer[]): Promise<{ seen: Seen[]; rest: Buffer | undefined; open: boolean }> {
  const wire = new Wire();
  const seen: Seen[] = [];
  let rest: Buffer | undefined;
  const lane = new LaneConnection(wire as unknown as Socket, {
    onExchange(exchange) {
      exchange.readBody(1_000_000, (body) => {
        if (!Buffer.isBuffer(body)) return;
        const { method, path, query, rawHeaders } = exchange;
        seen.push({ method, target: path + query, rawHeaders, body: body.toString("latin1") });
        answerWhole(exchange, 200, [], "");
      });
    },
    handOver(_socket, bytes) {
      rest = bytes;
    },
    idleMs: 60_000,
    headMs: 60_000,
    bodyMs: 60_000,
    stallMs: 60_000,
  });
  for (const [at, piece] of pieces.entries()) {
    if (rest !== undefined) {
      rest = Buffer.concat([rest, ...pieces.slice(at)]);
      break;
    }
    wire.push(piece);
    await new Promise(setImmediate);
  }
  await settle();
  const open = !lane.socket.writableEnded;
  wire.destroy();
  return { seen, rest, open };
}

const server = createServer({ maxHeaderSize: 16_384 });

/** What node:http takes of the bytes: requests whose bodies were whole. */
async function byNode(bytes: Buffer): Promise<{ seen: Seen[]; refused: boolean; open: boolean }> {
  const wire = new Wire();
  const seen: Seen[] = [];
  const take = (request: IncomingMessage, response: { end(): void }): void => {
    let body = "";
    request.on("data", (part: Buffer) => {
      body += part.toString("latin1");
    });
    request.on("end", () => {
      const { method = "", url = "", rawHeaders } = request;
      seen.push({ method, target: url, rawHeaders, body });
      response.end();
    });
    request.on("error", () => undefined);
  };
  server.removeAllListeners("request");
  server.on("request", take);
  server.removeAllListeners("checkContinue");
  server.on("checkContinue", take);
  server.emit("connection", wire);
  wire.push(bytes);
  await settle();
  const refused = /HTTP\/1\.1 4\d\d /.test(wire.written);
  const open = !wire.writableEnded;
  wire.destroy();
  return { seen, refused, open };
}

/** Where each request of the lane ends: its grammar has one blank line and a length. */
function ends(bytes: Buffer, seen: readonly Seen[]): number[] {
  let at = 0;
  return seen.map(({ body }) => {
    at = bytes.indexOf("\r\n\r\n", at, "latin1") + 4 + body.length;
    return at;
  });
}

async function compare(bytes: Buffer): Promise<{ taken: number; handedOver: boolean }> {
  const { seen, rest, open } = await byLane([bytes]);
  for (const [at, end] of ends(bytes, seen).entries()) {
    // A packet could have ended here: node:http must have read exactly these requests by then.
    const node = await byNode(bytes.subarray(0, end));
    const lane = await byLane([bytes.subarray(0, end)]);
    expect(node).toEqual({ seen: seen.slice(0, at + 1), refused: false, open: lane.open });
  }
  const end = ends(bytes, seen).at(-1) ?? 0;
  // Nothing that node:http would take is lost: what the lane does not take it hands over from its first byte on.
  if (rest !== undefined) expect(rest.equals(bytes.subarray(end))).toBe(true);
  else if (open) expect((await byNode(bytes.subarray(end))).seen).toEqual([]);
  return { taken: seen.length, handedOver: rest !== undefined };
}

const token = fc.stringMatching(/^[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,8}$/);
const value = fc.oneof(
  fc.stringMatching(/^[\x21-\x7e\x80-\xff]([\x20-\x7e\x80-\xff]{0,6}[\x21-\x7e\x80-\xff])?$/),
  fc.constantFrom("", " ", "a\tb", "close", "keep-alive", "Close", "close, x", "chunked", "100-continue", "websocket"),
);
const name = fc.oneof(
  token,
  fc.constantFrom("Connection", "Transfer-Encoding", "Expect", "Upgrade", "TE", "Trailer", "Keep-Alive", "Host"),
);
const header = fc
  .tuple(name, fc.constantFrom(": ", ":", ":  ", ":\t", " : "), value, fc.constantFrom("\r\n", " \r\n", "\r\n ", "\n"))
  .map(([a, colon, b, end]) => a + colon + b + end);
const oddHeader = fc.oneof(
  { weight: 4, arbitrary: header },
  fc.constantFrom(
    "Connection: Upgrade\r\nUpgrade: websocket\r\n",
    "Expect: 100-continue\r\n",
    "Expect: x\r\n",
    "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n",
  ),
);
const plainHeader = fc.tuple(token, value).map(([a, b]) => `x-${a}: ${b}\r\n`);
const target = fc.oneof(
  fc.stringMatching(/^\/[\x21-\x7e]{0,12}$/),
  fc.constantFrom("*", "http://h/x?y", "//", "/a#b", "/%00", "/\x80", "/a\tb", "?x"),
);
const method = fc.oneof(
  { weight: 6, arbitrary: fc.constantFrom("GET", "POST", "DELETE") },
  fc.constantFrom("HEAD", "PUT", "PATCH", "OPTIONS", "CONNECT", "get", "GETT", "G", "PRI", "TRACE"),
);
const version = fc.oneof(
  { weight: 8, arbitrary: fc.constant("HTTP/1.1") },
  fc.constantFrom("HTTP/1.0", "HTTP/2.0", "HTTP/1.2", "http/1.1", "HTTP/1.1 ", "RTSP/1.0"),
);
/** A content-length that mostly fits the body, and the body. */
const framing = fc.tuple(fc.string({ unit: "binary-ascii", maxLength: 12 }), fc.nat(20)).map(([body, way]) => {
  const length = `Content-Length: ${body.length}\r\n`;
  switch (way) {
    case 0:
      return { head: `Content-Length: +${body.length}\r\n`, body };
    case 1:
      return { head: `Content-Length: 0${body.length}\r\n`, body };
    case 2:
      return { head: `Content-Length: ${body.length + 1}\r\n`, body };
    case 3:
      return { head: length + length, body };
    case 4:
      return { head: `${length}Transfer-Encoding: chunked\r\n`, body: "0\r\n\r\n" };
    case 5:
      return { head: "Transfer-Encoding: chunked\r\n", body: `${body.length.toString(16)}\r\n${body}\r\n0\r\n\r\n` };
    case 6:
      return { head: `Content-Length: ${body.length}, ${body.length}\r\n`, body };
    case 7:
      return { head: "Content-Length:\r\n", body: "" };
    default:
      return body === "" ? { head: "", body } : { head: length, body };
  }
});
const request = fc
  .record({
    method,
    target,
    version,
    host: fc.constantFrom("Host: h\r\n", "Host: h\r\n", "host:\r\n", "Host: a\r\nHost: b\r\n", ""),
    plain: fc.array(plainHeader, { maxLength: 3 }),
    odd: fc.oneof({ weight: 3, arbitrary: fc.constant([]) }, fc.array(oddHeader, { maxLength: 2 })),
    framing,
  })
  .map((parts) => {
    const headers = [...parts.plain, ...parts.odd].join("");
    return `${parts.method} ${parts.target} ${parts.version}\r\n${parts.host}${headers}${parts.framing.head}\r\n${parts.framing.body}`;
  });
const mutation = fc.record({
  at: fc.nat(10_000),
  remove: fc.nat(3),
  insert: fc.oneof(
    fc.constantFrom("", " ", "\t", "\r", "\n", "\r\n", "\r\n\r\n", ":", "\0", "\x7f", "\x80", "0", ",", ";", "#", "\\"),
    fc.string({ unit: "binary-ascii", maxLength: 3 }),
  ),
});
const bytesOf = (texts: readonly string[]): Buffer => Buffer.from(texts.join(""), "latin1");

/** Environment variables make a longer search of it: FUZZ_RUNS=100000. */
const RUNS = Number(process.env["FUZZ_RUNS"] ?? 1_500);
const bounded = { numRuns: RUNS, interruptAfterTimeLimit: RUNS > 1_500 ? 3_600_000 : 10_000 };

describe("whatever bytes come, the lane reads them as node:http does or leaves them to it", () => {
  test("requests of a grammar that reaches beyond both", { timeout: 3_600_000 }, async () => {
    let taken = 0;
    let handedOver = 0;
    await fc.assert(
      fc.asyncProperty(fc.array(request, { minLength: 1, maxLength: 3 }), async (requests) => {
        const result = await compare(bytesOf(requests));
        taken += result.taken;
        if (result.handedOver) handedOver += 1;
      }),
      bounded,
    );
    // The property says nothing where the lane takes nothing, or everything.
    expect(taken).toBeGreaterThan(100);
    expect(handedOver).toBeGreaterThan(100);
  });

  test("good requests with bytes removed and put in", { timeout: 3_600_000 }, async () => {
    const good = fc
      .tuple(
        fc.constantFrom("GET", "POST", "DELETE"),
        fc.array(plainHeader, { maxLength: 2 }),
        fc.string({ maxLength: 9 }),
      )
      .map(([verb, headers, text]) => {
        const body = Buffer.from(text, "utf8").toString("latin1");
        return `${verb} /v1/x?a=%20b HTTP/1.1\r\nHost: h\r\n${headers.join("")}Content-Length: ${body.length}\r\n\r\n${body}`;
      });
    await fc.assert(
      fc.asyncProperty(
        fc.array(good, { minLength: 1, maxLength: 2 }),
        fc.array(mutation, { minLength: 1, maxLength: 3 }),
        async (requests, mutations) => {
          let text = requests.join("");
          for (const { at, remove, insert } of mutations) {
            const place = at % (text.length + 1);
            text = text.slice(0, place) + insert + text.slice(place + remove);
          }
          await compare(bytesOf([text]));
        },
      ),
      bounded,
    );
  });

  test("and it reads them in the same way wherever packets end", { timeout: 3_600_000 }, async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(request, { minLength: 1, maxLength: 2 }),
        fc.array(fc.nat(10_000), { minLength: 1, maxLength: 4 }),
        async (requests, cuts) => {
          const bytes = bytesOf(requests);
          const places = [...new Set(cuts.map((cut) => cut % bytes.length))].toSorted((a, b) => a - b);
          const pieces = [0, ...places].map((from, at) => bytes.subarray(from, places[at] ?? bytes.length));
          const whole = await byLane([bytes]);
          const cut = await byLane(pieces.filter((piece) => piece.length > 0));
          expect(cut.seen).toEqual(whole.seen);
          expect(cut.rest?.toString("latin1")).toEqual(whole.rest?.toString("latin1"));
        },
      ),
      bounded,
    );
  });

  test("two requests cut at every byte", async () => {
    const text =
      "POST /v1/chat/completions?x=%20 HTTP/1.1\r\nHost: h\r\nX-A: b\r\nContent-Length: 5\r\n\r\nhello" +
      "GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n";
    const bytes = Buffer.from(text, "latin1");
    const whole = await byLane([bytes]);
    expect(whole.seen).toHaveLength(2);
    for (let at = 1; at < bytes.length; at += 1) {
      expect(await byLane([bytes.subarray(0, at), bytes.subarray(at)])).toEqual(whole);
    }
    expect(await byLane([...bytes].map((byte) => Buffer.from([byte])))).toEqual(whole);
  });
});
