/** Options of a simulated engine: defaults, checks, and the flags of `luftpause fake-engine`. */
import type { Clock } from "../base/clock.ts";
import { PROFILES, TESTBED_WORLD } from "../engine/index.ts";
import type { AgentWorld, LatencyProfile, ProfileName, SharedGpu } from "../engine/index.ts";
import { parseFaults } from "./faults.ts";

/** Which engine it plays on the wire and in its batches. */
export type Dialect = "vllm" | "sglang" | "slots" | "llama.cpp" | "ollama" | "single-pass";

/** Every dialect. `slots` is the spec's name for both engines with slots, and means llama.cpp. */
export const DIALECTS: readonly Dialect[] = ["vllm", "sglang", "slots", "llama.cpp", "ollama", "single-pass"];

/** A dialect as routes and pages know it. */
export type WireDialect = Exclude<Dialect, "slots">;

export type FakeEngineOptions = {
  /** Default `vllm`. */
  readonly dialect?: Dialect;
  /** For people and logs; default `fake`. */
  readonly name?: string;
  /** Model names that it serves; default `sim-8b`. */
  readonly models?: readonly string[];
  /** Machine that it plays; default `instant`. */
  readonly profile?: ProfileName;
  /** Seed of the answers; default 1. Engines with one seed answer alike: so a pool gives every policy the same work. */
  readonly seed?: number;
  /** Makes the ids of answers and tool calls repeatable; default: random, as ids are unique over engines and restarts. */
  readonly idSeed?: number;
  /** Default 127.0.0.1. */
  readonly host?: string;
  /** 0 (default): any free port. */
  readonly port?: number;
  /** Requests in the batch at once, or llama.cpp's slots; default: the profile's (Ollama: 1). */
  readonly slots?: number;
  /** Size of the KV pool in tokens; default: the profile's. */
  readonly kvTokens?: number;
  /** Longest prompt and answer together, in tokens; default: the profile's. */
  readonly contextTokens?: number;
  /** Requests that may wait in the engine; one more gets 503. Default 10,000. */
  readonly queueMax?: number;
  /** Single figures of the profile's latency. */
  readonly latency?: Partial<LatencyProfile>;
  /** Engines given the same one slow one another down. */
  readonly gpu?: SharedGpu;
  /** `usage.prompt_tokens_details.cached_tokens` is sent; default true. vLLM and SGLang have it off unless told. */
  readonly cachedTokens?: boolean;
  /** Real milliseconds per simulated one: 0.1 runs ten times as fast. Default 1. */
  readonly timeScale?: number;
  /** Priority scheduling is on; default false. */
  readonly priority?: boolean;
  /** vLLM `--exclude-tools-when-tool-choice-none`; default false. */
  readonly excludeToolsWhenNone?: boolean;
  /** `/metrics` is served; default true, but never by Ollama. llama.cpp answers 501 without. */
  readonly metrics?: boolean;
  /** Requests need `authorization: Bearer <apiKey>`. */
  readonly apiKey?: string;
  /** Switches for the whole engine, `name` or `name=value`. */
  readonly faults?: readonly string[];
  /** Single figures of the scripted agents. */
  readonly world?: Partial<AgentWorld>;
  /** Names of the classes of a single-pass engine, in the order of `probs`. */
  readonly labels?: readonly string[];
  /** Requests whose headers and body the handle keeps; default 200. */
  readonly recordLast?: number;
  /** For tests with their own clock; default: the real one. */
  readonly clock?: Clock;
};

export type ResolvedOptions = Required<
  Omit<
    FakeEngineOptions,
    "dialect" | "slots" | "kvTokens" | "contextTokens" | "latency" | "gpu" | "apiKey" | "idSeed" | "clock"
  >
> & {
  readonly dialect: WireDialect;
  readonly slots: number | undefined;
  readonly kvTokens: number | undefined;
  readonly contextTokens: number | undefined;
  readonly latency: Partial<LatencyProfile>;
  readonly gpu: SharedGpu | undefined;
  readonly apiKey: string | undefined;
  readonly idSeed: number | undefined;
  readonly world: AgentWorld;
};

/** Fills in the defaults; a text says what is wrong, where, and what would be right. */
export function resolveOptions(options: FakeEngineOptions): ResolvedOptions | string {
  const problem = firstProblem(options);
  if (problem !== undefined) return problem;
  const given = options.dialect ?? "vllm";
  const dialect = given === "slots" ? "llama.cpp" : given;
  return {
    dialect,
    name: options.name ?? "fake",
    models: options.models ?? ["sim-8b"],
    profile: options.profile ?? "instant",
    seed: options.seed ?? 1,
    idSeed: options.idSeed,
    host: options.host ?? "127.0.0.1",
    port: options.port ?? 0,
    slots: options.slots ?? (dialect === "ollama" ? 1 : undefined),
    kvTokens: options.kvTokens,
    contextTokens: options.contextTokens,
    queueMax: options.queueMax ?? 10_000,
    latency: options.latency ?? {},
    gpu: options.gpu,
    cachedTokens: options.cachedTokens ?? true,
    timeScale: options.timeScale ?? 1,
    priority: options.priority ?? false,
    excludeToolsWhenNone: options.excludeToolsWhenNone ?? false,
    metrics: dialect === "ollama" ? false : (options.metrics ?? true),
    apiKey: options.apiKey,
    faults: options.faults ?? [],
    world: { ...TESTBED_WORLD, ...options.world },
    labels: options.labels ?? ["negative", "neutral", "positive"],
    recordLast: options.recordLast ?? 200,
  };
}

function firstProblem(options: FakeEngineOptions): string | undefined {
  const { dialect, profile, models, labels, timeScale, faults } = options;
  if (dialect !== undefined && !DIALECTS.includes(dialect)) {
    return `dialect '${dialect}' is not one of ${DIALECTS.join(", ")}`;
  }
  if (profile !== undefined && !Object.hasOwn(PROFILES, profile)) {
    return `profile '${profile}' is not one of ${Object.keys(PROFILES).join(", ")}`;
  }
  if (models !== undefined && (models.length === 0 || models.includes(""))) return "models: name at least one model";
  if (labels !== undefined && labels.length < 2) return "labels: a classifier needs at least two";
  if (timeScale !== undefined && !(timeScale > 0 && timeScale <= 1_000)) {
    return `timeScale ${timeScale} is not above 0 and at most 1000 (1: real time, 0.1: ten times as fast)`;
  }
  const parsed = parseFaults(faults ?? [], "engine");
  if (parsed.kind === "invalid") return `faults: ${parsed.message}`;
  return numberProblem(options);
}

/** Bounds of the whole numbers among the options. */
const NUMBERS = {
  port: [0, 65_535],
  slots: [1, 100_000],
  kvTokens: [128, 1_000_000_000],
  contextTokens: [64, 100_000_000],
  queueMax: [0, 1_000_000],
  seed: [0, 4_294_967_295],
  idSeed: [0, 4_294_967_295],
  recordLast: [0, 1_000_000],
} as const satisfies { readonly [Name in keyof FakeEngineOptions]?: readonly [number, number] };

function numberProblem(options: FakeEngineOptions): string | undefined {
  for (const name of Object.keys(NUMBERS) as (keyof typeof NUMBERS)[]) {
    const value = options[name];
    const [least, most] = NUMBERS[name];
    if (value !== undefined && !(Number.isInteger(value) && value >= least && value <= most)) {
      return `${name} ${value} is not a whole number from ${least} to ${most}`;
    }
  }
  return undefined;
}
