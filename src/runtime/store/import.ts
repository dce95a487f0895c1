/**
 * Reads JSON lines (docs/journal.md) into a journal.
 *
 * P1: a run is taken whole or not at all; one that the journal has already is left as it is, so that an import can be
 *     repeated.
 * P2: a last line that was torn off loses that line only, and the report says so.
 * P3: a run with fewer records than its row says is live again, whatever its row says: what its end was is not known.
 * P4: any other line that cannot be read ends the import, with its file and number; what came before it stays.
 */
import { createReadStream } from "node:fs";
import { access } from "node:fs/promises";
import path from "node:path";
import { parseLine, RUNS_FILE, TASKS_FILE, type Line, type RunLine } from "./export-form.ts";
import {
  StoreError,
  type ApprovalRow,
  type JournalRecord,
  type RunChange,
  type RunRow,
  type RunStore,
} from "./port.ts";

export type ImportReport = {
  readonly runs: number;
  readonly records: number;
  readonly tasks: number;
  /** Runs that the journal had. */
  readonly alreadyThere: readonly string[];
  /** Runs that came with fewer records than they had. */
  readonly shortened: readonly { readonly runId: string; readonly records: number; readonly expected: number }[];
  /** Tasks whose run is not there. */
  readonly orphans: readonly string[];
  /** Lines that were torn off, by file. */
  readonly torn: readonly { readonly file: string; readonly line: number }[];
};

/** Commits under way at once. */
const RUNS_AT_ONCE = 64;

type Report = {
  -readonly [Name in keyof ImportReport]: ImportReport[Name] extends readonly (infer Item)[] ? Item[] : number;
};

/**
 * @param folder has `runs.jsonl`, and `tasks.jsonl` where there are tasks.
 * @throws StoreError (bad-line) for P4; what the journal answers when it takes nothing.
 */
export async function importJournal(store: RunStore, folder: string): Promise<ImportReport> {
  const report: Report = { runs: 0, records: 0, tasks: 0, alreadyThere: [], shortened: [], orphans: [], torn: [] };
  await importRuns(store, path.join(folder, RUNS_FILE), report);
  const tasks = path.join(folder, TASKS_FILE);
  const there = await access(tasks).then(
    () => true,
    () => false,
  );
  if (there) await importTasks(store, tasks, report);
  return report;
}

type Incoming = { readonly head: RunLine; readonly records: JournalRecord[]; readonly approvals: ApprovalRow[] };

async function importRuns(store: RunStore, file: string, report: Report): Promise<void> {
  let run: Incoming | undefined;
  let underWay: Promise<void>[] = [];
  const hand = async (incoming: Incoming): Promise<void> => {
    underWay.push(storeRun(store, incoming, report));
    if (underWay.length < RUNS_AT_ONCE) return;
    await Promise.all(underWay);
    underWay = [];
  };
  const seen = new Set<string>();
  try {
    for await (const { line, number } of linesOf(file, report)) {
      const bad = (what: string): never => {
        throw new StoreError("bad-line", `${file}:${number}: ${what}; what came before is imported`);
      };
      if (line.type === "run-row") {
        if (run !== undefined) await hand(run);
        if (seen.has(line.run)) bad(`run ${line.run} has its row twice`);
        seen.add(line.run);
        run = { head: line, records: [], approvals: [] };
        continue;
      }
      if (run?.head.run !== line.run) return bad(`it belongs to run ${line.run}, whose row is not right before it`);
      if (line.type === "approval-row") {
        run.approvals.push(line.approval);
      } else if (line.type === "record") {
        const expected = run.records.length + 1;
        if (line.seq !== expected) bad(`run ${line.run} goes on with record ${line.seq} instead of ${expected}`);
        run.records.push(line.record);
      } else {
        bad(`a task belongs into ${TASKS_FILE}`);
      }
    }
    if (run !== undefined) await hand(run);
  } finally {
    await Promise.all(underWay);
  }
}

async function storeRun(store: RunStore, { head, records, approvals }: Incoming, report: Report): Promise<void> {
  const { run: runId, epoch, records: expected } = head;
  if ((await store.entry(runId)) !== undefined) {
    report.alreadyThere.push(runId);
    return;
  }
  const complete = records.length === expected;
  // P3
  const row = complete ? head.row : liveAgain(head.row);
  const counters = Object.entries(head.counters).map(([name, add]) => ({ runId, name, add }));
  await must(store, { runId, expectedSeq: 0, epoch, records, row, approvals, counters });
  report.runs += 1;
  report.records += records.length;
  if (!complete) report.shortened.push({ runId, records: records.length, expected });
}

function liveAgain(row: RunRow): RunRow {
  const { endedAtMs: _ended, reason: _reason, ...rest } = row;
  return { ...rest, state: "Running" };
}

async function importTasks(store: RunStore, file: string, report: Report): Promise<void> {
  for await (const { line, number } of linesOf(file, report)) {
    if (line.type !== "task-row") {
      throw new StoreError("bad-line", `${file}:${number}: it is not a task; what came before is imported`);
    }
    const { task } = line;
    if ((await store.task(task.id)) !== undefined) continue;
    const entry = await store.entry(task.runId);
    if (entry === undefined) {
      report.orphans.push(task.id);
      continue;
    }
    const { lastSeq, epoch } = entry;
    await must(store, { runId: task.runId, expectedSeq: lastSeq, epoch, records: [], tasks: [task] });
    report.tasks += 1;
  }
}

async function must(store: RunStore, change: RunChange): Promise<void> {
  const outcome = await store.append([change], { whenFull: "refuse" });
  if (outcome.kind !== "durable") throw new StoreError("failed", outcome.message);
}

/** The lines of a file, parsed; P2 and P4. */
async function* linesOf(file: string, report: Report): AsyncIterable<{ readonly line: Line; readonly number: number }> {
  let number = 0;
  for await (const { text, last } of textsOf(file)) {
    number += 1;
    if (text.trim() === "") continue;
    const line = parseLine(text);
    if (typeof line !== "string") {
      yield { line, number };
    } else if (last) {
      report.torn.push({ file, line: number });
    } else {
      throw new StoreError("bad-line", `${file}:${number}: ${line}; what came before is imported`);
    }
  }
}

/** Texts between line feeds; `last` is the one that no line feed ends, which is how a torn line looks. */
async function* textsOf(file: string): AsyncIterable<{ readonly text: string; readonly last: boolean }> {
  const parts: string[] = [];
  try {
    for await (const chunk of createReadStream(file, { encoding: "utf8", highWaterMark: 256 * 1024 })) {
      const texts = String(chunk).split("\n");
      const tail = texts.pop() ?? "";
      for (const text of texts) {
        yield { text: [...parts.splice(0), text].join(""), last: false };
      }
      parts.push(tail);
    }
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code;
    if (code === undefined) throw error;
    throw new StoreError("cannot-open", `${file} cannot be read (${code})`, { cause: error });
  }
  const text = parts.join("");
  if (text !== "") yield { text, last: true };
}
