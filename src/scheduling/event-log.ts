/**
 * The event log as text lines (spec 2, Event log): a header with version, policy, config and the frozen state, then one line
 * per event with the effects that it had. Replay runs the same core over it and must reproduce every effect.
 * Times are monotonic milliseconds; the header's one wall-clock anchor says what `state.nowMs` was for people.
 */
import { decide } from "./decide.ts";
import { freeze, thaw, type FrozenState } from "./freeze.ts";
import type { SchedulerState } from "./state.ts";
import type { SchedulerEffect, SchedulerEvent } from "./types.ts";

/** Raised when a line changes its meaning. */
const EVENT_LOG_FORMAT = 1;

type EventLogHeader = {
  readonly format: number;
  /** Of luftpause, which wrote it. */
  readonly version: string;
  readonly policy: string;
  /** Wall clock at `state.nowMs`, ISO 8601. */
  readonly wallClock: string;
  readonly state: FrozenState;
};

/** The first line of a log; costs a pass over the whole state. Without a line break. */
export function headerLine(
  state: SchedulerState,
  about: { readonly version: string; readonly wallClock: string },
): string {
  const header: EventLogHeader = {
    format: EVENT_LOG_FORMAT,
    version: about.version,
    policy: state.config.policy,
    wallClock: about.wallClock,
    state: freeze(state),
  };
  return JSON.stringify(header);
}

/** The line of one event and the effects that `decide` returned for it. Without a line break. */
export function eventLine(event: SchedulerEvent, effects: readonly SchedulerEffect[]): string {
  return JSON.stringify(effects.length === 0 ? [event] : [event, effects]);
}

export type ReplayOutcome =
  /** Every effect came out again. `cutOff`: the last line was incomplete, as a crash leaves it; it was not replayed. */
  | { readonly kind: "same"; readonly events: number; readonly effects: number; readonly cutOff: boolean }
  | { readonly kind: "differs"; readonly line: number; readonly recorded: string; readonly replayed: string }
  | { readonly kind: "refused"; readonly reason: string }
  | { readonly kind: "broken"; readonly line: number; readonly reason: string };

export type Replay = {
  /** Takes the next line without its break; returns how the replay ended, or undefined to go on. */
  push(line: string): ReplayOutcome | undefined;
  /** After the last line. */
  end(): ReplayOutcome;
  /** The state after the last replayed event, for a look inside; undefined before the header. */
  readonly state: SchedulerState | undefined;
};

type ReplayOptions = {
  readonly version: string;
  /** Go on although another version wrote the log. */
  readonly force: boolean;
};

/** Runs a log through the core again, line by line: a host reads the file, however large, as it likes. */
export function createReplay(options: ReplayOptions): Replay {
  let state: SchedulerState | undefined;
  let number = 0;
  let events = 0;
  let effects = 0;
  /** The line that is not JSON: broken, unless it was the last one. */
  let broken: number | undefined;

  const start = (value: unknown): ReplayOutcome | undefined => {
    const refusal = refuse(value, options);
    if (refusal !== undefined) return refusal;
    try {
      state = thaw((value as EventLogHeader).state);
    } catch (error) {
      return { kind: "broken", line: 1, reason: `the header's state cannot be read: ${String(error)}` };
    }
    return undefined;
  };

  const step = (core: SchedulerState, value: unknown): ReplayOutcome | undefined => {
    if (!isEventLine(value)) return { kind: "broken", line: number, reason: "not an event with its effects" };
    const [event, recorded = []] = value;
    const decided = decide(core, event).effects;
    const texts = { recorded: JSON.stringify(recorded), replayed: JSON.stringify(decided) };
    if (texts.recorded !== texts.replayed) return { kind: "differs", line: number, ...texts };
    events += 1;
    effects += decided.length;
    return undefined;
  };

  return {
    push(line) {
      number += 1;
      if (line === "") return undefined;
      if (broken !== undefined) return { kind: "broken", line: broken, reason: "not JSON" };
      const value = parseLine(line);
      if (value === undefined) {
        broken = number;
        return undefined;
      }
      return state === undefined ? start(value) : step(state, value);
    },
    end() {
      if (state !== undefined) return { kind: "same", events, effects, cutOff: broken !== undefined };
      return { kind: "broken", line: 1, reason: broken === undefined ? "the log is empty" : "not JSON" };
    },
    get state() {
      return state;
    },
  };
}

/** The same over lines that are at hand. A last line that was cut off by a crash is not an error. */
export function replay(lines: Iterable<string>, options: ReplayOptions): ReplayOutcome {
  const run = createReplay(options);
  for (const line of lines) {
    const outcome = run.push(line);
    if (outcome !== undefined) return outcome;
  }
  return run.end();
}

function parseLine(line: string): unknown {
  try {
    return JSON.parse(line) as unknown;
  } catch {
    return undefined;
  }
}

function isEventLine(value: unknown): value is [SchedulerEvent, SchedulerEffect[]?] {
  if (!Array.isArray(value) || value.length < 1 || value.length > 2) return false;
  const event: unknown = value[0];
  if (typeof event !== "object" || event === null) return false;
  return "type" in event && "nowMs" in event && (value.length === 1 || Array.isArray(value[1]));
}

function refuse(value: unknown, options: ReplayOptions): ReplayOutcome | undefined {
  const header = value as Partial<EventLogHeader> | null;
  if (typeof header !== "object" || header === null || header.format === undefined || header.state === undefined) {
    return { kind: "broken", line: 1, reason: "the first line is not the header of an event log" };
  }
  if (header.format !== EVENT_LOG_FORMAT) {
    return { kind: "refused", reason: `the log has format ${header.format}, this version reads ${EVENT_LOG_FORMAT}` };
  }
  if (header.version !== options.version && !options.force) {
    return {
      kind: "refused",
      reason: `the log was written by ${header.version}, this is ${options.version}; --force replays it all the same`,
    };
  }
  return undefined;
}
