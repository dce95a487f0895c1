/**
 * The two threads of the SQLite journal. This file is both: the function that starts one, and, loaded inside of it, the
 * thread itself, so that it is found from `src` and from `dist` alike.
 */
import { readFileSync, writeFileSync } from "node:fs";
import { MessageChannel, Worker, isMainThread, workerData, type MessagePort } from "node:worker_threads";
import { StoreError } from "./port.ts";
import { inspectLog } from "./sqlite-log.ts";
import { Reader } from "./sqlite-reader.ts";
import type { WriterReport } from "./sqlite-messages.ts";
import { faultOf, loadSqlite, prepareConnection, prepareFile } from "./sqlite-schema.ts";
import { Writer } from "./sqlite-writer.ts";

export type ThreadOptions = {
  readonly role: "writer" | "reader";
  readonly file: string;
  /** One number, shared by both threads: kilobytes written since the start. */
  readonly written: Int32Array;
};

type ThreadData = ThreadOptions & { readonly luftpauseJournal: true; readonly port: MessagePort };

/** Starts a thread; it reports on the port that comes back. */
export function startThread(options: ThreadOptions): { readonly worker: Worker; readonly port: MessagePort } {
  const { port1, port2 } = new MessageChannel();
  const data: ThreadData = { ...options, luftpauseJournal: true, port: port2 };
  const worker = new Worker(new URL(import.meta.url), {
    name: `journal-${options.role}`,
    workerData: data,
    transferList: [port2],
  });
  return { worker, port: port1 };
}

/**
 * Makes this process the only one that has the journal, until it ends, however it ends. A lock of the operating system's,
 * held through a SQLite file of its own: SQLite's locks on the journal itself come and go.
 */
function lockFile(file: string): () => void {
  const { DatabaseSync } = loadSqlite();
  const owner = `${file}.owner`;
  const lock = new DatabaseSync(`${file}.lock`);
  try {
    lock.exec("PRAGMA busy_timeout = 0");
    lock.exec("BEGIN EXCLUSIVE");
  } catch (error) {
    lock.close();
    const fault = faultOf(error, file);
    const held = ((error as { readonly errcode?: number }).errcode ?? 0) % 256 === 5;
    if (!held) throw new StoreError("cannot-open", fault.message, { cause: error });
    throw new StoreError(
      "in-use",
      `${file} is in use by another luftpause${ownerText(owner)}; stop that one, or give this one another stateDir`,
    );
  }
  try {
    writeFileSync(owner, `${process.pid}\n`);
  } catch {
    // Only the text of a message is made of it.
  }
  return () => {
    lock.close();
  };
}

function ownerText(owner: string): string {
  try {
    return ` (process ${readFileSync(owner, "utf8").trim()})`;
  } catch {
    return "";
  }
}

function openWriter({ file, port, written }: ThreadData): void {
  let release = (): void => {};
  try {
    release = lockFile(file);
    // Before SQLite opens the file, which drops what is behind a damage.
    const logDamage = inspectLog(file);
    const { DatabaseSync } = loadSqlite();
    const db = new DatabaseSync(file);
    prepareConnection(db);
    prepareFile(db, file);
    new Writer({ db, file, port, written, release }).start();
    port.postMessage({ kind: "ready", logDamage } satisfies WriterReport);
  } catch (error) {
    release();
    port.postMessage(cannotOpen(error, file));
    port.close();
  }
}

/** Starts beside the thread that writes, to save time, and opens the file when that one has made it. */
function openReader({ file, port, written }: ThreadData): void {
  port.once("message", () => {
    try {
      const { DatabaseSync } = loadSqlite();
      const db = new DatabaseSync(file);
      prepareConnection(db);
      new Reader({ db, file, port, written }).start();
      port.postMessage({ kind: "ready", logDamage: undefined } satisfies WriterReport);
    } catch (error) {
      port.postMessage(cannotOpen(error, file));
      port.close();
    }
  });
}

function cannotOpen(error: unknown, file: string): WriterReport {
  if (error instanceof StoreError) return { kind: "cannot-open", code: error.code, message: error.message };
  const fault = faultOf(error, file);
  const errcode = (error as { readonly errcode?: number }).errcode ?? 0;
  if (errcode % 256 === 26) {
    const message = `${file} is not a SQLite file, or its beginning is damaged; restore a copy, or give another stateDir`;
    return { kind: "cannot-open", code: "not-a-journal", message };
  }
  if (fault.kind === "damaged") return { kind: "cannot-open", code: "damaged", message: fault.message };
  const message = `${file} cannot be opened: ${(error as Error).message}`;
  return { kind: "cannot-open", code: "cannot-open", message };
}

const data = workerData as Partial<ThreadData> | null;
if (!isMainThread && data?.luftpauseJournal === true) {
  if (data.role === "writer") openWriter(data as ThreadData);
  else openReader(data as ThreadData);
}
