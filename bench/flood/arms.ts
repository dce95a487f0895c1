// What is compared: each arm is a proxy (or none of ours) in front of the same two simulated engines.
import fs from "node:fs";
import net from "node:net";
import path from "node:path";
import type { ProfileName } from "../../src/engine/index.ts";
import { startServer, waitUntil, type Running } from "../support/processes.ts";
import type { Peers } from "./peers.ts";

export type EngineSettings = {
  readonly dialect: "sglang" | "vllm";
  readonly profile: ProfileName;
  readonly model: string;
  readonly timeScale: number;
};

export type ArmContext = {
  readonly engines: EngineSettings;
  readonly urls: readonly string[];
  readonly folder: string;
  readonly peers: Peers;
};

export type Arm = {
  readonly name: string;
  /** One line for the table's legend. */
  readonly about: string;
  /** Engines that it can stand in front of. */
  readonly dialects: readonly EngineSettings["dialect"][];
  /** The harness sends the engine's own `priority`. */
  readonly sendsPriority: boolean;
  /** Only the interactive agents: the bound of an idle pool. */
  readonly interactiveOnly: boolean;
  readonly start: (context: ArmContext) => Promise<{ readonly port: number; readonly process: Running }>;
};

const START_TIMEOUT_MS = 60_000;
const REPOSITORY = path.resolve(import.meta.dirname, "../..");
const BOTH = ["sglang", "vllm"] as const;

export async function freePort(): Promise<number> {
  const server = net.createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  const { port } = server.address() as net.AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

async function answers(port: number, route: string): Promise<boolean> {
  try {
    const response = await fetch(`http://127.0.0.1:${port}${route}`, { signal: AbortSignal.timeout(2_000) });
    await response.arrayBuffer();
    return response.status === 200;
  } catch {
    return false;
  }
}

async function started(
  name: string,
  command: readonly string[],
  context: ArmContext,
  ready: { readonly port: number; readonly route: string },
): Promise<{ readonly port: number; readonly process: Running }> {
  const running = startServer(name, command, context.folder, { cpu: null, cwd: context.folder });
  await waitUntil(`${name} is not ready`, running, START_TIMEOUT_MS, () => answers(ready.port, ready.route));
  return { port: ready.port, process: running };
}

// A class-blind router sends a run where its prefix is and knows nothing of classes or runs.
const sglangRouter: Arm["start"] = async (context) => {
  const port = await freePort();
  const command = [
    context.peers.python,
    "-m",
    "sglang_router.launch_router",
    "--host",
    "127.0.0.1",
    "--port",
    String(port),
    "--worker-urls",
    ...context.urls,
    "--policy",
    "cache_aware",
    "--prometheus-port",
    String(await freePort()),
    "--log-level",
    "error",
  ];
  return started("sglang-router", command, context, { port, route: "/v1/models" });
};

const smg: Arm["start"] = async (context) => {
  const port = await freePort();
  const command = [
    context.peers.bin("smg"),
    "launch",
    "--host",
    "127.0.0.1",
    "--port",
    String(port),
    "--worker-urls",
    ...context.urls,
    "--policy",
    "cache_aware",
    "--prometheus-port",
    String(await freePort()),
    "--log-level",
    "error",
  ];
  return started("smg", command, context, { port, route: "/v1/models" });
};

// Thresholds at which it spreads load at all: with its defaults one of two engines gets every request.
const vllmRouter: Arm["start"] = async (context) => {
  const port = await freePort();
  const command = [
    context.peers.bin("vllm-router"),
    "--host",
    "127.0.0.1",
    "--port",
    String(port),
    "--worker-urls",
    ...context.urls,
    "--policy",
    "cache_aware",
    "--cache-threshold",
    "0.5",
    "--balance-abs-threshold",
    "2",
    "--balance-rel-threshold",
    "1.2",
    "--prometheus-port",
    String(await freePort()),
    "--log-level",
    "error",
  ];
  return started("vllm-router", command, context, { port, route: "/health" });
};

function luftpause(name: string, config: object): Arm["start"] {
  return async (context) => {
    const port = await freePort();
    const { timeScale, model, dialect } = context.engines;
    const file = path.join(context.folder, `${name}-${port}.yaml`);
    const endpoints = context.urls.map((url, at) => ({
      name: `engine-${"ab"[at]}`,
      url,
      engine: dialect,
      models: [model],
    }));
    const document = {
      listen: `127.0.0.1:${port}`,
      endpoints,
      // The engines live in scaled time, and so must what looks at them.
      scheduler: { probeEveryMs: Math.max(20, Math.round(2_000 * timeScale)) },
      ...config,
    };
    fs.writeFileSync(file, JSON.stringify(document, null, 2));
    const command = [process.execPath, path.join(REPOSITORY, "src/cli/main.ts"), "up", "--config", file];
    return started(name, command, context, { port, route: "/readyz" });
  };
}

const COMMON = { dialects: BOTH, sendsPriority: false, interactiveOnly: false } as const;

export const ARMS: readonly Arm[] = [
  {
    ...COMMON,
    name: "sglang-router",
    about: "sglang-router, cache_aware, class-blind",
    start: sglangRouter,
  },
  {
    ...COMMON,
    name: "sglang-router+priority",
    about: "the same; the harness sends the engine's priority field",
    sendsPriority: true,
    start: sglangRouter,
  },
  { ...COMMON, name: "smg", about: "smg launch, cache_aware, class-blind", start: smg },
  {
    ...COMMON,
    name: "vllm-router",
    about: "vllm-router, cache_aware with thresholds 0.5, 2, 1.2",
    dialects: ["vllm"],
    start: vllmRouter,
  },
  {
    ...COMMON,
    name: "classic",
    about: "luftpause, policy classic",
    start: luftpause("classic", { policy: "classic" }),
  },
  {
    ...COMMON,
    name: "classic-at-once",
    about: "luftpause, policy classic, capRelease at-once",
    start: luftpause("classic-at-once", { policy: "classic", capRelease: "at-once" }),
  },
  {
    ...COMMON,
    name: "idle-pool",
    about: "the interactive agents alone, through sglang-router: the bound",
    interactiveOnly: true,
    start: sglangRouter,
  },
];
