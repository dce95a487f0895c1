// What is compared: each arm is a proxy (or none of ours) in front of the same two simulated engines.
import fs from "node:fs";
import net from "node:net";
import path from "node:path";
import { PROFILES, type ProfileName } from "../../src/engine/index.ts";
import { ACTIVE_SET_DEFAULTS } from "../../src/scheduling/index.ts";
import type { AgentName } from "../../src/testbed/index.ts";
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
  /** Members of the bodies by which a rival knows the run. */
  readonly membersOf?: (agent: AgentName) => object;
  readonly start: (context: ArmContext) => Promise<{ readonly port: number; readonly process: Running }>;
};

const START_TIMEOUT_MS = 60_000;
const REPOSITORY = path.resolve(import.meta.dirname, "../..");
const BOTH = ["sglang", "vllm"] as const;

async function freePort(): Promise<number> {
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

/**
 * The closest rival at its best: capacity and cost models are the simulated engine's own figures, every time constant in
 * scaled time. Two engines share the GPU: while both work each step takes about twice as long.
 */
const programScheduling: Arm["start"] = async (context) => {
  const port = await freePort();
  const { profile, timeScale } = context.engines;
  const { kvTokens, latency, enginesPerGpu } = PROFILES[profile];
  const slow = timeScale * enginesPerGpu;
  const seconds = (ms: number): number => (ms / 1_000) * slow;
  const config = {
    program_scheduling_enable_key: "auto",
    binding_strategy: "least_program_count",
    global_queue: true,
    resume_order: "mru",
    token_capacity_per_dp_rank: kvTokens,
    metrics_interval_seconds: timeScale,
    max_acting_ttl_seconds: 10 * timeScale,
    queue_timeout_seconds: 600 * timeScale,
    force_resume_timeout_seconds: 300 * timeScale,
    prefill_cost_model: {
      intercept_seconds: seconds(latency.decodeBaseMs + latency.hostMs),
      linear_seconds_per_1k_tokens: seconds(1e6 / latency.prefillTokensPerSecond),
      quadratic_seconds_per_1k_tokens_squared: seconds(latency.prefillPerPairMs * 5e5),
      decode_throughput_alpha: 0.1,
    },
    decode_throughput_model: {
      fixed_step_seconds: seconds(latency.decodeBaseMs + latency.hostMs),
      batch_step_seconds_per_request: seconds(latency.decodePerRequestMs),
      context_step_seconds_per_token: seconds(latency.decodePerKiloTokenMs) / 1_000,
    },
  };
  const command = [
    context.peers.bin("vllm-router"),
    "--host",
    "127.0.0.1",
    "--port",
    String(port),
    "--worker-urls",
    ...context.urls,
    "--policy",
    "consistent_hash",
    "--enable-program-scheduling",
    "--program-scheduling-config-json",
    JSON.stringify(config),
    "--prometheus-port",
    String(await freePort()),
    "--log-level",
    "error",
  ];
  return started("vllm-router-program", command, context, { port, route: "/health" });
};

/** Stock vLLM takes strings in `vllm_xargs`, no objects. */
function programOf({ class: serviceClass, agent, run }: AgentName): object {
  return { vllm_xargs: { agentic_context: JSON.stringify({ program_id: `${serviceClass}-${agent}-${run}` }) } };
}

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
      // vLLM does not show that it takes one; these engines do.
      priority: dialect === "vllm" ? "lower-first" : "auto",
    }));
    const document = {
      listen: `127.0.0.1:${port}`,
      endpoints,
      // The engines live in scaled time, and so must what looks at them.
      scheduler: { probeEveryMs: Math.max(20, Math.round(2_000 * timeScale)) },
      activeSet: {
        shareHalfLifeMs: Math.round(ACTIVE_SET_DEFAULTS.shareHalfLifeMs * timeScale),
        placeLeastMs: Math.round(ACTIVE_SET_DEFAULTS.placeLeastMs * timeScale),
        placeMostMs: Math.round(ACTIVE_SET_DEFAULTS.placeMostMs * timeScale),
      },
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
    name: "vllm-router+program",
    about: "vllm-router with program scheduling, capacity and cost models of the engines, program ids sent",
    dialects: ["vllm"],
    membersOf: programOf,
    start: programScheduling,
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
    name: "active-set",
    about: "luftpause, policy active-set",
    start: luftpause("active-set", { policy: "active-set" }),
  },
  {
    ...COMMON,
    name: "idle-pool",
    about: "the interactive agents alone, through sglang-router: the bound",
    interactiveOnly: true,
    start: sglangRouter,
  },
];
