/**
 * Journals that were recorded by released versions: each replays for ever, and what was open in it goes on.
 *
 * `LUFTPAUSE_RECORD_JOURNAL=1` writes the one of the current record version anew; a version that was released is never
 * written again.
 */
import path from "node:path";
import { expect, test } from "vitest";
import { replayRun, RECORD_VERSION, type RunRecord } from "../../src/runs/index.ts";
import { exportJournal } from "../../src/runtime/store/export.ts";
import { importJournal } from "../../src/runtime/store/import.ts";
import { createMemoryStore } from "../../src/runtime/store/memory.ts";
import { answerAll, answerCalls, answerText, until } from "../runtime/fake-dataplane.ts";
import { ANN, bench, ended, spawnOne } from "../runtime/host-bench.ts";

const VERSION_1 = path.join(import.meta.dirname, "v1");

test.runIf(process.env["LUFTPAUSE_RECORD_JOURNAL"] === "1")("records the journal of this version", async () => {
  const world = await bench();
  // Whole: two rounds, parallel calls, an approval, a failed call, a child.
  const whole = await spawnOne(world, { task: "whole", parallelToolCalls: true, budgetTokens: 50_000 });
  answerCalls(await world.dataplane.nextTurn(), [
    { name: "look", args: { n: 1 } },
    { name: "erase", args: { n: 2 } },
  ]);
  (await world.tools.next()).answer({ ok: false, text: "Error: too dark" });
  await until("it asks", () => world.service.tree("ann").some(({ pendingApprovals }) => pendingApprovals === 1));
  await world.service.approve(ANN, { handle: whole, allow: true, scope: "tree", channel: "http" });
  (await world.tools.next()).answer({ ok: true, text: "erased" });
  const second = await world.dataplane.nextTurn();
  const kid = await spawnOne(world, { task: "kid", parent: whole, idempotencyKey: "kid-1" });
  answerText(second, "all done");
  answerText(await world.dataplane.nextTurn(), "kid done");
  await ended(world, [whole, kid]);
  // Cancelled in the middle.
  const cancelled = await spawnOne(world, { task: "cancelled" });
  await world.dataplane.nextTurn();
  await world.service.cancel(ANN, cancelled);
  // Open: one that waits for a person, one whose unsafe call is under way, as an MCP task.
  await spawnOne(world, { task: "asking" });
  answerCalls(await world.dataplane.nextTurn(), [{ name: "erase", args: { n: 3 } }]);
  await until("it asks", () => world.service.tree("ann").some(({ pendingApprovals }) => pendingApprovals === 1));
  const calling = await spawnOne(world, { task: "calling", maxToolCalls: 2 });
  await world.service.createTask(ANN, calling);
  answerCalls(await world.dataplane.nextTurn(), [{ name: "write", args: {} }]);
  await world.tools.next();
  await exportJournal(world.store, VERSION_1);
});

test("a journal of version 1 replays, and its open run goes on", async () => {
  const store = createMemoryStore();
  expect(await importJournal(store, VERSION_1)).toMatchObject({
    runs: 5,
    tasks: 1,
    torn: [],
    shortened: [],
    orphans: [],
  });
  let records = 0;
  for await (const run of store.loadAll()) {
    expect(replayRun(run.records as unknown as RunRecord[]).kind).toBe("replayed");
    records += run.records.length;
  }
  expect(records).toBeGreaterThan(25);
  const world = await bench({ store });
  const runs = (await world.service.list(ANN, { mine: false, limit: 10, cursor: undefined })).runs;
  const states = runs.map(({ state }) => state).sort();
  expect(states).toEqual(["AwaitingApproval", "AwaitingApproval", "Cancelled", "Completed", "Completed"]);
  const inbox = await world.service.approvals(ANN);
  expect(inbox.map(({ reason }) => reason).sort()).toEqual(["destructive", "indeterminate"]);
  for (const { handle, reason } of inbox) {
    const how = reason === "indeterminate" ? { resolution: "result" as const, result: "written" } : {};
    await world.service.approve(ANN, { handle, allow: true, channel: "tool", ...how });
  }
  (await world.tools.next()).answer({ ok: true, text: "erased" });
  answerAll(world.dataplane, "the end");
  const open = inbox.map(({ handle }) => handle);
  expect(await ended(world, open)).toMatchObject([{ answer: "the end" }, { answer: "the end" }]);
});

test("a journal is recorded for the version that is written", () => {
  // A new version gets a folder and a test of its own, and this one stays.
  expect(RECORD_VERSION).toBe(1);
});
