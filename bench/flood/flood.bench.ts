// The flood over real sockets: batch and interactive agents against the same two simulated engines, through each router
// in turn, same seeds. See README.md.
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import readline from "node:readline";
import { parseArgs } from "node:util";
import type { ProfileName } from "../../src/engine/index.ts";
import { runClosedLoop } from "../../src/testbed/index.ts";
import { WORLDS, type LoadReport } from "../../src/workload/index.ts";
import { cpuNs, descendants, loadAverage, machine } from "../support/accounting.ts";
import { killAll, logTail, start, stopAll } from "../support/processes.ts";
import { ARMS, type Arm, type EngineSettings } from "./arms.ts";
import { preparePeers, type Peers } from "./peers.ts";
import { reportText, type Row } from "./report.ts";

const USAGE = `node bench/flood/flood.bench.ts [options]
  --rounds N        paired seeds; every arm runs each of them (5)
  --seconds N       simulated seconds that count, per arm and round (600)
  --warm-up N       simulated seconds before them (120)
  --time-scale X    real time per simulated time (0.2); below 0.1 the machine is the limit, not the engines
  --batch N         batch agents (48)
  --interactive N   interactive agents (4)
  --world NAME      ${Object.keys(WORLDS).join(", ")} (own-loop)
  --dialect NAME    sglang or vllm (sglang)
  --profile NAME    machine that the engines play (laptop-1b-x2)
  --arms A,B        of ${ARMS.map(({ name }) => name).join(", ")} (all that fit the dialect)
  --seed N          first seed (1)
  --json FILE       where the result goes`;

type Options = {
  readonly rounds: number;
  readonly seconds: number;
  readonly warmUpSeconds: number;
  readonly agents: { readonly batch: number; readonly interactive: number };
  readonly world: keyof typeof WORLDS;
  readonly engines: EngineSettings;
  readonly arms: readonly Arm[];
  readonly seed: number;
  readonly json: string | undefined;
};

class UsageError extends Error {}

function readOptions(): Options {
  const text = { type: "string" } as const;
  const { values } = parseArgs({
    options: {
      rounds: text,
      seconds: text,
      "warm-up": text,
      "time-scale": text,
      batch: text,
      interactive: text,
      world: text,
      dialect: text,
      profile: text,
      arms: text,
      seed: text,
      json: text,
    },
  });
  const number = (name: keyof typeof values, standard: number, least: number): number => {
    const value = Number(values[name] ?? standard);
    if (!(value >= least)) throw new UsageError(`--${name} '${values[name]}' is not a number of at least ${least}`);
    return value;
  };
  const world = values.world ?? "own-loop";
  if (!Object.hasOwn(WORLDS, world))
    throw new UsageError(`--world '${world}' is not one of ${Object.keys(WORLDS).join(", ")}`);
  const dialect = values.dialect ?? "sglang";
  if (dialect !== "sglang" && dialect !== "vllm") throw new UsageError(`--dialect '${dialect}' is not sglang or vllm`);
  const fitting = ARMS.filter(({ dialects }) => dialects.includes(dialect));
  const arms = values.arms?.split(",").map((name) => {
    const arm = fitting.find((one) => one.name === name);
    if (arm === undefined)
      throw new UsageError(`--arms '${name}' is not one of ${fitting.map((one) => one.name).join(", ")}`);
    return arm;
  });
  return {
    rounds: number("rounds", 5, 1),
    seconds: number("seconds", 600, 1),
    warmUpSeconds: number("warm-up", 120, 0),
    agents: { batch: number("batch", 48, 0), interactive: number("interactive", 4, 0) },
    world: world as keyof typeof WORLDS,
    engines: {
      dialect,
      profile: (values.profile ?? "laptop-1b-x2") as ProfileName,
      model: "sim-1b",
      timeScale: number("time-scale", 0.2, 0.01),
    },
    arms: arms ?? fitting,
    seed: number("seed", 1, 0),
    json: values.json,
  };
}

/** SGLang takes larger integers first, vLLM smaller ones. */
function priorityOf(dialect: EngineSettings["dialect"], serviceClass: "interactive" | "batch"): number {
  return (serviceClass === "interactive") === (dialect === "sglang") ? 1 : 0;
}

async function startEngines(folder: string, engines: EngineSettings): Promise<readonly string[]> {
  const script = path.join(import.meta.dirname, "engines.ts");
  const running = start("engines", [process.execPath, script, JSON.stringify(engines)], folder, { cpu: null });
  return new Promise((resolve, reject) => {
    readline.createInterface({ input: running.child.stdout! }).once("line", (line) => {
      resolve((JSON.parse(line) as { urls: string[] }).urls);
    });
    void running.ended.then((how) => reject(new Error(`the simulated engines: ${how}\n${logTail(running)}`)));
  });
}

/** One arm, one seed: fresh engines, a fresh proxy, the whole load. */
async function runArm(options: Options, arm: Arm, seed: number, peers: Peers): Promise<Row> {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "flood-"));
  try {
    const urls = await startEngines(folder, options.engines);
    const { port, process: proxy } = await arm.start({ engines: options.engines, urls, folder, peers });
    const { batch, interactive } = options.agents;
    const cpuBefore = cpuNs(descendants(proxy.pid));
    const report: LoadReport = await runClosedLoop({
      target: { protocol: "http:", hostname: "127.0.0.1", port, basePath: "" },
      model: options.engines.model,
      world: WORLDS[options.world],
      agents: { batch: arm.interactiveOnly ? 0 : batch, interactive },
      seed,
      timeScale: options.engines.timeScale,
      warmUpSeconds: options.warmUpSeconds,
      seconds: options.seconds,
      headersOf: ({ class: serviceClass }) => ["x-luftpause-class", serviceClass],
      ...(arm.membersOf === undefined ? {} : { membersOf: arm.membersOf }),
      priorityOf: (serviceClass) => (arm.sendsPriority ? priorityOf(options.engines.dialect, serviceClass) : undefined),
    });
    const perEngine = await Promise.all(urls.map(turnsServed));
    const turns = perEngine.reduce((sum, count) => sum + count, 0);
    const cpuMsPerTurn = (cpuNs(descendants(proxy.pid)) - cpuBefore) / 1e6 / Math.max(1, turns);
    return { arm: arm.name, seed, report, perEngine, cpuMsPerTurn, load: loadAverage() };
  } finally {
    await stopAll();
    fs.rmSync(folder, { recursive: true, force: true });
  }
}

async function turnsServed(url: string): Promise<number> {
  const answer = await fetch(`${url}/fake/stats`, { signal: AbortSignal.timeout(5_000) });
  return ((await answer.json()) as { readonly counts: { readonly started: number } }).counts.started;
}

async function main(): Promise<void> {
  const options = readOptions();
  const peers = await preparePeers();
  const rows: Row[] = [];
  for (let round = 0; round < options.rounds; round += 1) {
    // Another order in each round: what the machine does besides must not always meet the same arm.
    const shift = round % options.arms.length;
    for (const arm of [...options.arms.slice(shift), ...options.arms.slice(0, shift)]) {
      const row = await runArm(options, arm, options.seed + round, peers);
      rows.push(row);
      const { interactive, batch } = row.report;
      console.log(
        `seed ${row.seed} ${arm.name.padEnd(24)} interactive ${interactive.runsPerMinute.toFixed(1)}/min p50 ` +
          `${interactive.runSeconds.p50.toFixed(1)} s, batch ${batch.runsPerMinute.toFixed(1)}/min, ` +
          `engines ${row.perEngine.join("/")}, load ${row.load}`,
      );
    }
  }
  const { arms, json, ...settings } = options;
  console.log(`\n${reportText(rows, arms)}`);
  if (json === undefined) return;
  const result = {
    about: { machine: machine(), peers: peers.versions },
    settings: { ...settings, arms: arms.map(({ name }) => name) },
    rows,
  };
  fs.writeFileSync(json, `${JSON.stringify(result, null, 1)}\n`);
}

process.on("exit", killAll);
for (const signal of ["SIGINT", "SIGTERM"] as const) {
  process.once(signal, () => {
    void stopAll().finally(() => process.exit(130));
  });
}
try {
  await main();
} catch (error) {
  await stopAll();
  if (error instanceof UsageError || (error as { code?: string }).code?.startsWith("ERR_PARSE_ARGS") === true) {
    console.error(`${(error as Error).message}\n\n${USAGE}`);
    process.exitCode = 2;
  } else {
    console.error(error instanceof Error ? error.message : error);
    process.exitCode = 1;
  }
}
