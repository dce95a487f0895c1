/**
 * kill -9 of a whole luftpause, again and again, while sub-agents call tools: nothing that was acknowledged is lost, and no
 * tool of unknown effect is called twice without a person's word. `LUFTPAUSE_KILLS` makes it a long one.
 */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterAll, expect, test } from "vitest";
import { createRandom } from "../../src/base/random.ts";
import { readLedger } from "../../src/testbed/fake-tools/ledger.ts";
import { startFakeEngine, startFakeTools } from "../../src/testbed/index.ts";
import { callTool } from "../runtime/mcp/raw.ts";
import { luftpause, type Running } from "./processes.ts";

const KILLS = Number(process.env["LUFTPAUSE_KILLS"] ?? 8);
const SEED = Number(process.env["LUFTPAUSE_SEED"] ?? Date.now() % 100_000);
const RUNS_PER_LIFE = 4;
/** A call of unknown effect stays under way long enough to be killed in. */
const TOOL_MS = 40;

const folder = mkdtempSync(path.join(tmpdir(), "luftpause-kills-"));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

type Entry = {
  readonly handle: string;
  readonly state: string;
  readonly toolCalls: number;
  readonly pendingApprovals?: readonly { readonly id: string; readonly reason: string; readonly tool: string }[];
};

test(`${KILLS} kills lose nothing and double nothing`, { timeout: 30_000 + KILLS * 6_000 }, async () => {
  const random = createRandom(SEED);
  const engine = await startFakeEngine({ profile: "h100-8b", timeScale: 0.2 });
  const ledger = path.join(folder, "ledger");
  const tools = await startFakeTools({ lookupMs: [TOOL_MS, TOOL_MS], ledger });
  const config = path.join(folder, "luftpause.yaml");
  writeFileSync(
    config,
    [
      `endpoints: [{ name: a, url: "${engine.url}" }]`,
      `tools: [{ name: lab, url: "${tools.url}", allow: [lookup], effects: { lookup: unsafe } }]`,
      "logs: { level: warn }",
    ].join("\n"),
  );
  const environment = { LUFTPAUSE_STATE_DIR: path.join(folder, "state") };
  const start = async (): Promise<{ readonly process: Running; readonly url: string }> => {
    const process = luftpause(["up", "--listen", "127.0.0.1:0", "--config", config], { folder, environment });
    const [, base = ""] = await process.waitFor(/base_url\s+(\S+)\/v1/);
    return { process, url: `${base}/mcp` };
  };
  const acknowledged = new Map<string, string>();
  const said = async (url: string, name: string, args: object) => {
    const { body } = await callTool({ url, stop: () => Promise.resolve() }, { name, arguments: args });
    return (body.result?.["structuredContent"] ?? body) as Record<string, unknown>;
  };

  for (let life = 0; life < KILLS; life += 1) {
    const { process, url } = await start();
    const keys = Array.from({ length: RUNS_PER_LIFE }, (_, at) => `life-${life}-run-${at}`);
    const tasks = keys.map((idempotencyKey) => ({ task: `question ${idempotencyKey}`, idempotencyKey }));
    const spawning = said(url, "spawn", { tasks, maxToolCalls: 4 }).then(
      ({ handles }) => {
        for (const [at, handle] of (handles as readonly string[]).entries()) acknowledged.set(keys[at] ?? "", handle);
      },
      // Killed before the answer: whether it was taken is nobody's promise.
      () => undefined,
    );
    await new Promise((resolve) => {
      setTimeout(resolve, random.integer(0, 900));
    });
    await process.end("SIGKILL");
    await spawning;
  }

  const { process, url } = await start();
  const answered = new Set<string>();
  const handles = [...acknowledged.values()];
  let results: readonly Entry[] = [];
  const deadline = performance.now() + 60_000;
  for (;;) {
    const awaited = await said(url, "await", { handles, timeoutSeconds: 1 });
    results = awaited["results"] as readonly Entry[];
    if (awaited["done"] === true) break;
    if (performance.now() > deadline) throw new Error(`not done: ${JSON.stringify(results)}\n${process.output()}`);
    for (const { handle, pendingApprovals = [] } of results) {
      for (const { id, reason } of pendingApprovals) {
        expect(reason).toBe("indeterminate");
        answered.add(id);
        await said(url, "approve", { handle, id, allow: true, resolution: "result", result: "it was done" });
      }
    }
  }

  expect(handles.length, `seed ${SEED}`).toBeGreaterThan(0);
  expect(results.map(({ state }) => state)).toEqual(handles.map(() => "Completed"));
  // A spawn that was acknowledged is the same one when it is sent again.
  for (const [idempotencyKey, handle] of acknowledged) {
    const again = await said(url, "spawn", { task: `question ${idempotencyKey}`, idempotencyKey, maxToolCalls: 4 });
    expect(again["handles"], JSON.stringify(again)).toEqual([handle]);
  }
  const begun = readLedger(ledger).map(({ key }) => key);
  expect(begun.filter((key, at) => begun.indexOf(key) !== at)).toEqual([]);
  // Every call that a run counts was begun once, or is one that nobody knows of and a person spoke for.
  const counted = results.reduce((sum, { toolCalls }) => sum + toolCalls, 0);
  expect(counted).toBeGreaterThan(0);
  expect(begun.length).toBeGreaterThanOrEqual(counted - answered.size);
  await process.end("SIGTERM");
  await Promise.all([engine.close(), tools.close()]);
});
