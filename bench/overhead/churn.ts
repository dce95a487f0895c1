// Growth under churn: clients that come, leave mid-answer and come back, for minutes, against one luftpause process.
// Its tables (identity keys, runs) are bounded by count and by half an hour; what they may hold is filled first, with
// more turns than the identity table has room for, so that only a leak still grows afterwards.
import { setTimeout as delay } from "node:timers/promises";
import { openFiles, pssKb } from "../support/accounting.ts";
import { MODELS, type Bench } from "./bench.ts";
import { runLoad, type LoadResult } from "./load.ts";
import type { VariantName } from "./options.ts";
import { stop } from "../support/processes.ts";
import { startVariant } from "./variants.ts";

type ChurnPoint = { readonly seconds: number; readonly pssKb: number; readonly files: number };

export type Churn = {
  readonly variant: VariantName;
  readonly fillTurns: number;
  readonly points: readonly ChurnPoint[];
  /** Median of the first and of the last fifth of the points after the first tenth. */
  readonly earlyKb: number;
  readonly lateKb: number;
  /** Least-squares slope over the same points. */
  readonly slopeKbPerMinute: number;
  readonly files: { readonly before: number; readonly after: number };
  readonly engineStreamsLeft: number;
  readonly load: LoadResult;
};

const FILL_TURNS = 260_000; // identity table: 200,000 keys (spec 5)
const FILL_SECONDS_MAX = 100;
const CLIENTS = 50;
const RUNS = 2000;
const SCRIPT = "Ree"; // runs come from a pool: a fresh run each turn would be kept for half an hour, by design
const ABORT_PERCENT = 30;
const REOPEN_PERCENT = 20;
const POINTS = 60;

export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = Math.floor(sorted.length / 2);
  const upper = sorted[middle] ?? NaN;
  return sorted.length % 2 === 1 ? upper : ((sorted[middle - 1] ?? NaN) + upper) / 2;
}

function slope(points: readonly ChurnPoint[]): number {
  const meanX = points.reduce((s, p) => s + p.seconds, 0) / points.length;
  const meanY = points.reduce((s, p) => s + p.pssKb, 0) / points.length;
  const over = points.reduce((s, p) => s + (p.seconds - meanX) * (p.pssKb - meanY), 0);
  const under = points.reduce((s, p) => s + (p.seconds - meanX) ** 2, 0);
  return under === 0 ? 0 : (over / under) * 60;
}

export async function churn(bench: Bench, name: VariantName): Promise<Churn> {
  const { churnSeconds } = bench.options;
  const variant = await startVariant(bench, name);
  try {
    const share = Math.min(1, churnSeconds / 600); // a quick look fills less
    const filled = await runLoad(
      bench,
      {
        model: MODELS.fast,
        conns: CLIENTS,
        turns: Math.round(FILL_TURNS * share),
        seconds: FILL_SECONDS_MAX,
        runs: RUNS,
        script: SCRIPT,
      },
      variant.target,
    );
    await delay(1500);
    const before = openFiles(variant.pids());
    const points: ChurnPoint[] = [];
    const load = {
      model: MODELS.short,
      chunks: 16,
      conns: CLIENTS,
      seconds: churnSeconds,
      runs: RUNS,
      script: SCRIPT,
      abortPercent: ABORT_PERCENT,
      reopenPercent: REOPEN_PERCENT,
    };
    const began = performance.now();
    const running = runLoad(bench, load, variant.target);
    const over = running.then(() => "over" as const);
    // Bounded by the load, which ends by itself; one point more than POINTS covers its drain.
    while ((await Promise.race([delay((churnSeconds * 1000) / POINTS), over])) !== "over") {
      const pids = variant.pids();
      const seconds = Math.round((performance.now() - began) / 100) / 10;
      points.push({ seconds, pssKb: pssKb(pids), files: openFiles(pids) });
    }
    const end = await running;
    await delay(3000);
    const steady = points.slice(Math.ceil(points.length / 10));
    const fifth = Math.max(1, Math.floor(steady.length / 5));
    return {
      variant: name,
      fillTurns: filled.served,
      points,
      earlyKb: median(steady.slice(0, fifth).map((p) => p.pssKb)),
      lateKb: median(steady.slice(-fifth).map((p) => p.pssKb)),
      slopeKbPerMinute: Math.round(slope(steady)),
      files: { before, after: openFiles(variant.pids()) },
      engineStreamsLeft: (await bench.stub.stats()).streamsOpen,
      load: end,
    };
  } finally {
    if (variant.process !== null) await stop(variant.process);
  }
}
