/** What a simulated tool server was called with: in memory, and in a file that outlives a crash. */
import { appendFileSync, readFileSync } from "node:fs";

/** A call that has begun. */
export type LedgerEntry = {
  readonly tool: string;
  readonly arguments: unknown;
  /** From `_meta["io.luftpause/idempotency-key"]`. */
  readonly key: string | undefined;
};

/** Calls that are kept in memory, the last ones. */
const KEPT = 10_000;

export class Ledger {
  readonly #file: string | undefined;
  readonly #entries: LedgerEntry[];
  readonly #watchers = new Set<() => void>();

  /** @param file read first where it exists: a process that is started again knows what the one before was asked. */
  constructor(file: string | undefined) {
    this.#file = file;
    this.#entries = file === undefined ? [] : readLedger(file);
  }

  get entries(): readonly LedgerEntry[] {
    return this.#entries;
  }

  has(key: string | undefined): boolean {
    return key !== undefined && this.#entries.some((entry) => entry.key === key);
  }

  /** Written before anything else happens: a crash in the call finds it there. */
  add(entry: LedgerEntry): void {
    this.#entries.push(entry);
    if (this.#entries.length > KEPT) this.#entries.shift();
    if (this.#file !== undefined) appendFileSync(this.#file, `${JSON.stringify(entry)}\n`);
    for (const watch of this.#watchers) watch();
  }

  onAdd(watch: () => void): () => void {
    this.#watchers.add(watch);
    return () => this.#watchers.delete(watch);
  }
}

/** The calls in a ledger's file; none where there is no file. */
export function readLedger(file: string): LedgerEntry[] {
  let text: string;
  try {
    text = readFileSync(file, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return [];
    throw error;
  }
  // A process that was killed may have left half a line.
  const whole = text.slice(0, text.lastIndexOf("\n") + 1);
  return whole
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => JSON.parse(line) as LedgerEntry);
}
