/** Wires the runtime: its journal, its way to the dataplane, its tools, and what it knows of the pool. */
import { mkdirSync } from "node:fs";
import path from "node:path";
import { answerWhole, createAuth, createEngineClient, type Exchange } from "../http/index.ts";
import {
  createMcpFace,
  createModelClient,
  createRuntime,
  createSpill,
  createToolServers,
  connectToServer,
  openSqliteStore,
  StoreError,
  type McpFace,
  type Runtime,
  type ToolServerView,
} from "../runtime/index.ts";
import type { Scheduler } from "../scheduler/index.ts";
import { REAL_CLOCK } from "../telemetry/index.ts";
import type { EngineKind } from "../wire/endpoint.ts";
import { logFor, type ExtraRoute } from "./compose.ts";
import { authOf, runtimeTokenOf, toolServersOf } from "./config/resolve.ts";
import type { Config } from "./config/schema.ts";
import { CommandError, EXIT } from "./exit.ts";
import { version } from "./version.ts";
import { JOURNAL_FILE } from "./journal-file.ts";

/** In the state directory: results of tools that were too long. */
const SPILL_FOLDER = "tool-results";
/** The start waits this long for tool servers; one that takes longer comes when it comes. */
const TOOLS_WAIT_MS = 5_000;

/** What is known of the pool beside the config, where the scheduler runs in the same process. */
export type PoolView = {
  /** Of healthy replicas, in the order of the config. */
  readonly generativeModels: () => readonly string[];
  readonly singlePassModels: () => readonly string[];
  readonly engineOf: (replica: string) => EngineKind | undefined;
};

export type RuntimeParts = {
  readonly runtime: Runtime;
  readonly face: McpFace;
  readonly toolServers: () => readonly ToolServerView[];
  /** Takes the runs over, once every tool server was tried: runs that go on call their tools at once. */
  start(): Promise<void>;
  /** Ends what is under way, within `withinMs`, and closes the journal. */
  close(withinMs: number): Promise<void>;
};

/** What the scheduler of the same process has learned of the pool. */
export function learnedPool(scheduler: Pick<Scheduler, "status">): PoolView {
  const models = (kind: string) => (): readonly string[] => {
    const rows = scheduler.status().replicas.filter((row) => row.kind === kind && row.healthy);
    return [...new Set(rows.flatMap((row) => row.models))];
  };
  return {
    generativeModels: models("generative"),
    singlePassModels: models("single-pass"),
    engineOf(replica) {
      const row = scheduler.status().replicas.find((known) => known.replica === replica);
      return row?.engine as EngineKind | undefined;
    },
  };
}

/** What the config alone says of the pool. */
export function configuredPool(config: Config): PoolView {
  const models = (kind: "generative" | "single-pass") => (): readonly string[] =>
    config.endpoints.flatMap((endpoint) => (endpoint.kind === kind ? endpoint.models : []));
  return {
    generativeModels: models("generative"),
    singlePassModels: models("single-pass"),
    engineOf: () => undefined,
  };
}

/**
 * Opens the journal, makes the runtime, and begins to connect to the tool servers.
 * @param options.dataplaneUrl base address without /v1.
 */
export async function makeRuntime(
  config: Config,
  options: { readonly dataplaneUrl: string; readonly pool: PoolView },
): Promise<RuntimeParts> {
  const { runtime: keys, limits } = config;
  const { pool } = options;
  const store = await openJournal(config);
  const { connectTimeoutMs, reusedSocketRetryMs } = limits;
  const model = createModelClient({
    url: options.dataplaneUrl,
    token: runtimeTokenOf(config),
    http: createEngineClient({ connectTimeoutMs, reusedSocketRetryMs }),
    clock: REAL_CLOCK,
    turnTimeoutMs: keys.turnTimeoutSeconds * 1000,
    silenceMs: keys.turnSilenceSeconds * 1000,
  });
  const tools = createToolServers(toolServersOf(config), {
    clock: REAL_CLOCK,
    log: logFor(config, "tools"),
    connect: connectToServer,
    version: version(),
    random: Math.random,
    spill: createSpill(path.join(config.stateDir, SPILL_FOLDER)),
  });
  const runtime = createRuntime({
    store,
    model,
    tools,
    clock: REAL_CLOCK,
    wallMs: Date.now,
    log: logFor(config, "runtime"),
    defaultModel: keys.defaultModel ?? undefined,
    modelOrder: pool.generativeModels,
    lastTurnOf: lastTurnOf(config, pool),
    maxToolCalls: keys.maxToolCalls,
    maxTokens: keys.maxTokens,
    maxDepth: keys.maxDepth,
    maxChildren: keys.maxChildren,
    approvalExpireMs: keys.approvals.expireSeconds * 1000,
    keepFinishedMs: keys.keepFinishedDays * 86_400_000,
    classifierModel: () => pool.singlePassModels()[0],
    labelsOf: (name) =>
      config.endpoints.find(({ kind, models, labels }) => {
        return kind === "single-pass" && labels.length > 0 && (models.length === 0 || models.includes(name));
      })?.labels ?? [],
  });
  tools.show(runtime.metrics);
  const face = await createMcpFace({
    service: runtime.service,
    store,
    clock: REAL_CLOCK,
    wallMs: Date.now,
    log: logFor(config, "mcp"),
    metrics: runtime.metrics,
    version: version(),
    authenticate: createAuth(authOf(config)),
    allowedHosts: keys.allowedHosts,
    requestStateKey: keys.requestStateKey ?? undefined,
    humanMinMs: keys.approvals.humanMinMs,
    keepFinishedMs: keys.keepFinishedDays * 86_400_000,
  });
  return {
    runtime,
    face,
    toolServers: () => tools.servers(),
    async start() {
      await tools.tried(TOOLS_WAIT_MS);
      await runtime.start();
    },
    async close(withinMs) {
      let timer: NodeJS.Timeout | undefined;
      const late = new Promise<void>((resolve) => {
        timer = setTimeout(resolve, withinMs);
      });
      await Promise.race([runtime.drain(), late]);
      clearTimeout(timer);
      await face.close();
      runtime.close();
      await tools.close();
      await store.close();
    },
  };
}

async function openJournal(config: Config) {
  const file = path.join(config.stateDir, JOURNAL_FILE);
  try {
    mkdirSync(config.stateDir, { recursive: true, mode: 0o700 });
    return await openSqliteStore({ file });
  } catch (error) {
    if (error instanceof StoreError) throw new CommandError(EXIT.config, `stateDir: ${error.message}`);
    const { code, message } = error as NodeJS.ErrnoException;
    throw new CommandError(EXIT.config, `stateDir: ${config.stateDir} cannot be used (${code ?? message})`);
  }
}

/** Engines that keep the tools in the prompt under `tool_choice: "none"` (spec 4, The last turn). */
const KEEP_TOOLS: ReadonlySet<string> = new Set<EngineKind>(["vllm", "llama.cpp"]);

function lastTurnOf(config: Config, pool: PoolView): (replica: string | undefined) => "none" | "auto" {
  return (replica) => {
    const endpoint = config.endpoints.find(({ name }) => name === replica);
    if (endpoint === undefined) return "auto";
    if (endpoint.lastTurn !== "by-engine") return endpoint.lastTurn;
    const engine = endpoint.engine === "auto" ? pool.engineOf(endpoint.name) : endpoint.engine;
    return engine !== undefined && KEEP_TOOLS.has(engine) ? "none" : "auto";
  };
}

/** The tree for whoever asks: our own services and the one token see all, a principal its own runs. */
export function runTreeFor(config: Config, runtime: Runtime): (exchange: Exchange) => unknown {
  const authenticate = createAuth(authOf(config));
  return (exchange) => {
    const identity = authenticate(exchange);
    const all = identity === undefined || identity.service || config.principals.length === 0;
    return runtime.service.tree(all ? undefined : identity.principal);
  };
}

export function runtimeStatusRoute(config: Config, runtime: Runtime): ExtraRoute {
  const tree = runTreeFor(config, runtime);
  return {
    method: "GET",
    path: "/status",
    guard: "token",
    answer: (exchange) => answerWhole(exchange, 200, [], JSON.stringify({ runs: tree(exchange) })),
  };
}

/** Gives the MCP face its paths, and everything else to the next. */
export function withMcp(face: McpFace, next: (exchange: Exchange) => void): (exchange: Exchange) => void {
  return (exchange) => (face.owns(exchange.path) ? face.handle(exchange) : next(exchange));
}
