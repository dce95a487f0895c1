/**
 * Instructions per event, counted by valgrind: the same world with few and with many events; the difference is what the
 * events cost, without start, compilation and the making of the runs.
 */
import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { decide } from "../../src/scheduling/index.ts";
import { step } from "./measure.ts";
import { sizeFor, World } from "./world.ts";

const FEW = 60_000;
const MANY = 160_000;
/** Old space from the start, MiB: no full collection falls into the span that is counted (they are amortised over minutes). */
const OLD_SPACE_MIB = 4_096;

export type InstructionCounts = {
  readonly perEvent: readonly { readonly runs: number; readonly instructions: number }[];
  readonly text: string;
};

/** @returns undefined where valgrind cannot be run. */
export function countInstructions(runCounts: readonly number[], seed: number): InstructionCounts | undefined {
  if (spawnSync("valgrind", ["--version"]).status !== 0) {
    console.error("valgrind cannot be run: instructions are not counted");
    return undefined;
  }
  const perEvent = runCounts.map((runs) => {
    const few = count(runs, FEW, seed);
    const many = count(runs, MANY, seed);
    return { runs, instructions: Math.round((many - few) / (MANY - FEW)) };
  });
  const first = perEvent[0]?.instructions ?? Number.NaN;
  const lines = perEvent.map(
    ({ runs, instructions }) =>
      `${runs.toLocaleString("en")} runs: ${instructions.toLocaleString("en")} instructions per event (×${(instructions / first).toFixed(2)})`,
  );
  return { perEvent, text: lines.join("\n") };
}

function count(runs: number, events: number, seed: number): number {
  const folder = mkdtempSync(path.join(tmpdir(), "luftpause-decide-"));
  const out = path.join(folder, "counts");
  const script = path.join(import.meta.dirname, "decide.bench.ts");
  const memory = [`--initial-old-space-size=${OLD_SPACE_MIB}`, `--max-old-space-size=${2 * OLD_SPACE_MIB}`];
  const node = [process.execPath, ...memory, script, "--counted", `${runs},${events},${seed}`];
  console.error(`counting: ${runs} runs, ${events} events`);
  const done = spawnSync(
    "valgrind",
    ["--tool=callgrind", "--smc-check=all-non-file", `--callgrind-out-file=${out}`, ...node],
    {
      encoding: "utf8",
      timeout: 3_600_000,
    },
  );
  if (done.status !== 0) throw new Error(`valgrind ended with ${done.status}: ${done.stderr.slice(-500)}`);
  const total = /^(?:summary|totals): (\d+)/m.exec(readFileSync(out, "utf8"))?.[1];
  rmSync(folder, { recursive: true });
  if (total === undefined) throw new Error("valgrind wrote no total");
  return Number(total);
}

/** What the watched process does. @param text `runs,events,seed` */
export function runCounted(text: string): void {
  const [runs = 1_000, events = 1_000, seed = 1] = text.split(",").map(Number);
  const world = new World(sizeFor(runs, "spread"), seed);
  for (const event of world.begin()) world.state = decide(world.state, event).state;
  for (let at = 0; at < events; at += 1) step(world);
}
