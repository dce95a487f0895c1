/** Sub-agents on a real llama.cpp with a real tool: the reference memory server of MCP, over stdio. */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { SLOTS, startRealEngine, type RealEngine } from "./engine.ts";
import { startLuftpause, type Luftpause } from "./world.ts";

const MEMORY_SERVER = fileURLToPath(import.meta.resolve("@modelcontextprotocol/server-memory/dist/index.js"));
/** What only the tool can tell. */
const FACT = "The Rhine is 1233 km long.";

type Result = {
  readonly handle: string;
  readonly state: string;
  readonly answer?: string;
  readonly turns: number;
  readonly toolCalls: number;
  readonly failedToolCalls: number;
  readonly usage: { readonly promptTokens: number; readonly completionTokens: number; readonly cachedTokens: number };
};

describe("sub-agents on a real llama.cpp with a real stdio tool", () => {
  const folder = mkdtempSync(path.join(tmpdir(), "luftpause-memory-"));
  const graph = path.join(folder, "memory.jsonl");
  let engine: RealEngine;
  let proxy: Luftpause;
  let client: Client;

  beforeAll(async () => {
    writeFileSync(
      graph,
      `${JSON.stringify({ type: "entity", name: "Rhine", entityType: "river", observations: [FACT] })}\n`,
    );
    engine = await startRealEngine();
    const tool = {
      name: "memory",
      command: process.execPath,
      args: [MEMORY_SERVER],
      env: { MEMORY_FILE_PATH: graph },
      allow: ["read_graph"],
    };
    proxy = await startLuftpause(engine.url, { maxInFlight: SLOTS, config: `tools: [${JSON.stringify(tool)}]\n` });
    client = new Client({ name: "real", version: "1" }, { versionNegotiation: { mode: "auto" } });
    await client.connect(new StreamableHTTPClientTransport(new URL(`${proxy.url}/mcp`)));
  });
  afterAll(async () => {
    await client?.close();
    await proxy?.end();
    await engine?.end();
    rmSync(folder, { recursive: true });
  });

  async function call<Answer>(name: string, args: { readonly [name: string]: unknown }): Promise<Answer> {
    const answer = await client.callTool({ name, arguments: { ...args } }, { timeout: 80_000 });
    expect(answer.isError, JSON.stringify(answer.content)).not.toBe(true);
    return answer.structuredContent as Answer;
  }

  const awaitAll = async (handles: readonly string[]): Promise<readonly Result[]> => {
    const { done, results } = await call<{ done: boolean; results: Result[] }>("await", {
      handles,
      timeoutSeconds: 70,
    });
    expect(done).toBe(true);
    return results;
  };

  it("lists the tool as its server describes it", async () => {
    const { tools } = await call<{ tools: object[] }>("tools", {});
    expect(tools).toEqual([
      expect.objectContaining({ server: "memory", name: "read_graph", readOnly: true, asks: false, state: "ok" }),
    ]);
  });

  it("spawn and await give an answer that only the tool knows, and later turns find their prefix in the cache", async () => {
    const cachedBefore = await engine.metric("prompt_tokens_cached_total");
    const { handles } = await call<{ handles: string[] }>("spawn", { task: "How long is the Rhine?", maxToolCalls: 2 });
    const [result] = await awaitAll(handles);
    expect(result).toMatchObject({ state: "Completed", failedToolCalls: 0 });
    expect(result?.toolCalls).toBeGreaterThan(0);
    expect(result?.turns).toBeGreaterThan(1);
    expect(result?.answer).toContain("1233 km");
    // What the run counts is what the engine's own counter says.
    const cached = result?.usage.cachedTokens ?? 0;
    expect(cached).toBeGreaterThan(0);
    expect((await engine.metric("prompt_tokens_cached_total")) - cachedBefore).toBe(cached);
    expect(readFileSync(graph, "utf8")).toContain(FACT);
  });

  it("six at once over two slots all answer, and leave nothing held or in flight", async () => {
    const tasks = Array.from({ length: 6 }, (_, at) => `How long is the Rhine, in words of day ${at}?`);
    const { handles } = await call<{ handles: string[] }>("spawn", { tasks, maxToolCalls: 2, serviceClass: "batch" });
    const results = await awaitAll(handles);
    expect(results.map(({ handle }) => handle)).toEqual(handles);
    for (const { state, answer, failedToolCalls } of results) {
      expect({ state, failedToolCalls }).toEqual({ state: "Completed", failedToolCalls: 0 });
      expect(answer).not.toBe("");
    }
    expect((await proxy.status()).turns).toMatchObject({ held: 0, inFlight: 0 });
  });
});
