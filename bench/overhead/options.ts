// Command line of the bench. An unknown flag or a bad value ends it with a text that names the flag and what it takes.
import os from "node:os";
import { parseArgs } from "node:util";

export const PARTS = ["json", "s64", "s400", "s200", "light", "memory", "open8000", "churn"] as const;
export type Part = (typeof PARTS)[number];
export const VARIANTS = ["direct", "nginx", "haproxy", "portkey", "luftpause"] as const;
export type VariantName = (typeof VARIANTS)[number];

export type Options = {
  readonly rounds: number;
  /** Length of one measured phase. */
  readonly phaseSeconds: number;
  readonly churnSeconds: number;
  readonly parts: readonly Part[];
  readonly variants: readonly VariantName[];
  /** CPUs of stub + generator and of the proxy; null: not pinned. */
  readonly cpus: { readonly tools: number; readonly proxy: number } | null;
  readonly seed: number;
  readonly jsonFile: string | null;
  readonly install: boolean;
  readonly dist: boolean;
  readonly boost: boolean;
  readonly gate: boolean;
  readonly smoke: boolean;
  readonly keepLogs: boolean;
};

const USAGE = `node bench/overhead/overhead.bench.ts [options]
  --rounds N           interleaved rounds (6)
  --seconds N          length of one measured phase (6)
  --churn-minutes N    length of the churn part (10)
  --quick              2 rounds of 2 s, 1,000 idle streams, half a minute of churn: a look, not a measurement
  --only A,B           of ${PARTS.join(", ")}
  --variants A,B       of ${VARIANTS.join(", ")}
  --json FILE          where the result goes (default: bench/results/overhead-<date>.json when every part ran)
  --dist               run luftpause from dist/ (npm run build) instead of src/
  --install            install nginx and haproxy with apt-get when they are missing (needs root)
  --cpus T,P           CPU of stub + generator, CPU of the proxy (0,1); --no-pin: leave it to the kernel
  --boost              raise this session's autogroup (needs root): the kernel prefers the bench to other sessions
  --seed N             order of the rounds (time of day)
  --gate               exit code 1 when a goal is not met
  --keep-logs          keep the temporary folder with configurations and logs, and say where it is
  --smoke              at most 20 s, not pinned, direct and luftpause: asserts correctness, measures nothing`;

/** A mistake of the person who called the bench: shown without a stack. */
export class UsageError extends Error {}

function listOf<T extends string>(flag: string, value: string, allowed: readonly T[]): T[] {
  return value.split(",").map((word) => {
    const found = allowed.find((name) => name === word.trim());
    if (found === undefined) throw new UsageError(`--${flag}: "${word}" is not one of ${allowed.join(", ")}`);
    return found;
  });
}

function numberOf(flag: string, value: string, min: number, max: number): number {
  const n = Number(value);
  if (!Number.isFinite(n) || n < min || n > max) {
    throw new UsageError(`--${flag}: "${value}" is not a number from ${min} to ${max}`);
  }
  return n;
}

function cpusOf(value: string): { tools: number; proxy: number } {
  const count = os.cpus().length;
  const [tools, proxy, ...rest] = value.split(",").map((n) => numberOf("cpus", n, 0, count - 1));
  if (tools === undefined || proxy === undefined || rest.length > 0 || tools === proxy) {
    throw new UsageError(`--cpus: two different CPU numbers below ${count}, for example 0,1`);
  }
  return { tools, proxy };
}

function parse(args: string[]) {
  try {
    return parseArgs({
      args,
      options: {
        rounds: { type: "string" },
        seconds: { type: "string" },
        "churn-minutes": { type: "string" },
        quick: { type: "boolean", default: false },
        only: { type: "string" },
        variants: { type: "string" },
        json: { type: "string" },
        dist: { type: "boolean", default: false },
        install: { type: "boolean", default: false },
        cpus: { type: "string" },
        "no-pin": { type: "boolean", default: false },
        boost: { type: "boolean", default: false },
        seed: { type: "string" },
        gate: { type: "boolean", default: false },
        "keep-logs": { type: "boolean", default: false },
        smoke: { type: "boolean", default: false },
        help: { type: "boolean", default: false },
      },
    }).values;
  } catch (error) {
    throw new UsageError(`${error instanceof Error ? error.message : String(error)}\n\n${USAGE}`, { cause: error });
  }
}

/** Reads the command line; throws UsageError. */
export function readOptions(args: string[]): Options | "help" {
  const v = parse(args);
  if (v.help) {
    console.log(USAGE);
    return "help";
  }
  const variants =
    v.variants === undefined
      ? v.smoke
        ? (["direct", "luftpause"] as const)
        : VARIANTS
      : listOf("variants", v.variants, VARIANTS);
  const canPin = os.cpus().length > 1;
  if (!canPin && !v["no-pin"] && !v.smoke) {
    throw new UsageError(
      "this machine shows one CPU: stub and proxy cannot be kept apart. --no-pin measures all the same",
    );
  }
  return {
    rounds: v.rounds === undefined ? (v.quick ? 2 : 6) : numberOf("rounds", v.rounds, 1, 100),
    phaseSeconds: v.seconds === undefined ? (v.quick ? 2 : 6) : numberOf("seconds", v.seconds, 0.5, 120),
    churnSeconds:
      v["churn-minutes"] === undefined
        ? v.quick
          ? 30
          : 600
        : numberOf("churn-minutes", v["churn-minutes"], 0.1, 600) * 60,
    parts: v.only === undefined ? PARTS : listOf("only", v.only, PARTS),
    variants,
    cpus: v["no-pin"] || v.smoke ? null : cpusOf(v.cpus ?? "0,1"),
    seed: v.seed === undefined ? Math.floor(Date.now() / 1000) % 1_000_000 : numberOf("seed", v.seed, 0, 2 ** 31),
    jsonFile: v.json ?? null,
    install: v.install,
    dist: v.dist,
    boost: v.boost,
    gate: v.gate,
    smoke: v.smoke,
    keepLogs: v["keep-logs"],
  };
}
