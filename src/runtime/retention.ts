/** Deletes runs that ended long enough ago (spec 4, Retention), in small chunks: live runs go first. */
import type { Clock } from "../base/clock.ts";
import type { Log } from "../telemetry/index.ts";
import type { RunStore } from "./store/port.ts";

const EVERY_MS = 3_600_000;
/** Between two chunks. */
const PAUSE_MS = 20;

/** Begins at once, and again each hour. @returns ends it. */
export function startRetention(options: {
  readonly store: RunStore;
  readonly clock: Clock;
  readonly wallMs: () => number;
  readonly log: Log;
  readonly keepFinishedMs: number;
}): () => void {
  const { store, clock, wallMs, log, keepFinishedMs } = options;
  const run = { stopped: false, deleted: 0, stopTimer: (): void => undefined };
  const next = (inMs: number): void => {
    if (!run.stopped) run.stopTimer = clock.after(inMs, chunk);
  };
  const chunk = (): void => {
    store.deleteEnded({ endedBeforeMs: wallMs() - keepFinishedMs }).then(
      ({ runs, more }) => {
        run.deleted += runs;
        if (!more && run.deleted > 0) {
          log("info", "ended-runs-deleted", { runs: run.deleted });
          run.deleted = 0;
        }
        next(more ? PAUSE_MS : EVERY_MS);
      },
      (error: unknown) => {
        if (!run.stopped) log("error", "retention-failed", { error: String(error) });
        next(EVERY_MS);
      },
    );
  };
  chunk();
  return () => {
    run.stopped = true;
    run.stopTimer();
  };
}
