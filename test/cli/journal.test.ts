/** `luftpause journal`: what a person sees of it, and the codes it ends with. */
import { spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync, truncateSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { DatabaseSync } from "node:sqlite";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { openSqliteStore } from "../../src/runtime/index.ts";
import { ended, record, spawn } from "../runtime/store-conformance.ts";
import { cleanEnvironment } from "../e2e/processes.ts";

const MAIN = path.resolve(import.meta.dirname, "../../src/cli/main.ts");
let folder = "";

beforeEach(async () => {
  folder = mkdtempSync(path.join(tmpdir(), "luftpause-cli-"));
  const store = await openSqliteStore({ file: path.join(folder, "state", "runs.db") });
  const task = { id: "t1", runId: "r1", principal: "alice", createdAtMs: 1 };
  const records = [record("spawned"), record("turn-answered"), record("ended")];
  await store.append([{ ...spawn("r1", ended(5)), records, tasks: [task] }, spawn("r2")]);
  await store.close();
});
afterEach(() => rmSync(folder, { recursive: true }));

function journal(...args: readonly string[]) {
  const result = spawnSync(process.execPath, [MAIN, "journal", ...args], {
    cwd: folder,
    env: cleanEnvironment({}),
    encoding: "utf8",
    timeout: 15_000,
  });
  return { code: result.status, out: result.stdout, err: result.stderr };
}

describe("luftpause journal", () => {
  test("exports into a folder and imports into another journal", () => {
    const file = path.join("state", "runs.db");
    expect(journal("export", "copy")).toEqual({
      code: 0,
      out: `${file}: 2 runs, 4 records, 1 tasks written to copy\n`,
      err: "",
    });
    expect(journal("export", "copy").err).toContain("runs.jsonl is there already");
    const there = path.join("other", "runs.db");
    expect(journal("import", "copy", "--state-dir", "other")).toEqual({
      code: 0,
      out: `${there}: 2 runs, 4 records, 1 tasks imported\n`,
      err: "",
    });
    const again = journal("import", "copy", "--state-dir", "other");
    expect([again.code, again.out]).toEqual([0, expect.stringContaining("already there, left as they are: r1, r2")]);
    const outcome: unknown = JSON.parse(journal("verify", "--state-dir", "other", "--json").out);
    expect(outcome).toEqual({ runs: 2, records: 4, damage: [], structure: [] });
  });

  test("says which line was torn off and what that means for the run", () => {
    journal("export", "copy");
    const runs = path.join(folder, "copy", "runs.jsonl");
    truncateSync(runs, readFileSync(runs).length - 3);
    const { code, out } = journal("import", "copy", "--state-dir", "other");
    expect(code).toBe(0);
    expect(out).toContain(`${path.join("copy", "runs.jsonl")}:6: this last line was torn off and is lost`);
    expect(out).toContain("run r2 has 0 of its 1 records and is live again");
  });

  test("verify names a damaged record by run and sequence, and ends with a fault", () => {
    expect(journal("verify")).toMatchObject({ code: 0, out: expect.stringContaining("2 runs, 4 records: all sound") });
    const db = new DatabaseSync(path.join(folder, "state", "runs.db"));
    db.exec("UPDATE records SET body = replace(body, 'answered', 'denied') WHERE seq = 2");
    db.close();
    const { code, out } = journal("verify");
    expect(code).toBe(1);
    expect(out).toContain("record 2 of run r1: its checksum is wrong");
    expect(journal("export", "copy")).toMatchObject({ code: 1, out: expect.stringContaining("record 2 of run r1") });
  });

  test("compact says what it gave back", () => {
    expect(journal("compact")).toMatchObject({ code: 0, out: expect.stringMatching(/MiB before, .* MiB after/) });
    expect(journal("verify")).toMatchObject({ code: 0 });
  });

  test("a journal that somebody has, one that is not there, and a slip say how to go on", async () => {
    const store = await openSqliteStore({ file: path.join(folder, "state", "runs.db") });
    expect(journal("verify")).toMatchObject({ code: 1, err: expect.stringContaining("in use by another luftpause") });
    await store.close();
    expect(journal("verify", "--state-dir", "nowhere")).toMatchObject({
      code: 1,
      err: expect.stringContaining("--state-dir"),
    });
    expect(existsSync(path.join(folder, "nowhere"))).toBe(false);
    expect(journal("exprot", "x")).toMatchObject({ code: 2, err: expect.stringContaining("not one of verify") });
    expect(journal("export")).toMatchObject({ code: 2, err: expect.stringContaining("needs a folder") });
    expect(journal("verify", "x")).toMatchObject({ code: 2, err: expect.stringContaining("takes no folder") });
  });
});
