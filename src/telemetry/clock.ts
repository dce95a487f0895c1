import type { Clock } from "../base/clock.ts";

/** The real clock: monotonic milliseconds since the process began. Its timers do not keep the process alive. */
export const REAL_CLOCK: Clock = {
  nowMs: () => performance.now(),
  after(delayMs, action) {
    const timer = setTimeout(action, delayMs);
    timer.unref();
    return () => clearTimeout(timer);
  },
};
