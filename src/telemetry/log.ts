/**
 * Structured log: one line per event with a stable name and low-cardinality fields (spec 7, Seeing).
 * JSON where the output is a file or a pipe, one readable line on a terminal. Never bodies, never secrets:
 * callers pass ids, counts and reasons only.
 */

export type LogLevel = "debug" | "info" | "warn" | "error";

export type LogFields = { readonly [field: string]: string | number | boolean | undefined };

export type Log = {
  /** @param event stable kebab-case name, such as `replica-unhealthy`. */
  (level: LogLevel, event: string, fields?: LogFields): void;
};

const RANK: { readonly [Level in LogLevel]: number } = { debug: 0, info: 1, warn: 2, error: 3 };

export type LogOptions = {
  /** Takes one line without its newline. */
  readonly write: (line: string) => void;
  readonly level: LogLevel;
  /** One readable line instead of JSON. */
  readonly pretty: boolean;
  /** Wall clock in milliseconds, for the time stamp. */
  readonly wallMs: () => number;
  /** Which part writes: `scheduler`, `dataplane`, … */
  readonly service: string;
};

/** Makes a log for one service. */
export function createLog(options: LogOptions): Log {
  const { write, pretty, wallMs, service } = options;
  const least = RANK[options.level];
  return (level, event, fields = {}) => {
    if (RANK[level] < least) return;
    const time = new Date(wallMs()).toISOString();
    if (!pretty) {
      write(JSON.stringify({ time, level, service, event, ...fields }));
      return;
    }
    const rest = Object.entries(fields)
      .filter(([, value]) => value !== undefined)
      .map(([name, value]) => ` ${name}=${typeof value === "string" ? quoteIfNeeded(value) : value}`)
      .join("");
    write(`${time.slice(11, 23)} ${level.padEnd(5)} ${service} ${event}${rest}`);
  };
}

/** A log that says nothing, for tests. */
export const SILENT_LOG: Log = () => undefined;

// Control characters in a value could forge a line or drive a terminal: they are always escaped.
function quoteIfNeeded(value: string): string {
  // eslint-disable-next-line no-control-regex
  return /^[^\s"\\\x00-\x1f\x7f-\x9f]+$/.test(value) ? value : JSON.stringify(value);
}
