// Memory of open streams: proportional set size of a freshly started, warmed-up proxy, before and while it holds N
// streams that get an event each 5 s. The kernel's socket memory is not in it; it is the same for every variant.
import { setTimeout as delay } from "node:timers/promises";
import { cpuNs, openFiles, openFilesLimit, pssKb } from "../support/accounting.ts";
import { MODELS, type Bench } from "./bench.ts";
import { holdStreams, runLoad, type LoadResult } from "./load.ts";
import type { VariantName } from "./options.ts";
import { stop } from "../support/processes.ts";
import { startVariant, type Variant } from "./variants.ts";

export type MemoryRow = {
  readonly variant: VariantName;
  readonly streams: number;
  readonly baseKb: number;
  readonly heldKb: number;
  readonly kbPerStream: number;
  /** CPU per event while the streams idle, microseconds. */
  readonly usPerEvent: number;
  readonly files: { readonly before: number; readonly held: number; readonly after: number };
  /** Streams that the engine still had open 10 s after all clients left: 0, or requests leak. */
  readonly engineStreamsLeft: number;
  readonly afterKb: number;
  readonly load: LoadResult;
  /** All N opened, every one got every event that was due, none failed, and every descriptor came back. */
  readonly sound: boolean;
};

const RAMP_PER_SECOND = 1200;
const HOLD_SECONDS = 11;
const SETTLE_MS = 1500;
const LEAVE_SECONDS = 10;
/** Connections that a proxy may keep to the engine or have open for its own prober when its clients have left. */
const FILES_SLACK = 16;

/** Files that a proxy needs to hold so many streams: two each, and some. */
const filesFor = (streams: number): number => streams * 2 + 200;

function memoryLine(r: MemoryRow): string {
  const left = r.engineStreamsLeft === 0 ? "" : `; ${r.engineStreamsLeft} streams left open at the engine`;
  const failed = r.load.failed === 0 ? "" : `; ${r.load.failed} failed: ${r.load.firstFailure}`;
  return `${r.streams} idle streams ${r.variant.padEnd(9)} ${r.kbPerStream} KB each, files ${r.files.before} → ${r.files.held} → ${r.files.after}${left}${failed}`;
}

async function settle(bench: Bench, variant: Variant, filesBefore: number): Promise<number> {
  const deadline = performance.now() + LEAVE_SECONDS * 1000;
  for (;;) {
    const { streamsOpen } = await bench.stub.stats();
    if (streamsOpen === 0 && openFiles(variant.pids()) <= filesBefore + FILES_SLACK) return 0;
    if (performance.now() > deadline) return streamsOpen;
    await delay(100);
  }
}

/** Holds `streams` streams and says what they cost and whether all was given back. */
async function holdAndWeigh(bench: Bench, variant: Variant, streams: number, baseKb: number): Promise<MemoryRow> {
  const pids = variant.pids();
  const before = openFiles(pids);
  const rampSeconds = streams / RAMP_PER_SECOND;
  const load = {
    model: MODELS.idle,
    chunks: 720,
    conns: streams,
    ramp: RAMP_PER_SECOND,
    seconds: rampSeconds * 4 + 60,
  };
  const held = holdStreams(bench, load, variant.target);
  await held.opened;
  const cpuBefore = cpuNs(pids);
  await delay(HOLD_SECONDS * 500);
  const first = pssKb(pids);
  await delay(HOLD_SECONDS * 500);
  const heldKb = Math.max(first, pssKb(pids));
  const spentUs = (cpuNs(pids) - cpuBefore) / 1000;
  const filesHeld = openFiles(pids);
  const result = await held.leave();
  const engineStreamsLeft = await settle(bench, variant, before);
  const after = openFiles(pids);
  // One event at once, then one each 5 s: two more at least were due while the streams were held.
  const complete = result.failed === 0 && result.held === streams && result.heldEventsMin >= 3;
  return {
    variant: variant.name,
    streams,
    baseKb,
    heldKb,
    kbPerStream: Math.round(((heldKb - baseKb) / streams) * 10) / 10,
    usPerEvent: Math.round(spentUs / ((streams * HOLD_SECONDS) / 5)),
    files: { before, held: filesHeld, after },
    engineStreamsLeft,
    afterKb: pssKb(pids),
    load: result,
    sound: complete && engineStreamsLeft === 0 && after <= before + FILES_SLACK,
  };
}

async function weighFresh(bench: Bench, name: VariantName, streams: number): Promise<MemoryRow> {
  const variant = await startVariant(bench, name);
  try {
    await runLoad(bench, { model: MODELS.fast, chunks: 64, conns: 64, seconds: 1.5 }, variant.target);
    await runLoad(bench, { model: MODELS.fast, conns: 16, seconds: 1 }, variant.target);
    await delay(SETTLE_MS);
    return await holdAndWeigh(bench, variant, streams, pssKb(variant.pids()));
  } finally {
    if (variant.process !== null) await stop(variant.process);
  }
}

/**
 * A fresh process for each size, so that none inherits what another left behind; warmed up, since the first turns
 * compile code and open pools.
 */
export async function weigh(bench: Bench, name: VariantName, sizes: readonly number[]): Promise<MemoryRow[]> {
  const rows: MemoryRow[] = [];
  for (const streams of sizes) {
    const needed = filesFor(streams);
    if (openFilesLimit() < needed) {
      console.log(
        `${name}: ${streams} streams need ${needed} open files, the hard limit is ${openFilesLimit()}: left out`,
      );
      continue;
    }
    const row = await weighFresh(bench, name, streams);
    rows.push(row);
    console.log(memoryLine(row));
  }
  return rows;
}
