// Interleaved rounds: in each round every case is measured once with every variant, cases and variants in random order,
// so that a slow minute of the machine hits all alike and ratios can be taken inside a round.
import type { Bench } from "./bench.ts";
import { runLoad } from "./load.ts";
import { CASES, measure, type Case, type Sample } from "./measure.ts";
import { stop } from "../support/processes.ts";
import { startVariant, type Variant } from "./variants.ts";
import { sampleLine } from "./report.ts";

/** A small seeded generator (mulberry32), so that the order of a run can be repeated by --seed. */
function generator(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t = (t + Math.imul(t ^ (t >>> 7), t | 61)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

function shuffled<T>(items: readonly T[], random: () => number): T[] {
  const copy = [...items];
  for (let i = copy.length - 1; i > 0; i--) {
    const j = Math.floor(random() * (i + 1));
    [copy[i], copy[j]] = [copy[j]!, copy[i]!];
  }
  return copy;
}

const WARM_UP_SECONDS = 1.5;

/** What one turn of the case needs before it is measured: compiled code, opened pools. Not recorded. */
async function warmUp(bench: Bench, variants: readonly Variant[], cases: readonly Case[]): Promise<void> {
  for (const variant of variants) {
    for (const spec of cases.filter((c) => c.part !== "light")) {
      await runLoad(bench, { ...spec.load, seconds: WARM_UP_SECONDS }, variant.target);
    }
  }
}

/** Runs all rounds of the cases that were asked for. */
export async function runRounds(bench: Bench): Promise<Sample[]> {
  const cases = CASES.filter((c) => bench.options.parts.includes(c.part));
  if (cases.length === 0) return [];
  const variants: Variant[] = [];
  const samples: Sample[] = [];
  try {
    for (const name of bench.options.variants) variants.push(await startVariant(bench, name));
    await warmUp(bench, variants, cases);
    const random = generator(bench.options.seed);
    for (let round = 1; round <= bench.options.rounds; round++) {
      for (const spec of shuffled(cases, random)) {
        for (const variant of shuffled(variants, random)) {
          const sample = await measure(bench, variant, spec, round);
          samples.push(sample);
          console.log(sampleLine(sample));
        }
      }
    }
  } finally {
    for (const variant of variants) if (variant.process !== null) await stop(variant.process);
  }
  return samples;
}
