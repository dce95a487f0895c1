// What does a fan-out of sub-agents through luftpause take, beside the same loops straight to the engines? See README.md.
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import readline from "node:readline";
import { parseArgs } from "node:util";
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { cpuNs, descendants, loadAverage, machine } from "../support/accounting.ts";
import { killAll, logTail, start, stopAll, waitUntil } from "../support/processes.ts";
import { runLoop, type LoopFigures } from "./direct.ts";
import type { World, WorldSettings } from "./world.ts";

const MAIN = path.resolve(import.meta.dirname, "../../src/cli/main.ts");
const WORLD = path.join(import.meta.dirname, "world.ts");
const MODEL = "sim-8b";
const MAX_TOKENS = 256;
const READY_MS = 20_000;
const FAN_OUT_MS = 600_000;

const { values: flags } = parseArgs({
  options: {
    pairs: { type: "string", default: "24" },
    "warm-up": { type: "string", default: "2" },
    fan: { type: "string", default: "16" },
    engines: { type: "string", default: "2" },
    "tool-ms": { type: "string", default: "500" },
    "time-scale": { type: "string", default: "1" },
    out: { type: "string" },
    smoke: { type: "boolean", default: false },
  },
});
const number = (name: "pairs" | "warm-up" | "fan" | "engines" | "tool-ms" | "time-scale", least: number): number => {
  const value = Number(flags[name]);
  if (!(value >= least)) throw new Error(`--${name} '${flags[name]}' is not a number of at least ${least}`);
  return value;
};
const pairs = flags.smoke ? 1 : number("pairs", 1);
const warmUp = flags.smoke ? 0 : number("warm-up", 0);
const fan = number("fan", 1);
const settings: WorldSettings = {
  engines: number("engines", 1),
  profile: "h100-8b",
  timeScale: flags.smoke ? 0.1 : number("time-scale", 0.01),
  model: MODEL,
  toolMs: number("tool-ms", 0),
};

type Side = { readonly seconds: number; readonly turns: number; readonly toolCalls: number; readonly tokens: number };
type Pair = {
  readonly pair: number;
  readonly first: "direct" | "ours";
  readonly direct: Side;
  readonly ours: Side & { readonly cpuMs: number };
  readonly ratio: number;
  readonly load: number;
};

const folder = fs.mkdtempSync(path.join(os.tmpdir(), "luftpause-fan-out-"));
process.once("exit", () => {
  killAll();
  fs.rmSync(folder, { recursive: true, force: true });
});
process.once("SIGINT", () => process.exit(130));

async function firstLine(name: string, command: readonly string[]): Promise<{ line: string; pid: number }> {
  const child = start(name, command, folder, { cpu: null, cwd: folder });
  const lines = readline.createInterface({ input: child.child.stdout ?? process.stdin });
  for await (const line of lines) return { line, pid: child.pid };
  throw new Error(`${name} ended: ${await child.ended}\n${logTail(child)}`);
}

async function connect(url: string): Promise<Client> {
  const client = new Client({ name: "fan-out", version: "1" }, { versionNegotiation: { mode: "auto" } });
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  return client;
}

async function startOurs(world: World): Promise<{ client: Client; pid: number }> {
  const config = {
    endpoints: world.ours.map((url, at) => ({ name: `engine-${at}`, url })),
    tools: [{ name: "lab", url: world.tools, allow: ["lookup"] }],
    stateDir: path.join(folder, "state"),
    logs: { level: "warn" },
  };
  fs.writeFileSync(path.join(folder, "luftpause.yaml"), JSON.stringify(config));
  const { line, pid } = await firstLine("luftpause", [process.execPath, MAIN, "up", "--listen", "127.0.0.1:0"]);
  const base = `http://${/listens on (\S+)/.exec(line)?.[1] ?? ""}`;
  await waitUntil("luftpause is ready", null, READY_MS, async () => (await fetch(`${base}/readyz`)).ok);
  return { client: await connect(`${base}/mcp`), pid };
}

const world = JSON.parse((await firstLine("world", [process.execPath, WORLD, JSON.stringify(settings)])).line) as World;
const ours = await startOurs(world);
const tools = await connect(world.tools);
const offered = (await tools.listTools()).tools
  .filter(({ name }) => name === "lookup")
  .map(({ name, description, inputSchema }) => ({
    type: "function",
    function: { name, description, parameters: inputSchema },
  }));

const tasksOf = (pair: number): readonly string[] =>
  Array.from({ length: fan }, (_, at) => `Question ${at} of round ${pair}: what changed since the last report?`);

async function direct(tasks: readonly string[]): Promise<Side> {
  const began = performance.now();
  const loops = await Promise.all(
    tasks.map((task, at) =>
      runLoop({
        engine: world.direct[at % world.direct.length] ?? "",
        model: MODEL,
        task,
        maxTokens: MAX_TOKENS,
        tools: offered,
        client: tools,
      }),
    ),
  );
  return { seconds: (performance.now() - began) / 1000, ...summed(loops) };
}

type Entry = {
  readonly state: string;
  readonly turns: number;
  readonly toolCalls: number;
  readonly failedToolCalls: number;
  readonly usage: { readonly promptTokens: number; readonly completionTokens: number };
};

async function through(tasks: readonly string[]): Promise<Side & { readonly cpuMs: number }> {
  const family = descendants(ours.pid);
  const cpuBefore = cpuNs(family);
  const began = performance.now();
  const spawned = await ours.client.callTool({
    name: "spawn",
    arguments: { tasks: [...tasks], maxTokens: MAX_TOKENS },
  });
  const { handles } = spawned.structuredContent as { readonly handles: string[] };
  const awaited = await ours.client.callTool(
    { name: "await", arguments: { handles, timeoutSeconds: FAN_OUT_MS / 1000 } },
    { timeout: FAN_OUT_MS },
  );
  const seconds = (performance.now() - began) / 1000;
  const { results } = awaited.structuredContent as { readonly results: readonly Entry[] };
  const bad = results.find(({ state, failedToolCalls }) => state !== "Completed" || failedToolCalls > 0);
  if (bad !== undefined || results.length !== fan) throw new Error(`not all completed: ${JSON.stringify(bad)}`);
  const loops = results.map(({ turns, toolCalls, usage }) => ({
    turns,
    toolCalls,
    tokens: usage.promptTokens + usage.completionTokens,
  }));
  return { seconds, ...summed(loops), cpuMs: (cpuNs(family) - cpuBefore) / 1e6 };
}

function summed(loops: readonly LoopFigures[]): LoopFigures {
  const sum = (of: (loop: LoopFigures) => number): number => loops.reduce((total, loop) => total + of(loop), 0);
  return { turns: sum((one) => one.turns), toolCalls: sum((one) => one.toolCalls), tokens: sum((one) => one.tokens) };
}

async function measure(pair: number): Promise<Pair> {
  const tasks = tasksOf(pair);
  const isDirectFirst = pair % 2 === 0;
  let one: Side | undefined;
  if (isDirectFirst) one = await direct(tasks);
  const other = await through(tasks);
  one ??= await direct(tasks);
  if (one.turns !== other.turns || one.toolCalls !== other.toolCalls) {
    throw new Error(`the two sides did not do the same work: ${JSON.stringify({ direct: one, ours: other })}`);
  }
  const first = isDirectFirst ? "direct" : "ours";
  return { pair, first, direct: one, ours: other, ratio: other.seconds / one.seconds, load: loadAverage() };
}

const samples: Pair[] = [];
for (let pair = 0; pair < warmUp + pairs; pair += 1) {
  const sample = await measure(pair);
  const isWarmUp = pair < warmUp;
  if (!isWarmUp) samples.push(sample);
  const { direct: one, ours: other, ratio, load } = sample;
  console.log(
    `${isWarmUp ? "warm-up" : `pair ${samples.length}`}: direct ${one.seconds.toFixed(3)} s, luftpause ${other.seconds.toFixed(3)} s, ` +
      `ratio ${ratio.toFixed(4)}, ${one.turns} turns, ${one.toolCalls} tool calls, tokens ${one.tokens}/${other.tokens}, ` +
      `luftpause CPU ${other.cpuMs.toFixed(0)} ms, load ${load}`,
  );
}

const ratios = samples.map(({ ratio }) => ratio).toSorted((one, other) => one - other);
const mean = (of: readonly number[]): number => of.reduce((sum, one) => sum + one, 0) / of.length;
const sd = Math.sqrt(ratios.reduce((sum, one) => sum + (one - mean(ratios)) ** 2, 0) / Math.max(1, ratios.length - 1));
const report = {
  fan,
  ...settings,
  pairs: ratios.length,
  meanRatio: mean(ratios),
  standardDeviation: sd,
  standardError: sd / Math.sqrt(ratios.length),
  medianRatio: ratios[Math.floor(ratios.length / 2)],
  least: ratios[0],
  largest: ratios.at(-1),
  meanDirectSeconds: mean(samples.map((sample) => sample.direct.seconds)),
  meanOursSeconds: mean(samples.map((sample) => sample.ours.seconds)),
  cpuMsPerTurn: mean(samples.map((sample) => sample.ours.cpuMs / sample.ours.turns)),
};
console.log(JSON.stringify(report, null, 2));
if (flags.out !== undefined) {
  const result = { date: new Date().toISOString(), node: process.version, machine: machine(), report, samples };
  fs.writeFileSync(flags.out, `${JSON.stringify(result, null, 2)}\n`);
}
await Promise.all([ours.client.close(), tools.close()]);
await stopAll();
