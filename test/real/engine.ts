/**
 * A real llama.cpp server as a child process, and what it says of itself. It ends with the process that started it,
 * since it watches the pipe to its standard input.
 */
import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import path from "node:path";
import { installed } from "./setup.ts";

export const MODEL = "smollm2-135m";
/** Turns that it computes at once. */
export const SLOTS = 2;
/** Context of one slot, tokens. */
const CONTEXT_TOKENS = 2_048;

const READY_MS = 90_000;
const SCRIPT = path.join(import.meta.dirname, "engine.py");
const TEMPLATE = path.join(import.meta.dirname, "chat-template.jinja");

export type RealEngine = {
  readonly url: string;
  readonly child: ChildProcess;
  /** Slots that compute a turn now. */
  busySlots(): Promise<number>;
  /** One figure of its metrics page, without the prefix `llamacpp:`. */
  metric(name: string): Promise<number>;
  /** The end of what it printed. */
  log(): string;
  /** Ends it, by default as a crash would. */
  end(signal?: NodeJS.Signals): Promise<void>;
};

/** Starts one on a free loopback port and waits until it has loaded its model. */
export async function startRealEngine(): Promise<RealEngine> {
  const { python, packages, model } = installed();
  const settings = { model, template: TEMPLATE, alias: MODEL, slots: SLOTS, context: CONTEXT_TOKENS, threads: 1 };
  const child = spawn(
    python,
    ["-B", "-s", SCRIPT, ...Object.entries(settings).flatMap(([name, value]) => [`--${name}`, String(value)])],
    { stdio: ["pipe", "pipe", "pipe"], env: { ...process.env, PYTHONPATH: packages } },
  );
  let log = "";
  child.stderr.on("data", (bytes: Buffer) => {
    log = (log + bytes.toString("utf8")).slice(-64_000);
  });
  child.stdin.on("error", () => undefined); // It may be killed at any time; the exit event tells.
  const url = await readyLine(child).catch((error: unknown) => {
    child.kill("SIGKILL");
    throw new Error(`the real engine did not start: ${String(error)}\n${log.slice(-2_000)}`);
  });
  const read = async (route: string): Promise<Response> => {
    const answer = await fetch(url + route, { signal: AbortSignal.timeout(30_000) });
    if (!answer.ok) throw new Error(`${route} answered ${answer.status}`);
    return answer;
  };
  return {
    url,
    child,
    async busySlots() {
      const slots = (await (await read("/slots")).json()) as { readonly is_processing: boolean }[];
      return slots.filter((slot) => slot.is_processing).length;
    },
    async metric(name) {
      const page = await (await read("/metrics")).text();
      const value = new RegExp(`^llamacpp:${name} (\\S+)$`, "m").exec(page)?.[1];
      if (value === undefined) throw new Error(`/metrics has no llamacpp:${name}`);
      return Number(value);
    },
    log: () => log,
    async end(signal = "SIGKILL") {
      if (child.exitCode !== null || child.signalCode !== null) return;
      const gone = once(child, "exit");
      child.kill(signal);
      await gone;
    },
  };
}

/** The address in the line that it prints once it is ready. */
async function readyLine(child: ChildProcess): Promise<string> {
  return new Promise((resolve, reject) => {
    let text = "";
    const timer = setTimeout(() => reject(new Error(`not ready within ${READY_MS / 1000} s`)), READY_MS);
    child.once("error", reject);
    child.once("exit", (code, signal) => reject(new Error(`it ended with ${code ?? signal}`)));
    child.stdout?.on("data", (bytes: Buffer) => {
      text += bytes.toString("utf8");
      const line = /^\{.*\}$/m.exec(text)?.[0];
      if (line === undefined) return;
      clearTimeout(timer);
      resolve((JSON.parse(line) as { readonly url: string }).url);
    });
  });
}
