/**
 * The form in which a journal leaves and enters a store: JSON lines, documented in docs/journal.md. One record a line,
 * `{v, run, seq, at, type, …}`; the lines whose type ends in `-row` are what the store knows beside the records.
 */
import type { ApprovalRow, JournalRecord, RunRow, TaskRow } from "./port.ts";

export const RUNS_FILE = "runs.jsonl";
export const TASKS_FILE = "tasks.jsonl";
/** Of the `-row` lines; a record's `v` is its own. */
const FORM_VERSION = 1;

export type RunLine = {
  readonly type: "run-row";
  readonly run: string;
  /** How many records there should be. */
  readonly records: number;
  readonly epoch: number;
  readonly row: RunRow;
  readonly counters: { readonly [name: string]: number };
};

export type Line =
  | RunLine
  | { readonly type: "approval-row"; readonly run: string; readonly approval: ApprovalRow }
  | { readonly type: "task-row"; readonly run: string; readonly task: TaskRow }
  | { readonly type: "record"; readonly run: string; readonly seq: number; readonly record: JournalRecord };

/** One line, without its end. */
export function lineText(line: Line): string {
  const { run } = line;
  switch (line.type) {
    case "record": {
      const { v, ...rest } = line.record;
      return JSON.stringify({ v, run, seq: line.seq, ...rest });
    }
    case "run-row": {
      const { type, records, epoch, row, counters } = line;
      return JSON.stringify({ v: FORM_VERSION, run, seq: 0, at: row.updatedAtMs, type, records, epoch, row, counters });
    }
    case "approval-row": {
      const { type, approval } = line;
      return JSON.stringify({ v: FORM_VERSION, run, seq: 0, at: approval.askedAtMs, type, approval });
    }
    case "task-row": {
      const { type, task } = line;
      return JSON.stringify({ v: FORM_VERSION, run, seq: 0, at: task.createdAtMs, type, task });
    }
  }
}

type Fields = { readonly [name: string]: unknown };

/** Reads a line; a text when it is none of this form: what is wrong with it. */
export function parseLine(text: string): Line | string {
  let fields: Fields;
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value !== "object" || value === null || Array.isArray(value)) return "it is not a JSON object";
    fields = value as Fields;
  } catch {
    return "it is not JSON";
  }
  const { v, run, seq, at, type, ...rest } = fields;
  if (typeof v !== "number" || typeof at !== "number") return "it has no number under 'v' or 'at'";
  if (typeof run !== "string" || run === "") return "it has no name under 'run'";
  if (typeof type !== "string") return "it has no text under 'type'";
  if (typeof seq !== "number" || !Number.isSafeInteger(seq) || seq < 0) return "it has no whole number under 'seq'";
  if (!type.endsWith("-row")) {
    if (seq === 0) return `a record has a 'seq' of 1 or more, and '${type}' is one`;
    return { type: "record", run, seq, record: { v, at, type, ...rest } };
  }
  if (v !== FORM_VERSION) return `its form has version ${v}, this luftpause reads ${FORM_VERSION}`;
  return parseRow(type, run, rest);
}

function parseRow(type: string, run: string, fields: Fields): Line | string {
  const { row, approval, task, records, epoch = 0, counters = {} } = fields;
  switch (type) {
    case "run-row":
      if (typeof records !== "number" || typeof epoch !== "number" || !isObject(counters)) {
        return "it has no numbers under 'records' and 'epoch', or no object under 'counters'";
      }
      if (!isObject(row) || row.id !== run || !hasTexts(row, ["root", "principal", "caller", "state"])) {
        return "it has no row of this run under 'row' (id, root, principal, caller, state)";
      }
      return { type, run, records, epoch, row: row as RunRow, counters: counters as RunLine["counters"] };
    case "approval-row":
      return isObject(approval) && hasTexts(approval, ["id", "runId", "root", "principal", "state"])
        ? { type, run, approval: approval as ApprovalRow }
        : "it has no approval under 'approval' (id, runId, root, principal, state)";
    case "task-row":
      return isObject(task) && hasTexts(task, ["id", "runId", "principal"])
        ? { type, run, task: task as TaskRow }
        : "it has no task under 'task' (id, runId, principal)";
    default:
      return `'${type}' is no row of this form`;
  }
}

function isObject(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function hasTexts(fields: Fields, names: readonly string[]): boolean {
  return names.every((name) => typeof fields[name] === "string");
}
