// What luftpause costs between an agent and its engine, against nginx, haproxy and Portkey's gateway. See README.md here.
//
// Exit codes: 0 done, 1 a fault or (--gate, --smoke) something not met, 2 usage, 3 a program is missing, 130 interrupted.
import fs from "node:fs";
import path from "node:path";
import { loadAverage, machine } from "../support/accounting.ts";
import { openBench, type Bench } from "./bench.ts";
import { churn, type Churn } from "./churn.ts";
import type { MemoryRow } from "./memory.ts";
import { weigh } from "./memory.ts";
import { PARTS, readOptions, UsageError, VARIANTS, type Options } from "./options.ts";
import { killAll, stopAll } from "../support/processes.ts";
import { caseRows, gates, report, type Results } from "./report.ts";
import { runRounds } from "./rounds.ts";
import { smoke } from "./smoke.ts";
import { commit, has, MissingTool, needPackages, preparePortkey, REPOSITORY, versionOf } from "./tools.ts";

const EXIT_INTERRUPTED = 130;

async function checkTools(options: Options): Promise<void> {
  if (process.platform !== "linux") throw new MissingTool("the bench reads /proc and uses epoll: Linux only");
  if (options.cpus !== null && !(await has("taskset")))
    throw new MissingTool("taskset is missing: apt-get install util-linux (or --no-pin)");
  const packages = options.variants.filter((name) => name === "nginx" || name === "haproxy");
  await needPackages(packages, options.install);
  if (options.variants.includes("portkey")) await preparePortkey();
}

async function versions(options: Options): Promise<Record<string, string | boolean | null>> {
  const portkey = options.variants.includes("portkey") ? await preparePortkey() : null;
  return {
    node: process.versions.node,
    luftpause: await commit(),
    luftpauseFrom: options.dist ? "dist" : "src",
    nginx: await versionOf("nginx", ["-v"], /nginx\/(\S+)/),
    haproxy: await versionOf("haproxy", ["-v"], /version (\S+)/),
    portkey: portkey?.version ?? null,
    portkeyPatched: portkey?.patched ?? null,
    gcc: await versionOf("gcc", ["--version"], /gcc.* (\d+\.\d+\.\d+)/),
  };
}

function boost(): void {
  try {
    fs.writeFileSync("/proc/self/autogroup", "-10");
  } catch (error) {
    throw new UsageError(`--boost: ${error instanceof Error ? error.message : String(error)}`, { cause: error });
  }
}

function idleSizes(bench: Bench): number[] {
  return bench.options.phaseSeconds < 3 ? [1000] : [1000, 5000];
}

async function measureAll(bench: Bench): Promise<Results> {
  const { parts, variants } = bench.options;
  const samples = await runRounds(bench);
  const memory: MemoryRow[] = [];
  if (parts.includes("memory")) {
    for (const name of variants.filter((v) => v !== "direct"))
      memory.push(...(await weigh(bench, name, idleSizes(bench))));
  }
  if (parts.includes("open8000")) {
    for (const name of variants.filter((v) => v === "nginx" || v === "luftpause"))
      memory.push(...(await weigh(bench, name, [8000])));
  }
  // Only one process is churned: luftpause, or (to try the bench itself) the only variant that was asked for.
  const churned = variants.find((v) => v === "luftpause") ?? (variants.length === 1 ? variants[0] : undefined);
  let grown: Churn | null = null;
  if (parts.includes("churn") && churned !== undefined && churned !== "direct") grown = await churn(bench, churned);
  return { samples, memory, churn: grown };
}

function resultFile(options: Options): string | null {
  if (options.jsonFile !== null) return path.resolve(options.jsonFile);
  const whole = PARTS.every((p) => options.parts.includes(p)) && VARIANTS.every((v) => options.variants.includes(v));
  const day = new Date().toISOString().slice(0, 10);
  return whole && options.phaseSeconds >= 3 ? path.join(REPOSITORY, `bench/results/overhead-${day}.json`) : null;
}

/** One line for each element of a list: a diff of two results then shows what changed, and the file stays short. */
function layout(result: Record<string, unknown>): string {
  const value = (v: unknown): string =>
    Array.isArray(v) && v.length > 0
      ? `[\n${v.map((element) => `  ${JSON.stringify(element)}`).join(",\n")}\n ]`
      : JSON.stringify(v);
  return `{\n${Object.entries(result)
    .map(([key, v]) => ` ${JSON.stringify(key)}: ${value(v)}`)
    .join(",\n")}\n}\n`;
}

async function runBench(bench: Bench): Promise<number> {
  const { options } = bench;
  if (options.smoke) return (await smoke(bench)) ? 0 : 1;
  const about = {
    machine: machine(),
    versions: await versions(options),
    started: new Date().toISOString(),
    loadAverage: loadAverage(),
  };
  console.log(JSON.stringify(about));
  const results = await measureAll(bench);
  const goals = gates(results);
  console.log(`\n${report(results)}`);
  const file = resultFile(options);
  if (file !== null) {
    const { rounds, phaseSeconds, churnSeconds, parts, variants, cpus, seed } = options;
    const settings = { rounds, phaseSeconds, churnSeconds, parts, variants, cpus, seed };
    fs.mkdirSync(path.dirname(file), { recursive: true });
    fs.writeFileSync(file, layout({ about, settings, gates: goals, cases: caseRows(results), ...results }));
    console.log(`\nwritten: ${path.relative(process.cwd(), file)}`);
  }
  return options.gate && goals.some((g) => g.met === false) ? 1 : 0;
}

async function main(): Promise<number> {
  const options = readOptions(process.argv.slice(2));
  if (options === "help") return 0;
  await checkTools(options);
  if (options.boost) boost();
  const bench = await openBench(options);
  temporaryFolder = bench.folder;
  try {
    return await runBench(bench);
  } finally {
    await stopAll();
    if (options.keepLogs) console.log(`logs: ${bench.folder}`);
    else removeTemporary();
  }
}

let temporaryFolder: string | null = null;

function removeTemporary(): void {
  if (temporaryFolder !== null) fs.rmSync(temporaryFolder, { recursive: true, force: true });
}

// I1 of processes.ts: whatever ends the bench ends its children too. The first signal lets them end and be waited for;
// a second one does not wait.
let interrupted = false;
for (const name of ["SIGINT", "SIGTERM", "SIGHUP"] as const) {
  process.on(name, () => {
    if (interrupted) process.exit(EXIT_INTERRUPTED);
    interrupted = true;
    // Bounded by stop's own grace; exit also cuts off what the main program was waiting for.
    void stopAll().finally(() => {
      removeTemporary();
      process.exit(EXIT_INTERRUPTED);
    });
  });
}
process.once("exit", killAll);

try {
  process.exitCode = await main();
} catch (error) {
  if (interrupted) await stopAll();
  else if (!(error instanceof UsageError)) console.error(error);
  else console.error(error.message);
  process.exitCode = error instanceof MissingTool ? 3 : error instanceof UsageError ? 2 : 1;
}
