/** Flags of `luftpause fake-engine`: the table, and the options that given flags mean. */
import { PROFILES } from "../engine/index.ts";
import { parseFaults } from "./faults.ts";
import { DIALECTS, resolveOptions } from "./options.ts";
import type { FakeEngineOptions } from "./options.ts";

/** One flag, in the shape of the CLI's flag tables. */
export type FakeEngineFlag = {
  readonly kind: "boolean" | "string" | "integer";
  readonly about: string;
  readonly value?: string;
  readonly many?: boolean;
  readonly least?: number;
  readonly most?: number;
};

/** Every flag of the command, in the order of its help. */
export const FAKE_ENGINE_FLAGS = {
  dialect: { kind: "string", value: "NAME", about: `engine that it plays: ${DIALECTS.join(", ")} (vllm)` },
  profile: {
    kind: "string",
    value: "NAME",
    about: `machine that it plays: ${Object.keys(PROFILES).join(", ")} (instant)`,
  },
  name: { kind: "string", value: "NAME", about: "name for people and logs (fake)" },
  model: {
    kind: "string",
    value: "NAME",
    many: true,
    about: "model that it serves, several times for several (sim-8b)",
  },
  host: { kind: "string", value: "ADDRESS", about: "address to listen on (127.0.0.1)" },
  port: { kind: "integer", value: "PORT", least: 0, most: 65_535, about: "port to listen on, 0 for any free one (0)" },
  seed: { kind: "integer", value: "N", least: 0, most: 4_294_967_295, about: "seed of the answers (1)" },
  slots: {
    kind: "integer",
    value: "N",
    least: 1,
    most: 100_000,
    about: "requests in the batch at once (the profile's)",
  },
  "kv-tokens": {
    kind: "integer",
    value: "N",
    least: 128,
    most: 1_000_000_000,
    about: "size of the KV pool (the profile's)",
  },
  "context-tokens": {
    kind: "integer",
    value: "N",
    least: 64,
    most: 100_000_000,
    about: "longest prompt and answer together (the profile's)",
  },
  "queue-max": {
    kind: "integer",
    value: "N",
    least: 0,
    most: 1_000_000,
    about: "requests that may wait; one more gets 503 (10000)",
  },
  "time-scale": { kind: "string", value: "X", about: "real time per simulated time: 0.1 runs ten times as fast (1)" },
  priority: { kind: "boolean", about: "turns priority scheduling on" },
  "no-cached-tokens": {
    kind: "boolean",
    about: "leaves cached tokens out of usage, as vLLM and SGLang do unless told",
  },
  "no-metrics": { kind: "boolean", about: "does not serve /metrics (llama.cpp answers 501)" },
  "exclude-tools-when-none": { kind: "boolean", about: "vllm: drops the tools from the prompt under tool_choice none" },
  "api-key": { kind: "string", value: "KEY", about: "key that requests must carry" },
  label: {
    kind: "string",
    value: "NAME",
    many: true,
    about: "single-pass: name of a class, several times, in the order of probs",
  },
  fault: {
    kind: "string",
    value: "NAME[=VALUE]",
    many: true,
    about: "fault switch for the whole engine; GET / lists them",
  },
} as const satisfies { readonly [flag: string]: FakeEngineFlag };

/** Given flags, as the CLI's parser hands them over. */
export type GivenFlags = {
  has(flag: string): boolean;
  text(flag: string): string | undefined;
  texts(flag: string): readonly string[];
  integer(flag: string): number | undefined;
};

export type FlagsOutcome =
  | { readonly kind: "ok"; readonly options: FakeEngineOptions }
  /** For people: names the flag, what is wrong and what would be right. */
  | { readonly kind: "invalid"; readonly message: string };

/** The options that given flags mean, checked as `startFakeEngine` would. */
export function optionsFromFlags(flags: GivenFlags): FlagsOutcome {
  const dialect = DIALECTS.find((known) => known === flags.text("dialect"));
  if (flags.has("dialect") && dialect === undefined) {
    return invalid(`--dialect '${flags.text("dialect")}' is not one of ${DIALECTS.join(", ")}`);
  }
  const profile = Object.values(PROFILES).find(({ name }) => name === flags.text("profile"))?.name;
  if (flags.has("profile") && profile === undefined) {
    return invalid(`--profile '${flags.text("profile")}' is not one of ${Object.keys(PROFILES).join(", ")}`);
  }
  const faults = parseFaults(flags.texts("fault"), "engine");
  if (faults.kind === "invalid") return invalid(`--fault: ${faults.message}`);
  const scale = flags.text("time-scale");
  const timeScale = scale === undefined ? undefined : Number(scale);
  if (timeScale !== undefined && !(timeScale > 0 && timeScale <= 1_000)) {
    return invalid(`--time-scale '${scale}' is not a number above 0 and at most 1000`);
  }
  const options: FakeEngineOptions = withoutUndefined({
    dialect,
    profile,
    name: flags.text("name"),
    models: flags.has("model") ? flags.texts("model") : undefined,
    host: flags.text("host"),
    port: flags.integer("port"),
    seed: flags.integer("seed"),
    slots: flags.integer("slots"),
    kvTokens: flags.integer("kv-tokens"),
    contextTokens: flags.integer("context-tokens"),
    queueMax: flags.integer("queue-max"),
    timeScale,
    priority: flags.has("priority"),
    cachedTokens: !flags.has("no-cached-tokens"),
    metrics: !flags.has("no-metrics"),
    excludeToolsWhenNone: flags.has("exclude-tools-when-none"),
    apiKey: flags.text("api-key"),
    labels: flags.has("label") ? flags.texts("label") : undefined,
    faults: flags.texts("fault"),
  });
  const resolved = resolveOptions(options);
  return typeof resolved === "string" ? invalid(resolved) : { kind: "ok", options };
}

function invalid(message: string): FlagsOutcome {
  return { kind: "invalid", message };
}

type Defined<Source> = { [Key in keyof Source]?: Exclude<Source[Key], undefined> };

function withoutUndefined<Source extends object>(source: Source): Defined<Source> {
  return Object.fromEntries(Object.entries(source).filter(([, value]) => value !== undefined)) as Defined<Source>;
}
