// The journals that are compared, behind one small door: ours, and JSON lines with a checksum and a shared sync.
import fs from "node:fs/promises";
import path from "node:path";
import { crc32 } from "node:zlib";
import type { JournalRecord, RunRow } from "../../src/runtime/store/port.ts";
import { openSqliteStore } from "../../src/runtime/index.ts";

export type Kind = "luftpause" | "jsonl";

export const KINDS: readonly Kind[] = ["luftpause", "jsonl"];

export type BenchStore = {
  /** Resolves when the record is with the disk. */
  append(run: string, seq: number, record: JournalRecord, ended: boolean): Promise<void>;
  /** Reads every run that has not ended, with its records, as objects. */
  recover(): Promise<{ readonly runs: number; readonly records: number }>;
  close(): Promise<void>;
};

export const fileOf = (kind: Kind, folder: string): string =>
  path.join(folder, kind === "luftpause" ? "runs.db" : "journal.jsonl");

export async function openStore(kind: Kind, folder: string): Promise<BenchStore> {
  await fs.mkdir(folder, { recursive: true });
  return kind === "luftpause" ? openOurs(fileOf(kind, folder)) : JsonLines.open(fileOf(kind, folder));
}

async function openOurs(file: string): Promise<BenchStore> {
  const store = await openSqliteStore({ file });
  return {
    async append(run, seq, record, ended) {
      const times = { createdAtMs: 1, updatedAtMs: seq, ...(ended ? { endedAtMs: seq } : {}) };
      const state = ended ? ("Completed" as const) : ("Running" as const);
      const row: RunRow = { id: run, root: run, principal: "bench", caller: "", state, ...times };
      const change = { runId: run, expectedSeq: seq - 1, records: [record], ...(seq === 1 || ended ? { row } : {}) };
      const outcome = await store.append([change]);
      if (outcome.kind !== "durable") throw new Error(outcome.message);
    },
    async recover() {
      let runs = 0;
      let records = 0;
      for await (const run of store.loadLive()) {
        runs += 1;
        records += run.records.length;
      }
      return { runs, records };
    },
    close: () => store.close(),
  };
}

/** One file, a CRC-32 before each line, one `fdatasync` for all lines that came while the one before was under way. */
class JsonLines implements BenchStore {
  readonly #file: string;
  readonly #handle: fs.FileHandle;
  #waiting: { readonly text: string; readonly resolve: () => void; readonly reject: (error: unknown) => void }[] = [];
  #writing = false;

  private constructor(file: string, handle: fs.FileHandle) {
    this.#file = file;
    this.#handle = handle;
  }

  static async open(file: string): Promise<JsonLines> {
    return new JsonLines(file, await fs.open(file, "a"));
  }

  append(run: string, seq: number, record: JournalRecord, ended: boolean): Promise<void> {
    const body = JSON.stringify({ run, seq, ended, ...record });
    const text = `${crc32(body).toString(16).padStart(8, "0")} ${body}\n`;
    return new Promise((resolve, reject) => {
      this.#waiting.push({ text, resolve, reject });
      if (!this.#writing) void this.#write(); // Each append is told what came of it.
    });
  }

  async #write(): Promise<void> {
    this.#writing = true;
    while (this.#waiting.length > 0) {
      const group = this.#waiting;
      this.#waiting = [];
      try {
        await this.#handle.appendFile(group.map(({ text }) => text).join(""));
        await this.#handle.datasync();
        for (const { resolve } of group) resolve();
      } catch (error) {
        for (const { reject } of group) reject(error);
      }
    }
    this.#writing = false;
  }

  async recover(): Promise<{ readonly runs: number; readonly records: number }> {
    const live = new Map<string, unknown[]>();
    for await (const line of textLines(this.#file)) {
      const body = line.slice(9);
      if (crc32(body) !== Number.parseInt(line.slice(0, 8), 16)) throw new Error("a line is damaged");
      const record = JSON.parse(body) as { readonly run: string; readonly ended: boolean };
      if (record.ended) live.delete(record.run);
      else live.set(record.run, [...(live.get(record.run) ?? []), record]);
    }
    return { runs: live.size, records: [...live.values()].reduce((sum, records) => sum + records.length, 0) };
  }

  async close(): Promise<void> {
    await this.#handle.close();
  }
}

/** Faster than node:readline, so that the peer is not the slower for its reader. */
async function* textLines(file: string): AsyncIterable<string> {
  const handle = await fs.open(file);
  let rest = "";
  for await (const chunk of handle.createReadStream({ encoding: "utf8", highWaterMark: 1024 * 1024 })) {
    const lines = `${rest}${String(chunk)}`.split("\n");
    rest = lines.pop() ?? "";
    yield* lines;
  }
}
