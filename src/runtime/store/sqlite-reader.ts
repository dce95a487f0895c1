/**
 * The thread that reads the SQLite journal and copies its write-ahead log back into the file, so that neither holds up the
 * thread that writes.
 *
 * R1: every text is checked against its checksum before it is handed out (S4).
 * R2: no read outlives the message that asked for it: an open one would keep the log from beginning anew.
 * R3: the log is copied back when there is enough of it or nothing else to do; past a bound the writer has to wait for it.
 */
import type { DatabaseSync, SQLInputValue, StatementSync } from "node:sqlite";
import type { MessagePort } from "node:worker_threads";
import type { Answer, ReaderCalls, ReaderRequest, WireFilter, WireRun } from "./sqlite-messages.ts";
import { faultOf, recordChecksum, rowChecksum } from "./sqlite-schema.ts";

const SCAN_RUNS_MAX = 256;
const CHECKPOINT_TICK_MS = 100;
/** With less than that the log waits until nothing was written for a tick. */
const CHECKPOINT_KILOBYTES = 8 * 1024;
/** 64 MiB of pages of 4 KiB. */
const LOG_PAGES_MAX = 16 * 1024;

const RUN_COLUMNS = `n, id, parent, root, principal, session, idempotency_key AS idempotencyKey, ended AS endedAtMs,
  last_seq AS lastSeq, epoch, crc, body`;

type RunColumns = WireRun["columns"] & {
  readonly n: number;
  readonly id: string;
  readonly lastSeq: number;
  readonly epoch: number;
  readonly crc: number;
  readonly body: string;
};

type Body = { readonly n: number; readonly id: string; readonly crc: number; readonly body: string };

export type ReaderOptions = {
  readonly db: DatabaseSync;
  readonly file: string;
  readonly port: MessagePort;
  readonly written: Int32Array;
};

export class Reader implements ReaderCalls {
  readonly #options: ReaderOptions;
  readonly #statements = new Map<string, StatementSync>();
  #timer: NodeJS.Timeout | undefined;
  #seenKilobytes = 0;
  #copiedKilobytes = 0;

  constructor(options: ReaderOptions) {
    this.#options = options;
  }

  start(): void {
    this.#options.port.on("message", (request: ReaderRequest) => {
      if (request.op === "close") this.#close(request.id);
      else this.#reply(request);
    });
    this.#timer = setInterval(() => {
      this.#checkpoint();
    }, CHECKPOINT_TICK_MS);
  }

  #reply(request: Exclude<ReaderRequest, { readonly op: "close" }>): void {
    const call = this[request.op] as (...args: readonly unknown[]) => unknown;
    let answer: Answer;
    try {
      answer = { kind: "answer", id: request.id, value: call.apply(this, [...request.args]) };
    } catch (error) {
      const fault = faultOf(error, this.#options.file);
      const code = fault.kind === "damaged" ? "damaged" : "failed";
      answer = { kind: "refused", id: request.id, code, message: fault.message };
    }
    this.#options.port.postMessage(answer);
  }

  #all<Row>(sql: string, ...values: readonly SQLInputValue[]): readonly Row[] {
    let statement = this.#statements.get(sql);
    if (statement === undefined) {
      statement = this.#options.db.prepare(sql);
      this.#statements.set(sql, statement);
    }
    return statement.all(...values) as Row[];
  }

  scan(live: boolean, after: number, bytesMax: number): { readonly runs: readonly WireRun[]; readonly more: boolean } {
    const found = this.#all<RunColumns>(
      `SELECT ${RUN_COLUMNS} FROM runs WHERE n > ?${live ? " AND ended IS NULL" : ""} ORDER BY n LIMIT ?`,
      after,
      SCAN_RUNS_MAX,
    );
    const runs: WireRun[] = [];
    let bytes = 0;
    for (const columns of found) {
      if (bytes >= bytesMax) break;
      const run = this.#withRecords(columns);
      bytes += columns.body.length;
      for (const text of run.records) bytes += text.length;
      runs.push(run);
    }
    return { runs, more: runs.length < found.length || found.length === SCAN_RUNS_MAX };
  }

  run(id: string, withRecords: boolean): WireRun | undefined {
    const columns = this.#all<RunColumns>(`SELECT ${RUN_COLUMNS} FROM runs WHERE id = ?`, id)[0];
    if (columns === undefined) return undefined;
    return withRecords ? this.#withRecords(columns) : wireRun(columns, []);
  }

  #withRecords(columns: RunColumns): WireRun {
    const { n, id, lastSeq } = columns;
    const records: string[] = [];
    let damage: string | undefined;
    try {
      const rows = this.#all<{ seq: number; crc: number; body: string }>(
        "SELECT seq, crc, body FROM records WHERE run = ? ORDER BY seq",
        n,
      );
      for (const { seq, crc, body } of rows) {
        // R1
        if (seq !== records.length + 1) damage = "it is missing";
        else if (recordChecksum(body, n, seq) !== crc) damage = "its checksum is wrong";
        if (damage !== undefined) break;
        records.push(body);
      }
      if (damage === undefined && records.length !== lastSeq) {
        damage = records.length < lastSeq ? "it is missing" : `it is not the last one, which should be ${lastSeq}`;
      }
    } catch (error) {
      damage = faultOf(error, this.#options.file).message;
    }
    if (damage === undefined) return wireRun(columns, records);
    const seq = Math.min(records.length, lastSeq) + 1;
    return wireRun(columns, records.slice(0, lastSeq), { seq, message: `record ${seq} of run ${id}: ${damage}` });
  }

  list(filter: WireFilter): { readonly runs: readonly WireRun[]; readonly more: boolean } {
    const { before, limit, live } = filter;
    const given = (["principal", "session", "root", "parent"] as const).flatMap((column) => {
      const value = filter[column];
      return value === undefined ? [] : [{ sql: `${column} = ?`, value }];
    });
    const where = [
      ...given.map(({ sql }) => sql),
      ...(live ? ["ended IS NULL"] : []),
      ...(before === undefined ? [] : ["n < ?"]),
    ];
    const rows = this.#all<RunColumns>(
      `SELECT ${RUN_COLUMNS} FROM runs ${where.length === 0 ? "" : `WHERE ${where.join(" AND ")}`} ORDER BY n DESC LIMIT ?`,
      ...given.map(({ value }) => value),
      ...(before === undefined ? [] : [before]),
      limit + 1,
    );
    return { runs: rows.slice(0, limit).map((row) => wireRun(row, [])), more: rows.length > limit };
  }

  children(parent: string): readonly WireRun[] {
    const rows = this.#all<RunColumns>(`SELECT ${RUN_COLUMNS} FROM runs WHERE parent = ? ORDER BY n`, parent);
    return rows.map((row) => wireRun(row, []));
  }

  byKey(principal: string, key: string): WireRun | undefined {
    const row = this.#all<RunColumns>(
      `SELECT ${RUN_COLUMNS} FROM runs WHERE principal = ? AND idempotency_key = ?`,
      principal,
      key,
    )[0];
    return row === undefined ? undefined : wireRun(row, []);
  }

  counters(ids: readonly string[]): readonly (readonly [id: string, name: string, value: number])[] {
    return ids.flatMap((id) =>
      this.#all<{ name: string; value: number }>(
        "SELECT name, value FROM counters WHERE run = (SELECT n FROM runs WHERE id = ?)",
        id,
      ).map(({ name, value }) => [id, name, value] as const),
    );
  }

  task(id: string): string | undefined {
    return this.#bodies("task", "SELECT n, id, crc, body FROM tasks WHERE id = ?", id)[0]?.body;
  }

  tasksOf(run: string): readonly string[] {
    const rows = this.#bodies("task", "SELECT n, id, crc, body FROM tasks WHERE run = ? ORDER BY n", run);
    return rows.map(({ body }) => body);
  }

  approval(id: string): string | undefined {
    return this.#bodies("approval", "SELECT n, id, crc, body FROM approvals WHERE id = ?", id)[0]?.body;
  }

  approvalsOf(run: string): readonly string[] {
    const rows = this.#bodies("approval", "SELECT n, id, crc, body FROM approvals WHERE run = ? ORDER BY n", run);
    return rows.map(({ body }) => body);
  }

  openApprovals(filter: Parameters<ReaderCalls["openApprovals"]>[0]): ReturnType<ReaderCalls["openApprovals"]> {
    const { principal, root, after, limit } = filter;
    const given = [...(principal === undefined ? [] : [principal]), ...(root === undefined ? [] : [root])];
    const rows = this.#bodies(
      "approval",
      "SELECT n, id, crc, body FROM approvals WHERE open = 1 AND n > ?" +
        `${principal === undefined ? "" : " AND principal = ?"}${root === undefined ? "" : " AND root = ?"} ORDER BY n LIMIT ?`,
      after,
      ...given,
      limit + 1,
    );
    const page = rows.slice(0, limit);
    return { bodies: page.map(({ body }) => body), last: page.at(-1)?.n ?? after, more: rows.length > limit };
  }

  /** R1 */
  #bodies(what: string, sql: string, ...values: readonly SQLInputValue[]): readonly Body[] {
    const rows = this.#all<Body>(sql, ...values);
    const damaged = rows.find(({ id, crc, body }) => rowChecksum(body, id) !== crc);
    if (damaged === undefined) return rows;
    const text = `${what} ${damaged.id}: its checksum is wrong`;
    throw Object.assign(new Error(text), { errcode: 11 });
  }

  meta(key: string): string | undefined {
    return this.#all<{ value: string }>("SELECT value FROM meta WHERE key = ?", key)[0]?.value;
  }

  integrity(): readonly string[] {
    const rows = this.#all<{ integrity_check: string }>("PRAGMA integrity_check(20)");
    return rows.map((row) => row.integrity_check).filter((text) => text !== "ok");
  }

  /** R3 */
  #checkpoint(): void {
    const written = Atomics.load(this.#options.written, 0);
    const idle = written === this.#seenKilobytes;
    this.#seenKilobytes = written;
    const behind = written - this.#copiedKilobytes;
    if (behind === 0 || (behind < CHECKPOINT_KILOBYTES && !idle)) return;
    try {
      const [state] = this.#all<{ log: number }>("PRAGMA wal_checkpoint(PASSIVE)");
      this.#copiedKilobytes = written;
      // After the quiet one there is little left to copy, so the writer waits a short time only.
      if ((state?.log ?? 0) > LOG_PAGES_MAX) this.#all("PRAGMA wal_checkpoint(RESTART)");
    } catch (error) {
      // A disk that takes nothing stops the writer too, which tells it; the next tick tries again.
      if (faultOf(error, this.#options.file).kind === "bug") throw error;
    }
  }

  #close(id: number): void {
    clearInterval(this.#timer);
    this.#options.db.close();
    this.#options.port.postMessage({ kind: "answer", id, value: undefined } satisfies Answer);
    this.#options.port.close();
  }
}

function wireRun(columns: RunColumns, records: readonly string[], damage?: WireRun["damage"]): WireRun {
  const { n, id, parent, root, principal, session, idempotencyKey, endedAtMs, lastSeq, epoch, crc, body } = columns;
  const whole = rowChecksum(body, id) === crc;
  return {
    id,
    body: whole ? body : undefined,
    columns: { parent, root, principal, session, idempotencyKey, endedAtMs },
    n,
    lastSeq,
    epoch,
    // A damaged row says more than a damaged record: it comes first.
    damage: whole ? damage : { seq: 0, message: `row of run ${id}: its checksum is wrong` },
    records,
  };
}
