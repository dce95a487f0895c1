/**
 * Writes the decision log: every event with its effects, in files that rotate by size and each replay on their own
 * (spec 2, Event log).
 *
 * L1: writing never holds up a decision: lines wait in a bounded buffer, and the disk is only waited for behind it.
 * L2: a file holds its header and then every event since, without a gap: what does not fit into the buffer is left out,
 *     counted, and the log goes on in a fresh file.
 * L3: a fault of the disk is told once and ends the log, never the service.
 *
 * What it does not do: write the header of a file piecemeal. It is a pass over the whole state, 25 MB and most of a second
 * with 100,000 runs, at each rotation; with that many a larger `bytesMax` makes it rarer.
 */
import { close, open, openSync, renameSync, statSync, write } from "node:fs";
import { rename, stat } from "node:fs/promises";
import { promisify } from "node:util";
import {
  eventLine,
  headerLine,
  type SchedulerEffect,
  type SchedulerEvent,
  type SchedulerState,
} from "../scheduling/index.ts";
import type { Log } from "../telemetry/index.ts";

export type EventLogOptions = {
  readonly path: string;
  /** Of events in one file; its header comes on top, and is larger the more runs are known. */
  readonly bytesMax: number;
  readonly filesMax: number;
  readonly version: string;
  readonly wallMs: () => number;
  readonly log: Log;
  /** Lines that the disk has not taken yet; beyond it events are left out. */
  readonly bufferBytesMax?: number;
};

export type EventLogCounts = { readonly written: number; readonly leftOut: number };

export type EventLog = {
  /** Opens the first file; throws the system's error when it cannot be written. */
  begin(state: SchedulerState): void;
  /** @param state after the event. */
  record(event: SchedulerEvent, effects: readonly SchedulerEffect[], state: SchedulerState): void;
  counts(): EventLogCounts;
  /** Resolves when everything that was recorded is with the disk. */
  close(): Promise<void>;
};

const BUFFER_BYTES_MAX = 64 * 1024 * 1024;
/** Lines that go to the disk in one call. */
const WRITE_CHARACTERS_MAX = 1024 * 1024;

const openFile = promisify(open);
const closeFile = promisify(close);

export function createEventLog(options: EventLogOptions): EventLog {
  return new Writer(options);
}

type Line = { readonly text: string; readonly begins: "file" | "line" };

class Writer implements EventLog {
  readonly #options: EventLogOptions;
  readonly #bufferMax: number;
  #file: number | undefined;
  #lines: Line[] = [];
  /** Characters in `#lines` and in the call to the disk that is under way. */
  #buffered = 0;
  /** Of the last header, which does not count against the buffer: with many runs it may be larger. */
  #headerLength = 0;
  /** Characters of events in the file that is being written or about to be. */
  #inFile = 0;
  #state: "open" | "gap" | "failed" | "closed" = "open";
  #flushing: Promise<void> | undefined;
  #written = 0;
  #leftOut = 0;

  constructor(options: EventLogOptions) {
    this.#options = options;
    this.#bufferMax = options.bufferBytesMax ?? BUFFER_BYTES_MAX;
  }

  begin(state: SchedulerState): void {
    const { path, filesMax } = this.#options;
    for (const [from, to] of moves(path, filesMax)) {
      if (statSync(from, { throwIfNoEntry: false }) !== undefined) renameSync(from, to);
    }
    this.#file = openSync(path, "w");
    this.#push(this.#header(state), "line");
  }

  record(event: SchedulerEvent, effects: readonly SchedulerEffect[], state: SchedulerState): void {
    if (this.#state === "gap" && this.#buffered <= this.#bufferMax / 2) {
      // L2: the header holds the state after this event, which is the last one that is missing.
      this.#state = "open";
      this.#leftOut += 1;
      this.#startFile(state);
      this.#options.log("warn", "event-log-resumed", { path: this.#options.path, leftOut: this.#leftOut });
    } else if (this.#state !== "open") {
      this.#leftOut += 1;
    } else if (this.#buffered > this.#bufferMax + this.#headerLength) {
      this.#state = "gap";
      this.#leftOut += 1;
      this.#options.log("warn", "event-log-gap", { path: this.#options.path, buffered: this.#buffered });
    } else {
      const text = eventLine(event, effects);
      this.#written += 1;
      this.#inFile += text.length;
      this.#push(text, "line");
      if (this.#inFile >= this.#options.bytesMax) this.#startFile(state);
    }
  }

  counts(): EventLogCounts {
    return { written: this.#written, leftOut: this.#leftOut };
  }

  async close(): Promise<void> {
    if (this.#state !== "failed") this.#state = "closed";
    await this.#flushing;
    if (this.#file !== undefined) await closeFile(this.#file).catch((error: unknown) => this.#fail(error));
    this.#file = undefined;
  }

  #header(state: SchedulerState): string {
    const { version, wallMs } = this.#options;
    const text = headerLine(state, { version, wallClock: new Date(wallMs()).toISOString() });
    this.#headerLength = text.length;
    return text;
  }

  /** The next lines belong to another file, which begins with the state as it is. */
  #startFile(state: SchedulerState): void {
    this.#inFile = 0;
    this.#push(this.#header(state), "file");
  }

  #push(text: string, begins: Line["begins"]): void {
    this.#lines.push({ text: `${text}\n`, begins });
    this.#buffered += text.length + 1;
    this.#flushing ??= this.#flush();
  }

  async #flush(): Promise<void> {
    // What is recorded in one turn of the event loop goes to the disk together.
    await new Promise(setImmediate);
    try {
      while (this.#lines.length > 0) await this.#flushSome();
    } catch (error) {
      this.#fail(error);
    }
    this.#flushing = undefined;
  }

  async #flushSome(): Promise<void> {
    const lines = this.#lines;
    if (lines[0]?.begins === "file") await this.#rotate();
    let count = 0;
    let text = "";
    for (const line of lines) {
      if (count > 0 && (line.begins === "file" || text.length + line.text.length > WRITE_CHARACTERS_MAX)) break;
      text += line.text;
      count += 1;
    }
    lines.splice(0, count);
    await writeAll(this.#file, Buffer.from(text, "utf8"));
    this.#buffered -= text.length;
  }

  async #rotate(): Promise<void> {
    const { path, filesMax } = this.#options;
    if (this.#file !== undefined) await closeFile(this.#file);
    this.#file = undefined;
    for (const [from, to] of moves(path, filesMax)) {
      const there = await stat(from).then(
        () => true,
        () => false,
      );
      if (there) await rename(from, to);
    }
    this.#file = await openFile(path, "w");
  }

  /** L3 */
  #fail(error: unknown): void {
    this.#lines = [];
    this.#buffered = 0;
    if (this.#state === "failed") return;
    this.#state = "failed";
    this.#options.log("error", "event-log-failed", { path: this.#options.path, reason: String(error) });
  }
}

/** `log` becomes `log.1`, `log.1` becomes `log.2`, …; the oldest is overwritten. In the order in which to do it. */
function moves(path: string, filesMax: number): (readonly [from: string, to: string])[] {
  const names = [path, ...Array.from({ length: filesMax - 1 }, (_, index) => `${path}.${index + 1}`)];
  return names
    .slice(0, -1)
    .map((from, index) => [from, names[index + 1] ?? from] as const)
    .toReversed();
}

/** A disk may take less than it was given. */
async function writeAll(file: number | undefined, bytes: Buffer): Promise<void> {
  if (file === undefined) throw new Error("no file is open");
  for (let at = 0; at < bytes.length;) at += await writeSome(file, bytes.subarray(at));
}

function writeSome(file: number, bytes: Buffer): Promise<number> {
  return new Promise((resolve, reject) => {
    write(file, bytes, (error, count) => {
      if (error === null) resolve(count);
      else reject(error);
    });
  });
}
