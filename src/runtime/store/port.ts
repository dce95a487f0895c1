/**
 * Port to the journal of runs (spec 4, Durability). Implementations: memory (tests), SQLite (the default); a database shared
 * by several runtimes fits behind the same types. Each passes `test/runtime/store-conformance.ts`.
 *
 * S1: what `append` answered `durable` is never lost, whole, and in order: not by a kill, not by a loss of power.
 * S2: one `append` is all or nothing, over all its runs, rows, tasks, approvals and counters.
 * S3: the sequence numbers of a run are 1, 2, 3, … without a gap; a commit that expects another last one changes nothing.
 * S4: a record that comes back is the record that was stored; a damaged one is named, never handed out.
 *
 * What it does not do: know what a record means. The journal's records are the truth about a run; rows, approvals and
 * counters are what is looked up without reading them, written in the same transaction so that they cannot disagree.
 */

/** One record of a run's journal. `run` and `seq` are the store's: a record must not carry them. */
export type JournalRecord = {
  /** Version of the record's form. */
  readonly v: number;
  /** Wall-clock milliseconds. */
  readonly at: number;
  /** Types that end in `-row` belong to the export form. */
  readonly type: string;
  readonly [field: string]: unknown;
};

/**
 * What is known of a run without reading its records. Who it belongs to never changes: id, parent, root, principal, session
 * and idempotency key are those of its first row.
 */
export type RunRow = {
  readonly id: string;
  readonly parent?: string;
  /** The run at the top of the tree; its own id where it has no parent. */
  readonly root: string;
  readonly principal: string;
  readonly caller: string;
  /** MCP session that spawned it. */
  readonly session?: string;
  readonly state: "Running" | "AwaitingApproval" | "Completed" | "Failed" | "Cancelled";
  readonly reason?: string;
  readonly createdAtMs: number;
  readonly updatedAtMs: number;
  /** Set when the run has ended, and only then: a run without it is live, and is loaded at the start. */
  readonly endedAtMs?: number;
  /** Unique inside a principal. */
  readonly idempotencyKey?: string;
  /** Of the arguments of the spawn, so that a repeat with other arguments is seen. */
  readonly argumentsDigest?: string;
  /** Whatever the host wants to show without the records, such as the model; JSON, small. */
  readonly detail?: { readonly [field: string]: unknown };
};

/** An MCP task: the handle under which a client polls a run. */
export type TaskRow = {
  readonly id: string;
  readonly runId: string;
  readonly principal: string;
  readonly createdAtMs: number;
  readonly detail?: { readonly [field: string]: unknown };
};

export type ApprovalRow = {
  readonly id: string;
  readonly runId: string;
  /** The tree, so that equal questions of one tree are found. */
  readonly root: string;
  readonly principal: string;
  readonly state: "open" | "decided" | "expired";
  readonly askedAtMs: number;
  readonly expiresAtMs: number;
  readonly detail?: { readonly [field: string]: unknown };
};

/** Adds to a named sum of a run, such as tokens used by its subtree. Any run may be named, ancestors too. */
export type CounterChange = { readonly runId: string; readonly name: string; readonly add: number };

/** What one commit does to one run. */
export type RunChange = {
  readonly runId: string;
  /** Number of the run's last record; 0 for a new run. */
  readonly expectedSeq: number;
  /** Of the owner that writes; a lower one than the run has seen is refused, a higher one is remembered. Default 0. */
  readonly epoch?: number;
  readonly records: readonly JournalRecord[];
  /** Replaces the run's row; needed with the first record. */
  readonly row?: RunRow;
  /** Added or replaced by id. */
  readonly tasks?: readonly TaskRow[];
  /** Added or replaced by id. */
  readonly approvals?: readonly ApprovalRow[];
  /** Changes to the sums of a run that is not there (deleted) are left out. */
  readonly counters?: readonly CounterChange[];
};

export type AppendOptions = {
  /**
   * While the disk takes nothing: `wait` (the default) keeps the commit and tries it again until the disk takes it, which
   * is how a live run pauses; `refuse` answers at once, which is right for a new spawn.
   */
  readonly whenFull?: "wait" | "refuse";
};

export type AppendOutcome =
  | { readonly kind: "durable" }
  /** Nothing was written, and the same commit can never be. */
  | {
      readonly kind: "conflict";
      readonly on: "sequence" | "epoch" | "idempotency-key" | "row-missing" | "invalid";
      readonly runId: string;
      /** The run's last sequence, the epoch that counts, or the run that has the key. */
      readonly found?: number | string;
      readonly message: string;
    }
  /**
   * Nothing of it is visible, and the same commit may be tried again. `lost` alone is not certain: the store broke down
   * with the commit under way, and only opening it again says whether it is there.
   */
  | {
      readonly kind: "unavailable";
      readonly why: "disk-full" | "disk-error" | "queue-full" | "damaged" | "closed" | "lost";
      readonly message: string;
    };

/** What is wrong with a run, by run and sequence; `seq` 0 is the run's row. */
export type Damage = { readonly runId: string; readonly seq: number; readonly message: string };

/** A run as it is listed. */
export type RunEntry = {
  /** Where the damage has `seq` 0: what could be made out of it, without `detail`. */
  readonly row: RunRow;
  readonly lastSeq: number;
  readonly epoch: number;
  readonly damage?: Damage;
};

/** A run with its journal. */
export type StoredRun = RunEntry & {
  /** In order from 1; where a record is damaged, those before it. */
  readonly records: readonly JournalRecord[];
};

export type RunFilter = {
  readonly principal?: string;
  readonly session?: string;
  readonly root?: string;
  readonly parent?: string;
  /** Only runs that have not ended. */
  readonly live?: boolean;
  readonly limit: number;
  /** From the page before. */
  readonly cursor?: string;
};

export type Page<Item> = {
  readonly items: readonly Item[];
  /** Set when there is more. */
  readonly cursor?: string;
};

/** Whether the store takes commits; `/readyz` shows it. */
export type StoreHealth =
  | { readonly state: "ok" }
  /** The disk takes nothing: commits wait, and go on by themselves when it does again. */
  | { readonly state: "paused"; readonly why: "disk-full" | "disk-error"; readonly message: string }
  /** Nothing more can be written before the store is opened again. */
  | { readonly state: "failed"; readonly message: string };

export type StoreStats = {
  readonly commits: number;
  readonly records: number;
  /** Commits that wait for the disk, and their bytes. */
  readonly queuedCommits: number;
  readonly queuedBytes: number;
};

export type RunStore = {
  /** Writes all changes in one transaction; answers when they are durable. Never rejects. */
  append(changes: readonly RunChange[], options?: AppendOptions): Promise<AppendOutcome>;
  /** Every run that has not ended, oldest first, each with its journal; read in batches, so that memory stays bounded. */
  loadLive(): AsyncIterable<StoredRun>;
  /** Every run, oldest first; for export and verification. */
  loadAll(): AsyncIterable<StoredRun>;
  load(runId: string): Promise<StoredRun | undefined>;
  /** Without the records. */
  entry(runId: string): Promise<RunEntry | undefined>;
  /** Newest first. */
  list(filter: RunFilter): Promise<Page<RunEntry>>;
  /** Oldest first, without their own children. */
  children(runId: string): Promise<readonly RunEntry[]>;
  findByIdempotencyKey(principal: string, key: string): Promise<RunEntry | undefined>;
  /** Sums by run and name; a run without counters is left out. */
  counters(runIds: readonly string[]): Promise<ReadonlyMap<string, ReadonlyMap<string, number>>>;
  task(taskId: string): Promise<TaskRow | undefined>;
  tasksOf(runId: string): Promise<readonly TaskRow[]>;
  approval(approvalId: string): Promise<ApprovalRow | undefined>;
  approvalsOf(runId: string): Promise<readonly ApprovalRow[]>;
  /** Oldest first; the inbox. */
  openApprovals(filter: {
    readonly principal?: string;
    readonly root?: string;
    readonly limit: number;
    readonly cursor?: string;
  }): Promise<Page<ApprovalRow>>;
  meta(key: string): Promise<string | undefined>;
  /**
   * The value under the key; where there is none, `value` is stored first. So that a key made at random is made once.
   * Rejects when it cannot be stored.
   */
  metaOnce(key: string, value: string): Promise<string>;
  /**
   * Deletes one small chunk of what ended before `endedBeforeMs`, with tasks, approvals and counters. A run goes after its
   * children, since a live child's budgets are its ancestors'. Call again while `more`; appends go first in between.
   */
  deleteEnded(limits: { readonly endedBeforeMs: number }): Promise<{ readonly runs: number; readonly more: boolean }>;
  health(): StoreHealth;
  /** Calls `listener` at each change; the returned function ends that. */
  onHealth(listener: (health: StoreHealth) => void): () => void;
  stats(): StoreStats;
  /** Writes what was queued, then lets go of the files. Commits that the disk does not take end as `closed`. */
  close(): Promise<void>;
};

export type StoreErrorCode =
  | "in-use"
  | "not-a-journal"
  | "newer-version"
  | "damaged"
  | "cannot-open"
  | "bad-cursor"
  | "bad-line"
  | "closed"
  | "failed";

/** Thrown when a store cannot be opened or read: what is wrong, where, how to mend it. */
export class StoreError extends Error {
  override readonly name = "StoreError";
  readonly code: StoreErrorCode;

  constructor(code: StoreErrorCode, message: string, options?: ErrorOptions) {
    super(message, options);
    this.code = code;
  }
}
