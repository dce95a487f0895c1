// A quick look for correctness, not for speed: at most 20 s, not pinned. Asserts that every turn through a variant is
// answered well, that runs are told apart, and that nothing is left open after clients have gone away.
import { openFiles } from "../support/accounting.ts";
import { MODELS, type Bench } from "./bench.ts";
import type { Load, LoadResult } from "./load.ts";
import { holdStreams, runLoad } from "./load.ts";
import { stop, waitUntil } from "../support/processes.ts";
import { startVariant, type Variant } from "./variants.ts";

const LEAVERS = 100;
const LEAVE_TIMEOUT_MS = 5000;
const FILES_SLACK = 8; // the prober's connections, a late close

const LOADS: readonly { readonly name: string; readonly load: Load }[] = [
  { name: "JSON turns", load: { model: MODELS.fast, conns: 8, seconds: 5, turns: 400 } },
  { name: "streamed turns", load: { model: MODELS.fast, conns: 16, seconds: 5, turns: 64, chunks: 64 } },
  {
    name: "churn",
    load: {
      model: MODELS.short,
      conns: 16,
      seconds: 5,
      turns: 200,
      chunks: 16,
      script: "Ree",
      abortPercent: 30,
      reopenPercent: 20,
    },
  },
];

function problems(result: LoadResult, turns: number, variant: Variant): string[] {
  const found: string[] = [];
  if (result.failed > 0)
    found.push(`${result.failed} turns failed ${JSON.stringify(result.failures)}: ${result.firstFailure}`);
  if (result.served + result.aborted !== turns)
    found.push(`${result.served} served and ${result.aborted} aborted are not ${turns}`);
  if (variant.name === "luftpause") {
    const { same, other, joined, unnamed } = result.runIds;
    if (same === 0) found.push("no continuation was recognised");
    if (other + joined + unnamed > 0)
      found.push(`recognition: ${other} in another run, ${joined} joined wrongly, ${unnamed} without a run id`);
  }
  return found;
}

/** Clients that leave mid-stream: the engine's streams end and the descriptors come back. */
async function leaving(bench: Bench, variant: Variant): Promise<string[]> {
  const before = openFiles(variant.pids());
  const held = holdStreams(bench, { model: MODELS.idle, chunks: 720, conns: LEAVERS, seconds: 10 }, variant.target);
  await held.opened;
  const result = await held.leave();
  const found =
    result.held === LEAVERS && result.failed === 0 ? [] : [`only ${result.held} of ${LEAVERS} streams were open`];
  const givenBack = async (): Promise<boolean> =>
    (await bench.stub.stats()).streamsOpen === 0 && openFiles(variant.pids()) <= before + FILES_SLACK;
  try {
    await waitUntil("descriptors", null, LEAVE_TIMEOUT_MS, givenBack);
  } catch {
    const { streamsOpen } = await bench.stub.stats();
    found.push(
      `5 s after ${LEAVERS} clients left: ${streamsOpen} streams open at the engine, files ${before} → ${openFiles(variant.pids())}`,
    );
  }
  return found;
}

/** Runs the smoke test; true when everything held. */
export async function smoke(bench: Bench): Promise<boolean> {
  let good = true;
  const say = (variant: Variant, what: string, found: readonly string[]): void => {
    good &&= found.length === 0;
    console.log(
      `${found.length === 0 ? "ok  " : "FAIL"} ${variant.name}: ${what}${found.map((f) => `\n       ${f}`).join("")}`,
    );
  };
  for (const name of bench.options.variants) {
    const variant = await startVariant(bench, name);
    try {
      for (const { name: what, load } of LOADS) {
        say(variant, what, problems(await runLoad(bench, load, variant.target), load.turns ?? 0, variant));
      }
      if (variant.process !== null)
        say(variant, `${LEAVERS} clients that leave mid-stream`, await leaving(bench, variant));
    } finally {
      if (variant.process !== null) await stop(variant.process);
    }
  }
  return good;
}
