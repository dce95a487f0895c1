/**
 * Writes the decision log: every event with its effects, in files that rotate by size and each replay on their own
 * (spec 2, Event log). Writing never holds up a decision: the buffer is bounded, and what does not fit is left out
 * whole, with a fresh header after the gap.
 */
import { createWriteStream, openSync, renameSync, statSync, type WriteStream } from "node:fs";
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
  readonly bytesMax: number;
  readonly filesMax: number;
  readonly version: string;
  readonly wallMs: () => number;
  readonly log: Log;
};

export type EventLog = {
  /** Opens the first file; throws the system's error when it cannot be written. */
  begin(state: SchedulerState): void;
  /** @param state after the event. */
  record(event: SchedulerEvent, effects: readonly SchedulerEffect[], state: SchedulerState): void;
  close(): Promise<void>;
};

/** Lines that the disk has not taken yet. */
const BUFFER_BYTES_MAX = 64 * 1024 * 1024;

export function createEventLog(options: EventLogOptions): EventLog {
  let stream: WriteStream | undefined;
  let bytes = 0;
  let failed = false;
  /** Events are being left out: the disk is too slow. */
  let gap = false;

  const fail = (error: unknown): void => {
    if (!failed) options.log("error", "event-log-failed", { path: options.path, reason: String(error) });
    failed = true;
  };

  const open = (state: SchedulerState): void => {
    stream?.end();
    rotate(options.path, options.filesMax);
    // Opened at once: the file must be there, under this name, before the next rotation moves it.
    stream = createWriteStream(options.path, { fd: openSync(options.path, "w") });
    stream.on("error", fail);
    const header = headerLine(state, {
      version: options.version,
      wallClock: new Date(options.wallMs()).toISOString(),
    });
    bytes = header.length;
    stream.write(`${header}\n`);
  };

  return {
    begin: open,
    record(event, effects, state) {
      if (failed || stream === undefined) return;
      if (stream.writableLength > BUFFER_BYTES_MAX) {
        if (!gap) options.log("warn", "event-log-gap", { path: options.path });
        gap = true;
        return;
      }
      if (gap || bytes >= options.bytesMax) {
        gap = false;
        // The header holds the state after this event, so the event itself belongs to the file before.
        if (bytes >= options.bytesMax) stream.write(`${eventLine(event, effects)}\n`);
        try {
          open(state);
        } catch (error) {
          fail(error); // A full disk ends the log, not the service.
        }
        return;
      }
      const line = eventLine(event, effects);
      bytes += line.length + 1;
      stream.write(`${line}\n`);
    },
    close() {
      return new Promise((resolve) => {
        if (stream === undefined || failed) resolve();
        else stream.end(() => resolve());
      });
    },
  };
}

/** `log` becomes `log.1`, `log.1` becomes `log.2`, …; the oldest is overwritten. */
function rotate(path: string, filesMax: number): void {
  for (let index = filesMax - 1; index >= 1; index -= 1) {
    const from = index === 1 ? path : `${path}.${index - 1}`;
    if (statSync(from, { throwIfNoEntry: false }) !== undefined) renameSync(from, `${path}.${index}`);
  }
}
