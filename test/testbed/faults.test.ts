import { request as httpRequest, Agent } from "node:http";
import { gunzipSync } from "node:zlib";
import { describe, expect, it } from "vitest";
import { FAULTS, faultsHelp } from "../../src/testbed/index.ts";
import type { FakeEngine } from "../../src/testbed/index.ts";
import { chat, chatBody, chunksOf, contentOf, dataOf, engineFor, LOOKUP, post, rawChat, splitRaw } from "./support.ts";
import type { Chunk } from "./support.ts";

/** A streamed turn under one switch, read over a plain socket. */
async function streamUnder(fault: string, fields: Readonly<Record<string, unknown>> = {}, agent = "calls=0,tokens=40") {
  const engine = await engineFor();
  const headers = { "x-fake-fault": fault, "x-fake-agent": agent };
  const raw = await rawChat(engine, { stream: true, ...fields }, headers);
  return { engine, raw, ...splitRaw(raw.bytes) };
}

function toolDeltas(chunks: readonly Chunk[]) {
  return chunks.flatMap((chunk) => chunk.choices[0]?.delta.tool_calls ?? []);
}

describe("fault switches of an answer", () => {
  it("die-at-once closes the connection without a byte", async () => {
    const { raw, engine } = await streamUnder("die-at-once");
    expect(raw.bytes.length).toBe(0);
    expect(engine.stats()).toMatchObject({ failed: 1, open: 0 });
  });

  it.each([0, 1, 250])("die-after-bytes=%i lets exactly that many bytes of the body through", async (bytes) => {
    const { body, whole, head, engine } = await streamUnder(`die-after-bytes=${bytes}`);
    expect(head).toMatch(/^HTTP\/1.1 200/);
    expect([body.length, whole]).toEqual([bytes, false]);
    await engine.until((stats) => stats.open === 0);
  });

  it("die-after-bytes cuts a whole answer too", async () => {
    const { body, head } = await streamUnder("die-after-bytes=30", { stream: false });
    expect(Number(/content-length: (\d+)/i.exec(head)?.[1])).toBeGreaterThan(30);
    expect(body.length).toBe(30);
  });

  it("cut-event breaks off inside the event that follows n whole ones", async () => {
    const { body, whole } = await streamUnder("cut-event=3");
    const text = body.toString("utf8");
    expect(whole).toBe(false);
    expect(text.split("\n\n").length).toBe(4);
    expect(text.endsWith("\n\n")).toBe(false);
    expect(text.split("\n\n").at(-1)).toMatch(/^data: \{/);
  });

  it("end-after-events ends cleanly with neither finish reason nor [DONE]", async () => {
    const { body, whole } = await streamUnder("end-after-events=3");
    const data = dataOf(body.toString("utf8"));
    expect([whole, data.length, data.includes("[DONE]")]).toEqual([true, 3, false]);
    expect(chunksOf(body.toString("utf8")).every((chunk) => chunk.choices[0]?.finish_reason === null)).toBe(true);
  });

  it("no-done leaves out [DONE] only", async () => {
    const { body, whole } = await streamUnder("no-done");
    const chunks = chunksOf(body.toString("utf8"));
    expect(whole).toBe(true);
    expect(chunks.at(-1)?.choices[0]?.finish_reason).toBe("stop");
    expect(body.toString("utf8")).not.toContain("[DONE]");
  });

  it("error-event sends an error inside the stream and ends cleanly", async () => {
    const { body, whole } = await streamUnder("error-event=2");
    const data = dataOf(body.toString("utf8"));
    expect([whole, data.length]).toEqual([true, 3]);
    expect(JSON.parse(data[2]!)).toMatchObject({ error: { code: 500 } });
  });

  it.each([0, 5])("stall=%i falls silent after that many tokens and keeps its place", async (tokens) => {
    const engine = await engineFor();
    const controller = new AbortController();
    const headers = { "x-fake-fault": `stall=${tokens}`, "x-fake-agent": "calls=0,tokens=40" };
    const response = await chat(engine, { stream: true }, { headers, signal: controller.signal });
    const stats = await engine.until((now) => now.requests[0]?.generatedTokens === tokens && now.running === 1);
    expect(stats).toMatchObject({ open: 1, finished: 0 });
    controller.abort();
    await expect(response.text()).rejects.toThrow();
    expect(await engine.until((now) => now.running === 0)).toMatchObject({ aborted: 1 });
  });

  it("slow-headers holds the head back, for streams and whole answers", async () => {
    for (const stream of [true, false]) {
      const { raw, engine } = await streamUnder("slow-headers=120", { stream });
      expect(raw.text).toMatch(/^HTTP\/1.1 200/);
      expect(contentIn(raw.bytes, stream)).toMatch(/^Placeholder text/);
      expect(engine.stats().finished).toBe(1);
    }
    const engine = await engineFor({ faults: ["slow-headers=60000"] });
    const controller = new AbortController();
    const answer = chat(engine, {}, { signal: controller.signal });
    await engine.until((stats) => stats.finished === 1); // the work is done, and the client has nothing yet
    controller.abort();
    await expect(answer).rejects.toThrow();
  });

  it("ignore-abort goes on generating when the client has left", async () => {
    const engine = await engineFor({ latency: { decodeBaseMs: 4 } });
    const controller = new AbortController();
    const headers = { "x-fake-fault": "ignore-abort", "x-fake-agent": "tokens=150" };
    const response = await chat(engine, { stream: true }, { headers, signal: controller.signal });
    controller.abort();
    await expect(response.text()).rejects.toThrow();
    const gone = await engine.until((stats) => stats.aborted === 1);
    expect(gone).toMatchObject({ open: 0, running: 1 });
    const end = await engine.until((stats) => stats.running === 0);
    expect(end.requests[0]?.generatedTokens).toBe(150);
    expect(end).toMatchObject({ aborted: 1, finished: 0 });
  });

  it("gzip compresses streams and whole answers", async () => {
    const stream = await streamUnder("gzip");
    expect(stream.head).toMatch(/content-encoding: gzip/i);
    expect(dataOf(gunzipSync(stream.body).toString("utf8")).at(-1)).toBe("[DONE]");
    const whole = await streamUnder("gzip", { stream: false });
    expect(JSON.parse(gunzipSync(whole.body).toString("utf8"))).toHaveProperty("choices");
  });

  it("wrong-length announces another length than the body has", async () => {
    const stream = await streamUnder("wrong-length=77");
    expect(stream.head).toMatch(/content-length: 77/i);
    expect(stream.head).not.toMatch(/transfer-encoding/i);
    expect(stream.body.length).toBeGreaterThan(77);
  });

  it("crlf ends lines with CR LF, no-space leaves the blank out", async () => {
    const crlf = (await streamUnder("crlf")).body.toString("utf8");
    expect(crlf.replaceAll("\r\n", "")).not.toMatch(/[\r\n]/);
    expect(contentOf(chunksOf(crlf))).toMatch(/^Placeholder/);
    const tight = (await streamUnder("no-space")).body.toString("utf8");
    expect(tight).not.toContain("data: ");
    expect(contentOf(chunksOf(tight))).toMatch(/^Placeholder/);
    expect((await streamUnder("crlf,no-space")).body.toString("utf8")).toMatch(/^data:\{[^\n]*\}\r\n\r\n/);
  });

  it("split-utf8 cuts every multi-byte character over two frames", async () => {
    const { raw, body } = await streamUnder("split-utf8");
    expect(contentOf(chunksOf(body.toString("utf8")))).toMatch(/^Grüße aus 東京 🚢: /);
    const frames = framesOf(raw.bytes);
    const multibyte = Array.from(body.toString("utf8")).filter((character) => Buffer.byteLength(character) > 1).length;
    expect(multibyte).toBe(5);
    expect(frames.filter((frame) => (frame.at(-1) ?? 0) >= 0xc0).length).toBe(multibyte);
  });

  const parallel = { tools: [LOOKUP] };
  const agent = "calls=2,parallel=2";

  it("duplicate-ids gives every tool call the id call_0", async () => {
    const deltas = toolDeltas(chunksOf((await streamUnder("duplicate-ids", parallel, agent)).body.toString("utf8")));
    expect(deltas.map((delta) => delta.id).filter((id) => id !== undefined)).toEqual(["call_0", "call_0"]);
    expect(new Set(deltas.map((delta) => delta.index))).toEqual(new Set([0, 1]));
  });

  it("index-zero gives all tool calls index 0, with their own ids", async () => {
    const deltas = toolDeltas(chunksOf((await streamUnder("index-zero", parallel, agent)).body.toString("utf8")));
    expect(new Set(deltas.map((delta) => delta.index))).toEqual(new Set([0]));
    expect(new Set(deltas.map((delta) => delta.id).filter((id) => id !== undefined)).size).toBe(2);
  });

  it("late-name sends the name in the second delta of a call", async () => {
    const deltas = toolDeltas(chunksOf((await streamUnder("late-name", parallel, agent)).body.toString("utf8")));
    const first = deltas.filter((delta) => delta.index === 0);
    expect([first[0]?.id === undefined, first[0]?.function.name, first[1]?.function.name]).toEqual([
      false,
      undefined,
      "lookup",
    ]);
  });

  it("refuse answers with a status, and with Retry-After where that is set", async () => {
    const engine = await engineFor();
    for (const [fault, status, after] of [
      ["refuse", 503, null],
      ["refuse=429,retry-after=7", 429, "7"],
      ["refuse=500", 500, null],
    ] as const) {
      const response = await chat(engine, { fake_fault: fault });
      expect([response.status, response.headers.get("retry-after")]).toEqual([status, after]);
      expect(await response.json()).toMatchObject({ error: { code: status } });
    }
    expect(engine.stats()).toMatchObject({ refused: 3, running: 0, open: 0 });
  });
});

describe("fault switches of a whole engine", () => {
  it("refuse with refuse-first ends after that many refusals", async () => {
    const engine = await engineFor({ faults: ["refuse=503", "refuse-first=2", "retry-after=1"] });
    const statuses = [];
    for (let at = 0; at < 4; at += 1) statuses.push((await chat(engine)).status);
    expect(statuses).toEqual([503, 503, 200, 200]);
  });

  it("hold for every request, and are set and taken back at run time, by handle and by HTTP", async () => {
    const engine = await engineFor();
    engine.setFault("no-done");
    expect(await (await chat(engine, { stream: true })).text()).not.toContain("[DONE]");
    engine.setFault("no-done", false);
    expect(await (await chat(engine, { stream: true })).text()).toContain("[DONE]");
    const set = await post(engine, "/fake/faults", { faults: ["refuse=418"] });
    expect(await set.json()).toMatchObject({ faults: ["refuse=418"] });
    expect((await chat(engine)).status).toBe(418);
    expect(await (await fetch(`${engine.url}/fake/faults`)).json()).toMatchObject({ faults: ["refuse=418"] });
    await post(engine, "/fake/faults", { faults: [] });
    expect((await chat(engine)).status).toBe(200);
  });

  it("close-idle closes a kept connection after its answer without saying so", async () => {
    const engine = await engineFor({ faults: ["close-idle=30"] });
    const agent = new Agent({ keepAlive: true });
    expect(await statusThrough(engine, agent)).toBe(200);
    await engine.until((stats) => stats.connections === 0);
    agent.destroy();
  });

  it("drop-reused answers on a fresh connection and closes a reused one without a byte", async () => {
    const engine = await engineFor({ faults: ["drop-reused"] });
    const agent = new Agent({ keepAlive: true, maxSockets: 1 });
    expect(await statusThrough(engine, agent)).toBe(200);
    await expect(statusThrough(engine, agent)).rejects.toMatchObject({ code: "ECONNRESET" });
    expect(await statusThrough(engine, agent)).toBe(200);
    expect(engine.stats().started).toBe(2);
    agent.destroy();
  });

  it("health=failing answers 503, and metrics=error 500", async () => {
    const engine = await engineFor({ faults: ["health=failing", "metrics=error"] });
    expect((await fetch(`${engine.url}/health`)).status).toBe(503);
    expect((await fetch(`${engine.url}/metrics`)).status).toBe(500);
    expect((await chat(engine)).status).toBe(200);
  });

  it("metrics=malformed gives a page without one good series, metrics=huge one of over 30 MB", async () => {
    const engine = await engineFor({ faults: ["metrics"] });
    const page = await (await fetch(`${engine.url}/metrics`)).text();
    const series = page.split("\n").filter((line) => line !== "" && !line.startsWith("#"));
    expect(series.length).toBeGreaterThan(20);
    expect(series.filter((line) => /^[a-z:_]+(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})? [0-9.]+$/.test(line))).toEqual(
      [],
    );
    engine.setFault("metrics", "huge");
    expect((await (await fetch(`${engine.url}/metrics`)).arrayBuffer()).byteLength).toBeGreaterThan(30_000_000);
  });

  it("slow pages do not come within the time of a probe's patience", async () => {
    const engine = await engineFor({ faults: ["metrics=slow", "health=slow"] });
    const slow = [`${engine.url}/metrics`, `${engine.url}/health`].map((url) =>
      fetch(url, { signal: AbortSignal.timeout(150) }),
    );
    expect((await chat(engine)).status).toBe(200);
    for (const answer of slow) await expect(answer).rejects.toMatchObject({ name: "TimeoutError" });
  });

  it("freeze stops time and every answer, and a thaw goes on where it was", async () => {
    const engine = await engineFor({ latency: { decodeBaseMs: 4 } });
    const headers = { "x-fake-agent": "tokens=30" };
    const streaming = await chat(engine, { stream: true }, { headers });
    await engine.until((stats) => (stats.requests[0]?.generatedTokens ?? 0) > 3);
    engine.setFault("freeze");
    const generated = engine.stats().requests[0]?.generatedTokens;
    const late = chat(engine, {}, { headers });
    const probe = fetch(`${engine.url}/health`, { signal: AbortSignal.timeout(100) });
    await expect(probe).rejects.toMatchObject({ name: "TimeoutError" });
    expect(engine.stats()).toMatchObject({ started: 1 });
    expect(engine.stats().requests[0]?.generatedTokens).toBe(generated);
    await post(engine, "/fake/faults", { faults: [] });
    expect(dataOf(await streaming.text()).at(-1)).toBe("[DONE]");
    expect((await late).status).toBe(200);
  });
});

describe("naming a fault", () => {
  it("works by header and by body field, as text or list", async () => {
    const engine = await engineFor();
    for (const fault of ["no-done", ["no-done", "crlf"]]) {
      expect(await (await chat(engine, { stream: true, fake_fault: fault })).text()).not.toContain("[DONE]");
    }
    expect(
      await (await chat(engine, { stream: true }, { headers: { "x-fake-fault": "no-done" } })).text(),
    ).not.toContain("[DONE]");
  });

  it("that is unknown is a 400 that lists the known ones", async () => {
    const engine = await engineFor();
    const response = await chat(engine, {}, { headers: { "x-fake-fault": "crlf,explode" } });
    const text = await response.text();
    expect([response.status, engine.stats().refused]).toEqual([400, 1]);
    expect(text).toContain("unknown fault 'explode'");
    for (const name of Object.keys(FAULTS)) expect(text).toContain(name);
    expect((await post(engine, "/fake/faults", { faults: ["explode"] })).status).toBe(400);
    expect(() => engine.setFault("explode" as never)).toThrow(/unknown fault 'explode'/);
  });

  it("with a wrong value, or for a request where it is the engine's, is a 400 that says so", async () => {
    const engine = await engineFor();
    const say = async (fault: string): Promise<string> => (await chat(engine, { fake_fault: fault })).text();
    expect(await say("stall=soon")).toContain("fault 'stall' takes a whole number, got 'stall=soon'");
    expect(await say("crlf=1")).toContain("fault 'crlf' takes no value");
    expect(await say("refuse=200")).toContain("takes a status from 400 to 599");
    expect(await say("freeze")).toContain("is for the whole engine");
    expect((await post(engine, "/fake/faults", { faults: ["metrics=gone"] })).status).toBe(400);
    expect((await post(engine, "/fake/faults", { fault: "crlf" })).status).toBe(400);
  });

  it("is explained in the help, every one", () => {
    for (const [name, { about }] of Object.entries(FAULTS)) {
      expect(faultsHelp()).toContain(name);
      expect(faultsHelp()).toContain(about);
    }
  });

  it("also for the scripted agent says what is wrong", async () => {
    const engine = await engineFor();
    const response = await chat(engine, {}, { headers: { "x-fake-agent": "cals=2" } });
    expect([response.status, await response.text()]).toEqual([
      400,
      expect.stringContaining("unknown 'cals'; known: calls") as unknown,
    ]);
    expect((await chat(engine, { fake_agent: "calls=many" })).status).toBe(400);
  });
});

/** Status of a small turn through a node:http agent. */
function statusThrough(engine: FakeEngine, agent: Agent): Promise<number | undefined> {
  return new Promise((resolve, reject) => {
    const headers = { "content-type": "application/json" };
    const request = httpRequest(`${engine.url}/v1/chat/completions`, { method: "POST", agent, headers }, (response) => {
      response.resume();
      // The socket goes back to its agent after the end.
      response.on("close", () => setImmediate(() => resolve(response.statusCode)));
    });
    request.on("error", reject);
    request.end(JSON.stringify(chatBody()));
  });
}

function contentIn(bytes: Buffer, stream: boolean): string {
  const text = splitRaw(bytes).body.toString("utf8");
  if (stream) return contentOf(chunksOf(text));
  return (JSON.parse(text) as { choices: [{ message: { content: string } }] }).choices[0].message.content;
}

/** The chunked frames of an answer. */
function framesOf(bytes: Buffer): Buffer[] {
  const frames: Buffer[] = [];
  let rest = bytes.subarray(bytes.indexOf("\r\n\r\n") + 4);
  for (;;) {
    const end = rest.indexOf("\r\n");
    const size = Number.parseInt(rest.subarray(0, Math.max(0, end)).toString("latin1"), 16);
    if (!(size > 0)) return frames;
    frames.push(rest.subarray(end + 2, end + 2 + size));
    rest = rest.subarray(end + 2 + size + 2);
  }
}
