/**
 * Writes a journal as JSON lines (docs/journal.md).
 *
 * X1: the files appear under their names when they are complete and with the disk, never before.
 * X2: what is damaged is left out and named; what came before it in its run is written.
 */
import { access, mkdir, open, rename, type FileHandle } from "node:fs/promises";
import path from "node:path";
import { lineText, RUNS_FILE, TASKS_FILE, type Line } from "./export-form.ts";
import { StoreError, type Damage, type RunStore, type StoredRun } from "./port.ts";

export type ExportReport = {
  readonly runs: number;
  readonly records: number;
  readonly tasks: number;
  readonly damage: readonly Damage[];
};

/** Runs whose tasks and approvals are asked for at once. */
const RUNS_AT_ONCE = 64;
const WRITE_CHARACTERS = 1024 * 1024;

/**
 * Writes `runs.jsonl` and `tasks.jsonl` into the folder, which is made where it is not there.
 * @throws StoreError when one of the files is there already; the system's error when the disk takes nothing.
 */
export async function exportJournal(store: RunStore, folder: string): Promise<ExportReport> {
  await mkdir(folder, { recursive: true });
  for (const name of [RUNS_FILE, TASKS_FILE]) await mustBeFree(path.join(folder, name));
  const runs = await LineFile.create(path.join(folder, RUNS_FILE));
  const tasks = await LineFile.create(path.join(folder, TASKS_FILE));
  const damage: Damage[] = [];
  const counts = { runs: 0, records: 0, tasks: 0 };
  try {
    for await (const batch of batches(store.loadAll(), RUNS_AT_ONCE)) {
      const counters = await store.counters(batch.map(({ row }) => row.id));
      const sides = await Promise.all(
        batch.map(async ({ row }) => ({
          approvals: await store.approvalsOf(row.id),
          tasks: await store.tasksOf(row.id),
        })),
      );
      for (const [index, run] of batch.entries()) {
        const { row, epoch, lastSeq, records } = run;
        const id = row.id;
        const sums = Object.fromEntries(counters.get(id) ?? []);
        if (run.damage !== undefined) damage.push(run.damage);
        await runs.write({ type: "run-row", run: id, records: lastSeq, epoch, row, counters: sums });
        for (const [place, record] of records.entries()) {
          await runs.write({ type: "record", run: id, seq: place + 1, record });
        }
        for (const approval of sides[index]?.approvals ?? []) {
          await runs.write({ type: "approval-row", run: id, approval });
        }
        for (const task of sides[index]?.tasks ?? []) await tasks.write({ type: "task-row", run: id, task });
        counts.runs += 1;
        counts.records += records.length;
        counts.tasks += sides[index]?.tasks.length ?? 0;
      }
    }
    // X1
    await runs.finish();
    await tasks.finish();
  } finally {
    await runs.close();
    await tasks.close();
  }
  return { ...counts, damage };
}

async function mustBeFree(file: string): Promise<void> {
  const there = await access(file).then(
    () => true,
    () => false,
  );
  if (there)
    throw new StoreError("cannot-open", `${file} is there already; move it away, or export into another folder`);
}

async function* batches(runs: AsyncIterable<StoredRun>, size: number): AsyncIterable<readonly StoredRun[]> {
  let batch: StoredRun[] = [];
  for await (const run of runs) {
    batch.push(run);
    if (batch.length < size) continue;
    yield batch;
    batch = [];
  }
  if (batch.length > 0) yield batch;
}

/** A file of lines that has another name until it is complete. */
class LineFile {
  readonly #file: string;
  readonly #handle: FileHandle;
  #text: string[] = [];
  #characters = 0;

  private constructor(file: string, handle: FileHandle) {
    this.#file = file;
    this.#handle = handle;
  }

  static async create(file: string): Promise<LineFile> {
    // Who may read the journal may read its copy, nobody else.
    return new LineFile(file, await open(`${file}.partial`, "w", 0o600));
  }

  async write(line: Line): Promise<void> {
    const text = `${lineText(line)}\n`;
    this.#text.push(text);
    this.#characters += text.length;
    if (this.#characters >= WRITE_CHARACTERS) await this.#flush();
  }

  async #flush(): Promise<void> {
    const text = this.#text.join("");
    this.#text = [];
    this.#characters = 0;
    await this.#handle.appendFile(text);
  }

  async finish(): Promise<void> {
    await this.#flush();
    await this.#handle.sync();
    await rename(`${this.#file}.partial`, this.#file);
  }

  async close(): Promise<void> {
    await this.#handle.close();
  }
}
