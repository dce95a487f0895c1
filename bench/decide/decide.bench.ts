/**
 * What does one scheduling decision cost, and how does that grow with the number of runs? See README.md.
 * `node bench/decide/decide.bench.ts --help`
 */
import { writeFileSync } from "node:fs";
import os from "node:os";
import { parseArgs } from "node:util";
import { countInstructions, runCounted } from "./instructions.ts";
import { measure, type Sample } from "./measure.ts";
import { sizeFor, type Shape } from "./world.ts";

const USAGE = `node bench/decide/decide.bench.ts [options]
  --runs A,B,...     numbers of known runs (1000,10000,100000,1000000)
  --events N         measured events of one repeat (300000)
  --repeats N        repeats of each row, interleaved (5)
  --seed N           (1)
  --shapes           also the shapes burst and callers, at 100,000 runs
  --instructions     also count instructions with valgrind (minutes; needs valgrind)
  --json FILE        write every sample there
  --quick            1,000 and 10,000 runs, 50,000 events, 2 repeats: a look, not a measurement`;

const { values } = parseArgs({
  options: {
    runs: { type: "string", default: "1000,10000,100000,1000000" },
    events: { type: "string", default: "300000" },
    repeats: { type: "string", default: "5" },
    seed: { type: "string", default: "1" },
    shapes: { type: "boolean", default: false },
    instructions: { type: "boolean", default: false },
    json: { type: "string" },
    quick: { type: "boolean", default: false },
    help: { type: "boolean", default: false },
    // Set by the bench itself for the process that valgrind watches.
    counted: { type: "string" },
  },
});

type Row = { readonly runs: number; readonly shape: Shape; readonly samples: Sample[] };

function number(name: "events" | "repeats" | "seed"): number {
  const value = Number(values[name]);
  if (!Number.isInteger(value) || value < 1)
    throw new Error(`--${name} takes a whole number above 0, not ${values[name]}`);
  return value;
}

function plan(): Row[] {
  const counts = values.quick ? [1_000, 10_000] : values.runs.split(",").map(Number);
  for (const runs of counts) {
    if (!Number.isInteger(runs) || runs < 100)
      throw new Error(`--runs takes whole numbers from 100 on, not ${values.runs}`);
  }
  const rows: Row[] = counts.map((runs) => ({ runs, shape: "spread", samples: [] }));
  if (values.shapes) {
    rows.push({ runs: 100_000, shape: "burst", samples: [] }, { runs: 100_000, shape: "callers", samples: [] });
  }
  return rows;
}

function median(numbers: readonly number[]): number {
  const sorted = numbers.toSorted((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)] ?? Number.NaN;
}

/** Median over the repeats with least and largest: a difference inside this spread is none. */
function spread(samples: readonly Sample[], pick: (sample: Sample) => number, digits: number): string {
  const all = samples.map(pick);
  return `${median(all).toFixed(digits)} [${Math.min(...all).toFixed(digits)}–${Math.max(...all).toFixed(digits)}]`;
}

function print(rows: readonly Row[]): void {
  const columns = [
    "runs",
    "shape",
    "events/s",
    "mean µs",
    "p50 µs",
    "p99 µs",
    "p99.9 µs",
    "GC %",
    "CPU µs/event",
    "held",
  ];
  const lines = rows.map(({ runs, shape, samples }) => [
    runs.toLocaleString("en"),
    shape,
    spread(samples, (sample) => sample.eventsPerSecond, 0),
    spread(samples, (sample) => sample.meanUs, 2),
    spread(samples, (sample) => sample.p50Us, 2),
    spread(samples, (sample) => sample.p99Us, 1),
    spread(samples, (sample) => sample.p999Us, 1),
    spread(samples, (sample) => sample.gcShare * 100, 1),
    spread(samples, (sample) => sample.cpuUs, 2),
    spread(samples, (sample) => sample.preempted, 0),
    spread(samples, (sample) => sample.heldTurns, 0),
  ]);
  console.log(`| ${columns.join(" | ")} |\n|${columns.map(() => " --- |").join("")}`);
  for (const line of lines) console.log(`| ${line.join(" | ")} |`);
}

async function main(): Promise<void> {
  if (values.help) {
    console.log(USAGE);
    return;
  }
  if (values.counted !== undefined) {
    runCounted(values.counted);
    return;
  }
  const rows = plan();
  const repeats = values.quick ? 2 : number("repeats");
  const events = values.quick ? 50_000 : number("events");
  for (let repeat = 0; repeat < repeats; repeat += 1) {
    for (const row of rows) {
      const sample = await measure(sizeFor(row.runs, row.shape), { events, seed: number("seed") + repeat });
      row.samples.push(sample);
      console.error(
        `repeat ${repeat + 1} of ${repeats}: ${row.runs} runs, ${row.shape}: ${sample.meanUs.toFixed(2)} µs`,
      );
    }
  }
  print(rows);
  const counts = values.instructions ? countInstructions([100_000, 1_000_000], number("seed")) : undefined;
  if (counts !== undefined) console.log(counts.text);
  if (values.json === undefined) return;
  const machine = { node: process.version, cpu: os.cpus()[0]?.model, cpus: os.cpus().length, load: os.loadavg() };
  const report = { bench: "decide", date: new Date().toISOString(), machine, events, rows, instructions: counts };
  writeFileSync(values.json, `${JSON.stringify(report, null, 1)}\n`);
}

await main();
