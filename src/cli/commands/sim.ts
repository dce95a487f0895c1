import { readFileSync } from "node:fs";
import path from "node:path";
import { PROFILES, type ProfileName } from "../../engine/index.ts";
import {
  POLICIES,
  policyTable,
  readRecordings,
  recordedWorld,
  SIMULATED_WORLDS,
  simulate,
  type Estimate,
  type PolicyRow,
  type PolicyRun,
  type SimulatedWorld,
} from "../../simulation/index.ts";
import { CommandError, EXIT } from "../exit.ts";
import type { Command, ParsedFlags } from "../flags.ts";
import { table } from "../table.ts";

const DIALECTS = ["sglang", "vllm"] as const;

export const sim: Command = {
  name: "sim",
  operands: "",
  summary: "Compares scheduling policies under virtual time: minutes of a saturated pool in a second.",
  details: [
    "Agents run in a closed loop against simulated engines; the scheduling core is the real one. The same seed gives the",
    "same output, byte for byte.",
    "",
    "Policies:",
    ...POLICIES.map(({ name, about }) => `  ${name.padEnd(16)} ${about}`),
    "",
    "Worlds:",
    ...SIMULATED_WORLDS.map(({ name, summary }) => `  ${name.padEnd(16)} ${summary}`),
  ].join("\n"),
  flags: {
    policies: { kind: "string", value: "A,B", about: "The policies to compare, the first one as the base (all)." },
    world: { kind: "string", value: "NAME", about: "What the agents do (own-loop)." },
    trace: {
      kind: "string",
      value: "FILE",
      about: "Recorded runs instead: {id, turns: [[in, out, toolSeconds], …]} a line.",
    },
    batch: { kind: "integer", value: "N", most: 10_000, about: "Batch agents (the world's: 48 or 96)." },
    interactive: { kind: "integer", value: "N", most: 10_000, about: "Interactive agents (the world's: 4 or 8)." },
    dialect: { kind: "string", value: "NAME", about: `Engines: ${DIALECTS.join(" or ")} (sglang).` },
    profile: { kind: "string", value: "NAME", about: `Machine: ${Object.keys(PROFILES).join(", ")} (the world's).` },
    engines: { kind: "integer", value: "N", least: 1, most: 256, about: "How many (2)." },
    seeds: { kind: "integer", value: "N", least: 1, most: 1_000, about: "Paired seeds (5)." },
    "first-seed": { kind: "integer", value: "N", most: 4_000_000_000, about: "The first of them (1)." },
    seconds: { kind: "integer", value: "S", least: 1, most: 86_400, about: "Simulated seconds that count (600)." },
    "warm-up": { kind: "integer", value: "S", most: 86_400, about: "Simulated seconds before them (120)." },
    json: { kind: "boolean", about: "Prints every run as JSON instead of the table." },
  },
  positionals: { least: 0, most: 0 },
  async run(flags) {
    const policies = policiesOf(flags);
    const world = worldOf(flags);
    const { name, program } = world;
    const profile = oneOf(flags, "profile", Object.keys(PROFILES) as ProfileName[], world.profile);
    const { batch, interactive } = world.agents;
    const agents = { batch: flags.integer("batch") ?? batch, interactive: flags.integer("interactive") ?? interactive };
    const setting = {
      dialect: oneOf(flags, "dialect", DIALECTS, "sglang"),
      profile,
      engines: flags.integer("engines") ?? 2,
      agents,
      warmUpSeconds: flags.integer("warm-up") ?? 120,
      seconds: flags.integer("seconds") ?? 600,
    };
    const first = flags.integer("first-seed") ?? 1;
    const seeds = Array.from({ length: flags.integer("seeds") ?? 5 }, (_, at) => first + at);
    const runs: PolicyRun[] = [];
    for (const [at, policy] of policies.entries()) {
      for (const seed of seeds) {
        runs.push({ policy: policy.name, seed, report: simulate({ ...setting, program, policy, seed }) });
      }
      // A person sees that it goes on, and Ctrl-C is heard between policies.
      if (process.stderr.isTTY) process.stderr.write(`\r${at + 1} of ${policies.length} policies`);
      await new Promise((resolve) => {
        setImmediate(resolve);
      });
    }
    if (process.stderr.isTTY) process.stderr.write("\r\x1b[K");
    if (flags.has("json")) {
      process.stdout.write(`${JSON.stringify({ world: name, ...setting, runs })}\n`);
      return EXIT.ok;
    }
    const head = [
      `${name}, ${agents.interactive} interactive and ${agents.batch} batch agents, ${setting.engines} engines (${setting.dialect}, ${profile})`,
      `${seeds.length} seeds from ${first}, ${setting.seconds} simulated seconds after ${setting.warmUpSeconds}; ± is the standard deviation over seeds, × the ratio to ${policies[0]?.name}`,
    ];
    process.stdout.write(`${head.join("\n")}\n\n${tableText(policyTable(runs))}\n`);
    return EXIT.ok;
  },
};

function worldOf(flags: ParsedFlags): SimulatedWorld {
  const file = flags.text("trace");
  if (file === undefined) {
    const name = oneOf(
      flags,
      "world",
      SIMULATED_WORLDS.map((world) => world.name),
      "own-loop",
    );
    return SIMULATED_WORLDS.find((world) => world.name === name) as SimulatedWorld;
  }
  if (flags.has("world")) throw new CommandError(EXIT.usage, "luftpause sim: --world and --trace cannot both be meant");
  let text: string;
  try {
    text = readFileSync(file, "utf8");
  } catch (error) {
    throw new CommandError(EXIT.fault, `luftpause sim: --trace ${file}: ${(error as Error).message}`);
  }
  const recordings = readRecordings(text);
  if (typeof recordings === "string")
    throw new CommandError(EXIT.fault, `luftpause sim: --trace ${file}: ${recordings}`);
  return recordedWorld(path.basename(file), recordings);
}

function policiesOf(flags: ParsedFlags): typeof POLICIES {
  const names = flags.text("policies")?.split(",");
  if (names === undefined) return POLICIES;
  return names.map((name) => {
    const policy = POLICIES.find((known) => known.name === name.trim());
    if (policy !== undefined) return policy;
    const known = POLICIES.map((one) => one.name).join(", ");
    throw new CommandError(EXIT.usage, `luftpause sim: --policies '${name.trim()}' is not one of ${known}`);
  });
}

function oneOf<Name extends string>(flags: ParsedFlags, flag: string, names: readonly Name[], fallback: Name): Name {
  const text = flags.text(flag) ?? fallback;
  const found = names.find((name) => name === text);
  if (found !== undefined) return found;
  throw new CommandError(EXIT.usage, `luftpause sim: --${flag} '${text}' is not one of ${names.join(", ")}`);
}

function tableText(rows: readonly PolicyRow[]): string {
  const right = (title: string) => ({ title, right: true });
  const titles = ["INTERACTIVE/MIN", "×", "P50 S", "×", "FIRST CONTENT P95 S", "BATCH/MIN", "×", "WORST BATCH WAIT S"];
  return table(
    [{ title: "POLICY" }, ...[...titles, "CACHED %", "FAILED"].map(right)],
    rows.map((row) => [
      row.policy,
      estimate(row.interactivePerMinute, 1),
      estimate(row.interactiveRatio, 2),
      estimate(row.interactiveP50Seconds, 1),
      estimate(row.p50Ratio, 2),
      estimate(row.firstContentP95Seconds, 2),
      estimate(row.batchPerMinute, 1),
      estimate(row.batchRatio, 2),
      estimate(row.worstBatchWaitSeconds, 0),
      (100 * row.cachedShare.mean).toFixed(0),
      String(row.failed),
    ]),
  );
}

function estimate(value: Estimate | undefined, digits: number): string {
  if (value === undefined) return "-";
  const spread = Number.isNaN(value.half) ? "" : ` ± ${value.sd.toFixed(digits)}`;
  return `${value.mean.toFixed(digits)}${spread}`;
}
