/**
 * The journal in memory: for tests, and the plainest reading of the port. It keeps texts, not objects, so that a caller
 * who changes a record after it was stored changes nothing here.
 *
 * What it does not do: survive its process, or run full.
 */
import { invariant } from "../../base/invariant.ts";
import { cursorOf, placeOf } from "./cursor.ts";
import {
  StoreError,
  type AppendOutcome,
  type ApprovalRow,
  type JournalRecord,
  type Page,
  type RunChange,
  type RunEntry,
  type RunFilter,
  type RunRow,
  type RunStore,
  type StoreHealth,
  type StoredRun,
  type StoreStats,
  type TaskRow,
} from "./port.ts";

type Run = {
  readonly place: number;
  readonly row: string;
  readonly epoch: number;
  readonly records: readonly string[];
  readonly counters: ReadonlyMap<string, number>;
};

type Approval = { readonly place: number; readonly text: string };

/** Runs looked at in one call of `deleteEnded`. */
const DELETE_RUNS_MAX = 20;

export function createMemoryStore(): RunStore {
  return new MemoryStore();
}

class MemoryStore implements RunStore {
  readonly #runs = new Map<string, Run>();
  readonly #tasks = new Map<string, string>();
  readonly #approvals = new Map<string, Approval>();
  readonly #meta = new Map<string, string>();
  #place = 0;
  #commits = 0;
  #records = 0;
  #closed = false;

  append(changes: readonly RunChange[]): Promise<AppendOutcome> {
    if (this.#closed) {
      return Promise.resolve({ kind: "unavailable", why: "closed", message: "the journal is closed" });
    }
    const staged = new Map<string, Run>();
    for (const change of changes) {
      const conflict = this.#stage(staged, change);
      if (conflict !== undefined) return Promise.resolve(conflict);
    }
    // S2: nothing was touched up to here.
    for (const [id, run] of staged) this.#runs.set(id, run);
    for (const change of changes) this.#applyRest(change);
    this.#commits += 1;
    return Promise.resolve({ kind: "durable" });
  }

  #stage(staged: Map<string, Run>, change: RunChange): AppendOutcome | undefined {
    const { runId, row, epoch = 0 } = change;
    invariant(row === undefined || row.id === runId, "a change carries the row of its own run");
    const run = staged.get(runId) ?? this.#runs.get(runId);
    const found = run?.records.length ?? 0;
    if (found !== change.expectedSeq) {
      const message = `run ${runId}: its last record is ${found}, not ${change.expectedSeq}`;
      return { kind: "conflict", on: "sequence", runId, found, message };
    }
    if (run !== undefined && epoch < run.epoch) {
      const message = `run ${runId}: epoch ${epoch} is over, ${run.epoch} counts`;
      return { kind: "conflict", on: "epoch", runId, found: run.epoch, message };
    }
    const text = row === undefined ? run?.row : JSON.stringify(row);
    if (text === undefined) {
      return {
        kind: "conflict",
        on: "row-missing",
        runId,
        message: `run ${runId}: unknown, and it came without a row`,
      };
    }
    const holder =
      row?.idempotencyKey === undefined ? undefined : this.#holder(staged, row.principal, row.idempotencyKey);
    if (holder !== undefined && holder !== runId) {
      const message = `run ${runId}: its idempotency key is taken by run ${holder}`;
      return { kind: "conflict", on: "idempotency-key", runId, found: holder, message };
    }
    staged.set(runId, {
      place: run?.place ?? (this.#place += 1),
      row: text,
      epoch,
      records: [...(run?.records ?? []), ...change.records.map((record) => JSON.stringify(record))],
      counters: run?.counters ?? new Map(),
    });
    return undefined;
  }

  #holder(staged: ReadonlyMap<string, Run>, principal: string, key: string): string | undefined {
    for (const [id, run] of [...staged, ...this.#runs]) {
      const row = JSON.parse(run.row) as RunRow;
      if (row.principal === principal && row.idempotencyKey === key) return id;
    }
    return undefined;
  }

  #applyRest(change: RunChange): void {
    this.#records += change.records.length;
    for (const task of change.tasks ?? []) this.#tasks.set(task.id, JSON.stringify(task));
    for (const approval of change.approvals ?? []) {
      const place = this.#approvals.get(approval.id)?.place ?? (this.#place += 1);
      this.#approvals.set(approval.id, { place, text: JSON.stringify(approval) });
    }
    for (const { runId, name, add } of change.counters ?? []) {
      const run = this.#runs.get(runId);
      if (run === undefined) continue;
      const counters = new Map(run.counters).set(name, (run.counters.get(name) ?? 0) + add);
      this.#runs.set(runId, { ...run, counters });
    }
  }

  async *loadLive(): AsyncIterable<StoredRun> {
    for (const run of this.#ordered()) if (entryOf(run).row.endedAtMs === undefined) yield storedOf(run);
  }

  async *loadAll(): AsyncIterable<StoredRun> {
    for (const run of this.#ordered()) yield storedOf(run);
  }

  async load(runId: string): Promise<StoredRun | undefined> {
    const run = this.#open().get(runId);
    return run === undefined ? undefined : storedOf(run);
  }

  async entry(runId: string): Promise<RunEntry | undefined> {
    const run = this.#open().get(runId);
    return run === undefined ? undefined : entryOf(run);
  }

  async list(filter: RunFilter): Promise<Page<RunEntry>> {
    const before = placeOf(filter.cursor) ?? Number.POSITIVE_INFINITY;
    const found = this.#ordered()
      .filter((run) => run.place < before && matches(entryOf(run).row, filter))
      .reverse();
    const page = found.slice(0, filter.limit);
    const last = page.at(-1);
    return {
      items: page.map(entryOf),
      ...(found.length > page.length && last !== undefined ? { cursor: cursorOf(last.place) } : {}),
    };
  }

  async children(runId: string): Promise<readonly RunEntry[]> {
    return this.#ordered()
      .map(entryOf)
      .filter(({ row }) => row.parent === runId);
  }

  async findByIdempotencyKey(principal: string, key: string): Promise<RunEntry | undefined> {
    const holder = this.#holder(this.#open(), principal, key);
    const run = holder === undefined ? undefined : this.#runs.get(holder);
    return run === undefined ? undefined : entryOf(run);
  }

  async counters(runIds: readonly string[]): Promise<ReadonlyMap<string, ReadonlyMap<string, number>>> {
    const runs = this.#open();
    const sums = runIds.map((id) => [id, runs.get(id)?.counters ?? new Map<string, number>()] as const);
    return new Map(sums.filter(([, counters]) => counters.size > 0));
  }

  async task(taskId: string): Promise<TaskRow | undefined> {
    this.#open();
    const text = this.#tasks.get(taskId);
    return text === undefined ? undefined : (JSON.parse(text) as TaskRow);
  }

  async tasksOf(runId: string): Promise<readonly TaskRow[]> {
    this.#open();
    return [...this.#tasks.values()].map((text) => JSON.parse(text) as TaskRow).filter((task) => task.runId === runId);
  }

  async approval(approvalId: string): Promise<ApprovalRow | undefined> {
    this.#open();
    const found = this.#approvals.get(approvalId);
    return found === undefined ? undefined : (JSON.parse(found.text) as ApprovalRow);
  }

  async approvalsOf(runId: string): Promise<readonly ApprovalRow[]> {
    this.#open();
    return this.#placedApprovals()
      .map(({ row }) => row)
      .filter((row) => row.runId === runId);
  }

  async openApprovals(filter: Parameters<RunStore["openApprovals"]>[0]): Promise<Page<ApprovalRow>> {
    this.#open();
    const after = placeOf(filter.cursor) ?? 0;
    const found = this.#placedApprovals().filter(
      ({ place, row }) =>
        place > after &&
        row.state === "open" &&
        (filter.principal ?? row.principal) === row.principal &&
        (filter.root ?? row.root) === row.root,
    );
    const page = found.slice(0, filter.limit);
    const last = page.at(-1);
    return {
      items: page.map(({ row }) => row),
      ...(found.length > page.length && last !== undefined ? { cursor: cursorOf(last.place) } : {}),
    };
  }

  #placedApprovals(): readonly { readonly place: number; readonly row: ApprovalRow }[] {
    return [...this.#approvals.values()].map(({ place, text }) => ({ place, row: JSON.parse(text) as ApprovalRow }));
  }

  async meta(key: string): Promise<string | undefined> {
    this.#open();
    return this.#meta.get(key);
  }

  async metaOnce(key: string, value: string): Promise<string> {
    this.#open();
    if (!this.#meta.has(key)) this.#meta.set(key, value);
    return this.#meta.get(key) ?? value;
  }

  async deleteEnded(limits: { readonly endedBeforeMs: number }): Promise<{ runs: number; more: boolean }> {
    const parents = new Set(this.#ordered().map((run) => entryOf(run).row.parent));
    const doomed = this.#ordered().filter((run) => {
      const { row } = entryOf(run);
      return row.endedAtMs !== undefined && row.endedAtMs < limits.endedBeforeMs && !parents.has(row.id);
    });
    const chunk = new Set(doomed.slice(0, DELETE_RUNS_MAX).map((run) => entryOf(run).row.id));
    for (const id of chunk) this.#runs.delete(id);
    for (const [id, text] of this.#tasks) if (chunk.has((JSON.parse(text) as TaskRow).runId)) this.#tasks.delete(id);
    for (const { row } of this.#placedApprovals()) if (chunk.has(row.runId)) this.#approvals.delete(row.id);
    return { runs: chunk.size, more: chunk.size > 0 };
  }

  health(): StoreHealth {
    return this.#closed ? { state: "failed", message: "the journal is closed" } : { state: "ok" };
  }

  onHealth(): () => void {
    return () => {};
  }

  stats(): StoreStats {
    return { commits: this.#commits, records: this.#records, queuedCommits: 0, queuedBytes: 0 };
  }

  close(): Promise<void> {
    this.#closed = true;
    return Promise.resolve();
  }

  #open(): ReadonlyMap<string, Run> {
    if (this.#closed) throw new StoreError("closed", "the journal is closed");
    return this.#runs;
  }

  #ordered(): readonly Run[] {
    return [...this.#open().values()].sort((a, b) => a.place - b.place);
  }
}

function entryOf(run: Run): RunEntry {
  return { row: JSON.parse(run.row) as RunRow, lastSeq: run.records.length, epoch: run.epoch };
}

function storedOf(run: Run): StoredRun {
  return { ...entryOf(run), records: run.records.map((text) => JSON.parse(text) as JournalRecord) };
}

function matches(row: RunRow, filter: RunFilter): boolean {
  return (
    (filter.principal ?? row.principal) === row.principal &&
    (filter.session === undefined || filter.session === row.session) &&
    (filter.root ?? row.root) === row.root &&
    (filter.parent === undefined || filter.parent === row.parent) &&
    (filter.live !== true || row.endedAtMs === undefined)
  );
}
