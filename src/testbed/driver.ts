/**
 * Drives one engine model by a clock: sleeps until the next step has an end, hands all its events over in one call, and
 * sets no timer while the engine has nothing to do.
 *
 * D1: the model's time never runs back, and no two submissions share a moment: what happens is then a function of the
 *     arrival times alone (E2 in engine.ts), and a recorded run can be replayed under a virtual clock.
 */
import type { Clock } from "../base/clock.ts";
import { abort, nextEventAtMs, step, submit } from "../engine/index.ts";
import type { Engine, EngineEvent, EngineRequest, Refusal } from "../engine/index.ts";

export type Driver = {
  /** Simulated milliseconds since the driver was made. */
  nowMs(): number;
  submit(request: EngineRequest): Refusal | undefined;
  abort(id: string): void;
  /** While frozen no simulated time passes. */
  freeze(frozen: boolean): void;
  /** Catches up with the clock, as a scrape of live gauges needs it. */
  catchUp(): void;
  stop(): void;
};

export type DriverOptions = {
  readonly engine: Engine;
  readonly clock: Clock;
  /** Real milliseconds per simulated one. */
  readonly timeScale: number;
  /** Called with the events of one or several steps, in order. Must not call the driver. */
  readonly onEvents: (events: readonly EngineEvent[]) => void;
};

/** The least distance of two submissions, in simulated milliseconds (D1). */
const MOMENT_MS = 1e-6;

/** The shortest sleep: a rest that rounding leaves before a step's end would otherwise wake too early for ever. */
const SLEEP_LEAST_MS = 0.01;

type Wake = { readonly kind: "none" } | { readonly kind: "set"; readonly atMs: number; readonly cancel: () => void };

/** The clock of this machine. Its timers do not keep the process alive: the server does. */
export const MACHINE_CLOCK: Clock = {
  nowMs: () => performance.now(),
  after(delayMs, action) {
    if (delayMs <= 0) {
      const immediate = setImmediate(action);
      return () => clearImmediate(immediate);
    }
    // Rounded up: a timer that fires early would only have to be set again.
    const timer = setTimeout(action, Math.ceil(delayMs));
    timer.unref();
    return () => clearTimeout(timer);
  },
};

export function createDriver({ engine, clock, timeScale, onEvents }: DriverOptions): Driver {
  const time = createSimulatedTime(clock, timeScale);
  let wake: Wake = { kind: "none" };
  let stopped = false;

  const deliver = (events: readonly EngineEvent[]): void => {
    if (events.length > 0) onEvents(events);
  };
  const sleep = (): void => {
    const atMs = stopped || time.frozen() ? undefined : nextEventAtMs(engine);
    if (wake.kind === "set") {
      if (wake.atMs === atMs) return;
      wake.cancel();
      wake = { kind: "none" };
    }
    if (atMs === undefined) return;
    const delayMs = (atMs - time.nowMs()) * timeScale;
    wake = { kind: "set", atMs, cancel: clock.after(delayMs <= 0 ? 0 : Math.max(delayMs, SLEEP_LEAST_MS), onWake) };
  };
  const catchUp = (): void => {
    deliver(step(engine, time.nowMs()));
    sleep();
  };
  const onWake = (): void => {
    wake = { kind: "none" };
    catchUp();
  };

  return {
    nowMs: () => time.nowMs(),
    submit(request) {
      const now = time.distinctNowMs();
      deliver(step(engine, now));
      const refusal = submit(engine, request, now);
      sleep();
      return refusal;
    },
    abort(id) {
      const now = time.distinctNowMs();
      deliver(step(engine, now));
      deliver(abort(engine, id, now));
      sleep();
    },
    freeze(frozen) {
      if (frozen) deliver(step(engine, time.nowMs()));
      time.freeze(frozen);
      sleep();
    },
    catchUp,
    stop() {
      stopped = true;
      sleep();
    },
  };
}

/** Simulated milliseconds since the start; they stand still while frozen and never run back (D1). */
function createSimulatedTime(
  clock: Clock,
  timeScale: number,
): {
  nowMs(): number;
  /** Later than every time given before. */
  distinctNowMs(): number;
  freeze(frozen: boolean): void;
  frozen(): boolean;
} {
  const startedMs = clock.nowMs();
  let pausedMs = 0;
  let frozenAtMs: number | undefined;
  let latestMs = 0;
  const nowMs = (): number => {
    const realMs = (frozenAtMs ?? clock.nowMs()) - startedMs - pausedMs;
    latestMs = Math.max(latestMs, realMs / timeScale);
    return latestMs;
  };
  return {
    nowMs,
    distinctNowMs() {
      const before = latestMs;
      if (nowMs() <= before) latestMs = before + MOMENT_MS;
      return latestMs;
    },
    freeze(frozen) {
      if (frozen) frozenAtMs ??= clock.nowMs();
      else if (frozenAtMs !== undefined) {
        pausedMs += clock.nowMs() - frozenAtMs;
        frozenAtMs = undefined;
      }
    },
    frozen: () => frozenAtMs !== undefined,
  };
}
