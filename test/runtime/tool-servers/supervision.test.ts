/** Tool servers as real processes, with the faults that real ones have. */
import { readdirSync, readFileSync } from "node:fs";
import path from "node:path";
import { describe, expect, test } from "vitest";
import { until } from "../fake-dataplane.ts";
import { lab, serveHttp, stdio, temporaryFolder } from "./process.ts";

const PAST = /^About tea: /;

describe.each(["both", "sessions", "sessionless"])("a server of the eras: %s", (era) => {
  test.each(["http", "stdio"])("is called over %s", async (kind) => {
    const transport = kind === "http" ? (await serveHttp("--era", era)).transport : stdio("--era", era);
    const { call, tool, spilled } = await lab(transport, { resultBytesMax: 1_000 });
    expect(tool("lookup")).toMatchObject({ effect: "read-only", asks: undefined, state: "ok" });
    expect(tool("destroy")).toMatchObject({ effect: "unsafe", asks: "destructive" });
    expect(tool("put")).toMatchObject({ effect: "idempotent" });
    expect(tool("note")).toMatchObject({ effect: "unsafe" });
    expect(await call("lookup", { query: "tea" })).toEqual({ ok: true, text: expect.stringMatching(PAST) as string });
    expect(await call("fail", { why: "closed" })).toEqual({ ok: false, text: "Error: closed" });
    expect((await call("picture")).text).toBe(
      "before the picture\n[image (image/png, 75 bytes): not shown, only text is]\nafter the picture",
    );
    // It polls no tasks, so a tool that may be one answers in the call; and it takes no questions.
    expect(await call("count", { steps: 2, stepMs: 5 })).toEqual({ ok: true, text: "counted to 2" });
    expect((await call("ask")).ok).toBe(false);
    expect((await call("nothing")).text).toMatch(/^Error: .*unknown tool/);
    const huge = await call("huge", { bytes: 20_000_000 }, { key: "h" });
    expect(Buffer.byteLength(huge.text)).toBeLessThan(1_100);
    expect(huge.text).toMatch(/20000000 bytes in all.*\[all of it is kept in spill\/h\]$/s);
    expect(spilled.get("h")).toHaveLength(20_000_000);
  });
});

describe("a call", () => {
  test("carries its idempotency key", async () => {
    const ledger = path.join(temporaryFolder(), "ledger");
    const { call } = await lab(stdio("--ledger", ledger));
    await call("note", { text: "x" }, { key: "run/1/0" });
    expect(JSON.parse(readFileSync(ledger, "utf8"))).toEqual({
      tool: "note",
      arguments: { text: "x" },
      key: "run/1/0",
    });
  });

  test.each(["http", "stdio"])("that is never answered ends at its time, over %s", async (kind) => {
    const args = ["--fault", "hang=lookup"];
    const transport = kind === "http" ? (await serveHttp(...args)).transport : stdio(...args);
    const { call } = await lab(transport, { timeoutMs: 600 });
    expect(await call("lookup", { query: "tea" })).toEqual({
      ok: false,
      text: "Error: the tool server lab did not answer within 0.6 s",
    });
    expect((await call("put", { key: "a", value: "b" })).ok).toBe(true);
  });

  test.each(["http", "stdio"])("whose answer carries another id ends at its time, over %s", async (kind) => {
    const args = ["--fault", "wrong-id"];
    const transport = kind === "http" ? (await serveHttp(...args)).transport : stdio(...args);
    const { call } = await lab(transport, { timeoutMs: 600 });
    expect((await call("lookup", { query: "tea" })).text).toMatch(/did not answer within 0.6 s/);
  });

  test.each(["http", "stdio"])("ends with its signal, over %s", async (kind) => {
    const transport = kind === "http" ? (await serveHttp()).transport : stdio();
    const { call } = await lab(transport);
    const stop = new AbortController();
    const outcome = call("deep_search", { query: "tea" }, { signal: stop.signal });
    setTimeout(() => stop.abort(), 100);
    expect(await outcome).toEqual({ ok: false, text: "Error: the call was cancelled" });
  });
});

describe("a server that crashes in a call", () => {
  test.each(["http", "stdio"])("costs that call, which is not made again, over %s", async (kind) => {
    const ledger = path.join(temporaryFolder(), "ledger");
    const args = ["--ledger", ledger, "--fault", "crash-first=note"];
    const server = kind === "http" ? await serveHttp(...args) : undefined;
    const { call, servers, tool } = await lab(server?.transport ?? stdio(...args));
    const outcome = await call("note", { text: "x" }, { key: "k1" });
    expect(outcome.text).toMatch(/^Error: the tool server lab was lost during the call .* is not known$/);
    // What was listed stays listed.
    expect(tool("lookup")?.state).toBe("down");
    if (server !== undefined) await serveHttp(...args, "--port", String(server.port));
    await until("it is up again", () => servers.servers()[0]?.state === "ok", 15_000);
    expect(await call("note", { text: "x" }, { key: "k1" })).toEqual({ ok: true, text: "noted: x" });
    expect(readFileSync(ledger, "utf8").trim().split("\n")).toHaveLength(2);
  });

  test("over HTTP with sessions: a call that waits hears of it, though its server is started again", async () => {
    const server = await serveHttp("--era", "sessions");
    const { call, servers } = await lab(server.transport);
    const slow = call("deep_search", { query: "tea" });
    await new Promise((resolve) => {
      setTimeout(resolve, 300);
    });
    await server.kill();
    await serveHttp("--era", "sessions", "--port", String(server.port));
    // The session of before is unknown now: a call finds out, connects again, and is made once.
    expect(await call("lookup", { query: "tea" })).toMatchObject({ ok: true });
    expect((await slow).text).toMatch(/lost during the call/);
    expect(servers.servers()).toEqual([{ name: "lab", state: "ok", tools: 10 }]);
  });
});

describe("a server that is not there", () => {
  test("is tried again, and a call waits for it", async () => {
    const gone = await serveHttp();
    await gone.kill();
    const { call, tool } = await lab(gone.transport);
    expect(tool("lookup")).toBeUndefined();
    const waiting = call("lookup", { query: "tea" });
    await serveHttp("--port", String(gone.port));
    expect(await waiting).toMatchObject({ ok: true });
    expect(tool("lookup")?.state).toBe("ok");
  });

  test("does not hold a call beyond its time", async () => {
    const { call } = await lab(
      { kind: "stdio", command: "no-such-command-here", args: [], env: {} },
      { timeoutMs: 300 },
    );
    expect((await call("lookup")).text).toBe(
      "Error: the tool server lab is away (no-such-command-here cannot be started: no such command); the call was not made",
    );
  });
});

describe("a process", () => {
  test("that writes noise on its output is understood", async () => {
    const { call } = await lab(stdio("--fault", "noise"));
    expect((await call("lookup", { query: "tea" })).text).toMatch(PAST);
  });

  test("that floods its error output goes on", async () => {
    const { call } = await lab(stdio("--fault", "chatter"));
    for (let n = 0; n < 5; n += 1) expect((await call("lookup", { query: "tea" })).ok).toBe(true);
  });

  test("with a broken schema in its list keeps its other tools", async () => {
    const { servers } = await lab(stdio("--fault", "bad-schema"));
    expect(servers.list().map(({ name }) => name)).toEqual(expect.arrayContaining(["lookup", "deep_search", "ask"]));
    expect(servers.list().map(({ name }) => name)).not.toContain("broken");
  });

  test("that does not end when it is asked to is killed, with its children", async () => {
    const { servers } = await lab(stdio("--fault", "stubborn"));
    await until("it and its child run", () => stubborn().length >= 2);
    await servers.close();
    await until("none is left", () => stubborn().length === 0);
  });

  test("sees nothing of our environment but what it needs and what it is given", async () => {
    const caBefore = process.env["NODE_EXTRA_CA_CERTS"];
    process.env["LUFTPAUSE_TEST_SECRET"] = "do not tell";
    process.env["NODE_EXTRA_CA_CERTS"] = caBefore ?? "/nowhere.pem";
    const script = `
      const say = (message) => process.stdout.write(JSON.stringify({ jsonrpc: "2.0", ...message }) + "\\n");
      require("node:readline").createInterface({ input: process.stdin }).on("line", (line) => {
        const { id, method } = JSON.parse(line);
        if (method === "initialize") say({ id, result: { protocolVersion: "2025-06-18", capabilities: { tools: {} }, serverInfo: { name: "x", version: "1" } } });
        else if (method === "tools/list") say({ id, result: { tools: [{ name: "env", inputSchema: { type: "object" } }] } });
        else if (method === "tools/call") say({ id, result: { content: [{ type: "text", text: Object.keys(process.env).join() }] } });
        else if (id !== undefined) say({ id, error: { code: -32601, message: "no such method" } });
      });`;
    const { call } = await lab({ kind: "stdio", command: process.execPath, args: ["-e", script], env: { GIVEN: "1" } });
    const names = (await call("env")).text.split(",");
    delete process.env["LUFTPAUSE_TEST_SECRET"];
    if (caBefore === undefined) delete process.env["NODE_EXTRA_CA_CERTS"];
    // Whom it trusts is part of what it needs: behind a company's own certificates it reaches nothing without.
    expect(names).toEqual(expect.arrayContaining(["PATH", "NODE_EXTRA_CA_CERTS", "GIVEN"]));
    expect(names).not.toContain("LUFTPAUSE_TEST_SECRET");
  });
});

/** Pids of stubborn servers and of their children, by what they were started with. */
function stubborn(): readonly string[] {
  return readdirSync("/proc").filter((pid) => {
    if (!/^\d+$/.test(pid)) return false;
    try {
      const words = readFileSync(`/proc/${pid}/cmdline`, "utf8");
      return words.includes("fake-tools\0--stdio") && words.includes("stubborn")
        ? true
        : words.includes("process.on('SIGTERM', () => {}); setInterval");
    } catch {
      // It has ended meanwhile.
      return false;
    }
  });
}
