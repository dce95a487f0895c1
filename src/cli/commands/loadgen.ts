/** `luftpause loadgen`: own-loop agents in a closed loop against a proxy, and what they saw. */
import { writeFileSync } from "node:fs";
import { runClosedLoop } from "../../testbed/index.ts";
import { WORLDS, type LoadReport, type LoadWorld } from "../../workload/index.ts";
import { CommandError, EXIT } from "../exit.ts";
import type { Command, ParsedFlags } from "../flags.ts";
import { table } from "../table.ts";

const SECONDS_MAX = 86_400;
const AGENTS_MAX = 10_000;
const MODELS_TIMEOUT_MS = 10_000;

export const loadgen: Command = {
  name: "loadgen",
  operands: "",
  summary: "Runs own-loop agents against a proxy in a closed loop and says what they saw.",
  details: `Worlds:\n${Object.values(WORLDS)
    .map(({ name, summary }) => `  ${name.padEnd(12)} ${summary}`)
    .join("\n")}`,
  flags: {
    url: { kind: "string", value: "URL", about: "base address of the proxy, without /v1 (http://127.0.0.1:7700)" },
    model: { kind: "string", value: "NAME", about: "model to ask (the first that the proxy lists)" },
    agents: { kind: "integer", value: "N", least: 0, most: AGENTS_MAX, about: "agents of --class (8)" },
    class: { kind: "string", value: "NAME", about: "class of --agents: interactive or batch (batch)" },
    interactive: {
      kind: "integer",
      value: "N",
      least: 0,
      most: AGENTS_MAX,
      about: "interactive agents beside them (0)",
    },
    caller: { kind: "string", value: "NAME", about: "x-luftpause-caller of every turn (loadgen)" },
    world: { kind: "string", value: "NAME", about: "what the agents look like (own-loop)" },
    "duration-s": {
      kind: "integer",
      value: "N",
      least: 1,
      most: SECONDS_MAX,
      about: "simulated seconds that count (60)",
    },
    "warm-up-s": {
      kind: "integer",
      value: "N",
      least: 0,
      most: SECONDS_MAX,
      about: "simulated seconds before them (0)",
    },
    "time-scale": { kind: "string", value: "X", about: "as the engines': 0.1 where they run ten times as fast (1)" },
    seed: { kind: "integer", value: "N", least: 0, most: 4_294_967_295, about: "draws of the agents (1)" },
    "run-header": { kind: "boolean", about: "names each run in x-luftpause-run-id instead of being recognised" },
    token: { kind: "string", value: "TOKEN", about: "sent as Authorization: Bearer (LUFTPAUSE_TOKEN)" },
    json: { kind: "string", value: "FILE", about: "writes the report there, - for standard output" },
  },
  positionals: { least: 0, most: 0 },
  async run(flags) {
    const options = await optionsOf(flags);
    const over = new AbortController();
    const stop = (): void => over.abort();
    process.once("SIGINT", stop);
    process.once("SIGTERM", stop);
    const live = process.stderr.isTTY;
    try {
      const report = await runClosedLoop({
        ...options.load,
        signal: over.signal,
        onProgress: (sofar) => {
          if (live) process.stderr.write(`\r\u001b[K${progressLine(sofar)}`);
        },
      });
      if (live) process.stderr.write("\r\u001b[K");
      const about = { ...options.about, report };
      if (options.json === "-") process.stdout.write(`${JSON.stringify(about, null, 2)}\n`);
      else process.stdout.write(`${reportText(report)}\nseed ${options.load.seed}, world ${options.load.world.name}\n`);
      if (options.json !== undefined && options.json !== "-") {
        writeFileSync(options.json, `${JSON.stringify(about, null, 2)}\n`);
      }
      return report.interactive.failed + report.batch.failed > 0 ? EXIT.fault : EXIT.ok;
    } finally {
      process.off("SIGINT", stop);
      process.off("SIGTERM", stop);
    }
  },
};

type Options = {
  readonly load: Parameters<typeof runClosedLoop>[0];
  readonly about: object;
  readonly json: string | undefined;
};

async function optionsOf(flags: ParsedFlags): Promise<Options> {
  const url = urlOf(flags.text("url") ?? "http://127.0.0.1:7700");
  const serviceClass = flags.text("class") ?? "batch";
  if (serviceClass !== "interactive" && serviceClass !== "batch") {
    throw usage(`--class '${serviceClass}' is not interactive or batch`);
  }
  const world = worldOf(flags.text("world") ?? "own-loop");
  const timeScale = Number(flags.text("time-scale") ?? "1");
  if (!(timeScale > 0 && timeScale <= 1_000)) {
    throw usage(`--time-scale '${flags.text("time-scale")}' is not a number above 0 and at most 1000`);
  }
  const token = flags.text("token") ?? process.env["LUFTPAUSE_TOKEN"];
  const own = flags.integer("agents") ?? 8;
  const beside = flags.integer("interactive") ?? 0;
  const agents =
    serviceClass === "batch" ? { batch: own, interactive: beside } : { batch: 0, interactive: own + beside };
  const model = flags.text("model") ?? (await firstModel(url, token));
  const seed = flags.integer("seed") ?? 1;
  const seconds = flags.integer("duration-s") ?? 60;
  const warmUpSeconds = flags.integer("warm-up-s") ?? 0;
  const common = [
    "x-luftpause-caller",
    flags.text("caller") ?? "loadgen",
    ...(token === undefined ? [] : ["authorization", `Bearer ${token}`]),
  ];
  const named = flags.has("run-header");
  const started = Date.now().toString(36);
  return {
    load: {
      target: {
        protocol: url.protocol === "https:" ? "https:" : "http:",
        hostname: url.hostname.replace(/^\[(.*)\]$/, "$1"),
        port: Number(url.port) || (url.protocol === "https:" ? 443 : 80),
        basePath: url.pathname.replace(/\/+$/, ""),
      },
      model,
      world,
      agents,
      seed,
      timeScale,
      warmUpSeconds,
      seconds,
      headersOf: ({ class: of, agent, run }) => [
        "x-luftpause-class",
        of,
        ...common,
        ...(named ? ["x-luftpause-run-id", `loadgen-${started}-${of}-${agent}-${run}`] : []),
      ],
      priorityOf: () => undefined,
    },
    about: { url: url.href, model, world: world.name, agents, seed, timeScale, warmUpSeconds, seconds },
    json: flags.text("json"),
  };
}

function usage(message: string): CommandError {
  return new CommandError(EXIT.usage, `luftpause loadgen: ${message}`);
}

function urlOf(text: string): URL {
  const url = URL.parse(text);
  if (url === null || (url.protocol !== "http:" && url.protocol !== "https:")) {
    throw usage(`--url '${text}' is no http or https address`);
  }
  return url;
}

function worldOf(name: string): LoadWorld {
  const world = Object.values(WORLDS).find((one) => one.name === name);
  if (world === undefined) throw usage(`--world '${name}' is not one of ${Object.keys(WORLDS).join(", ")}`);
  return world;
}

/** @throws CommandError that says what the address answered instead. */
async function firstModel(url: URL, token: string | undefined): Promise<string> {
  const address = `${url.href.replace(/\/+$/, "")}/v1/models`;
  const fault = (message: string): CommandError =>
    new CommandError(EXIT.fault, `luftpause loadgen: ${address}: ${message}; --model names the model without asking`);
  let answer: Response;
  try {
    answer = await fetch(address, {
      headers: token === undefined ? {} : { authorization: `Bearer ${token}` },
      signal: AbortSignal.timeout(MODELS_TIMEOUT_MS),
    });
  } catch (error) {
    const { cause } = error as { readonly cause?: { readonly code?: string } };
    throw fault(cause?.code ?? (error instanceof Error ? error.message : String(error)));
  }
  if (!answer.ok) throw fault(`status ${answer.status}`);
  const page = (await answer.json()) as { readonly data?: readonly { readonly id?: unknown }[] };
  const id = page.data?.[0]?.id;
  if (typeof id !== "string") throw fault("it lists no model");
  return id;
}

function progressLine({ seconds, interactive, batch }: LoadReport): string {
  const of = (name: string, { runs, failed }: LoadReport["batch"]): string =>
    `${name} ${runs} runs${failed > 0 ? `, ${failed} failed` : ""}`;
  return `${Math.round(seconds)} s: ${of("interactive", interactive)}; ${of("batch", batch)}`;
}

function reportText(report: LoadReport): string {
  const rows = (["interactive", "batch"] as const)
    .map((name) => ({ name, of: report[name] }))
    .filter(({ of }) => of.runs + of.failed + of.turns > 0)
    .map(({ name, of }) => [
      name,
      String(of.runs),
      String(of.failed),
      of.runsPerMinute.toFixed(1),
      of.runSeconds.p50.toFixed(1),
      of.runSeconds.p95.toFixed(1),
      of.turnsPerMinute.toFixed(0),
      of.firstContentSeconds.p50.toFixed(2),
      of.firstContentSeconds.p95.toFixed(2),
      of.firstContentSeconds.max.toFixed(1),
      `${(100 * of.cachedShare).toFixed(0)} %`,
    ]);
  const titles = [
    "class",
    "runs",
    "failed",
    "runs/min",
    "run s p50",
    "p95",
    "turns/min",
    "first content s p50",
    "p95",
    "max",
    "cached",
  ];
  const lines = [
    table(
      titles.map((title, at) => ({ title, right: at > 0 })),
      rows,
    ),
  ];
  const replicas = Object.entries(report.byReplica).map(([name, turns]) => `${name} ${turns}`);
  if (replicas.length > 0) lines.push(`turns by replica: ${replicas.join(", ")}`);
  for (const [reason, count] of Object.entries(report.failures)) lines.push(`failed ${count}×: ${reason}`);
  return lines.join("\n");
}
