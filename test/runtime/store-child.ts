/**
 * A process with a journal, for what can only be done to a whole process: killing it, filling its disk, cutting its writes
 * short. `node store-child.ts MODE FILE`; it prints a line for each thing that happened.
 */
import { execFileSync } from "node:child_process";
import { rmSync, writeFileSync } from "node:fs";
import path from "node:path";
import { openSqliteStore, type SqliteStore } from "../../src/runtime/store/sqlite.ts";
import type { AppendOptions, AppendOutcome, RunChange, StoreHealth } from "../../src/runtime/store/port.ts";

export type ChildMode = "append" | "full-disk" | "short-write";

const [mode = "", file = ""] = process.argv.slice(2) as [ChildMode?, string?];

function say(line: object): Promise<void> {
  return new Promise((resolve) => {
    process.stdout.write(`${JSON.stringify(line)}\n`, () => {
      resolve();
    });
  });
}

function change(runId: string, expectedSeq: number, bytes: number): RunChange {
  const row = { id: runId, root: runId, principal: "p", caller: "", state: "Running" as const };
  const text = `${runId}/${expectedSeq + 1} `.padEnd(bytes, "0123456789");
  return {
    runId,
    expectedSeq,
    records: [{ v: 1, at: 1, type: "n", text }],
    ...(expectedSeq === 0 ? { row: { ...row, createdAtMs: 1, updatedAtMs: 1 } } : {}),
    counters: [{ runId, name: "records", add: 1 }],
  };
}

/** Sixteen runs at once, each says what was acknowledged, until somebody ends the process. */
async function appendForEver(store: SqliteStore): Promise<void> {
  const writer = async (runId: string): Promise<void> => {
    let seq = (await store.entry(runId))?.lastSeq ?? 0;
    for (;;) {
      const outcome = await store.append([change(runId, seq, 1_500)]);
      if (outcome.kind !== "durable") throw new Error(JSON.stringify(outcome));
      seq += 1;
      await say({ run: runId, seq });
    }
  };
  await Promise.all(Array.from({ length: 16 }, (_, index) => writer(`r${index}`)));
}

/** Appends until the disk takes nothing, then makes room and says what came of each commit. */
async function untilFull(store: SqliteStore, makeRoom: () => void): Promise<void> {
  const health: StoreHealth["state"][] = [];
  store.onHealth(({ state }) => health.push(state));
  const append = (runId: string, seq: number, options: AppendOptions): Promise<AppendOutcome> =>
    store.append([change(runId, seq, 40_000)], options);
  let acknowledged = 0;
  let refused: AppendOutcome = { kind: "durable" };
  for (; refused.kind === "durable"; acknowledged += 1)
    refused = await append("r", acknowledged, { whenFull: "refuse" });
  acknowledged -= 1;
  await say({ refused, acknowledged, health: store.health() });
  const again = await append("new", 0, { whenFull: "refuse" });
  // A live run pauses: its commits wait, in order.
  const waiting = [append("r", acknowledged, {}), append("r", acknowledged + 1, {})];
  const key = await store.metaOnce("key", "value").catch((error: Error) => error.message);
  const read = (await store.load("r"))?.records.length;
  await say({ again, key, read, queued: store.stats().queuedCommits });
  makeRoom();
  const waited = await Promise.all(waiting);
  if (store.health().state !== "ok") await new Promise<void>((resolve) => store.onHealth(() => resolve()));
  const after = await append("new", 0, { whenFull: "refuse" });
  await say({
    waited,
    after,
    lastSeq: (await store.entry("r"))?.lastSeq,
    health: [...new Set(health)],
    end: store.health(),
  });
}

async function main(): Promise<void> {
  if (mode === "short-write") {
    // The system sends it along with the write that it cut short.
    process.on("SIGXFSZ", () => {});
  }
  const store = await openSqliteStore({ file }).catch(async (error: Error & { code?: string }) => {
    await say({ code: error.code, message: error.message });
    process.exit(1);
  });
  await say({ open: process.pid });
  if (mode === "append") await appendForEver(store);
  if (mode === "full-disk") {
    const ballast = path.join(path.dirname(file), "ballast");
    writeFileSync(ballast, Buffer.alloc(2 * 1024 * 1024));
    await untilFull(store, () => rmSync(ballast));
  }
  if (mode === "short-write") {
    const [program, ...args] = ["prlimit", "--pid", String(process.pid), "--fsize=unlimited"];
    await untilFull(store, () => execFileSync(program, args));
  }
  await store.close();
  await say({ closed: true });
}

await main();
