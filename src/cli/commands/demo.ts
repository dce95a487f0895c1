/**
 * `luftpause demo`: the headline in a minute on any laptop (spec 7, First minutes). Batch agents flood two simulated
 * engines while a few interactive ones want an answer: through luftpause, and with `--compare` before that through a
 * class-blind cache-aware router, on fresh engines with the same seed.
 */
import { createSharedGpu } from "../../engine/index.ts";
import { createFront } from "../../http/index.ts";
import { runClosedLoop, startFakeEngine, startRouter } from "../../testbed/index.ts";
import { WORLDS, type LoadReport } from "../../workload/index.ts";
import { makeDataplane, makeScheduler } from "../compose.ts";
import { loadConfig } from "../config/load.ts";
import { endpointsOf } from "../config/resolve.ts";
import type { Config } from "../config/schema.ts";
import { CommandError, EXIT } from "../exit.ts";
import type { Command, ParsedFlags } from "../flags.ts";
import { endpointOfUrl } from "../simulated.ts";
import { table } from "../table.ts";

const MODEL = "sim-1b";
const AGENTS = { batch: 48, interactive: 4 } as const;
/** Ten simulated seconds in one: the engines of a laptop GPU, as fast as two cores can play them. */
const TIME_SCALE = 0.1;
const WARM_UP_SECONDS = 40;
const SECONDS = 210;
const PROBE_EVERY_MS = 2_000;
/** Without a terminal progress is a line this often. */
const LINE_EVERY_MS = 5_000;

type Served = { readonly port: number; close(): Promise<void> };
type Arm = { readonly name: string; start(engines: readonly string[]): Promise<Served> };

export const demo: Command = {
  name: "demo",
  operands: "",
  summary: "Shows what luftpause does for agents, on simulated engines; --compare: beside a class-blind router.",
  details:
    `${AGENTS.batch} batch and ${AGENTS.interactive} interactive agents run in a closed loop against two simulated engines ` +
    "that share a laptop's GPU.\nTimes in the table are the engines' own; they run ten times as fast.",
  flags: {
    compare: { kind: "boolean", about: "runs the same flood through a class-blind cache-aware router first" },
    seed: { kind: "integer", value: "N", least: 0, most: 4_294_967_295, about: "draws of the agents (1)" },
    policy: { kind: "string", value: "NAME", about: "scheduling policy of luftpause (the default of the config)" },
    "duration-s": {
      kind: "integer",
      value: "N",
      least: 10,
      most: 3_600,
      about: `simulated seconds that count (${SECONDS})`,
    },
    json: { kind: "boolean", about: "prints the reports as JSON instead of the table" },
  },
  positionals: { least: 0, most: 0 },
  async run(flags) {
    const seed = flags.integer("seed") ?? 1;
    const seconds = flags.integer("duration-s") ?? SECONDS;
    const arms = armsOf(flags);
    const over = new AbortController();
    const stop = (): void => over.abort();
    process.once("SIGINT", stop);
    process.once("SIGTERM", stop);
    const reports: { name: string; report: LoadReport }[] = [];
    try {
      for (const arm of arms) {
        if (over.signal.aborted) break;
        const report = await runArm(arm, { seed, seconds, signal: over.signal });
        reports.push({ name: arm.name, report });
      }
    } finally {
      process.off("SIGINT", stop);
      process.off("SIGTERM", stop);
    }
    if (flags.has("json")) process.stdout.write(`${JSON.stringify({ seed, seconds, reports }, null, 2)}\n`);
    else process.stdout.write(`${comparison(reports)}\n\nseed ${seed}${again(flags, seed)}\n`);
    return over.signal.aborted ? EXIT.fault : EXIT.ok;
  },
};

function again(flags: ParsedFlags, seed: number): string {
  return flags.has("seed")
    ? ""
    : `; another one: luftpause demo${flags.has("compare") ? " --compare" : ""} --seed ${seed + 1}`;
}

function armsOf(flags: ParsedFlags): readonly Arm[] {
  // Read before anything starts: a wrong policy must not be found half a minute later.
  const config = configOf(flags);
  const router: Arm = { name: "router", start: async (engines) => startRouter({ engines }) };
  const luftpause: Arm = { name: "luftpause", start: (engines) => startLuftpause(config, engines) };
  return flags.has("compare") ? [router, luftpause] : [luftpause];
}

/** Defaults, whatever lies in the folder or the environment: the demo is the same everywhere. */
function configOf(flags: ParsedFlags): Config {
  const policy = flags.text("policy");
  const overrides: [string, string][] = [
    ["logs.level", "error"],
    // The engines live in scaled time, and so must what looks at them.
    ["scheduler.probeEveryMs", String(PROBE_EVERY_MS * TIME_SCALE)],
    ...(policy === undefined ? [] : [["policy", policy] as [string, string]]),
  ];
  const outcome = loadConfig({ file: "/dev/null", environment: {}, overrides });
  if (outcome.kind === "invalid") throw new CommandError(EXIT.usage, `luftpause demo: ${outcome.problems.join("\n")}`);
  return outcome.config;
}

async function startLuftpause(defaults: Config, engines: readonly string[]): Promise<Served> {
  const config = { ...defaults, endpoints: engines.map((url, at) => endpointOfUrl(`engine-${"ab"[at]}`, url)) };
  const endpoints = endpointsOf(config);
  const scheduler = makeScheduler(config, endpoints);
  const parts = makeDataplane(config, endpoints, scheduler.localPort());
  const front = createFront({ handler: (exchange) => parts.dataplane.handle(exchange) });
  const { port } = await front.listen("127.0.0.1", 0);
  await scheduler.start();
  return {
    port,
    async close() {
      parts.close();
      await front.close();
      await scheduler.stop();
    },
  };
}

type Run = { readonly seed: number; readonly seconds: number; readonly signal: AbortSignal };

async function runArm(arm: Arm, { seed, seconds, signal }: Run): Promise<LoadReport> {
  const gpu = createSharedGpu();
  const engines = await Promise.all(
    ["engine-a", "engine-b"].map((name) =>
      startFakeEngine({
        name,
        dialect: "sglang",
        profile: "laptop-1b-x2",
        models: [MODEL],
        timeScale: TIME_SCALE,
        gpu,
      }),
    ),
  );
  const proxy = await arm.start(engines.map(({ url }) => url));
  const show = progress(arm.name, WARM_UP_SECONDS + seconds);
  try {
    return await runClosedLoop({
      target: { protocol: "http:", hostname: "127.0.0.1", port: proxy.port, basePath: "" },
      model: MODEL,
      world: WORLDS["own-loop"],
      agents: AGENTS,
      seed,
      timeScale: TIME_SCALE,
      warmUpSeconds: WARM_UP_SECONDS,
      seconds,
      headersOf: ({ class: serviceClass }) => ["x-luftpause-class", serviceClass],
      priorityOf: () => undefined,
      signal,
      onProgress: (report) => show.update(report),
    });
  } finally {
    show.end();
    await proxy.close();
    await Promise.all(engines.map((engine) => engine.close()));
  }
}

/** Live on a terminal, a line now and then elsewhere. On stderr: stdout has the table. */
function progress(name: string, seconds: number): { update(report: LoadReport): void; end(): void } {
  const startedMs = performance.now();
  let lineMs = startedMs;
  const live = process.stderr.isTTY;
  return {
    update(report) {
      const nowMs = performance.now();
      const share = Math.min(1, (nowMs - startedMs) / (seconds * 1_000 * TIME_SCALE));
      const filled = Math.round(share * 20);
      const bar = `${"█".repeat(filled)}${"░".repeat(20 - filled)}`;
      const text =
        `${name.padEnd(9)} ${bar} interactive ${report.interactive.runs} runs, p50 ` +
        `${report.interactive.runSeconds.p50.toFixed(0)} s; batch ${report.batch.runs} runs`;
      if (live) process.stderr.write(`\r\u001b[K${text}`);
      else if (nowMs - lineMs >= LINE_EVERY_MS) {
        lineMs = nowMs;
        process.stderr.write(`${text}\n`);
      }
    },
    end() {
      if (live) process.stderr.write("\r\u001b[K");
    },
  };
}

function comparison(reports: readonly { readonly name: string; readonly report: LoadReport }[]): string {
  const titles = [
    "",
    "interactive runs/min",
    "p50 s",
    "p95 s",
    "first content p95 s",
    "batch runs/min",
    "cached",
    "failed",
  ];
  const rows = reports.map(({ name, report: { interactive, batch, cachedShare } }) => [
    name,
    interactive.runsPerMinute.toFixed(1),
    interactive.runSeconds.p50.toFixed(1),
    interactive.runSeconds.p95.toFixed(1),
    interactive.firstContentSeconds.p95.toFixed(1),
    batch.runsPerMinute.toFixed(1),
    `${(100 * cachedShare).toFixed(0)} %`,
    String(interactive.failed + batch.failed),
  ]);
  const [before, after] = reports.map(({ report }) => report);
  if (before !== undefined && after !== undefined) {
    const times = (a: number, b: number): string => (b === 0 ? "–" : `${(a / b).toFixed(2)}×`);
    rows.push([
      "ratio",
      times(after.interactive.runsPerMinute, before.interactive.runsPerMinute),
      times(after.interactive.runSeconds.p50, before.interactive.runSeconds.p50),
      times(after.interactive.runSeconds.p95, before.interactive.runSeconds.p95),
      times(after.interactive.firstContentSeconds.p95, before.interactive.firstContentSeconds.p95),
      times(after.batch.runsPerMinute, before.batch.runsPerMinute),
      "",
      "",
    ]);
  }
  return table(
    titles.map((title, at) => ({ title, right: at > 0 })),
    rows,
  );
}
