/** What the SQLite journal does when something goes wrong: kills, cut and flipped bytes, a full disk, another's file. */
import { spawn as startProcess, spawnSync, type ChildProcessWithoutNullStreams } from "node:child_process";
import { copyFileSync, existsSync, mkdirSync, readFileSync, statSync, truncateSync, writeFileSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { createInterface } from "node:readline";
import { DatabaseSync } from "node:sqlite";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import type { StoredRun } from "../../src/runtime/store/port.ts";
import { prepareConnection } from "../../src/runtime/store/sqlite-schema.ts";
import { openSqliteStore, type SqliteStore } from "../../src/runtime/store/sqlite.ts";
import type { ChildMode } from "./store-child.ts";
import { collect, ended, record, row, spawn } from "./store-conformance.ts";

// Processes and syncs of the disk take long on a busy machine.
vi.setConfig({ testTimeout: 90_000 });

const CHILD = path.join(import.meta.dirname, "store-child.ts");

let folder = "";
let file = "";
const open: SqliteStore[] = [];
const children: ChildProcessWithoutNullStreams[] = [];

beforeEach(async () => {
  folder = await mkdtemp(path.join(tmpdir(), "luftpause-journal-"));
  file = path.join(folder, "runs.db");
});

afterEach(async () => {
  for (const child of children.splice(0)) child.kill("SIGKILL");
  await Promise.all(open.splice(0).map((store) => store.close()));
  await rm(folder, { recursive: true });
});

async function openStore(at = file, more: { readonly queuedCommitsMax?: number } = {}): Promise<SqliteStore> {
  const store = await openSqliteStore({ file: at, ...more });
  open.push(store);
  return store;
}

type Line = { readonly [name: string]: unknown };

/** A process with the journal; its lines are handed out as they come. */
function child(
  mode: ChildMode,
  command: readonly string[] = [],
): { process: ChildProcessWithoutNullStreams; lines: AsyncIterator<Line> } {
  const [program, ...args] = [...command, process.execPath, CHILD, mode, file];
  const started = startProcess(program, args);
  children.push(started);
  const reader = createInterface({ input: started.stdout });
  const lines = (async function* () {
    for await (const line of reader) yield JSON.parse(line) as Line;
  })();
  return { process: started, lines };
}

/** Not every machine lets a test mount something or set a limit. */
function works([program, ...args]: readonly [string, ...string[]]): boolean {
  return spawnSync(program, args).status === 0;
}

async function next(lines: AsyncIterator<Line>): Promise<Line> {
  const { value, done } = await lines.next();
  if (done === true) throw new Error("the process ended without saying why");
  return value;
}

/** A small generator, so that each failure can be had again. */
function randomOf(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

describe("a second process", () => {
  test("cannot open the journal, and is told who has it; after a kill it can at once", async () => {
    const first = child("append");
    const gone = new Promise((resolve) => first.process.once("exit", resolve));
    const { open: pid } = await next(first.lines);
    await expect(openStore()).rejects.toMatchObject({
      code: "in-use",
      message: expect.stringContaining(`process ${String(pid)}`),
    });
    first.process.kill("SIGKILL");
    await gone;
    expect((await openStore()).health()).toEqual({ state: "ok" });
    const second = child("append");
    expect(await next(second.lines)).toMatchObject({ code: "in-use", message: expect.stringContaining("stateDir") });
  });

  test("is not needed: the same process cannot open it twice either, and the first one goes on", async () => {
    const store = await openStore();
    await expect(openStore()).rejects.toMatchObject({ code: "in-use" });
    expect(await store.append([spawn("r1")])).toEqual({ kind: "durable" });
    await store.close();
    expect((await (await openStore()).load("r1"))?.records).toHaveLength(1);
  });
});

test("after kill -9 in the middle of writing nothing that was acknowledged is missing, fifteen times", async () => {
  const random = randomOf(7);
  const acknowledged = new Map<string, number>();
  for (let kill = 0; kill < 15; kill += 1) {
    const { process: victim, lines } = child("append");
    expect(await next(lines)).toHaveProperty("open");
    const lastOne = 1 + random(400);
    for (let count = 0; count < lastOne; count += 1) await next(lines);
    victim.kill("SIGKILL");
    // What was in the pipe when it died was acknowledged too; of a line that was cut nothing is known.
    for (;;) {
      const line = await lines.next().catch(() => ({ done: true, value: undefined }));
      if (line.done === true) break;
      acknowledged.set(String(line.value?.run), Number(line.value?.seq));
    }
    const store = await openStore();
    expect(store.logDamage).toBeUndefined();
    const runs = await collect(store.loadLive());
    for (const run of runs) {
      expect(run.damage).toBeUndefined();
      run.records.forEach((record, index) => expect(record.text).toContain(`${run.row.id}/${index + 1} `));
      const counted = (await store.counters([run.row.id])).get(run.row.id)?.get("records");
      expect(counted).toBe(run.records.length);
    }
    const found = new Map(runs.map((run) => [run.row.id, run.lastSeq]));
    const missing = [...acknowledged].filter(([id, seq]) => (found.get(id) ?? 0) < seq);
    expect(missing).toEqual([]);
    await store.close();
  }
});

describe("a damaged file", () => {
  /** Twenty commits that are still in the log alone: as the file was before them, and the log after. */
  async function withLog(): Promise<{
    readonly db: string;
    readonly log: string;
    readonly whole: readonly StoredRun[];
  }> {
    const store = await openStore();
    await store.append([spawn("first")]);
    await store.close();
    const again = await openStore();
    // While somebody reads an older state, nothing is copied from the log into the file.
    const reader = new DatabaseSync(file);
    reader.exec("BEGIN");
    reader.prepare("SELECT count(*) FROM runs").get();
    for (let index = 0; index < 20; index += 1) {
      const records = [record("n", { index, text: "t".repeat(700 * (index % 4)) })];
      await again.append([{ runId: `r${index}`, expectedSeq: 0, records, row: row(`r${index}`) }]);
    }
    const whole = await collect(again.loadAll());
    const db = path.join(folder, "before.db");
    const log = path.join(folder, "after.log");
    copyFileSync(file, db);
    copyFileSync(`${file}-wal`, log);
    reader.close();
    await again.close();
    return { db, log, whole };
  }

  async function openCopy(
    name: string,
    db: string,
    log: string,
  ): Promise<{ readonly runs: readonly StoredRun[]; readonly logDamage: string | undefined }> {
    const at = path.join(folder, name, "runs.db");
    mkdirSync(path.dirname(at));
    copyFileSync(db, at);
    copyFileSync(log, `${at}-wal`);
    const store = await openStore(at);
    const runs = await collect(store.loadAll());
    expect(await store.integrity()).toEqual([]);
    await store.close();
    return { runs, logDamage: store.logDamage };
  }

  test("whose log ends anywhere gives back what was committed up to there, whole", async () => {
    const { db, log, whole } = await withLog();
    const bytes = readFileSync(log).length;
    const random = randomOf(11);
    let shortest = whole.length;
    for (let cut = 0; cut < 20; cut += 1) {
      const torn = path.join(folder, "torn.log");
      copyFileSync(log, torn);
      truncateSync(torn, cut === 0 ? 17 : random(bytes));
      const { runs: found, logDamage } = await openCopy(`cut-${cut}`, db, torn);
      expect(logDamage).toBeUndefined();
      expect(found).toEqual(whole.slice(0, found.length));
      shortest = Math.min(shortest, found.length);
    }
    expect(shortest).toBe(1);
    expect(await openCopy("whole", db, log)).toEqual({ runs: whole, logDamage: undefined });
  });

  test("whose log has a flipped bit never gives back a wrong record, and says what is lost, with a copy of the log", async () => {
    const { db, log, whole } = await withLog();
    const random = randomOf(13);
    let told = 0;
    for (let flip = 0; flip < 20; flip += 1) {
      const bytes = readFileSync(log);
      const at = 32 + random(bytes.length - 32);
      bytes[at] = (bytes[at] ?? 0) ^ (1 << random(8));
      const flipped = path.join(folder, "flipped.log");
      writeFileSync(flipped, bytes);
      const { runs: found, logDamage } = await openCopy(`flip-${flip}`, db, flipped);
      expect(found).toEqual(whole.slice(0, found.length));
      // A damage in the last transaction looks like one that was torn.
      if (found.length < whole.length - 1)
        expect(logDamage).toMatch(/damaged at page \d+ of \d+: commits behind it are lost/);
      if (logDamage === undefined) continue;
      told += 1;
      const copy = / is (\S*)$/.exec(logDamage)?.[1] ?? "";
      expect(readFileSync(copy).equals(bytes)).toBe(true);
    }
    expect(told).toBeGreaterThan(10);
  });

  test("with a flipped bit anywhere names what is damaged, or cannot be opened, and never gives back a wrong record", async () => {
    const store = await openStore();
    for (let index = 0; index < 30; index += 1) {
      const records = [1, 2, 3].map((seq) => record("n", { index, seq, text: "t".repeat(400) }));
      await store.append([{ runId: `r${index}`, expectedSeq: 0, records, row: row(`r${index}`) }]);
    }
    const whole = new Map((await collect(store.loadAll())).map((run) => [run.row.id, run]));
    await store.close();
    const original = readFileSync(file);
    const random = randomOf(17);
    let noticed = 0;
    for (let flip = 0; flip < 40; flip += 1) {
      const bytes = Buffer.from(original);
      const at = random(bytes.length);
      bytes[at] = (bytes[at] ?? 0) ^ (1 << random(8));
      const copy = path.join(folder, `flip-${flip}.db`);
      writeFileSync(copy, bytes);
      let found: readonly StoredRun[] | undefined;
      let complaints: readonly string[] = [];
      try {
        const damaged = await openStore(copy);
        complaints = await damaged.integrity();
        found = await collect(damaged.loadAll());
        await damaged.close();
      } catch (error) {
        complaints = [...complaints, (error as Error).message];
      }
      for (const run of found ?? []) {
        if (run.damage === undefined) expect(run).toEqual(whole.get(run.row.id));
        else expect(run.records).toEqual(whole.get(run.row.id)?.records.slice(0, run.records.length));
      }
      const complete =
        found !== undefined && found.length === whole.size && found.every((run) => run.damage === undefined);
      if (!complete) noticed += 1;
      if (!complete && found?.every((run) => run.damage === undefined) !== false) expect(complaints).not.toEqual([]);
    }
    expect(noticed).toBeGreaterThan(10);
  });

  test("has its damage named by run and sequence", async () => {
    const store = await openStore();
    const three = [record("a"), record("b"), record("c")];
    for (const id of ["altered", "swapped", "gone", "row"]) await store.append([{ ...spawn(id), records: three }]);
    await store.close();
    const db = new DatabaseSync(file);
    const number = (id: string): number => Number(db.prepare("SELECT n FROM runs WHERE id = ?").get(id)?.n);
    db.prepare("UPDATE records SET body = replace(body, 'b', 'x') WHERE run = ? AND seq = 2").run(number("altered"));
    db.prepare("UPDATE records SET seq = -seq WHERE run = ? AND seq > 1").run(number("swapped"));
    db.prepare("UPDATE records SET seq = 5 + seq WHERE run = ? AND seq < 0").run(number("swapped"));
    db.prepare("DELETE FROM records WHERE run = ? AND seq = 3").run(number("gone"));
    db.prepare("UPDATE runs SET body = replace(body, 'alice', 'mallory') WHERE id = 'row'").run();
    db.close();
    const again = await openStore();
    const damage = (await collect(again.loadAll())).map((run) => [run.damage, run.records.length]);
    expect(damage).toEqual([
      [{ runId: "altered", seq: 2, message: "record 2 of run altered: its checksum is wrong" }, 1],
      [{ runId: "swapped", seq: 2, message: "record 2 of run swapped: its checksum is wrong" }, 1],
      [{ runId: "gone", seq: 3, message: "record 3 of run gone: it is missing" }, 2],
      [{ runId: "row", seq: 0, message: "row of run row: its checksum is wrong" }, 3],
    ]);
    expect((await again.entry("row"))?.row).toMatchObject({ id: "row", principal: "alice", root: "row" });
  });

  test("that is none of ours is left alone, with words", async () => {
    writeFileSync(file, "this is a letter, not a database; ".repeat(50));
    await expect(openStore()).rejects.toMatchObject({ code: "not-a-journal", message: expect.stringContaining(file) });
    expect(readFileSync(file, "utf8")).toMatch(/^this is a letter/);

    const other = path.join(folder, "other.db");
    const db = new DatabaseSync(other);
    db.exec("CREATE TABLE mine (a)");
    db.close();
    await expect(openStore(other)).rejects.toMatchObject({
      code: "not-a-journal",
      message: expect.stringContaining("stateDir"),
    });
  });

  test("of a newer version is left alone, with words", async () => {
    await (await openStore()).close();
    const db = new DatabaseSync(file);
    db.exec("PRAGMA user_version = 99");
    db.close();
    await expect(openStore()).rejects.toMatchObject({ code: "newer-version", message: expect.stringContaining("99") });
  });

  test("that cannot be made says where", async () => {
    writeFileSync(path.join(folder, "occupied"), "");
    const below = path.join(folder, "occupied", "state", "runs.db");
    await expect(openStore(below)).rejects.toMatchObject({
      code: "cannot-open",
      message: expect.stringContaining("occupied"),
    });
  });
});

describe("a disk that takes nothing", () => {
  async function expectPause(lines: AsyncIterator<Line>, why: string): Promise<void> {
    const unavailable = { kind: "unavailable", why, message: expect.stringContaining("nothing is lost") };
    const full = await next(lines);
    expect(full).toMatchObject({ refused: unavailable, health: { state: "paused", why } });
    const meanwhile = await next(lines);
    expect(meanwhile).toMatchObject({ again: unavailable, read: full.acknowledged, queued: 2 });
    expect(meanwhile.key).toContain(file);
    expect(await next(lines)).toMatchObject({
      waited: [{ kind: "durable" }, { kind: "durable" }],
      after: { kind: "durable" },
      lastSeq: Number(full.acknowledged) + 2,
      health: ["paused", "ok"],
      end: { state: "ok" },
    });
    expect(await next(lines)).toEqual({ closed: true });
  }

  const ownMounts = works(["unshare", "-rm", "sh", "-c", "mount -t tmpfs tmpfs /tmp"]);
  test.skipIf(!ownMounts)(
    "because it is full refuses new runs, lets live ones wait, and goes on when there is room",
    async () => {
      const mount = `mount -t tmpfs -o size=4m tmpfs ${folder} && exec "$@"`;
      const { lines } = child("full-disk", ["unshare", "-rm", "sh", "-c", mount, "sh"]);
      expect(await next(lines)).toHaveProperty("open");
      await expectPause(lines, "disk-full");
    },
  );

  const limits = works(["prlimit", "--fsize=1000000:unlimited", "true"]);
  test.skipIf(!limits)("because it cuts writes short does the same, and keeps what it took before", async () => {
    const { lines } = child("short-write", ["prlimit", "--fsize=700000:unlimited"]);
    expect(await next(lines)).toHaveProperty("open");
    await expectPause(lines, "disk-error");
    const store = await openStore();
    expect([store.logDamage, (await store.load("r"))?.damage]).toEqual([undefined, undefined]);
    expect(await store.integrity()).toEqual([]);
  });
});

test("a commit that no transaction can hold is refused alone; those of its group are written", async () => {
  const store = await openStore();
  const bad = { ...spawn("bad"), counters: [{ runId: "bad", name: "tokens", add: Number.NaN }] };
  const outcomes = await Promise.all([[spawn("a")], [bad], [spawn("b")]].map((changes) => store.append(changes)));
  expect(outcomes).toEqual([
    { kind: "durable" },
    { kind: "conflict", on: "invalid", runId: "bad", message: expect.stringContaining("NOT NULL") },
    { kind: "durable" },
  ]);
  expect((await store.list({ limit: 9 })).items.map((entry) => entry.row.id)).toEqual(["b", "a"]);
  expect(store.health()).toEqual({ state: "ok" });
});

test("a queue that is full refuses with its size, and takes commits again when it is shorter", async () => {
  const store = await openStore(file, { queuedCommitsMax: 2 });
  const outcomes = await Promise.all(["a", "b", "c"].map((id) => store.append([spawn(id)])));
  expect(outcomes).toEqual([
    { kind: "durable" },
    { kind: "durable" },
    { kind: "unavailable", why: "queue-full", message: expect.stringContaining("2 commits") },
  ]);
  expect(store.stats()).toEqual({ commits: 2, records: 2, queuedCommits: 0, queuedBytes: 0 });
  expect(await store.append([spawn("c")])).toEqual({ kind: "durable" });
});

test("deleting leaves nothing of a run behind, also when it was interrupted between chunks", async () => {
  const store = await openStore();
  const many = Array.from({ length: 300 }, (_, index) => record("n", { index }));
  await store.append([{ ...spawn("old", ended(1)), records: many }, spawn("live")]);
  expect(await store.deleteEnded({ endedBeforeMs: 2 })).toEqual({ runs: 1, more: true });
  expect(await store.deleteEnded({ endedBeforeMs: 2 })).toEqual({ runs: 0, more: true });
  await store.close();
  const again = await openStore();
  while ((await again.deleteEnded({ endedBeforeMs: 2 })).more);
  await again.close();
  const db = new DatabaseSync(file);
  expect(
    db.prepare("SELECT (SELECT count(*) FROM records) AS records, (SELECT count(*) FROM doomed) AS doomed").get(),
  ).toEqual({
    records: 1,
    doomed: 0,
  });
  db.close();
});

test("compacting gives the room of deleted runs back, and keeps the others", async () => {
  const store = await openStore();
  const large = record("n", { text: "t".repeat(2_000_000) });
  await store.append([{ ...spawn("old", ended(1)), records: [large] }, spawn("live")]);
  while ((await store.deleteEnded({ endedBeforeMs: 2 })).more);
  const [compacted, appended] = await Promise.all([store.compact(), store.append([spawn("next")])]);
  expect([compacted, appended]).toEqual([undefined, { kind: "durable" }]);
  await store.close();
  expect(statSync(file).size).toBeLessThan(1_000_000);
  expect((await collect((await openStore()).loadAll())).map((run) => run.row.id)).toEqual(["live", "next"]);
});

test("each connection syncs the disk at each commit, and never copies the log back by itself", () => {
  const db = new DatabaseSync(":memory:");
  prepareConnection(db);
  const values = ["synchronous", "fullfsync", "checkpoint_fullfsync", "wal_autocheckpoint"].map(
    (name) => Object.values(db.prepare(`PRAGMA ${name}`).get() ?? {})[0],
  );
  expect(values).toEqual([2, 1, 1, 0]);
  db.close();
});

test("a journal can be read by its owner only, with all that lies beside it", async () => {
  const store = await openStore();
  await store.append([spawn("r1")]);
  const rights = ["", "-wal", "-shm"].map((suffix) => (statSync(`${file}${suffix}`).mode & 0o777).toString(8));
  expect(rights).toEqual(["600", "600", "600"]);
});

test("a journal that was closed leaves one file, without a log", async () => {
  const store = await openStore();
  await store.append([spawn("r1")]);
  await store.close();
  expect([existsSync(file), existsSync(`${file}-wal`)]).toEqual([true, false]);
});
