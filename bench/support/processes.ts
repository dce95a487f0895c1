// Child processes of the bench.
//
// I1. Every process started here is ended here: on stop, at the end, on Ctrl-C, and when the bench throws.
// I2. Only processes started here, and their own children, are ever signalled, by id.
import { spawn, type ChildProcess } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { descendants } from "./accounting.ts";

export type StartOptions = {
  /** CPU to be pinned to; null: any. */
  readonly cpu: number | null;
  readonly env?: Record<string, string>;
  readonly cwd?: string;
};

/** A program that runs until it is stopped. */
export type Running = {
  readonly name: string;
  readonly child: ChildProcess;
  readonly pid: number;
  readonly logFile: string;
  /** Settles when the process has ended. */
  readonly ended: Promise<string>;
};

const running = new Set<Running>();
const LOG_TAIL_BYTES = 3000;

function environment(extra: Record<string, string> | undefined): NodeJS.ProcessEnv {
  const env: NodeJS.ProcessEnv = { ...process.env, NODE_ENV: "production", ...extra };
  for (const key of Object.keys(env)) {
    // What the person's shell sets for luftpause or Node must not change what is measured.
    if (key.startsWith("LUFTPAUSE_") || key === "NODE_OPTIONS") delete env[key];
  }
  return env;
}

/** The command line with the limit on open files raised and, if asked, pinned; it execs, so the pid stays the same. */
function wrapped(command: readonly string[], cpu: number | null): string[] {
  const pin = cpu === null ? [] : ["taskset", "-c", String(cpu)];
  return ["-c", 'ulimit -n "$(ulimit -Hn)"; exec "$@"', "sh", ...pin, ...command];
}

/** Starts a program; its stdin and stdout are pipes for the caller, stderr goes to a log file. */
export function start(name: string, command: readonly string[], logFolder: string, options: StartOptions): Running {
  const logFile = path.join(logFolder, `${name}.log`);
  const log = fs.openSync(logFile, "a");
  const child = spawn("sh", wrapped(command, options.cpu), {
    stdio: ["pipe", "pipe", log],
    env: environment(options.env),
    ...(options.cwd === undefined ? {} : { cwd: options.cwd }),
  });
  fs.closeSync(log);
  if (child.pid === undefined) throw new Error(`${name} could not be started: ${command.join(" ")}`);
  // The pipe of a process that has just died must not end the bench; its end is seen by `ended`.
  child.stdin?.on("error", () => undefined);
  const entry: Running = {
    name,
    child,
    pid: child.pid,
    logFile,
    ended: new Promise((resolve) => {
      child.once("error", (error) => resolve(error.message));
      child.once("exit", (code, signal) => {
        running.delete(entry);
        resolve(signal === null ? `exit code ${code}` : `signal ${signal}`);
      });
    }),
  };
  running.add(entry);
  return entry;
}

/** Starts a server: its stdout joins its log. */
export function startServer(
  name: string,
  command: readonly string[],
  logFolder: string,
  options: StartOptions,
): Running {
  const entry = start(name, command, logFolder, options);
  entry.child.stdout?.pipe(fs.createWriteStream(`${entry.logFile}.out`, { flags: "a" }));
  return entry;
}

function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch {
    // It ended by itself meanwhile.
  }
}

/** Ends a process and its children: SIGTERM, after `graceMs` SIGKILL. */
export async function stop(entry: Running, graceMs = 3000): Promise<void> {
  if (!running.has(entry)) return;
  const family = descendants(entry.pid);
  signal(entry.pid, "SIGTERM");
  const late = await Promise.race([entry.ended, delay(graceMs, "late" as const, { ref: false })]);
  // I2: children are signalled only while they still belong to the process or while it had to be killed.
  if (late === "late") for (const pid of family.toReversed()) signal(pid, "SIGKILL");
  await entry.ended;
}

export async function stopAll(): Promise<void> {
  await Promise.all([...running].map((entry) => stop(entry)));
}

/** At once, for exit handlers, which cannot wait. */
export function killAll(): void {
  for (const entry of running) for (const pid of descendants(entry.pid).toReversed()) signal(pid, "SIGKILL");
}

/** The last lines that a process wrote, for error texts. */
export function logTail(entry: Running): string {
  return [entry.logFile, `${entry.logFile}.out`]
    .filter((file) => fs.existsSync(file))
    .map((file) => fs.readFileSync(file, "utf8").slice(-LOG_TAIL_BYTES).trim())
    .join("\n");
}

/** Polls until `ready` says true; throws with the log's tail when the process ends or the time is up. */
export async function waitUntil(
  what: string,
  entry: Running | null,
  timeoutMs: number,
  ready: () => Promise<boolean>,
): Promise<void> {
  const deadline = performance.now() + timeoutMs;
  for (;;) {
    if (await ready()) return;
    const end = entry !== null && !running.has(entry) ? await entry.ended : null;
    if (end !== null || performance.now() > deadline) {
      const why = end === null ? `not after ${timeoutMs / 1000} s` : `the process ended (${end})`;
      throw new Error(`${what}: ${why}${entry === null ? "" : `\n${logTail(entry)}`}`);
    }
    await delay(50);
  }
}
