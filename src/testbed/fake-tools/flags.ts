/** Flags of `luftpause fake-tools`: the table, and the options that given flags mean. */
import { ERAS, resolveToolsOptions, type Delay, type Era, type FakeToolsOptions } from "./options.ts";

export const FAKE_TOOLS_FLAGS = {
  stdio: { kind: "boolean", about: "serves on standard input and output instead of HTTP" },
  host: { kind: "string", value: "ADDRESS", about: "address to listen on (127.0.0.1)" },
  port: { kind: "integer", value: "PORT", least: 0, most: 65_535, about: "port to listen on, 0 for any free one (0)" },
  era: { kind: "string", value: "NAME", about: `protocol eras that it speaks: ${ERAS.join(", ")} (both)` },
  seed: { kind: "integer", value: "N", least: 0, most: 4_294_967_295, about: "seed of answers and durations (1)" },
  "lookup-ms": { kind: "string", value: "MS[-MS]", about: "how long a lookup takes (300-1000)" },
  "deep-search-ms": { kind: "string", value: "MS[-MS]", about: "how long a deep_search takes (500-1500)" },
  ledger: { kind: "string", value: "FILE", about: "appends a line for every call that has begun" },
  fault: { kind: "string", value: "NAME[=VALUE]", many: true, about: "a fault, several times for several" },
} as const;

export type ToolsFlagsOutcome =
  | { readonly kind: "ok"; readonly stdio: boolean; readonly options: FakeToolsOptions }
  | { readonly kind: "invalid"; readonly message: string };

type Flags = {
  has(flag: string): boolean;
  text(flag: string): string | undefined;
  texts(flag: string): readonly string[];
  integer(flag: string): number | undefined;
};

export function toolsOptionsFromFlags(flags: Flags): ToolsFlagsOutcome {
  const invalid = (message: string): ToolsFlagsOutcome => ({ kind: "invalid", message });
  const delays: { lookupMs?: Delay; deepSearchMs?: Delay } = {};
  for (const [flag, key] of [
    ["lookup-ms", "lookupMs"],
    ["deep-search-ms", "deepSearchMs"],
  ] as const) {
    const text = flags.text(flag);
    if (text === undefined) continue;
    const delay = delayOf(text);
    if (delay === undefined) return invalid(`--${flag} '${text}' must be milliseconds, such as 500 or 300-1000`);
    delays[key] = delay;
  }
  const era = flags.text("era");
  if (era !== undefined && !isEra(era)) return invalid(`--era '${era}' is not one of ${ERAS.join(", ")}`);
  const address = ["host", "port"].find((flag) => flags.has(flag));
  if (flags.has("stdio") && address !== undefined) return invalid(`--${address} is for HTTP: leave it or --stdio away`);
  const seed = flags.integer("seed");
  const port = flags.integer("port");
  const host = flags.text("host");
  const ledger = flags.text("ledger");
  const options: FakeToolsOptions = {
    ...delays,
    faults: flags.texts("fault"),
    ...(era === undefined ? {} : { era }),
    ...(seed === undefined ? {} : { seed }),
    ...(port === undefined ? {} : { port }),
    ...(host === undefined ? {} : { host }),
    ...(ledger === undefined ? {} : { ledger }),
  };
  const resolved = resolveToolsOptions(options);
  return typeof resolved === "string"
    ? invalid(`--fault: ${resolved}`)
    : { kind: "ok", stdio: flags.has("stdio"), options };
}

function isEra(text: string): text is Era {
  return (ERAS as readonly string[]).includes(text);
}

function delayOf(text: string): Delay | undefined {
  const [, least, most] = /^(\d{1,8})(?:-(\d{1,8}))?$/.exec(text) ?? [];
  if (least === undefined) return undefined;
  const delay: Delay = [Number(least), Number(most ?? least)];
  return delay[0] <= delay[1] ? delay : undefined;
}
