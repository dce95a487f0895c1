// One measured phase: a load against a variant, with what the operating system says about both sides meanwhile.
import { cpuBusyNs, cpuNs, cpuTicksNs, loadAverage } from "../support/accounting.ts";
import { MODELS, type Bench } from "./bench.ts";
import { runLoad, type Load, type LoadResult } from "./load.ts";
import type { Part, VariantName } from "./options.ts";
import type { Variant } from "./variants.ts";

export type CaseName = "json" | "s64" | "s400" | "s200" | "light-json" | "light-stream";

export type Case = {
  readonly name: CaseName;
  readonly part: Part;
  readonly what: string;
  readonly load: Omit<Load, "seconds">;
};

export const CASES: readonly Case[] = [
  {
    name: "json",
    part: "json",
    what: "2 KB in, 1 KB JSON out, 32 connections, saturated",
    load: { model: MODELS.fast, conns: 32 },
  },
  {
    name: "s64",
    part: "s64",
    what: "64 open streams, 64 events 5 ms apart",
    load: { model: MODELS.fast, conns: 64, chunks: 64 },
  },
  {
    name: "s400",
    part: "s400",
    what: "400 open streams, 64 events 5 ms apart",
    load: { model: MODELS.fast, conns: 400, chunks: 64 },
  },
  {
    name: "s200",
    part: "s200",
    what: "200 open streams, 64 events 20 ms apart",
    load: { model: MODELS.slow, conns: 200, chunks: 64 },
  },
  {
    name: "light-json",
    part: "light",
    what: "300 JSON turns a second",
    load: { model: MODELS.fast, conns: 64, rate: 300, recordAfterMs: 500 },
  },
  {
    name: "light-stream",
    part: "light",
    what: "75 open streams, 64 events 20 ms apart",
    load: { model: MODELS.slow, conns: 75, chunks: 64, ramp: 75, recordAfterMs: 1000 },
  },
];

export type Sample = {
  readonly case: CaseName;
  readonly variant: VariantName;
  readonly round: number;
  readonly loadAverage: number;
  /** CPU of the proxy per turn and per event of a stream, microseconds; null for direct. */
  readonly usPerTurn: number | null;
  readonly usPerEvent: number | null;
  readonly turnsPerSecond: number;
  readonly eventsPerSecond: number;
  /** Share of one CPU: the proxy, stub + generator, and everybody else on the proxy's CPU (null when not pinned). */
  readonly proxyCpu: number;
  readonly toolsCpu: number;
  readonly othersOnProxyCpu: number | null;
  /** CPU time of threads that ended meanwhile (not in usPerTurn), as a share of the proxy's; noise is below 0.02. */
  readonly endedThreads: number;
  readonly load: LoadResult;
};

function per(us: number, count: number): number | null {
  return count === 0 ? null : Math.round((us / count) * 100) / 100;
}

const share = (part: number, whole: number): number => Math.round((part / whole) * 1000) / 1000;

/** Runs one load and accounts for it. All turns count, those that end after the window too: CPU and turns cover the same work. */
export async function measure(bench: Bench, variant: Variant, spec: Case, round: number): Promise<Sample> {
  const load: Load = { ...spec.load, seconds: bench.options.phaseSeconds };
  const pids = variant.pids();
  const proxyCpu = bench.options.cpus?.proxy ?? null;
  const averageBefore = loadAverage();
  const wallBefore = performance.now();
  const before = {
    cpu: cpuNs(pids),
    ticks: cpuTicksNs(pids),
    stub: cpuNs([bench.stub.process.pid]),
    busy: cpuBusyNs(proxyCpu ?? 0),
  };
  const result = await runLoad(bench, load, variant.target);
  const wallNs = (performance.now() - wallBefore) * 1e6;
  const spent = {
    cpu: cpuNs(pids) - before.cpu,
    ticks: cpuTicksNs(pids) - before.ticks,
    stub: cpuNs([bench.stub.process.pid]) - before.stub,
    busy: cpuBusyNs(proxyCpu ?? 0) - before.busy,
  };
  const turns = result.served + result.failed + result.aborted;
  return {
    case: spec.name,
    variant: variant.name,
    round,
    loadAverage: averageBefore,
    usPerTurn: variant.process === null ? null : per(spent.cpu / 1000, turns),
    usPerEvent: variant.process === null ? null : per(spent.cpu / 1000, result.events),
    turnsPerSecond: Math.round(turns / result.seconds),
    eventsPerSecond: Math.round(result.events / result.seconds),
    proxyCpu: share(spent.cpu, wallNs),
    toolsCpu: share(spent.stub + result.cpuSeconds * 1e9, wallNs),
    othersOnProxyCpu: proxyCpu === null ? null : Math.max(0, share(spent.busy - spent.cpu, wallNs)),
    endedThreads: spent.ticks === 0 ? 0 : Math.max(0, share(spent.ticks - spent.cpu, spent.ticks)),
    load: result,
  };
}
