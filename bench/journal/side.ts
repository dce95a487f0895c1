// One measurement in a process of its own: `node side.ts MODE KIND FOLDER JSON`. Prints one line of JSON.
import fs from "node:fs";
import fsp from "node:fs/promises";
import path from "node:path";
import { monitorEventLoopDelay, performance } from "node:perf_hooks";
import { openStore, type BenchStore, type Kind } from "./stores.ts";

export type AppendFigures = {
  readonly records: number;
  readonly perSecond: number;
  readonly p50Ms: number;
  readonly p99Ms: number;
  /** The delay histogram of Node, read every millisecond, which is in the figure. */
  readonly loopP99Ms: number;
  readonly loopMaxMs: number;
  readonly cpuUsPerRecord: number;
};
export type FillFigures = { readonly records: number; readonly seconds: number; readonly mebibytes: number };
export type RecoverFigures = {
  readonly runs: number;
  readonly records: number;
  readonly openMs: number;
  readonly totalMs: number;
  readonly loopP99Ms: number;
  readonly cpuMs: number;
  readonly rssMiB: number;
};

const record = (bytes: number, run: string, seq: number) => ({
  v: 1,
  at: 1_764_600_000_000,
  type: "call-outcome",
  text: `${run}/${seq} `.padEnd(bytes - 80, "The river rises in the hills and runs to the sea. "),
});

const loopWatch = () => {
  const histogram = monitorEventLoopDelay({ resolution: 1 });
  histogram.enable();
  return histogram;
};

async function append(store: BenchStore, writers: number, spanMs: number, bytes: number): Promise<AppendFigures> {
  const times: number[] = [];
  const cpu = process.cpuUsage();
  const loop = loopWatch();
  const began = performance.now();
  await Promise.all(
    Array.from({ length: writers }, async (_, index) => {
      const run = `w${writers}-${index}`;
      for (let seq = 1; performance.now() - began < spanMs; seq += 1) {
        const at = performance.now();
        await store.append(run, seq, record(bytes, run, seq), false);
        times.push(performance.now() - at);
      }
    }),
  );
  const seconds = (performance.now() - began) / 1_000;
  loop.disable();
  const { user, system } = process.cpuUsage(cpu);
  times.sort((a, b) => a - b);
  const at = (share: number): number => times[Math.min(times.length - 1, Math.floor(times.length * share))] ?? 0;
  return {
    records: times.length,
    perSecond: times.length / seconds,
    p50Ms: at(0.5),
    p99Ms: at(0.99),
    loopP99Ms: loop.percentile(99) / 1e6,
    loopMaxMs: loop.max / 1e6,
    cpuUsPerRecord: (user + system) / times.length,
  };
}

/** Sixty-four runs at a time, record by record, as they come in life; every so many runs one stays live. */
async function fill(store: BenchStore, size: Size): Promise<{ readonly records: number; readonly seconds: number }> {
  const began = performance.now();
  let started = 0;
  let records = 0;
  const every = Math.round(size.runs / size.live);
  await Promise.all(
    Array.from({ length: 64 }, async () => {
      while (started < size.runs) {
        const place = started;
        started += 1;
        const run = `run-${place}`;
        const live = place % every === 0;
        for (let seq = 1; seq <= size.recordsPerRun; seq += 1) {
          await store.append(run, seq, record(size.bytes, run, seq), seq === size.recordsPerRun && !live);
          records += 1;
        }
      }
    }),
  );
  return { records, seconds: (performance.now() - began) / 1_000 };
}

async function recover(kind: Kind, folder: string): Promise<RecoverFigures> {
  const cpu = process.cpuUsage();
  const loop = loopWatch();
  const began = performance.now();
  const store = await openStore(kind, folder);
  const openMs = performance.now() - began;
  const { runs, records } = await store.recover();
  const totalMs = performance.now() - began;
  loop.disable();
  const { user, system } = process.cpuUsage(cpu);
  const rssMiB = process.memoryUsage.rss() / 1024 / 1024;
  await store.close();
  return {
    runs,
    records,
    openMs,
    totalMs,
    loopP99Ms: loop.percentile(99) / 1e6,
    cpuMs: (user + system) / 1_000,
    rssMiB,
  };
}

/** What the disk itself takes for a record: append and fdatasync, one after the other. */
async function floor(
  folder: string,
  spanMs: number,
  bytes: number,
): Promise<{ readonly p50Ms: number; readonly p99Ms: number }> {
  await fsp.mkdir(folder, { recursive: true });
  const handle = await fsp.open(path.join(folder, "floor"), "a");
  const buffer = Buffer.alloc(bytes, "x");
  const times: number[] = [];
  for (const began = performance.now(); performance.now() - began < spanMs;) {
    const at = performance.now();
    fs.writeSync(handle.fd, buffer);
    fs.fdatasyncSync(handle.fd);
    times.push(performance.now() - at);
  }
  await handle.close();
  times.sort((a, b) => a - b);
  return { p50Ms: times[times.length >> 1] ?? 0, p99Ms: times[Math.floor(times.length * 0.99)] ?? 0 };
}

export type Size = {
  readonly runs: number;
  readonly live: number;
  readonly recordsPerRun: number;
  readonly bytes: number;
};
type Settings = Size & { readonly writers: number; readonly spanMs: number };

async function main(mode: string, kind: Kind, folder: string, settings: Settings): Promise<unknown> {
  switch (mode) {
    case "floor":
      return floor(folder, settings.spanMs, settings.bytes);
    case "recover":
      return recover(kind, folder);
    case "append": {
      const store = await openStore(kind, folder);
      // The first commits make pages and compile code.
      await append(store, settings.writers, 300, settings.bytes).then(() => undefined);
      const figures = await append(new Renamed(store), settings.writers, settings.spanMs, settings.bytes);
      await store.close();
      return figures;
    }
    case "fill": {
      const store = await openStore(kind, folder);
      const figures = await fill(store, settings);
      await store.close();
      const bytes = fs.readdirSync(folder).reduce((sum, name) => sum + fs.statSync(path.join(folder, name)).size, 0);
      return { ...figures, mebibytes: bytes / 1024 / 1024 };
    }
    default:
      throw new Error(`no mode '${mode}'`);
  }
}

/** The measured runs are others than those of the warm-up. */
class Renamed implements BenchStore {
  readonly #inner: BenchStore;

  constructor(inner: BenchStore) {
    this.#inner = inner;
  }

  append(run: string, seq: number, value: Parameters<BenchStore["append"]>[2], ended: boolean): Promise<void> {
    return this.#inner.append(`measured-${run}`, seq, value, ended);
  }

  recover(): ReturnType<BenchStore["recover"]> {
    return this.#inner.recover();
  }

  close(): Promise<void> {
    return this.#inner.close();
  }
}

const [mode = "", kind = "", folder = "", settings = "{}"] = process.argv.slice(2);
process.stdout.write(`${JSON.stringify(await main(mode, kind as Kind, folder, JSON.parse(settings) as Settings))}\n`);
