/** What the threads of the SQLite journal say to each other. */
import type { AppendOutcome, CounterChange, StoreErrorCode, StoreHealth } from "./port.ts";

export type Place = { readonly runId: string; readonly root: string; readonly principal: string };

/** A `RunChange` whose objects are texts already: the thread that writes never looks into them. */
export type WireChange = {
  readonly runId: string;
  readonly expectedSeq: number;
  readonly epoch: number;
  readonly records: readonly string[];
  readonly row: WireRow | undefined;
  readonly tasks: readonly { readonly id: string; readonly runId: string; readonly body: string }[];
  readonly approvals: readonly (Place & { readonly id: string; readonly open: boolean; readonly body: string })[];
  readonly counters: readonly CounterChange[];
};

export type WireRow = {
  readonly parent: string | null;
  readonly root: string;
  readonly principal: string;
  readonly session: string | null;
  readonly idempotencyKey: string | null;
  readonly endedAtMs: number | null;
  readonly body: string;
};

export type WireCommit = {
  readonly id: number;
  readonly whenFull: "wait" | "refuse";
  /** About what it takes on the disk. */
  readonly bytes: number;
  readonly changes: readonly WireChange[];
};

export type WriterRequest =
  | { readonly op: "append"; readonly commits: readonly WireCommit[] }
  | { readonly op: "meta-once"; readonly id: number; readonly key: string; readonly value: string }
  | { readonly op: "delete-ended"; readonly id: number; readonly endedBeforeMs: number }
  | { readonly op: "compact"; readonly id: number }
  | { readonly op: "close" };

export type WriterReport =
  | { readonly kind: "ready"; readonly logDamage: string | undefined }
  | { readonly kind: "cannot-open"; readonly code: StoreErrorCode; readonly message: string }
  | { readonly kind: "outcomes"; readonly ids: readonly number[]; readonly outcomes: readonly AppendOutcome[] }
  | Answer
  | { readonly kind: "health"; readonly health: StoreHealth };

export type Answer =
  | { readonly kind: "answer"; readonly id: number; readonly value: unknown }
  | { readonly kind: "refused"; readonly id: number; readonly code: StoreErrorCode; readonly message: string };

/** A run as the file has it; its texts are parsed where they are used. */
export type WireRun = {
  readonly id: string;
  /** Undefined where it is damaged; then what the columns say. */
  readonly body: string | undefined;
  readonly columns: Omit<WireRow, "body">;
  readonly n: number;
  readonly lastSeq: number;
  readonly epoch: number;
  readonly damage: { readonly seq: number; readonly message: string } | undefined;
  readonly records: readonly string[];
};

export type WireFilter = {
  readonly principal: string | undefined;
  readonly session: string | undefined;
  readonly root: string | undefined;
  readonly parent: string | undefined;
  readonly live: boolean;
  readonly before: number | undefined;
  readonly limit: number;
};

/** The questions that the thread that reads answers. */
export type ReaderCalls = {
  scan(live: boolean, after: number, bytesMax: number): { readonly runs: readonly WireRun[]; readonly more: boolean };
  run(id: string, withRecords: boolean): WireRun | undefined;
  list(filter: WireFilter): { readonly runs: readonly WireRun[]; readonly more: boolean };
  children(parent: string): readonly WireRun[];
  byKey(principal: string, key: string): WireRun | undefined;
  counters(ids: readonly string[]): readonly (readonly [id: string, name: string, value: number])[];
  task(id: string): string | undefined;
  tasksOf(run: string): readonly string[];
  approval(id: string): string | undefined;
  approvalsOf(run: string): readonly string[];
  openApprovals(filter: {
    readonly principal: string | undefined;
    readonly root: string | undefined;
    readonly after: number;
    readonly limit: number;
  }): { readonly bodies: readonly string[]; readonly last: number; readonly more: boolean };
  meta(key: string): string | undefined;
  /** What SQLite itself finds wrong with the file; empty where nothing is. */
  integrity(): readonly string[];
};

export type ReaderRequest =
  | {
      [Name in keyof ReaderCalls]: {
        readonly id: number;
        readonly op: Name;
        readonly args: Parameters<ReaderCalls[Name]>;
      };
    }[keyof ReaderCalls]
  | { readonly id: number; readonly op: "close"; readonly args: readonly [] };
