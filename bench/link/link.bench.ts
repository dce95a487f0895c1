// What does the link between a dataplane and a scheduler in two processes cost, by transport? See README.md.
import { execFile, execFileSync, spawn, type ChildProcess } from "node:child_process";
import crypto from "node:crypto";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { parseArgs, promisify } from "node:util";
import { VARIANTS, type Folders, type Variant } from "./transports.ts";
import { PATTERNS } from "./turns.ts";

const HERE = import.meta.dirname;
const CACHE = path.join(HERE, ".cache");
const SIDE = fileURLToPath(import.meta.resolve("./side.ts"));

type Sample = {
  readonly round: number;
  readonly variant: Variant;
  readonly pattern: string;
  readonly turns: number;
  readonly usPerTurn: number;
  readonly answerP50Us: number;
  readonly load: number;
};

const { values: flags } = parseArgs({
  options: {
    rounds: { type: "string", default: "6" },
    seconds: { type: "string", default: "1" },
    variants: { type: "string", default: VARIANTS.join(",") },
    out: { type: "string" },
    from: { type: "string" },
    smoke: { type: "boolean", default: false },
  },
});
const variants = flags.variants.split(",").map((name) => {
  const found = VARIANTS.find((variant) => variant === name);
  if (found === undefined) throw new Error(`--variants: no transport '${name}'; there are ${VARIANTS.join(", ")}`);
  return found;
});
const rounds = flags.smoke ? 1 : Number(flags.rounds);
const spanMs = flags.smoke ? 100 : Number(flags.seconds) * 1_000;
if (!(rounds >= 1 && spanMs >= 1)) throw new Error("--rounds and --seconds must be numbers above 0");

const folders: Folders = { peers: "", tls: "" };
const samples: Sample[] = [];
if (flags.from === undefined) {
  Object.assign(folders, await prepare());
  for (let round = 1; round <= rounds; round += 1) {
    for (const variant of shuffled(variants)) samples.push(...(await measure(variant, round)));
    process.stderr.write(`round ${round} of ${rounds} done, load ${os.loadavg()[0]?.toFixed(1)}\n`);
  }
} else {
  samples.push(...(JSON.parse(fs.readFileSync(flags.from, "utf8")) as { samples: Sample[] }).samples);
}
process.stdout.write(`${table(samples)}\n${ratios(samples)}`);
if (flags.out !== undefined) {
  const about = { node: process.version, cpu: os.cpus()[0]?.model, cpus: os.cpus().length, kernel: os.release() };
  const settings = { rounds, spanMs, variants, patterns: PATTERNS };
  fs.writeFileSync(flags.out, `${JSON.stringify({ about, settings, samples }, undefined, 1)}\n`);
}

/** Both ends as processes of their own, over all patterns. */
async function measure(variant: Variant, round: number): Promise<Sample[]> {
  const server = variant === "call" ? undefined : side(["server", variant, JSON.stringify(folders)]);
  try {
    const address = server === undefined ? "" : await firstLine(server);
    const span = String(spanMs);
    const client = side(["client", variant, JSON.stringify(folders), address, String(server?.pid ?? 0), span]);
    const rows: Sample[] = [];
    // A round that hangs must not hang the bench.
    const limit = setTimeout(() => client.kill("SIGKILL"), 60_000 + 10 * spanMs);
    for await (const line of createInterface({ input: client.stdout ?? process.stdin })) {
      rows.push({ round, variant, ...(JSON.parse(line) as Omit<Sample, "round" | "variant">) });
    }
    clearTimeout(limit);
    const wanted = patterns().length;
    if (rows.length !== wanted) throw new Error(`${variant}: ${rows.length} of ${wanted} patterns came back`);
    for (const { pattern, turns } of rows) if (turns === 0) throw new Error(`${variant}: no turn at ${pattern}`);
    return rows;
  } finally {
    server?.kill("SIGKILL");
  }
}

function side(args: readonly string[]): ChildProcess {
  return spawn(process.execPath, [SIDE, ...args], { stdio: ["ignore", "pipe", "inherit"] });
}

function firstLine(child: ChildProcess): Promise<string> {
  return new Promise((resolve, reject) => {
    createInterface({ input: child.stdout ?? process.stdin }).once("line", resolve);
    child.once("exit", (code) => reject(new Error(`the server ended with ${code}`)));
  });
}

/** Peers from their lock, without install scripts, and a certificate; both kept in .cache. */
async function prepare(): Promise<Folders> {
  const run = promisify(execFile);
  const lock = fs.readFileSync(path.join(HERE, "peers/package-lock.json"));
  const peers = path.join(CACHE, `peers-${crypto.createHash("sha256").update(lock).digest("hex").slice(0, 12)}`);
  if (variants.some((variant) => /^(ws|grpc)/.test(variant)) && !fs.existsSync(path.join(peers, "node_modules/ws"))) {
    fs.mkdirSync(peers, { recursive: true });
    for (const name of ["package.json", "package-lock.json"])
      fs.copyFileSync(path.join(HERE, "peers", name), path.join(peers, name));
    await run("npm", ["ci", "--ignore-scripts", "--no-audit", "--no-fund"], { cwd: peers, timeout: 300_000 });
  }
  const tls = path.join(CACHE, "tls");
  if (!fs.existsSync(path.join(tls, "cert.pem"))) {
    fs.mkdirSync(tls, { recursive: true });
    const subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-days", "3650"];
    const key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "key.pem"];
    execFileSync("openssl", ["req", "-x509", ...key, "-out", "cert.pem", ...subject], { cwd: tls, stdio: "ignore" });
  }
  return { peers, tls };
}

/** µs of CPU of both processes for a turn, less what the load itself costs: the same turns by function call. */
function costOf(all: readonly Sample[], sample: Sample): number {
  if (sample.variant === "call") return sample.usPerTurn;
  return sample.usPerTurn - (sameRound(all, sample, "call")?.usPerTurn ?? 0);
}

function sameRound(all: readonly Sample[], { pattern, round }: Sample, variant: Variant): Sample | undefined {
  return all.find((one) => one.variant === variant && one.pattern === pattern && one.round === round);
}

/** Costs, as median [least–largest] over the rounds. */
function table(all: readonly Sample[]): string {
  const rows = variants.map((variant) => {
    const cells = patterns().map((pattern) => spread(pick(all, variant, pattern).map((one) => costOf(all, one))));
    const alone = pick(all, variant, patterns()[0] ?? "").map((one) => one.answerP50Us);
    return [variant === "call" ? "load alone (call)" : variant, ...cells, spread(alone)];
  });
  return lines([["CPU µs per turn", ...patterns(), "answer p50, µs"], ...rows]);
}

/** Costs ÷ those of frames-tcp in the same round. */
function ratios(all: readonly Sample[]): string {
  const rows = variants
    .filter((variant) => variant !== "call" && variant !== "frames-tcp")
    .map((variant) => [
      variant,
      ...patterns().map((pattern) =>
        spread(
          pick(all, variant, pattern).flatMap((one) => {
            const ours = sameRound(all, one, "frames-tcp");
            return ours === undefined ? [] : [costOf(all, one) / costOf(all, ours)];
          }),
        ),
      ),
    ]);
  return lines([["× frames-tcp", ...patterns()], ...rows]);
}

function patterns(): string[] {
  return Object.keys(PATTERNS);
}

function pick(all: readonly Sample[], variant: Variant, pattern: string): Sample[] {
  return all.filter((sample) => sample.variant === variant && sample.pattern === pattern);
}

function lines([head = [], ...rows]: readonly (readonly string[])[]): string {
  return [head, head.map(() => "---"), ...rows].map((cells) => `| ${cells.join(" | ")} |\n`).join("");
}

function spread(values: readonly number[]): string {
  const sorted = values.toSorted((a, b) => a - b);
  const text = (value: number | undefined): string => (value === undefined ? "–" : value.toFixed(value < 10 ? 1 : 0));
  return `${text(sorted[sorted.length >> 1])} [${text(sorted[0])}–${text(sorted.at(-1))}]`;
}

function shuffled<T>(items: readonly T[]): T[] {
  return items
    .map((item) => ({ item, key: Math.random() }))
    .sort((a, b) => a.key - b.key)
    .map(({ item }) => item);
}
