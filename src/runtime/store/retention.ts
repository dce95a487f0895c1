/**
 * Deletes what ended long ago, chunk by chunk, with a rest after each, so that live runs never wait for it.
 *
 * What it does not do: shrink the file. Its pages are used again; `luftpause journal compact` gives them back.
 */
import type { Clock } from "../../base/clock.ts";
import type { RunStore } from "./port.ts";

export type RetentionOptions = {
  readonly store: RunStore;
  readonly clock: Clock;
  readonly wallMs: () => number;
  /** An ended run is kept this long. */
  readonly keepFinishedMs: number;
  /** A sweep that could not go on begins again with the next one; told here. */
  readonly onFault: (error: unknown) => void;
  readonly onSwept?: (runs: number) => void;
};

const SWEEP_EVERY_MS = 600_000;
/** After each chunk: one chunk of some fifty rows takes a few milliseconds of the disk. */
const REST_MS = 20;

/** Sweeps at once and then regularly; the returned function ends that. */
export function keepTidy(options: RetentionOptions): () => void {
  const { store, clock, wallMs, keepFinishedMs, onFault, onSwept } = options;
  let cancel = (): void => {};
  let stopped = false;
  const rest = (delayMs: number, action: () => void): void => {
    if (!stopped) cancel = clock.after(delayMs, action);
  };
  const sweep = (endedBeforeMs: number, deleted: number): void => {
    store.deleteEnded({ endedBeforeMs }).then(
      ({ runs, more }) => {
        const sum = deleted + runs;
        if (more) {
          rest(REST_MS, () => {
            sweep(endedBeforeMs, sum);
          });
          return;
        }
        if (sum > 0) onSwept?.(sum);
        rest(SWEEP_EVERY_MS, begin);
      },
      (error: unknown) => {
        if (!stopped) onFault(error);
        rest(SWEEP_EVERY_MS, begin);
      },
    );
  };
  const begin = (): void => {
    sweep(wallMs() - keepFinishedMs, 0);
  };
  begin();
  return () => {
    stopped = true;
    cancel();
  };
}
