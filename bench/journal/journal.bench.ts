// What does a durable record cost, and how long does a restart take to find its runs? See README.md.
import { execFileSync } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { parseArgs } from "node:util";
import type { AppendFigures, FillFigures, RecoverFigures, Size } from "./side.ts";
import { fileOf, KINDS, type Kind } from "./stores.ts";

const SIDE = path.join(import.meta.dirname, "side.ts");

const { values: flags } = parseArgs({
  options: {
    rounds: { type: "string", default: "3" },
    seconds: { type: "string", default: "3" },
    bytes: { type: "string", default: "4096" },
    runs: { type: "string", default: "100000" },
    live: { type: "string", default: "1000" },
    only: { type: "string", default: "append,recover" },
    kinds: { type: "string", default: KINDS.join(",") },
    folder: { type: "string", default: path.join(import.meta.dirname, ".cache") },
    out: { type: "string" },
    smoke: { type: "boolean", default: false },
  },
});
const kinds = KINDS.filter((kind) => flags.kinds.split(",").includes(kind));
const rounds = flags.smoke ? 1 : Number(flags.rounds);
const spanMs = flags.smoke ? 200 : Number(flags.seconds) * 1_000;
const size: Size = {
  runs: flags.smoke ? 500 : Number(flags.runs),
  live: flags.smoke ? 50 : Number(flags.live),
  recordsPerRun: 10,
  bytes: Number(flags.bytes),
};
if (![rounds, spanMs, size.runs, size.live, size.bytes - 80].every((number) => number >= 1)) {
  throw new Error("--rounds, --seconds, --runs, --live and --bytes must be numbers above 0, and --bytes above 80");
}

type Sample =
  | {
      readonly what: "floor";
      readonly round: number;
      readonly load: number;
      readonly p50Ms: number;
      readonly p99Ms: number;
    }
  | ({
      readonly what: "append";
      readonly kind: Kind;
      readonly writers: number;
      readonly round: number;
      readonly load: number;
    } & AppendFigures)
  | ({ readonly what: "fill"; readonly kind: Kind; readonly load: number } & FillFigures)
  | ({
      readonly what: "recover";
      readonly kind: Kind;
      readonly cache: "cold" | "warm";
      readonly load: number;
    } & RecoverFigures);

const folder = path.join(flags.folder, `journal-${process.pid}`);
const samples: Sample[] = [];

function side<Figures>(mode: string, kind: Kind | "none", at: string, more: object): Figures {
  const args = [SIDE, mode, kind, at, JSON.stringify(more)];
  return JSON.parse(
    execFileSync(process.execPath, args, { stdio: ["ignore", "pipe", "inherit"] }).toString(),
  ) as Figures;
}

const load = (): number => os.loadavg()[0] ?? 0;

function measureAppends(): void {
  for (let round = 1; round <= rounds; round += 1) {
    samples.push({
      what: "floor",
      round,
      load: load(),
      ...side<{ p50Ms: number; p99Ms: number }>("floor", "none", folder, { spanMs: spanMs / 3, bytes: size.bytes }),
    });
    for (const kind of shuffled(kinds)) {
      for (const writers of [1, 64]) {
        const at = path.join(folder, `${kind}-${writers}-${round}`);
        const figures = side<AppendFigures>("append", kind, at, { writers, spanMs, bytes: size.bytes });
        samples.push({ what: "append", kind, writers, round, load: load(), ...figures });
        fs.rmSync(at, { recursive: true });
      }
    }
    process.stderr.write(`append: round ${round} of ${rounds} done, load ${load().toFixed(1)}\n`);
  }
}

function measureRecovery(): void {
  for (const kind of kinds) {
    const at = path.join(folder, `${kind}-filled`);
    samples.push({ what: "fill", kind, load: load(), ...side<FillFigures>("fill", kind, at, size) });
    process.stderr.write(`${kind}: filled, load ${load().toFixed(1)}\n`);
    for (let round = 1; round <= rounds; round += 1) {
      for (const cache of ["cold", "warm"] as const) {
        if (cache === "cold") dropFromCache(fileOf(kind, at));
        const figures = side<RecoverFigures>("recover", kind, at, {});
        if (figures.runs !== size.live || figures.records !== size.live * size.recordsPerRun) {
          throw new Error(`${kind}: ${figures.runs} runs with ${figures.records} records came back, not all live ones`);
        }
        samples.push({ what: "recover", kind, cache, load: load(), ...figures });
      }
    }
    process.stderr.write(`${kind}: recovered, load ${load().toFixed(1)}\n`);
    fs.rmSync(at, { recursive: true });
  }
}

/** The file's pages leave the system's memory, which needs no rights: GNU dd asks for it with POSIX_FADV_DONTNEED. */
function dropFromCache(file: string): void {
  execFileSync("dd", [`if=${file}`, "iflag=nocache", "count=0", "status=none"]);
}

function shuffled<Item>(items: readonly Item[]): readonly Item[] {
  const keyed = items.map((item) => ({ item, key: Math.random() }));
  return keyed.sort((a, b) => a.key - b.key).map(({ item }) => item);
}

/** Median [least–largest]. */
function spread(values: readonly number[], digits: number): string {
  const sorted = [...values].sort((a, b) => a - b);
  const [least, median, most] = [sorted[0], sorted[sorted.length >> 1], sorted.at(-1)].map((value) =>
    (value ?? Number.NaN).toFixed(digits),
  );
  return least === most ? `${median}` : `${median} [${least}–${most}]`;
}

function report(): string {
  const lines: string[] = [];
  const floors = samples.filter((sample) => sample.what === "floor");
  if (floors.length > 0) {
    lines.push(
      `disk: append and fdatasync of ${size.bytes} bytes: p50 ${spread(
        floors.map((one) => one.p50Ms),
        2,
      )} ms\n`,
    );
    lines.push(
      "| journal | runs at once | records/s | p50, ms | p99, ms | event loop p99, ms | CPU, µs/record |",
      "| --- | --- | --- | --- | --- | --- | --- |",
    );
    for (const kind of kinds) {
      for (const writers of [1, 64]) {
        const rows = samples.filter(
          (one) => one.what === "append" && one.kind === kind && one.writers === writers,
        ) as AppendFigures[];
        const cell = (key: keyof AppendFigures, digits: number): string =>
          spread(
            rows.map((row) => row[key]),
            digits,
          );
        lines.push(
          `| ${[kind, writers, cell("perSecond", 0), cell("p50Ms", 2), cell("p99Ms", 1), cell("loopP99Ms", 1), cell("cpuUsPerRecord", 0)].join(" | ")} |`,
        );
      }
    }
  }
  const fills = samples.filter((sample) => sample.what === "fill");
  if (fills.length > 0) {
    lines.push(
      "",
      `recovery: ${size.runs} runs of ${size.recordsPerRun} records of ${size.bytes} bytes, ${size.live} live`,
      "",
    );
    lines.push(
      "| journal | filled in, s | MiB | cold, s | warm, s | event loop p99, ms | memory, MiB |",
      "| --- | --- | --- | --- | --- | --- | --- |",
    );
    for (const { kind, seconds, mebibytes } of fills) {
      const of = (cache: string): readonly RecoverFigures[] =>
        samples.filter((one) => one.what === "recover" && one.kind === kind && one.cache === cache) as RecoverFigures[];
      const cell = (cache: string, pick: (row: RecoverFigures) => number, digits: number): string =>
        spread(of(cache).map(pick), digits);
      lines.push(
        `| ${[kind, seconds.toFixed(0), mebibytes.toFixed(0), cell("cold", (row) => row.totalMs / 1_000, 2), cell("warm", (row) => row.totalMs / 1_000, 2), cell("warm", (row) => row.loopP99Ms, 1), cell("warm", (row) => row.rssMiB, 0)].join(" | ")} |`,
      );
    }
  }
  return lines.join("\n");
}

const parts = flags.only.split(",");
try {
  if (parts.includes("append")) measureAppends();
  if (parts.includes("recover")) measureRecovery();
} finally {
  fs.rmSync(folder, { recursive: true, force: true });
}
process.stdout.write(`${report()}\n`);
if (flags.out !== undefined) {
  const about = { node: process.version, cpu: os.cpus()[0]?.model, cpus: os.cpus().length, kernel: os.release() };
  fs.writeFileSync(
    flags.out,
    `${JSON.stringify({ about, settings: { rounds, spanMs, ...size }, samples }, null, 1)}\n`,
  );
}
