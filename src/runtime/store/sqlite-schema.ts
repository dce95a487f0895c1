/**
 * The journal's SQLite file: its tables, how a connection is set up, what its errors mean.
 *
 * Q1: a body's checksum covers its place (run and sequence), so that a record cannot turn up as another one's.
 * Q2: a run's number is never given twice: records of a deleted run may still be there when the next one comes.
 */
import type * as Sqlite from "node:sqlite";
import { crc32 } from "node:zlib";
import { StoreError } from "./port.ts";

/** "LUFT": tells our file from any other SQLite file. */
const APPLICATION_ID = 0x4c_55_46_54;
/** Raised with every change of the tables; an older file is brought forward by `MIGRATIONS`. */
const SCHEMA_VERSION = 1;

// Records are in the order in which they were written, so that a commit touches few pages; a run is found by the index.
const SCHEMA = `
CREATE TABLE runs (
  n INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  parent TEXT, root TEXT NOT NULL, principal TEXT NOT NULL, session TEXT, idempotency_key TEXT,
  ended INTEGER,
  last_seq INTEGER NOT NULL, epoch INTEGER NOT NULL,
  crc INTEGER NOT NULL, body TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX runs_key ON runs (principal, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX runs_principal ON runs (principal);
CREATE INDEX runs_session ON runs (session) WHERE session IS NOT NULL;
CREATE INDEX runs_parent ON runs (parent) WHERE parent IS NOT NULL;
CREATE INDEX runs_root ON runs (root);
CREATE INDEX runs_ended ON runs (ended);
CREATE TABLE records (
  run INTEGER NOT NULL, seq INTEGER NOT NULL, crc INTEGER NOT NULL, body TEXT NOT NULL,
  PRIMARY KEY (run, seq)
) STRICT;
CREATE TABLE counters (
  run INTEGER NOT NULL, name TEXT NOT NULL, value REAL NOT NULL,
  PRIMARY KEY (run, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE tasks (
  n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, run TEXT NOT NULL,
  crc INTEGER NOT NULL, body TEXT NOT NULL
) STRICT;
CREATE INDEX tasks_run ON tasks (run);
CREATE TABLE approvals (
  n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, run TEXT NOT NULL,
  root TEXT NOT NULL, principal TEXT NOT NULL, open INTEGER NOT NULL,
  crc INTEGER NOT NULL, body TEXT NOT NULL
) STRICT;
CREATE INDEX approvals_run ON approvals (run);
CREATE INDEX approvals_open ON approvals (n) WHERE open = 1;
CREATE TABLE doomed (run INTEGER PRIMARY KEY) STRICT;
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
`;

/** `MIGRATIONS[n]` brings a file of version n to n + 1. */
const MIGRATIONS: { readonly [version: number]: string } = {};

/** Sets up a connection: durable at each commit, and checkpoints only when asked for. */
export function prepareConnection(db: Sqlite.DatabaseSync): void {
  // The second connection of this process holds the file for moments only.
  db.exec("PRAGMA busy_timeout = 10000");
  db.exec("PRAGMA synchronous = FULL");
  // On macOS fsync leaves the data in the drive's cache.
  db.exec("PRAGMA fullfsync = 1");
  db.exec("PRAGMA checkpoint_fullfsync = 1");
  db.exec("PRAGMA wal_autocheckpoint = 0");
  db.exec("PRAGMA journal_size_limit = 67108864");
  db.exec("PRAGMA cache_size = -16384");
}

/**
 * Makes the tables in a new file, or checks that this is our file and of a version that we can read.
 * @throws StoreError otherwise.
 */
export function prepareFile(db: Sqlite.DatabaseSync, file: string): void {
  const objects = Number(db.prepare("SELECT count(*) AS n FROM sqlite_schema").get()?.n);
  const application = Number(db.prepare("PRAGMA application_id").get()?.application_id);
  const version = Number(db.prepare("PRAGMA user_version").get()?.user_version);
  if (objects === 0 && application === 0) {
    db.exec("PRAGMA page_size = 4096");
    db.exec("PRAGMA journal_mode = WAL");
    db.exec("BEGIN IMMEDIATE");
    db.exec(SCHEMA);
    db.exec(`PRAGMA application_id = ${APPLICATION_ID}`);
    db.exec(`PRAGMA user_version = ${SCHEMA_VERSION}`);
    db.exec("COMMIT");
    return;
  }
  if (application !== APPLICATION_ID) {
    throw new StoreError(
      "not-a-journal",
      `${file} is a SQLite file of something else, not a journal of luftpause; give another stateDir`,
    );
  }
  if (version > SCHEMA_VERSION) {
    throw new StoreError(
      "newer-version",
      `${file} was written by a newer luftpause (journal version ${version}, this one reads up to ${SCHEMA_VERSION}); ` +
        "start that version, or export with it and import here",
    );
  }
  db.exec("PRAGMA journal_mode = WAL");
  for (let from = version; from < SCHEMA_VERSION; from += 1) {
    const migration = MIGRATIONS[from];
    if (migration === undefined) {
      throw new StoreError("damaged", `${file}: there is no way from journal version ${from}; restore a copy`);
    }
    db.exec(`BEGIN IMMEDIATE; ${migration}; PRAGMA user_version = ${from + 1}; COMMIT`);
  }
}

/** Q1. */
export function recordChecksum(body: string, run: number, seq: number): number {
  return crc32(body, (run * 8_191 + seq) >>> 0);
}

/** Of a row: `place` is its id, which is its key. */
export function rowChecksum(body: string, id: string): number {
  return crc32(body, crc32(id));
}

export type Fault =
  | { readonly kind: "pause"; readonly why: "disk-full" | "disk-error"; readonly message: string }
  | { readonly kind: "damaged"; readonly message: string }
  | { readonly kind: "bug"; readonly message: string };

const RESULT = {
  busy: 5,
  noMemory: 7,
  readOnly: 8,
  ioError: 10,
  corrupt: 11,
  full: 13,
  cantOpen: 14,
  notADatabase: 26,
};

/** What an error of SQLite means for us. */
export function faultOf(error: unknown, file: string): Fault {
  const { errcode, message } = error as { readonly errcode?: number; readonly message: string };
  switch (errcode === undefined ? -1 : errcode & 0xff) {
    case RESULT.full:
      return {
        kind: "pause",
        why: "disk-full",
        message: `the disk of ${file} is full: nothing is lost, runs wait; free some space and they go on`,
      };
    case RESULT.busy:
    case RESULT.noMemory:
    case RESULT.readOnly:
    case RESULT.ioError:
    case RESULT.cantOpen:
      return {
        kind: "pause",
        why: "disk-error",
        message: `${file} cannot be written (${message}, SQLite ${errcode}): nothing is lost, runs wait; look at the disk`,
      };
    case RESULT.corrupt:
    case RESULT.notADatabase:
      return {
        kind: "damaged",
        message:
          `${file} is damaged (${message}, SQLite ${errcode}); stop luftpause, keep a copy of the file, ` +
          "and see what can be read with: luftpause journal export",
      };
    default:
      return { kind: "bug", message: `${file}: ${message}${errcode === undefined ? "" : ` (SQLite ${errcode})`}` };
  }
}

/** The module, without Node 22's warning that it is experimental; other warnings go their way. */
export function loadSqlite(): typeof Sqlite {
  const emit = process.emitWarning.bind(process) as (...warning: unknown[]) => void;
  const original = Object.getOwnPropertyDescriptor(process, "emitWarning");
  process.emitWarning = (...warning: unknown[]) => {
    if (!String(warning[0]).startsWith("SQLite is an experimental feature")) emit(...warning);
  };
  try {
    return process.getBuiltinModule("node:sqlite");
  } finally {
    if (original !== undefined) Object.defineProperty(process, "emitWarning", original);
  }
}
