/**
 * The decision log as text lines (spec 2, Event log): a header with version, policy and the frozen state, then one line
 * per event with the effects that it had. Replay runs the same core over it and must reproduce every effect.
 */
import { decide } from "./decide.ts";
import { freeze, thaw, type FrozenState } from "./freeze.ts";
import type { SchedulerState } from "./state.ts";
import type { SchedulerEffect, SchedulerEvent } from "./types.ts";

export const EVENT_LOG_FORMAT = 1;

export type EventLogHeader = {
  readonly format: number;
  /** Of luftpause, which wrote it. */
  readonly version: string;
  readonly policy: string;
  /** Wall clock at `state.nowMs`: times in the log are monotonic. */
  readonly wallClock: string;
  readonly state: FrozenState;
};

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

export function eventLine(event: SchedulerEvent, effects: readonly SchedulerEffect[]): string {
  return JSON.stringify(effects.length === 0 ? [event] : [event, effects]);
}

export type ReplayOutcome =
  | { readonly kind: "same"; readonly events: number; readonly effects: number }
  | { readonly kind: "differs"; readonly line: number; readonly recorded: string; readonly replayed: string }
  | { readonly kind: "refused"; readonly reason: string }
  | { readonly kind: "broken"; readonly line: number; readonly reason: string };

/**
 * Runs a log through the core again.
 * @param lines the log, header first; a last line that was cut off by a crash is not an error.
 * @param force goes on although another version wrote it.
 */
export function replay(
  lines: Iterable<string>,
  options: { readonly version: string; readonly force: boolean },
): ReplayOutcome {
  let state: SchedulerState | undefined;
  let number = 0;
  let events = 0;
  let effectCount = 0;
  let broken: ReplayOutcome | undefined;
  for (const line of lines) {
    number += 1;
    if (line === "") continue;
    if (broken !== undefined) return broken;
    const value = parseLine(line);
    if (value === undefined) {
      broken = { kind: "broken", line: number, reason: "not JSON" };
      continue;
    }
    if (state === undefined) {
      const header = value as Partial<EventLogHeader>;
      const refusal = refuse(header, options);
      if (refusal !== undefined) return refusal;
      state = thaw((header as EventLogHeader).state);
      continue;
    }
    const [event, recorded = []] = value as [SchedulerEvent, SchedulerEffect[]?];
    const { effects } = decide(state, event);
    const texts = { recorded: JSON.stringify(recorded), replayed: JSON.stringify(effects) };
    if (texts.recorded !== texts.replayed) return { kind: "differs", line: number, ...texts };
    events += 1;
    effectCount += effects.length;
  }
  if (state === undefined) return broken ?? { kind: "broken", line: 1, reason: "the log is empty" };
  return { kind: "same", events, effects: effectCount };
}

function parseLine(line: string): unknown {
  try {
    return JSON.parse(line) as unknown;
  } catch {
    return undefined;
  }
}

function refuse(
  header: Partial<EventLogHeader>,
  options: { readonly version: string; readonly force: boolean },
): ReplayOutcome | undefined {
  if (typeof header !== "object" || header === null || header.format === undefined || header.state === undefined) {
    return { kind: "broken", line: 1, reason: "the first line is not the header of a decision log" };
  }
  if (header.format !== EVENT_LOG_FORMAT) {
    return { kind: "refused", reason: `the log has format ${header.format}, this version reads ${EVENT_LOG_FORMAT}` };
  }
  if (header.version !== options.version && !options.force) {
    return {
      kind: "refused",
      reason: `the log was written by ${header.version}, this is ${options.version}; --force tries it`,
    };
  }
  return undefined;
}
