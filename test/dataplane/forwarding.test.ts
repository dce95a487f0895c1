/** What passes to an engine and what comes back (spec 3, Headers and Forwarding). */
import net from "node:net";
import { describe, expect, it } from "vitest";
import { createEngineClient } from "../../src/http/index.ts";
import {
  answerJson,
  CHAT,
  endpointOf,
  EVENTS,
  LIMITS,
  send,
  startEngine,
  startWorld,
  streamAll,
  until,
  WHOLE_STREAM,
} from "./support.ts";

const SENT = {
  accept: "text/event-stream",
  "user-agent": "agent/1",
  "x-custom": "kept",
  "x-claude-code-session-id": "s-1",
  "anthropic-version": "2023-06-01",
  "openai-organization": "org",
  traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
  tracestate: "a=b",
  authorization: "Bearer client-secret",
  "x-api-key": "client-secret",
  "api-key": "client-secret",
  "x-goog-api-key": "client-secret",
  cookie: "session=client-secret",
  "proxy-authorization": "Basic client-secret",
  "proxy-connection": "keep-alive",
  forwarded: "for=1.2.3.4",
  "x-forwarded-for": "1.2.3.4",
  "x-forwarded-proto": "https",
  "x-real-ip": "1.2.3.4",
  "accept-encoding": "gzip, br",
  te: "trailers",
  connection: "x-per-hop, keep-alive",
  "x-per-hop": "dropped",
  "keep-alive": "timeout=5",
  "x-luftpause-run-id": "r-1",
  "x-luftpause-class": "batch",
  "x-luftpause-caller": "me",
  "x-luftpause-principal": "other",
  "x-luftpause-anything": "dropped",
} as const;

describe("request headers", () => {
  it("pass to a self-hosted engine but for hop-by-hop ones, credentials, addresses and ours", async () => {
    const world = await startWorld({ endpoint: { apiKey: "engine-key" } });
    world.engine.onRequest = answerJson;
    await world.chat({}, SENT).answer;
    const { host, "content-length": length, ...headers } = world.engine.requests[0]?.headers ?? {};
    expect(host).toBe(`127.0.0.1:${world.engine.port}`);
    expect(length).toBe(String(JSON.stringify(CHAT).length));
    expect(headers).toEqual({
      accept: "text/event-stream",
      "content-type": "application/json",
      "user-agent": "agent/1",
      "x-custom": "kept",
      "x-claude-code-session-id": "s-1",
      "anthropic-version": "2023-06-01",
      "openai-organization": "org",
      traceparent: SENT.traceparent,
      tracestate: "a=b",
      "accept-encoding": "identity",
      authorization: "Bearer engine-key",
      "x-luftpause-hop": "hop-dp",
      connection: "keep-alive",
    });
  });

  it("pass to a hosted endpoint only from the short list and by forwardHeaders", async () => {
    const world = await startWorld({
      endpoint: { engine: "hosted", apiKey: "engine-key", forwardHeaders: ["x-custom"] },
    });
    world.engine.onRequest = answerJson;
    await world.chat({}, { ...SENT, "X-Custom": "kept" }).answer;
    const { host: _host, "content-length": _length, ...headers } = world.engine.requests[0]?.headers ?? {};
    expect(headers).toEqual({
      accept: "text/event-stream",
      "content-type": "application/json",
      "user-agent": "agent/1",
      "x-custom": "kept",
      "anthropic-version": "2023-06-01",
      "openai-organization": "org",
      "accept-encoding": "identity",
      authorization: "Bearer engine-key",
      "x-luftpause-hop": "hop-dp",
      connection: "keep-alive",
    });
  });

  it("count as hosted what the prober found out", async () => {
    const world = await startWorld({ endpoint: { engine: "auto" } });
    world.engine.onRequest = answerJson;
    world.pool([{ engine: "hosted" }]);
    await world.chat({}, { "x-custom": "1" }).answer;
    expect(world.engine.requests[0]?.headers["x-custom"]).toBeUndefined();
  });

  it("carry no key when the endpoint has none, whatever the client sent", async () => {
    const world = await startWorld();
    world.engine.onRequest = answerJson;
    await world.chat({}, { authorization: "Bearer client-secret" }).answer;
    expect(world.engine.requests[0]?.headers["authorization"]).toBeUndefined();
  });

  it("are built anew for each attempt: the first engine's key never reaches the second", async () => {
    const second = await startEngine(streamAll);
    const first = await startEngine((_request, reply) => reply.whole(503, {}, "full"));
    const world = await startWorld({
      endpoints: [
        endpointOf("a", first.url, { apiKey: "key-a" }),
        endpointOf("b", `${second.url}/prefix`, { apiKey: "key-b", splice: true }),
      ],
    });
    const turn = world.chat({ stream: true }, { "x-custom": "1" });
    await until("it was pushed back", () => world.scheduler.of("pushed-back").length === 1);
    world.scheduler.admit(world.scheduler.lastTurn, "b");
    const answer = await turn.answer;
    expect(answer.headers).toMatchObject({
      "x-luftpause-replica": "b",
      "x-luftpause-spliced": "stream_options.include_usage",
    });
    expect(first.requests[0]?.headers["authorization"]).toBe("Bearer key-a");
    expect(second.requests[0]?.headers["authorization"]).toBe("Bearer key-b");
    expect(second.requests[0]?.path).toBe("/prefix/v1/chat/completions");
    expect(first.requests[0]?.body.toString()).toBe(JSON.stringify({ ...CHAT, stream: true }));
  });

  it("name the proxies on the way, so that a loop over two of them ends", async () => {
    const world = await startWorld();
    world.engine.onRequest = answerJson;
    await world.chat({}, { "x-luftpause-hop": "other" }).answer;
    expect(world.engine.requests[0]?.headers["x-luftpause-hop"]).toBe("other, hop-dp");
    const loop = await world.chat({}, { "x-luftpause-hop": Array.from({ length: 17 }, (_, at) => `p${at}`).join(",") })
      .answer;
    expect(loop.status).toBe(508);
  });
});

describe("what the client says about a turn", () => {
  it("reaches the scheduler: run, class, caller, model, API, trace", async () => {
    const world = await startWorld();
    world.engine.onRequest = answerJson;
    await world.chat({}, SENT).answer;
    expect(world.scheduler.of("requested")[0]).toEqual({
      type: "requested",
      turn: expect.stringMatching(/^turn-dp-/),
      principal: "default",
      caller: "me",
      class: "batch",
      model: "m",
      api: "chat",
      run: "r-1",
      keys: [],
      freshRun: expect.stringMatching(/^run-dp-/),
      side: false,
      heldMs: 0,
      attempt: 0,
      promptBytes: JSON.stringify(CHAT).length,
      streams: false,
      traceparent: SENT.traceparent,
    });
  });

  it("is interactive, anonymous and new where nothing is said, and a malformed trace is none", async () => {
    const world = await startWorld();
    world.engine.onRequest = answerJson;
    await world.chat({}, { traceparent: "00-zz" }).answer;
    const request = world.scheduler.of("requested")[0];
    expect(request).toMatchObject({ principal: "default", caller: "", class: "interactive", run: undefined });
    expect(request).not.toHaveProperty("traceparent");
    expect(request).not.toHaveProperty("prefixKey");
  });

  it("says what its prompt begins with, and which tool it goes to", async () => {
    const world = await startWorld();
    const call = { id: "c", type: "function", function: { name: "lookup", arguments: "{}" } };
    const choice = { index: 0, message: { role: "assistant", tool_calls: [call] }, finish_reason: "tool_calls" };
    world.engine.onRequest = (_request, reply) =>
      reply.whole(200, { "content-type": "application/json" }, JSON.stringify({ choices: [choice] }));
    await world.chat({ tools: [{ type: "function", function: { name: "lookup" } }] }).answer;
    expect(world.scheduler.of("requested")[0]?.prefixKey).toMatch(/^[\w-]{22}$/);
    expect(world.scheduler.of("finished")[0]).toMatchObject({ paused: true, tool: "lookup" });
  });

  it.each([
    ["c".repeat(200), "c".repeat(128)],
    [`${"c".repeat(127)}é`, "c".repeat(127)],
    [`${"c".repeat(126)}é!`, `${"c".repeat(126)}é`],
    [`${"c".repeat(125)}漢x`, `${"c".repeat(125)}漢`],
    ["日本語", "日本語"],
  ])("cuts a caller at 128 bytes, never inside a character: %s", async (caller, expected) => {
    const world = await startWorld();
    world.engine.onRequest = answerJson;
    await world.chat({}, { "x-luftpause-caller": Buffer.from(caller, "utf8").toString("latin1") }).answer;
    expect(world.scheduler.of("requested")[0]?.caller).toBe(expected);
  });

  it("keeps two callers apart whose names are no UTF-8", async () => {
    const world = await startWorld();
    world.engine.onRequest = answerJson;
    await world.chat({}, { "x-luftpause-caller": "\xff" }).answer;
    await world.chat({}, { "x-luftpause-caller": "\xfe" }).answer;
    const [first, second] = world.scheduler.of("requested");
    expect(first?.caller).not.toBe(second?.caller);
  });

  it("takes the longest run id: 256 bytes", async () => {
    const world = await startWorld();
    world.engine.onRequest = answerJson;
    const run = "~".repeat(256);
    const answer = await world.chat({}, { "x-luftpause-run-id": run }).answer;
    expect(answer.headers["x-luftpause-run-id"]).toBe(run);
  });

  it("lowers a class that the principal may not use, and says so", async () => {
    const principals = [{ name: "ci" as never, token: "t", classes: ["batch"] as const }];
    const world = await startWorld({ auth: { principals } });
    world.engine.onRequest = answerJson;
    const lowered = await world.chat({}, { authorization: "Bearer t", "x-luftpause-class": "interactive" }).answer;
    expect(lowered.headers["x-luftpause-class"]).toBe("batch");
    const asked = await world.chat({}, { authorization: "Bearer t", "x-luftpause-class": "batch" }).answer;
    expect(asked.headers["x-luftpause-class"]).toBeUndefined();
    expect(world.scheduler.of("requested").map((one) => [one.class, one.principal])).toEqual([
      ["batch", "ci"],
      ["batch", "ci"],
    ]);
  });

  it("lets our own services alone name another principal, whose classes count then", async () => {
    const principals = [{ name: "ci" as never, token: "t", classes: ["batch"] as const }];
    const world = await startWorld({
      auth: { principals, serviceToken: "service" },
      options: { classesOf: (name) => (name === "ci" ? ["batch"] : undefined) },
    });
    world.engine.onRequest = answerJson;
    const named = { "x-luftpause-principal": "ci" };
    const answer = await world.chat({}, { authorization: "Bearer service", ...named }).answer;
    expect(answer.headers["x-luftpause-class"]).toBe("batch");
    await world.chat({}, { authorization: "Bearer t", "x-luftpause-principal": "somebody" }).answer;
    expect(world.scheduler.of("requested").map((one) => one.principal)).toEqual(["ci", "ci"]);
  });
});

describe("answer headers", () => {
  it("come back end to end; hop-by-hop ones, those named in connection, and what an engine may not say are dropped", async () => {
    const world = await startWorld();
    world.engine.onRequest = (_request, reply) =>
      reply.raw(
        [
          "HTTP/1.1 201 Created",
          "content-type: application/json; charset=utf-8",
          "x-request-id: r-7",
          "openai-processing-ms: 12",
          "set-cookie: a=1",
          "set-cookie: b=2",
          "server: uvicorn",
          "server: nginx",
          "date: Thu, 01 Jan 1970 00:00:00 GMT",
          "connection: x-per-hop",
          "x-per-hop: dropped",
          "keep-alive: timeout=5",
          "proxy-authenticate: Basic",
          "trailer: x",
          "upgrade: h2c",
          "x-luftpause-run-id: forged",
          "x-luftpause-class: forged",
          "content-length: 2",
          "",
          "{}",
        ].join("\r\n"),
      );
    const answer = await world.chat({}, { "x-luftpause-run-id": "r" }).answer;
    expect(answer.status).toBe(201);
    const { date, connection: _connection, ...headers } = answer.headers;
    expect(headers).toEqual({
      "x-luftpause-run-id": "r",
      "x-luftpause-run-source": "header",
      "x-luftpause-replica": "a",
      "content-type": "application/json; charset=utf-8",
      "x-request-id": "r-7",
      "openai-processing-ms": "12",
      "set-cookie": ["a=1", "b=2"],
      server: "uvicorn",
      "content-length": "2",
    });
    expect(date).not.toContain("1970");
    expect(answer.rawHeaders.filter((name) => name.toLowerCase() === "date")).toHaveLength(1);
  });

  it("of a stream lose a lying content-length: the whole body arrives", async () => {
    const world = await startWorld();
    world.engine.onRequest = (_request, reply) =>
      reply.raw(
        `HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: ${WHOLE_STREAM.length}\r\n\r\n${WHOLE_STREAM}`,
      );
    const answer = await world.chat({ stream: true }).answer;
    expect(answer.headers["content-length"]).toBeUndefined();
    expect(answer.headers["transfer-encoding"]).toBe("chunked");
    expect(answer.text).toBe(WHOLE_STREAM);
  });

  it("keep the engine's content-type, and a 204 stays a 204", async () => {
    const world = await startWorld();
    world.engine.onRequest = (_request, reply) => reply.raw("HTTP/1.1 204 No Content\r\nx-a: b\r\n\r\n");
    const answer = await world.chat().answer;
    expect([answer.status, answer.text, answer.headers["x-a"], answer.clean]).toEqual([204, "", "b", true]);
    await until("the turn has ended", () => world.dataplane.openTurns().length === 0);
  });

  it("follow no redirect of an engine", async () => {
    const world = await startWorld();
    world.engine.onRequest = (_request, reply) => reply.whole(307, { location: "http://127.0.0.1:1/" }, "");
    const answer = await world.chat().answer;
    expect([answer.status, world.engine.requests.length]).toEqual([307, 1]);
  });

  it("pass a compressed body unchanged although it was not asked for", async () => {
    const world = await startWorld({ endpoint: { splice: true } });
    const bytes = Buffer.from([0x1f, 0x8b, 8, 0, 1, 2, 3, 0xff, 0x0a, 0x0a]);
    world.engine.onRequest = (_request, reply) => {
      reply.stream({ "content-type": "text/event-stream", "content-encoding": "gzip" });
      reply.chunk(bytes);
      reply.end();
    };
    const answer = await world.chat({ stream: true }).answer;
    expect(answer.body).toEqual(bytes);
    expect(answer.headers["content-encoding"]).toBe("gzip");
    expect(answer.clean).toBe(true);
    await until("the end is reported", () => world.scheduler.of("finished").length === 1);
  });
});

describe("the include_usage splice", () => {
  it.each([true, false])("asks for usage and cuts its chunk out again (fast lane: %s)", async (lane) => {
    const world = await startWorld({ lane, endpoint: { splice: true } });
    world.engine.onRequest = streamAll;
    const body = `{"model":"m", "messages":[{"role":"user","content":"x"}], "stream":true}`;
    const answer = await send(world.port, { body }).answer;
    expect(JSON.parse(world.engine.requests[0]?.body.toString() ?? "")).toEqual({
      ...JSON.parse(body),
      stream_options: { include_usage: true },
    });
    expect(world.engine.requests[0]?.body.toString().startsWith(body.slice(0, -1))).toBe(true);
    expect(answer.text).toBe(WHOLE_STREAM.replace(EVENTS[4], ""));
    expect(answer.headers["x-luftpause-spliced"]).toBe("stream_options.include_usage");
    await until("the end is reported", () => world.scheduler.of("finished").length === 1);
    expect(world.scheduler.of("finished")[0]).toMatchObject({
      usage: { promptTokens: 9, completionTokens: 3, cachedTokens: 4 },
    });
  });

  it.each([
    ["the client asked itself", { stream: true, stream_options: { include_usage: true } }, true],
    ["the client does not stream", {}, true],
    ["the endpoint has splice: false", { stream: true }, false],
  ])("leaves the body alone when %s", async (_when, fields, splice) => {
    const world = await startWorld({ endpoint: { splice } });
    world.engine.onRequest = "stream" in fields ? streamAll : answerJson;
    const answer = await world.chat(fields).answer;
    expect(world.engine.requests[0]?.body.toString()).toBe(JSON.stringify({ ...CHAT, ...fields }));
    expect(answer.headers["x-luftpause-spliced"]).toBeUndefined();
    if ("stream" in fields) expect(answer.text).toBe(WHOLE_STREAM);
  });
});

describe("a spliced stream", () => {
  it.each([1, 7, 64, 1_000, 100_000])("arrives whole whatever the reads are (%s bytes a write)", async (size) => {
    const world = await startWorld({ endpoint: { splice: true } });
    const long = `data: {"choices":[{"index":0,"delta":{"content":"${"é".repeat(300)}"},"finish_reason":null}]}\n\n`;
    const events = [EVENTS[0], ...Array.from({ length: 20 }, () => long), ...EVENTS.slice(3)];
    const frames = Buffer.concat([
      ...events.map((event) =>
        Buffer.concat([
          Buffer.from(`${Buffer.byteLength(event).toString(16)}\r\n`),
          Buffer.from(event),
          Buffer.from("\r\n"),
        ]),
      ),
      Buffer.from("0\r\n\r\n"),
    ]);
    world.engine.onRequest = (_request, reply) => {
      reply.stream();
      let at = 0;
      const feed = (): void => {
        // Many writes a turn of the event loop, so that small ones take no time.
        for (let count = 0; count < 50 && at < frames.length; count += 1, at += size)
          reply.raw(frames.subarray(at, at + size));
        if (at < frames.length) setImmediate(feed);
      };
      feed();
    };
    const answer = await world.chat({ stream: true }).answer;
    expect(answer.text).toBe(events.join("").replace(EVENTS[4], ""));
    expect(answer.clean).toBe(true);
    await until("the end is reported", () => world.scheduler.of("finished").length === 1);
  });

  it("reaches the client in one write for one read of many chunks", async () => {
    const world = await startWorld({ endpoint: { splice: true } });
    world.engine.onRequest = (_request, reply) => {
      const frame = (event: string): string => `${Buffer.byteLength(event).toString(16)}\r\n${event}\r\n`;
      reply.raw(
        `HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n${EVENTS.map(frame).join("")}0\r\n\r\n`,
      );
    };
    const chunkSizes = await rawChunkSizes(world.port);
    const whole = Buffer.byteLength(EVENTS.slice(0, 4).join("") + EVENTS[5]);
    expect(chunkSizes).toEqual([whole, 0]);
  });
});

/** Sizes of the chunks of an answer to a streamed chat turn, as they are on the wire. */
function rawChunkSizes(port: number): Promise<number[]> {
  const body = JSON.stringify({ ...CHAT, stream: true });
  return new Promise((resolve, reject) => {
    let text = "";
    const socket = net.connect(port, "127.0.0.1", () => {
      const head = `POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: ${body.length}\r\n`;
      socket.write(`${head}content-type: application/json\r\n\r\n${body}`);
    });
    socket.on("error", reject);
    socket.on("data", (bytes) => {
      text += bytes.toString("latin1");
      if (!text.endsWith("\r\n0\r\n\r\n")) return;
      socket.destroy();
      const sizes: number[] = [];
      let at = text.indexOf("\r\n\r\n") + 4;
      while (at < text.length) {
        const end = text.indexOf("\r\n", at);
        const size = Number.parseInt(text.slice(at, end), 16);
        sizes.push(size);
        at = end + 2 + size + 2;
      }
      resolve(sizes);
    });
  });
}

describe("what an engine says inside its answer", () => {
  const failure = `data: {"error":{"message":"out of memory","type":"server_error","code":500}}\n\n`;

  it.each([
    ["and then ends cleanly", failure, false],
    ["and then ends with [DONE]", `${failure}data: [DONE]\n\n`, true],
  ])("passes an error event %s, and the turn has failed", async (_how, rest, clean) => {
    for (const splice of [true, false]) {
      const world = await startWorld({ endpoint: { splice } });
      world.engine.onRequest = (_request, reply) => {
        reply.stream();
        reply.chunk(EVENTS[0] + EVENTS[1]);
        reply.chunk(rest);
        reply.end();
      };
      const answer = await world.chat({ stream: true }).answer;
      expect([answer.text, answer.clean]).toEqual([EVENTS[0] + EVENTS[1] + rest, clean]);
      await until("the end is reported", () => world.scheduler.of("failed").length === 1);
      expect(world.scheduler.of("failed")).toMatchObject([{ reason: "engine-error" }]);
      expect(await world.metric("engine_errors_total")).toContain('kind="in-answer"} 1');
    }
  });

  it("does not end a stream by `data: [DONE]` inside the text", async () => {
    const world = await startWorld();
    const text = `data: {"choices":[{"index":0,"delta":{"content":"\\n\\ndata: [DONE]\\n\\n"},"finish_reason":null}]}\n\n`;
    world.engine.onRequest = (_request, reply) => {
      reply.stream();
      reply.chunk(EVENTS[0] + text);
      reply.chunk(EVENTS.slice(1).join(""));
      reply.end();
    };
    const answer = await world.chat({ stream: true }).answer;
    expect(answer.text).toBe(EVENTS[0] + text + EVENTS.slice(1).join(""));
    await until("the end is reported", () => world.scheduler.of("finished").length === 1);
    expect(world.scheduler.of("finished")[0]?.finishReason).toBe("stop");
  });

  it("pauses the run when tool calls were seen, whatever the finish reason is", async () => {
    const world = await startWorld();
    const call = `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},"finish_reason":null}]}\n\n`;
    world.engine.onRequest = (_request, reply) => {
      reply.stream();
      reply.chunk(call + EVENTS.slice(3).join(""));
      reply.end();
    };
    await world.chat({ stream: true }).answer;
    await until("the end is reported", () => world.scheduler.of("finished").length === 1);
    expect(world.scheduler.of("finished")[0]).toMatchObject({ finishReason: "stop", paused: true });
  });

  it("is first a token when content comes: not the role, not a comment", async () => {
    const world = await startWorld();
    world.engine.onRequest = (_request, reply) => {
      reply.stream();
      reply.chunk(`: warming up\n\n${EVENTS[0]}`);
    };
    const turn = world.chat({ stream: true });
    await until("the role came", () => turn.text().includes("assistant"));
    expect(world.scheduler.story()).toEqual(["requested"]);
    world.engine.replies[0]?.chunk(EVENTS[1]);
    await until("the first token is reported", () => world.scheduler.of("started").length === 1);
    turn.leave();
  });
});

describe("flow", () => {
  it.each([
    ["frames as they come", true, false],
    ["spliced", true, true],
    ["through node:http", false, false],
  ])("a slow client slows the engine's socket, not our memory: %s", async (_how, lane, splice) => {
    const world = await startWorld({ lane, endpoint: { splice } });
    const event = `data: {"choices":[{"index":0,"delta":{"content":"${"x".repeat(16_000)}"},"finish_reason":null}]}\n\n`;
    const total = 3_000; // 48 MB: far more than all socket buffers on the way
    let sent = 0;
    world.engine.onRequest = (_request, reply) => {
      reply.stream();
      const feed = (): void => {
        while (sent < total && !reply.full && !reply.closed) {
          reply.chunk(event);
          sent += 1;
        }
        if (sent < total && !reply.closed) setTimeout(feed, 1);
        else if (!reply.closed) reply.raw(`${Buffer.byteLength(EVENTS[5]).toString(16)}\r\n${EVENTS[5]}\r\n0\r\n\r\n`);
      };
      feed();
    };
    const turn = world.chat({ stream: true });
    await until("it flows", () => turn.text().length > 0);
    turn.pause();
    let last = -1;
    let still = 0;
    // Nobody takes the engine's bytes: it comes to a stop by itself, and stays there.
    await until(
      "the engine stands still",
      () => {
        still = sent === last ? still + 1 : 0;
        last = sent;
        return still > 100;
      },
      15_000,
    );
    expect(sent).toBeLessThan(total);
    turn.resume();
    const answer = await turn.answer;
    expect(answer.clean).toBe(true);
    expect(answer.body.length).toBe(Buffer.byteLength(event) * total + EVENTS[5].length);
  });

  it("carries a large body of a request and lets go of it with the head of the answer", async () => {
    const real = createEngineClient(LIMITS);
    const sent: { readonly body: Uint8Array | undefined }[] = [];
    const engineClient: typeof real = {
      ...real,
      call(target, request, handler) {
        sent.push(request);
        return real.call(target, request, handler);
      },
    };
    const world = await startWorld({ options: { engineClient } });
    const content = "y".repeat(3_000_000);
    const turn = world.chat({ stream: true, messages: [{ role: "user", content }] });
    await until("the engine has it", () => world.engine.requests.length === 1);
    expect(world.engine.requests[0]?.body.length).toBeGreaterThan(3_000_000);
    expect(sent[0]?.body?.length).toBe(world.engine.requests[0]?.body.length);
    world.engine.replies[0]?.stream();
    await until("the head came", () => turn.status() === 200);
    expect(sent[0]?.body).toBeUndefined();
    expect(await world.metric("held_body_bytes")).toBe("luftpause_dataplane_held_body_bytes 0");
    turn.leave();
    real.close();
  });

  it("serves 300 streams to one replica at once", async () => {
    const world = await startWorld();
    world.engine.onRequest = (_request, reply) => {
      reply.stream();
      reply.chunk(EVENTS[0] + EVENTS[1]);
    };
    const turns = Array.from({ length: 300 }, () => world.chat({ stream: true }));
    await until("all are open", () => world.engine.replies.length === 300, 15_000);
    expect(world.engine.openConnections).toBe(300);
    for (const reply of world.engine.replies) {
      reply.chunk(EVENTS.slice(2).join(""));
      reply.end();
    }
    const answers = await Promise.all(turns.map((turn) => turn.answer));
    expect(answers.every((answer) => answer.text === WHOLE_STREAM && answer.clean)).toBe(true);
  });
});

describe("the completions route", () => {
  it("is a turn like any other, on its own path", async () => {
    const world = await startWorld();
    const text = `data: {"id":"cmpl-1","choices":[{"index":0,"text":"on","finish_reason":null}]}\n\ndata: {"id":"cmpl-1","choices":[{"index":0,"text":"","finish_reason":"stop"}]}\n\ndata: [DONE]\n\n`;
    world.engine.onRequest = (_request, reply) => {
      reply.stream();
      reply.chunk(text);
      reply.end();
    };
    const answer = await world.send({ path: "/v1/completions", body: { model: "m", prompt: "x", stream: true } })
      .answer;
    expect(answer.text).toBe(text);
    expect(world.engine.requests[0]?.path).toBe("/v1/completions");
    expect(world.scheduler.of("requested")[0]?.api).toBe("completions");
    await until("the end is reported", () => world.scheduler.of("finished").length === 1);
    expect(world.scheduler.story()).toEqual(["requested", "started", "finished"]);
  });
});
