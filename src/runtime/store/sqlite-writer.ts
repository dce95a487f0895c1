/**
 * The thread that writes the SQLite journal: the only one that does.
 *
 * W1: what waits when a transaction begins goes into it, up to a bound: one sync of the disk for many commits.
 * W2: a commit is checked whole before the first of its rows is written, so a refused one leaves nothing in the group.
 * W3: while the disk takes nothing, commits that may wait stay in order and are tried again; those that may not are
 *     answered at once. A small write of our own says when the disk takes something again.
 * W4: deleting goes in chunks of a few dozen rows, and only when no commit waits.
 */
import type { DatabaseSync, StatementSync } from "node:sqlite";
import { receiveMessageOnPort, type MessagePort } from "node:worker_threads";
import type { AppendOutcome, StoreHealth } from "./port.ts";
import type { WireChange, WireCommit, WireRow, WriterReport, WriterRequest } from "./sqlite-messages.ts";
import { faultOf, recordChecksum, rowChecksum, type Fault } from "./sqlite-schema.ts";

const GROUP_COMMITS_MAX = 2_048;
const GROUP_BYTES_MAX = 8 * 1024 * 1024;
const RETRY_MS = 250;
const DELETE_RUNS_MAX = 20;
const DELETE_RECORDS_MAX = 50;
/** Larger than what the smallest commit needs: the journal goes on when there is room for more than one. */
const PROBE_BYTES = 256 * 1024;

type Chore = Exclude<WriterRequest, { readonly op: "append" } | { readonly op: "close" }>;

type KnownRun = { readonly n: number; readonly lastSeq: number; readonly epoch: number; readonly ended: number | null };

const STATEMENTS = {
  begin: "BEGIN IMMEDIATE",
  commit: "COMMIT",
  find: "SELECT n, last_seq AS lastSeq, epoch, ended FROM runs WHERE id = ?",
  holder: "SELECT id FROM runs WHERE principal = ? AND idempotency_key = ?",
  insertRun:
    "INSERT INTO runs (id, parent, root, principal, session, idempotency_key, ended, last_seq, epoch, crc, body) " +
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
  advance: "UPDATE runs SET last_seq = ?, epoch = ? WHERE n = ?",
  updateRow: "UPDATE runs SET last_seq = ?, epoch = ?, crc = ?, body = ? WHERE n = ?",
  // Apart from the one above, since naming the column costs work on two indexes.
  updateEnd: "UPDATE runs SET last_seq = ?, epoch = ?, crc = ?, body = ?, ended = ? WHERE n = ?",
  insertRecord: "INSERT INTO records (run, seq, crc, body) VALUES (?, ?, ?, ?)",
  count:
    "INSERT INTO counters (run, name, value) SELECT n, ?, ? FROM runs WHERE id = ? " +
    "ON CONFLICT (run, name) DO UPDATE SET value = value + excluded.value",
  putTask:
    "INSERT INTO tasks (id, run, crc, body) VALUES (?, ?, ?, ?) " +
    "ON CONFLICT (id) DO UPDATE SET run = excluded.run, crc = excluded.crc, body = excluded.body",
  putApproval:
    "INSERT INTO approvals (id, run, root, principal, open, crc, body) VALUES (?, ?, ?, ?, ?, ?, ?) " +
    "ON CONFLICT (id) DO UPDATE SET open = excluded.open, crc = excluded.crc, body = excluded.body",
  putMeta: "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO NOTHING",
  getMeta: "SELECT value FROM meta WHERE key = ?",
  probe: "INSERT INTO meta (key, value) VALUES ('', ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
  probed: "DELETE FROM meta WHERE key = ''",
  endedBefore:
    "SELECT n, id FROM runs WHERE ended < ? AND NOT EXISTS (SELECT 1 FROM runs AS child WHERE child.parent = runs.id) " +
    "LIMIT ?",
  deleteRun: "DELETE FROM runs WHERE n = ?",
  deleteCounters: "DELETE FROM counters WHERE run = ?",
  deleteTasks: "DELETE FROM tasks WHERE run = ?",
  deleteApprovals: "DELETE FROM approvals WHERE run = ?",
  doom: "INSERT INTO doomed (run) VALUES (?)",
  doomed: "SELECT run FROM doomed LIMIT 1",
  undoom: "DELETE FROM doomed WHERE run = ?",
  deleteRecords:
    "DELETE FROM records WHERE rowid IN (SELECT rowid FROM records WHERE run = ? ORDER BY seq DESC LIMIT ?)",
} as const;

export type WriterOptions = {
  readonly db: DatabaseSync;
  readonly file: string;
  readonly port: MessagePort;
  /** Kilobytes written since the start, for the thread that makes checkpoints. */
  readonly written: Int32Array;
  /** Lets go of what only this process may have. */
  readonly release: () => void;
};

export class Writer {
  readonly #options: WriterOptions;
  readonly #sql: { readonly [Name in keyof typeof STATEMENTS]: StatementSync };
  #waiting: WireCommit[] = [];
  #chores: Chore[] = [];
  #health: StoreHealth = { state: "ok" };
  #retry: NodeJS.Timeout | undefined;
  #closing = false;

  constructor(options: WriterOptions) {
    this.#options = options;
    const prepared = Object.entries(STATEMENTS).map(([name, text]) => [name, options.db.prepare(text)]);
    this.#sql = Object.fromEntries(prepared) as { [Name in keyof typeof STATEMENTS]: StatementSync };
  }

  start(): void {
    this.#options.port.on("message", (request: WriterRequest) => {
      this.#receive(request);
      this.#work();
    });
  }

  #receive(request: WriterRequest): void {
    switch (request.op) {
      case "append":
        for (const commit of request.commits) this.#take(commit);
        break;
      case "meta-once":
      case "delete-ended":
      case "compact":
        if (this.#health.state === "ok") this.#chores.push(request);
        else this.#refuse(request, this.#health.message);
        break;
      case "close":
        this.#closing = true;
        break;
    }
  }

  #take(commit: WireCommit): void {
    const health = this.#health;
    if (health.state === "failed") {
      this.#answer(commit, { kind: "unavailable", why: "damaged", message: health.message });
    } else if (health.state === "paused" && commit.whenFull === "refuse") {
      // W3
      this.#answer(commit, { kind: "unavailable", why: health.why, message: health.message });
    } else {
      this.#waiting.push(commit);
    }
  }

  /** Works until nothing is left; what arrives meanwhile is taken in between. */
  #work(): void {
    while (this.#health.state !== "paused" || this.#closing) {
      this.#drain();
      if (this.#waiting.length > 0) this.#commitGroup();
      else if (this.#chores.length > 0) this.#doChore();
      else break;
      if (this.#closing && this.#health.state === "paused") break;
    }
    if (this.#closing) this.#close();
  }

  #drain(): void {
    for (;;) {
      const next: { readonly message: WriterRequest } | undefined = receiveMessageOnPort(this.#options.port);
      if (next === undefined) return;
      this.#receive(next.message);
    }
  }

  /** @returns whether the disk took the group. */
  #commitGroup(): boolean {
    // W1
    let bytes = 0;
    let size = 0;
    for (const commit of this.#waiting) {
      if (size > 0 && (bytes + commit.bytes > GROUP_BYTES_MAX || size === GROUP_COMMITS_MAX)) break;
      bytes += commit.bytes;
      size += 1;
    }
    const group = this.#waiting.slice(0, size);
    const result = this.#transaction(() => group.map((commit) => this.#write(commit)));
    if (result.kind === "done") {
      this.#waiting = this.#waiting.slice(size);
      Atomics.add(this.#options.written, 0, Math.ceil(bytes / 1024));
      const outcomes = result.value;
      this.#post({ kind: "outcomes", ids: group.map(({ id }) => id), outcomes });
      return true;
    }
    const { fault } = result;
    if (fault.kind === "bug") {
      this.#waiting = this.#waiting.slice(size);
      return this.#writeOneByOne(group);
    }
    if (fault.kind === "pause") this.#pause(fault);
    else this.#fail(fault.message);
    return false;
  }

  /** A commit that no transaction can hold must not take the others of its group with it. */
  #writeOneByOne(group: readonly WireCommit[]): boolean {
    for (const [place, commit] of group.entries()) {
      const result = this.#transaction(() => this.#write(commit));
      if (result.kind === "done") {
        this.#answer(commit, result.value);
      } else if (result.fault.kind === "bug") {
        const runId = commit.changes[0]?.runId ?? "";
        this.#answer(commit, { kind: "conflict", on: "invalid", runId, message: result.fault.message });
      } else {
        this.#waiting = [...group.slice(place), ...this.#waiting];
        if (result.fault.kind === "pause") this.#pause(result.fault);
        else this.#fail(result.fault.message);
        return false;
      }
    }
    return true;
  }

  #transaction<Value>(action: () => Value): { kind: "done"; value: Value } | { kind: "failed"; fault: Fault } {
    return this.#attempt(() => {
      this.#sql.begin.run();
      const value = action();
      this.#sql.commit.run();
      return value;
    });
  }

  #attempt<Value>(action: () => Value): { kind: "done"; value: Value } | { kind: "failed"; fault: Fault } {
    const { db, file } = this.#options;
    try {
      return { kind: "done", value: action() };
    } catch (error) {
      // A full disk may have ended the transaction already.
      if (db.isTransaction) db.exec("ROLLBACK");
      return { kind: "failed", fault: faultOf(error, file) };
    }
  }

  #write(commit: WireCommit): AppendOutcome {
    const runs = new Map<string, KnownRun | undefined>();
    const keys = new Map<string, string>();
    for (const change of commit.changes) {
      const conflict = this.#check(change, runs, keys);
      if (conflict !== undefined) return conflict;
    }
    // W2: from here on every row is written.
    for (const change of commit.changes) this.#writeChange(change);
    for (const { counters } of commit.changes) {
      for (const { runId, name, add } of counters) this.#sql.count.run(name, add, runId);
    }
    return { kind: "durable" };
  }

  #find(runId: string): KnownRun | undefined {
    return this.#sql.find.get(runId) as KnownRun | undefined;
  }

  #check(
    change: WireChange,
    runs: Map<string, KnownRun | undefined>,
    keys: Map<string, string>,
  ): AppendOutcome | undefined {
    const { runId, expectedSeq, epoch, row } = change;
    const run = runs.has(runId) ? runs.get(runId) : this.#find(runId);
    const found = run?.lastSeq ?? 0;
    if (found !== expectedSeq) {
      const message = `run ${runId}: its last record is ${found}, not ${expectedSeq}`;
      return { kind: "conflict", on: "sequence", runId, found, message };
    }
    if (run !== undefined && epoch < run.epoch) {
      const message = `run ${runId}: epoch ${epoch} is over, ${run.epoch} counts`;
      return { kind: "conflict", on: "epoch", runId, found: run.epoch, message };
    }
    if (run === undefined && row === undefined) {
      return {
        kind: "conflict",
        on: "row-missing",
        runId,
        message: `run ${runId}: unknown, and it came without a row`,
      };
    }
    if (run === undefined && row !== undefined && row.idempotencyKey !== null) {
      const key = JSON.stringify([row.principal, row.idempotencyKey]);
      const holder = keys.get(key) ?? this.#sql.holder.get(row.principal, row.idempotencyKey)?.id;
      if (holder !== undefined) {
        const message = `run ${runId}: its idempotency key is taken by run ${holder as string}`;
        return { kind: "conflict", on: "idempotency-key", runId, found: holder as string, message };
      }
      keys.set(key, runId);
    }
    const lastSeq = expectedSeq + change.records.length;
    runs.set(runId, { n: run?.n ?? 0, lastSeq, epoch, ended: null });
    return undefined;
  }

  #writeChange(change: WireChange): void {
    const { runId, expectedSeq, epoch, records, row } = change;
    const lastSeq = expectedSeq + records.length;
    const run = this.#find(runId);
    const n = run === undefined ? this.#insertRun(change, row as WireRow, lastSeq) : run.n;
    if (run !== undefined && row === undefined) {
      if (lastSeq !== run.lastSeq || epoch !== run.epoch) this.#sql.advance.run(lastSeq, epoch, n);
    } else if (run !== undefined && row !== undefined) {
      const crc = rowChecksum(row.body, runId);
      if (row.endedAtMs === run.ended) this.#sql.updateRow.run(lastSeq, epoch, crc, row.body, n);
      else this.#sql.updateEnd.run(lastSeq, epoch, crc, row.body, row.endedAtMs, n);
    }
    for (const [index, body] of records.entries()) {
      const seq = expectedSeq + 1 + index;
      this.#sql.insertRecord.run(n, seq, recordChecksum(body, n, seq), body);
    }
    for (const { id, runId: run, body } of change.tasks) this.#sql.putTask.run(id, run, rowChecksum(body, id), body);
    for (const { id, runId: run, root, principal, open, body } of change.approvals) {
      this.#sql.putApproval.run(id, run, root, principal, open ? 1 : 0, rowChecksum(body, id), body);
    }
  }

  #insertRun({ runId, epoch }: WireChange, row: WireRow, lastSeq: number): number {
    const { parent, root, principal, session, idempotencyKey, endedAtMs, body } = row;
    const crc = rowChecksum(body, runId);
    const columns = [runId, parent, root, principal, session, idempotencyKey, endedAtMs, lastSeq, epoch, crc, body];
    return Number(this.#sql.insertRun.run(...columns).lastInsertRowid);
  }

  #doChore(): void {
    const chore = this.#chores[0];
    if (chore === undefined) return;
    const result = this.#carryOut(chore);
    this.#chores = this.#chores.slice(1);
    if (result.kind === "done") {
      this.#post({ kind: "answer", id: chore.id, value: result.value });
      return;
    }
    const { fault } = result;
    if (fault.kind === "pause") this.#pause(fault);
    if (fault.kind === "damaged") this.#fail(fault.message);
    this.#refuse(chore, fault.message);
  }

  #refuse(chore: Chore, message: string): void {
    this.#post({ kind: "refused", id: chore.id, code: "failed", message });
  }

  #carryOut(chore: Chore): { kind: "done"; value: unknown } | { kind: "failed"; fault: Fault } {
    switch (chore.op) {
      case "meta-once":
        return this.#transaction(() => this.#metaOnce(chore.key, chore.value));
      case "delete-ended":
        return this.#transaction(() => this.#deleteChunk(chore.endedBeforeMs));
      case "compact":
        return this.#attempt(() => {
          this.#options.db.exec("VACUUM");
        });
    }
  }

  #metaOnce(key: string, value: string): string {
    this.#sql.putMeta.run(key, value);
    return String(this.#sql.getMeta.get(key)?.value);
  }

  /** W4: first the records of runs that are gone already, then the next few runs. */
  #deleteChunk(endedBeforeMs: number): { readonly runs: number; readonly more: boolean } {
    const doomed = this.#sql.doomed.get();
    if (doomed === undefined) {
      const found = this.#sql.endedBefore.all(endedBeforeMs, DELETE_RUNS_MAX) as { n: number; id: string }[];
      for (const { n, id } of found) {
        this.#sql.deleteRun.run(n);
        this.#sql.deleteCounters.run(n);
        this.#sql.deleteTasks.run(id);
        this.#sql.deleteApprovals.run(id);
        this.#sql.doom.run(n);
      }
      return { runs: found.length, more: found.length > 0 };
    }
    let room = DELETE_RECORDS_MAX;
    for (let next: typeof doomed | undefined = doomed; next !== undefined && room > 0; next = this.#sql.doomed.get()) {
      const run = Number(next.run);
      const asked = room;
      room -= Number(this.#sql.deleteRecords.run(run, asked).changes);
      if (room > 0) this.#sql.undoom.run(run);
    }
    return { runs: 0, more: true };
  }

  #pause(fault: Extract<Fault, { kind: "pause" }>): void {
    const { why, message } = fault;
    const refused = this.#waiting.filter(({ whenFull }) => whenFull === "refuse");
    this.#waiting = this.#waiting.filter(({ whenFull }) => whenFull === "wait");
    this.#setHealth({ state: "paused", why, message });
    for (const commit of refused) this.#answer(commit, { kind: "unavailable", why, message });
    for (const chore of this.#chores.splice(0)) this.#refuse(chore, message);
    this.#retry ??= setTimeout(() => {
      this.#retry = undefined;
      this.#tryAgain();
    }, RETRY_MS);
  }

  #tryAgain(): void {
    // W3. Two transactions: what is written and deleted in one never reaches the disk.
    const probe = this.#transaction(() => {
      this.#sql.probe.run("x".repeat(PROBE_BYTES));
    });
    const cleared = probe.kind === "done" ? this.#transaction(() => this.#sql.probed.run()) : probe;
    if (cleared.kind === "done") {
      // What waits may be larger than the probe: all is well only when it went through.
      if (this.#waiting.length > 0 && !this.#commitGroup()) return;
      this.#setHealth({ state: "ok" });
      this.#work();
    } else if (cleared.fault.kind === "pause") {
      this.#pause(cleared.fault);
    } else {
      this.#fail(cleared.fault.message);
    }
  }

  #fail(message: string): void {
    this.#setHealth({ state: "failed", message });
    for (const commit of this.#waiting.splice(0))
      this.#answer(commit, { kind: "unavailable", why: "damaged", message });
    for (const chore of this.#chores.splice(0)) this.#refuse(chore, message);
  }

  #close(): void {
    clearTimeout(this.#retry);
    const message = "the journal was closed before the disk took this commit";
    for (const commit of this.#waiting) this.#answer(commit, { kind: "unavailable", why: "closed", message });
    for (const { id } of this.#chores) {
      this.#post({ kind: "refused", id, code: "closed", message: "the journal is closed" });
    }
    this.#options.db.close();
    this.#options.release();
    this.#options.port.close();
  }

  #setHealth(health: StoreHealth): void {
    const same = JSON.stringify(health) === JSON.stringify(this.#health);
    this.#health = health;
    if (!same) this.#post({ kind: "health", health });
  }

  #answer(commit: WireCommit, outcome: AppendOutcome): void {
    this.#post({ kind: "outcomes", ids: [commit.id], outcomes: [outcome] });
  }

  #post(report: WriterReport): void {
    this.#options.port.postMessage(report);
  }
}
