/**
 * The journal in a SQLite file: this side of its threads. Objects become texts here, once, so that the thread that writes
 * never looks into them and a caller may change them afterwards.
 *
 * J1: what is handed in during one turn of the event loop goes over in one message.
 * J2: commits that wait are bounded in number and bytes; beyond it a commit is refused with words.
 * J3: when a thread dies, everything that hung on it is answered.
 */
import { closeSync, existsSync, mkdirSync, openSync } from "node:fs";
import path from "node:path";
import { receiveMessageOnPort, type MessagePort, type Worker } from "node:worker_threads";
import { invariant } from "../../base/invariant.ts";
import { cursorOf, placeOf } from "./cursor.ts";
import {
  StoreError,
  type AppendOptions,
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
import type {
  Answer,
  ReaderCalls,
  WireChange,
  WireCommit,
  WireRow,
  WireRun,
  WriterReport,
  WriterRequest,
} from "./sqlite-messages.ts";
import { startThread } from "./sqlite-worker.ts";

export type SqliteStoreOptions = {
  /** Made where it is not there, with its folder. */
  readonly file: string;
  readonly queuedCommitsMax?: number;
  readonly queuedBytesMax?: number;
};

/** A journal of SQLite can also look at itself. */
export type SqliteStore = RunStore & {
  /** Set when the log that a crash left behind was damaged: what is lost, and where its copy is. To be told to a person. */
  readonly logDamage: string | undefined;
  /** What SQLite finds wrong with the file itself; empty where nothing is. Reads the whole file. */
  integrity(): Promise<readonly string[]>;
  /** Rewrites the file without its unused pages: it needs as much room again for a while, and commits wait. */
  compact(): Promise<void>;
};

/** Live runs pause long before: each has one commit under way. */
const QUEUED_COMMITS_MAX = 50_000;
const QUEUED_BYTES_MAX = 128 * 1024 * 1024;
/** Of the texts that are on the way to this thread at once while runs are loaded. */
const SCAN_BYTES = 512 * 1024;
const OUTCOME_DURABLE: AppendOutcome = { kind: "durable" };

/**
 * Opens the journal.
 * @throws StoreError when it is in use, damaged, of a newer version or not ours: it says how to mend it.
 */
export async function openSqliteStore(options: SqliteStoreOptions): Promise<SqliteStore> {
  const file = path.resolve(options.file);
  try {
    mkdirSync(path.dirname(file), { recursive: true, mode: 0o700 });
    // Tasks and arguments are in it: nobody else may read it. SQLite gives its other files the same rights.
    if (!existsSync(file)) closeSync(openSync(file, "wx", 0o600));
  } catch (error) {
    throw new StoreError("cannot-open", `${file} cannot be made: ${(error as Error).message}`, { cause: error });
  }
  const written = new Int32Array(new SharedArrayBuffer(4));
  const writer = startThread({ role: "writer", file, written });
  const reader = startThread({ role: "reader", file, written });
  let logDamage: string | undefined;
  try {
    logDamage = await ready(writer, file);
    reader.port.postMessage("open");
    await ready(reader, file);
  } catch (error) {
    writer.port.postMessage({ op: "close" } satisfies WriterRequest);
    await Promise.all([ended(writer.worker), reader.worker.terminate()]);
    throw error;
  }
  return new Journal({ ...options, file }, writer, reader, logDamage);
}

type Thread = { readonly worker: Worker; readonly port: MessagePort };

/** @returns the damage of the log, where there is one. */
function ready({ worker, port }: Thread, file: string): Promise<string | undefined> {
  return new Promise((resolve, reject) => {
    // The thread's end without a word is awaited too, so there is no bound in time: the disk decides how long it takes.
    const broken = (reason: unknown): void => {
      const last = take(port);
      if (last?.kind === "cannot-open") reject(new StoreError(last.code, last.message));
      else reject(new StoreError("cannot-open", `${file}: the journal's thread ended: ${String(reason)}`));
    };
    worker.once("error", broken);
    worker.once("exit", broken);
    port.once("message", (report: WriterReport) => {
      worker.off("error", broken);
      worker.off("exit", broken);
      if (report.kind === "cannot-open") reject(new StoreError(report.code, report.message));
      else resolve(report.kind === "ready" ? report.logDamage : undefined);
    });
  });
}

function take(port: MessagePort): WriterReport | undefined {
  const next: { readonly message: WriterReport } | undefined = receiveMessageOnPort(port);
  return next?.message;
}

function ended(worker: Worker): Promise<void> {
  return new Promise((resolve) => {
    if (worker.threadId === -1) resolve();
    worker.once("exit", () => {
      resolve();
    });
  });
}

type Waiting = { readonly bytes: number; readonly records: number; readonly resolve: (outcome: AppendOutcome) => void };
type Asking = { readonly resolve: (value: never) => void; readonly reject: (error: Error) => void };

class Journal implements SqliteStore {
  readonly logDamage: string | undefined;
  readonly #options: SqliteStoreOptions;
  readonly #writer: Thread;
  readonly #reader: Thread;
  readonly #commits = new Map<number, Waiting>();
  readonly #asked = new Map<number, Asking>();
  readonly #listeners = new Set<(health: StoreHealth) => void>();
  #outbox: WireCommit[] = [];
  #nextId = 1;
  #queuedBytes = 0;
  #committed = 0;
  #recorded = 0;
  #health: StoreHealth = { state: "ok" };
  #closing: Promise<void> | undefined;

  constructor(options: SqliteStoreOptions, writer: Thread, reader: Thread, logDamage: string | undefined) {
    this.logDamage = logDamage;
    this.#options = options;
    this.#writer = writer;
    this.#reader = reader;
    writer.port.on("message", (report: WriterReport) => {
      this.#report(report);
    });
    reader.port.on("message", (answer: Answer) => {
      this.#answer(answer);
    });
    for (const { worker, port } of [writer, reader]) {
      let reason = "its thread ended";
      worker.on("error", (error) => {
        reason = error.message;
      });
      worker.on("exit", () => {
        // What the thread said last may still be in the port.
        for (let last = take(port); last !== undefined; last = take(port)) this.#report(last);
        // At a close the reader ends first, and the writer still has commits to answer.
        if (worker === reader.worker && this.#closing !== undefined) return;
        this.#broken(reason);
      });
    }
  }

  append(changes: readonly RunChange[], options: AppendOptions = {}): Promise<AppendOutcome> {
    const refusal = this.#refusal();
    if (refusal !== undefined) return Promise.resolve(refusal);
    const wire = changes.map(wireChange);
    const bytes = wire.reduce((sum, change) => sum + bytesOf(change), 0);
    const { queuedCommitsMax = QUEUED_COMMITS_MAX, queuedBytesMax = QUEUED_BYTES_MAX } = this.#options;
    // J2. A commit that is larger than the bound alone may go when nothing else does.
    if (
      this.#commits.size >= queuedCommitsMax ||
      (this.#queuedBytes > 0 && this.#queuedBytes + bytes > queuedBytesMax)
    ) {
      const queued = `${this.#commits.size} commits, ${Math.ceil(this.#queuedBytes / 1024)} KiB`;
      const state = this.#health.state === "paused" ? this.#health.message : "the disk is slower than what it is given";
      const message = `the journal's queue is full (${queued}): ${state}; try again later`;
      return Promise.resolve({ kind: "unavailable", why: "queue-full", message });
    }
    const id = this.#nextId++;
    const records = wire.reduce((sum, change) => sum + change.records.length, 0);
    this.#queuedBytes += bytes;
    // J1
    if (this.#outbox.length === 0) process.nextTick(() => this.#send());
    this.#outbox.push({ id, whenFull: options.whenFull ?? "wait", bytes, changes: wire });
    return new Promise((resolve) => {
      this.#commits.set(id, { bytes, records, resolve });
    });
  }

  #refusal(): AppendOutcome | undefined {
    if (this.#closing !== undefined) return { kind: "unavailable", why: "closed", message: "the journal is closed" };
    if (this.#health.state === "failed") return { kind: "unavailable", why: "damaged", message: this.#health.message };
    return undefined;
  }

  #send(): void {
    if (this.#outbox.length === 0) return;
    const commits = this.#outbox;
    this.#outbox = [];
    this.#tell({ op: "append", commits });
  }

  #tell(request: WriterRequest): void {
    this.#writer.port.postMessage(request);
  }

  #report(report: WriterReport): void {
    switch (report.kind) {
      case "outcomes":
        for (const [index, id] of report.ids.entries()) this.#settle(id, report.outcomes[index] ?? OUTCOME_DURABLE);
        break;
      case "health":
        this.#setHealth(report.health);
        break;
      case "answer":
      case "refused":
        this.#answer(report);
        break;
      case "ready":
      case "cannot-open":
        break;
    }
  }

  #settle(id: number, outcome: AppendOutcome): void {
    const waiting = this.#commits.get(id);
    if (waiting === undefined) return;
    this.#commits.delete(id);
    this.#queuedBytes -= waiting.bytes;
    if (outcome.kind === "durable") {
      this.#committed += 1;
      this.#recorded += waiting.records;
    }
    waiting.resolve(outcome);
  }

  #answer(answer: Answer): void {
    const asking = this.#asked.get(answer.id);
    this.#asked.delete(answer.id);
    if (answer.kind === "answer") asking?.resolve(answer.value as never);
    else asking?.reject(new StoreError(answer.code, answer.message));
  }

  /** J3 */
  #broken(reason: string): void {
    const message = `the journal ${this.#options.file} stopped: ${reason}; start luftpause again`;
    if (this.#closing === undefined) this.#setHealth({ state: "failed", message });
    for (const id of this.#commits.keys()) this.#settle(id, { kind: "unavailable", why: "lost", message });
    for (const { reject } of this.#asked.values()) reject(new StoreError("failed", message));
    this.#asked.clear();
  }

  #setHealth(health: StoreHealth): void {
    if (this.#health.state === "failed") return;
    this.#health = health;
    for (const listener of this.#listeners) listener(health);
  }

  #read<Name extends keyof ReaderCalls>(
    op: Name,
    ...args: Parameters<ReaderCalls[Name]>
  ): Promise<ReturnType<ReaderCalls[Name]>> {
    return this.#ask((id) => {
      this.#reader.port.postMessage({ id, op, args });
    });
  }

  #ask<Value>(send: (id: number) => void): Promise<Value> {
    if (this.#closing !== undefined) return Promise.reject(new StoreError("closed", "the journal is closed"));
    if (this.#health.state === "failed") return Promise.reject(new StoreError("failed", this.#health.message));
    const id = this.#nextId++;
    return new Promise<Value>((resolve, reject) => {
      this.#asked.set(id, { resolve, reject });
      send(id);
    });
  }

  loadLive(): AsyncIterable<StoredRun> {
    return this.#scan(true);
  }

  loadAll(): AsyncIterable<StoredRun> {
    return this.#scan(false);
  }

  async *#scan(live: boolean): AsyncIterable<StoredRun> {
    type Batch = ReturnType<ReaderCalls["scan"]>;
    let next: Promise<Batch> | undefined = this.#read("scan", live, 0, SCAN_BYTES);
    while (next !== undefined) {
      const { runs, more }: Batch = await next;
      const last = runs.at(-1);
      // The next batch is read while this one is worked on.
      next = more && last !== undefined ? this.#read("scan", live, last.n, SCAN_BYTES) : undefined;
      // Whoever stops early leaves this one unawaited; whoever goes on still sees its fault.
      next?.catch(() => {});
      for (const run of runs) yield storedOf(run);
    }
  }

  async load(runId: string): Promise<StoredRun | undefined> {
    const run = await this.#read("run", runId, true);
    return run === undefined ? undefined : storedOf(run);
  }

  async entry(runId: string): Promise<RunEntry | undefined> {
    const run = await this.#read("run", runId, false);
    return run === undefined ? undefined : entryOf(run);
  }

  async list(filter: RunFilter): Promise<Page<RunEntry>> {
    const { principal, session, root, parent, live = false, limit, cursor } = filter;
    const { runs, more } = await this.#read("list", {
      principal,
      session,
      root,
      parent,
      live,
      before: placeOf(cursor),
      limit,
    });
    const last = runs.at(-1);
    return { items: runs.map(entryOf), ...(more && last !== undefined ? { cursor: cursorOf(last.n) } : {}) };
  }

  async children(runId: string): Promise<readonly RunEntry[]> {
    return (await this.#read("children", runId)).map(entryOf);
  }

  async findByIdempotencyKey(principal: string, key: string): Promise<RunEntry | undefined> {
    const run = await this.#read("byKey", principal, key);
    return run === undefined ? undefined : entryOf(run);
  }

  async counters(runIds: readonly string[]): Promise<ReadonlyMap<string, ReadonlyMap<string, number>>> {
    const sums = new Map<string, Map<string, number>>();
    for (const [id, name, value] of await this.#read("counters", runIds)) {
      sums.set(id, (sums.get(id) ?? new Map<string, number>()).set(name, value));
    }
    return sums;
  }

  async task(taskId: string): Promise<TaskRow | undefined> {
    const body = await this.#read("task", taskId);
    return body === undefined ? undefined : (JSON.parse(body) as TaskRow);
  }

  async tasksOf(runId: string): Promise<readonly TaskRow[]> {
    return (await this.#read("tasksOf", runId)).map((body) => JSON.parse(body) as TaskRow);
  }

  async approval(approvalId: string): Promise<ApprovalRow | undefined> {
    const body = await this.#read("approval", approvalId);
    return body === undefined ? undefined : (JSON.parse(body) as ApprovalRow);
  }

  async approvalsOf(runId: string): Promise<readonly ApprovalRow[]> {
    return (await this.#read("approvalsOf", runId)).map((body) => JSON.parse(body) as ApprovalRow);
  }

  async openApprovals(filter: Parameters<RunStore["openApprovals"]>[0]): Promise<Page<ApprovalRow>> {
    const { principal, root, limit, cursor } = filter;
    const after = placeOf(cursor) ?? 0;
    const { bodies, last, more } = await this.#read("openApprovals", { principal, root, after, limit });
    return {
      items: bodies.map((body) => JSON.parse(body) as ApprovalRow),
      ...(more ? { cursor: cursorOf(last) } : {}),
    };
  }

  meta(key: string): Promise<string | undefined> {
    return this.#read("meta", key);
  }

  async metaOnce(key: string, value: string): Promise<string> {
    invariant(key !== "", "a key has a name");
    // A key that is there is had from a full disk too.
    const found = await this.meta(key);
    if (found !== undefined) return found;
    return this.#ask<string>((id) => {
      this.#tell({ op: "meta-once", id, key, value });
    });
  }

  deleteEnded(limits: { readonly endedBeforeMs: number }): Promise<{ readonly runs: number; readonly more: boolean }> {
    return this.#ask((id) => {
      this.#tell({ op: "delete-ended", id, endedBeforeMs: limits.endedBeforeMs });
    });
  }

  integrity(): Promise<readonly string[]> {
    return this.#read("integrity");
  }

  compact(): Promise<void> {
    return this.#ask((id) => {
      this.#tell({ op: "compact", id });
    });
  }

  health(): StoreHealth {
    return this.#closing === undefined ? this.#health : { state: "failed", message: "the journal is closed" };
  }

  onHealth(listener: (health: StoreHealth) => void): () => void {
    this.#listeners.add(listener);
    return () => {
      this.#listeners.delete(listener);
    };
  }

  stats(): StoreStats {
    return {
      commits: this.#committed,
      records: this.#recorded,
      queuedCommits: this.#commits.size,
      queuedBytes: this.#queuedBytes,
    };
  }

  close(): Promise<void> {
    this.#closing ??= this.#shutDown();
    return this.#closing;
  }

  async #shutDown(): Promise<void> {
    this.#send();
    this.#reader.port.postMessage({ id: 0, op: "close", args: [] });
    await ended(this.#reader.worker);
    // The last connection that closes copies the log into the file.
    this.#tell({ op: "close" });
    await ended(this.#writer.worker);
  }
}

function wireChange(change: RunChange): WireChange {
  const { runId, expectedSeq, epoch = 0, records, row, tasks = [], approvals = [], counters = [] } = change;
  invariant(row === undefined || row.id === runId, "a change carries the row of its own run");
  return {
    runId,
    expectedSeq,
    epoch,
    records: records.map((record) => JSON.stringify(record)),
    row: row === undefined ? undefined : wireRow(row),
    tasks: tasks.map((task) => ({ id: task.id, runId: task.runId, body: JSON.stringify(task) })),
    approvals: approvals.map((approval) => {
      const { id, runId: run, root, principal, state } = approval;
      return { id, runId: run, root, principal, open: state === "open", body: JSON.stringify(approval) };
    }),
    counters: counters.map(({ runId: run, name, add }) => ({ runId: run, name, add })),
  };
}

function wireRow(row: RunRow): WireRow {
  const { parent = null, root, principal, session = null, idempotencyKey = null, endedAtMs = null } = row;
  return { parent, root, principal, session, idempotencyKey, endedAtMs, body: JSON.stringify(row) };
}

/** A row costs about this much beside its texts. */
const ROW_BYTES = 128;

function bytesOf(change: WireChange): number {
  let bytes = ROW_BYTES + (change.row?.body.length ?? 0);
  for (const text of change.records) bytes += ROW_BYTES + text.length;
  for (const { body } of change.tasks) bytes += ROW_BYTES + body.length;
  for (const { body } of change.approvals) bytes += ROW_BYTES + body.length;
  return bytes;
}

function entryOf(run: WireRun): RunEntry {
  const { id, body, lastSeq, epoch, damage } = run;
  const row = body === undefined ? rowOfColumns(run) : (JSON.parse(body) as RunRow);
  return {
    row,
    lastSeq,
    epoch,
    ...(damage === undefined ? {} : { damage: { runId: id, ...damage } }),
  };
}

function storedOf(run: WireRun): StoredRun {
  return { ...entryOf(run), records: run.records.map((text) => JSON.parse(text) as JournalRecord) };
}

/** What the columns say of a run whose row is damaged; its times are gone. */
function rowOfColumns({ id, columns }: WireRun): RunRow {
  const { parent, root, principal, session, idempotencyKey, endedAtMs } = columns;
  return {
    id,
    root,
    principal,
    caller: "",
    state: endedAtMs === null ? "Running" : "Failed",
    createdAtMs: 0,
    updatedAtMs: 0,
    ...(parent === null ? {} : { parent }),
    ...(session === null ? {} : { session }),
    ...(endedAtMs === null ? {} : { endedAtMs }),
    ...(idempotencyKey === null ? {} : { idempotencyKey }),
  };
}
