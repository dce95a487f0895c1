import { appendFileSync, existsSync, readFileSync, truncateSync, writeFileSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { exportJournal } from "../../src/runtime/store/export.ts";
import { importJournal } from "../../src/runtime/store/import.ts";
import { createMemoryStore } from "../../src/runtime/store/memory.ts";
import type { ApprovalRow, RunStore, StoredRun } from "../../src/runtime/store/port.ts";
import { openSqliteStore } from "../../src/runtime/store/sqlite.ts";
import { collect, ended, record, row, spawn } from "./store-conformance.ts";

let folder = "";
let runsFile = "";
let tasksFile = "";

beforeEach(async () => {
  folder = await mkdtemp(path.join(tmpdir(), "luftpause-export-"));
  runsFile = path.join(folder, "runs.jsonl");
  tasksFile = path.join(folder, "tasks.jsonl");
});
afterEach(() => rm(folder, { recursive: true }));

const approval: ApprovalRow = {
  id: "p1",
  runId: "done",
  root: "done",
  principal: "alice",
  state: "open",
  askedAtMs: 2_000,
  expiresAtMs: 9_000,
  detail: { tool: "drop_table" },
};
const task = { id: "t1", runId: "done", principal: "alice", createdAtMs: 3_000, detail: { ttlMs: 5 } };

async function filled(): Promise<RunStore> {
  const store = createMemoryStore();
  const text = "two\nlines, \u2028 and \ud83d\ude00";
  await store.append([
    {
      ...spawn("done", { ...ended(5), idempotencyKey: "k" }),
      epoch: 3,
      records: [record("spawned", { text }), record("ended")],
      tasks: [task],
      approvals: [approval],
      counters: [{ runId: "done", name: "tokens", add: 12 }],
    },
  ]);
  await store.append([spawn("live", { parent: "done", root: "done" })]);
  return store;
}

/** Everything that a journal says about its runs. */
async function contents(store: RunStore): Promise<readonly unknown[]> {
  return Promise.all(
    (await collect(store.loadAll())).map(async (run: StoredRun) => {
      const id = run.row.id;
      const sums = Object.fromEntries((await store.counters([id])).get(id) ?? []);
      return [run, sums, await store.tasksOf(id), await store.approvalsOf(id)];
    }),
  );
}

describe("a journal as JSON lines", () => {
  test("has the form that the documentation shows", async () => {
    expect(await exportJournal(await filled(), folder)).toEqual({ runs: 2, records: 3, tasks: 1, damage: [] });
    expect(readFileSync(runsFile, "utf8")).toBe(
      [
        '{"v":1,"run":"done","seq":0,"at":1000,"type":"run-row","records":2,"epoch":3,"row":{"id":"done","root":"done","principal":"alice","caller":"","state":"Completed","createdAtMs":1000,"updatedAtMs":1000,"reason":"completed","endedAtMs":5,"idempotencyKey":"k"},"counters":{"tokens":12}}',
        '{"v":1,"run":"done","seq":1,"at":1000,"type":"spawned","text":"two\\nlines, \u2028 and \ud83d\ude00"}',
        '{"v":1,"run":"done","seq":2,"at":1000,"type":"ended"}',
        '{"v":1,"run":"done","seq":0,"at":2000,"type":"approval-row","approval":{"id":"p1","runId":"done","root":"done","principal":"alice","state":"open","askedAtMs":2000,"expiresAtMs":9000,"detail":{"tool":"drop_table"}}}',
        '{"v":1,"run":"live","seq":0,"at":1000,"type":"run-row","records":1,"epoch":0,"row":{"id":"live","root":"done","principal":"alice","caller":"","state":"Running","createdAtMs":1000,"updatedAtMs":1000,"parent":"done"},"counters":{}}',
        '{"v":1,"run":"live","seq":1,"at":1000,"type":"spawned","task":"live"}',
        "",
      ].join("\n"),
    );
    expect(readFileSync(tasksFile, "utf8")).toBe(
      '{"v":1,"run":"done","seq":0,"at":3000,"type":"task-row","task":{"id":"t1","runId":"done","principal":"alice","createdAtMs":3000,"detail":{"ttlMs":5}}}\n',
    );
  });

  test("goes from one kind of store into another and back without a difference", async () => {
    const first = await filled();
    await exportJournal(first, folder);
    const sqlite = await openSqliteStore({ file: path.join(folder, "state", "runs.db") });
    const report = await importJournal(sqlite, folder);
    expect(report).toEqual({ runs: 2, records: 3, tasks: 1, alreadyThere: [], shortened: [], orphans: [], torn: [] });
    expect(await contents(sqlite)).toEqual(await contents(first));
    const back = path.join(folder, "back");
    await exportJournal(sqlite, back);
    for (const name of ["runs.jsonl", "tasks.jsonl"]) {
      expect(readFileSync(path.join(back, name), "utf8")).toBe(readFileSync(path.join(folder, name), "utf8"));
    }
    await sqlite.close();
  });

  test("can be imported again: what is there stays", async () => {
    await exportJournal(await filled(), folder);
    const store = createMemoryStore();
    await store.append([spawn("live"), { ...spawn("other"), records: [] }]);
    const report = await importJournal(store, folder);
    expect(report).toMatchObject({ runs: 1, alreadyThere: ["live"] });
    expect(await importJournal(store, folder)).toMatchObject({ runs: 0, tasks: 0, alreadyThere: ["done", "live"] });
    expect((await store.entry("live"))?.row).toEqual(row("live"));
  });

  test("is not written over another one, and not seen before it is complete", async () => {
    writeFileSync(runsFile, "mine");
    await expect(exportJournal(await filled(), folder)).rejects.toThrow("runs.jsonl is there already");
    expect(readFileSync(runsFile, "utf8")).toBe("mine");
    const other = path.join(folder, "other");
    const broken = await filled();
    broken.tasksOf = () => Promise.reject(new Error("the disk went away"));
    await expect(exportJournal(broken, other)).rejects.toThrow("went away");
    expect([existsSync(path.join(other, "runs.jsonl")), existsSync(path.join(other, "tasks.jsonl"))]).toEqual([
      false,
      false,
    ]);
  });

  test("many runs go through in batches", async () => {
    const store = createMemoryStore();
    await store.append(Array.from({ length: 200 }, (_, index) => spawn(`r${index}`)));
    expect(await exportJournal(store, folder)).toMatchObject({ runs: 200, records: 200 });
    const other = createMemoryStore();
    expect(await importJournal(other, folder)).toMatchObject({ runs: 200 });
    expect(await contents(other)).toEqual(await contents(store));
  });
});

describe("lines that are not whole", () => {
  test("wherever the last line is torn off, that line alone is lost, and the report says so", async () => {
    const store = await filled();
    await exportJournal(store, folder);
    const whole = readFileSync(runsFile);
    const lastLine = whole.lastIndexOf("\n", whole.length - 2) + 1;
    for (let cut = lastLine + 1; cut < whole.length - 1; cut += 7) {
      truncateSync(runsFile, cut);
      const target = createMemoryStore();
      const report = await importJournal(target, folder);
      expect(report).toMatchObject({ runs: 2, records: 2, torn: [{ file: runsFile, line: 6 }] });
      expect(report.shortened).toEqual([{ runId: "live", records: 0, expected: 1 }]);
      writeFileSync(runsFile, whole);
    }
    // Without its line feed the last line is still whole.
    truncateSync(runsFile, whole.length - 1);
    expect(await importJournal(createMemoryStore(), folder)).toMatchObject({ runs: 2, records: 3, torn: [] });
  });

  test("a run whose end was torn off is live again", async () => {
    const store = createMemoryStore();
    const records = [record("spawned"), record("ended")];
    await store.append([{ ...spawn("r1", { ...ended(5), idempotencyKey: "k" }), records }]);
    await exportJournal(store, folder);
    truncateSync(runsFile, readFileSync(runsFile).length - 5);
    const target = createMemoryStore();
    await importJournal(target, folder);
    expect(await collect(target.loadLive())).toEqual([
      { row: row("r1", { idempotencyKey: "k" }), lastSeq: 1, epoch: 0, records: [record("spawned")] },
    ]);
  });

  test.each([
    ["not JSON at all", "it is not JSON"],
    ["[1]", "it is not a JSON object"],
    ['{"v":1,"run":"done","seq":7,"at":1,"type":"n"}', "goes on with record 7 instead of 3"],
    ['{"v":1,"run":"other","seq":1,"at":1,"type":"n"}', "belongs to run other, whose row is not right before it"],
    ['{"v":1,"run":"done","seq":0,"at":1,"type":"n"}', "a record has a 'seq' of 1 or more"],
    ['{"v":1,"run":"done","seq":1.5,"at":1,"type":"n"}', "no whole number under 'seq'"],
    ['{"v":2,"run":"x","seq":0,"at":1,"type":"run-row"}', "its form has version 2"],
    ['{"v":1,"run":"x","seq":0,"at":1,"type":"run-row"}', "no numbers under 'records'"],
    ['{"v":1,"run":"x","seq":0,"at":1,"type":"odd-row"}', "'odd-row' is no row of this form"],
    [
      '{"v":1,"run":"done","seq":0,"at":1,"type":"task-row","task":{"id":"t","runId":"done","principal":"p"}}',
      "tasks.jsonl",
    ],
    ['{"run":"done","seq":1,"type":"n"}', "no number under 'v' or 'at'"],
  ])("%s in the middle ends the import with its place", async (line, reason) => {
    await exportJournal(await filled(), folder);
    const lines = readFileSync(runsFile, "utf8").split("\n");
    writeFileSync(runsFile, [...lines.slice(0, 3), line, ...lines.slice(3)].join("\n"));
    const failure = importJournal(createMemoryStore(), folder);
    await expect(failure).rejects.toMatchObject({
      code: "bad-line",
      message: expect.stringContaining(`${runsFile}:4: `),
    });
    await expect(failure).rejects.toThrow(reason);
  });

  test("a run twice, a task of nobody and a missing file are said", async () => {
    await exportJournal(await filled(), folder);
    appendFileSync(
      tasksFile,
      readFileSync(tasksFile, "utf8").replaceAll('"t1"', '"t2"').replaceAll('"done"', '"gone"'),
    );
    expect(await importJournal(createMemoryStore(), folder)).toMatchObject({ tasks: 1, orphans: ["t2"] });
    appendFileSync(runsFile, readFileSync(runsFile, "utf8"));
    await expect(importJournal(createMemoryStore(), folder)).rejects.toThrow("run done has its row twice");
    await rm(tasksFile);
    await expect(importJournal(createMemoryStore(), path.join(folder, "nowhere"))).rejects.toThrow("ENOENT");
  });

  test("of a damaged run what came before the damage is written, and the damage is named", async () => {
    const damage = { runId: "r1", seq: 2, message: "record 2 of run r1: its checksum is wrong" };
    const store = createMemoryStore();
    await store.append([spawn("r1", ended(5))]);
    store.loadAll = async function* () {
      yield { row: row("r1", ended(5)), lastSeq: 3, epoch: 0, records: [record("spawned")], damage };
    };
    expect(await exportJournal(store, folder)).toMatchObject({ runs: 1, records: 1, damage: [damage] });
    const target = createMemoryStore();
    expect(await importJournal(target, folder)).toMatchObject({
      shortened: [{ runId: "r1", records: 1, expected: 3 }],
    });
    expect((await target.entry("r1"))?.row.state).toBe("Running");
  });
});
