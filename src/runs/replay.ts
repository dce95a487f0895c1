/**
 * Reads journals back. A journal that does not fold is damaged, or was written by a version that this one does not know.
 */
import { fold } from "./fold.ts";
import { RECORD_VERSION, type RunRecord, type RunState } from "./types.ts";

/** One record as a store hands it out. */
export type StoredRecord = { readonly v: number; readonly at: number; readonly type: string };

export type Replayed =
  | { readonly kind: "replayed"; readonly run: RunState }
  | {
      readonly kind: "broken";
      /** From 1; 0: there is no record at all. */
      readonly seq: number;
      readonly message: string;
      /** The state before the record that does not fold. */
      readonly run: RunState | undefined;
    };

export function replayRun(records: readonly StoredRecord[]): Replayed {
  let run: RunState | undefined;
  for (const [at, record] of records.entries()) {
    if (record.v !== RECORD_VERSION) {
      return { kind: "broken", seq: at + 1, message: `version ${record.v} is not known here`, run };
    }
    try {
      run = fold(run, record as RunRecord);
    } catch (error) {
      return { kind: "broken", seq: at + 1, message: error instanceof Error ? error.message : String(error), run };
    }
  }
  if (run === undefined) return { kind: "broken", seq: 0, message: "the journal is empty", run };
  return { kind: "replayed", run };
}
