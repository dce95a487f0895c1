/**
 * Real luftpause processes for end-to-end tests: started from src, waited for by their ready line, ended by pid.
 * Every process started here is killed when its test file ends, whatever happened.
 */
import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterAll } from "vitest";

const MAIN = path.resolve(import.meta.dirname, "../../src/cli/main.ts");
const READY_MS = 15_000;
const EXIT_MS = 15_000;

const started = new Set<ChildProcess>();
let root: string | undefined;
function stateRoot(): string {
  root ??= mkdtempSync(path.join(tmpdir(), "luftpause-e2e-"));
  return root;
}
afterAll(async () => {
  const ending = [...started].map((child) => once(child, "exit"));
  for (const child of started) child.kill("SIGKILL");
  await Promise.all(ending);
  if (root !== undefined) rmSync(root, { recursive: true, force: true });
});

export type Running = {
  readonly child: ChildProcess;
  /** Everything written so far to stdout and stderr. */
  output(): string;
  /** Waits until the output matches, and returns the match. */
  waitFor(pattern: RegExp, timeoutMs?: number): Promise<RegExpMatchArray>;
  /** Sends a signal and waits for the end. */
  end(signal: NodeJS.Signals): Promise<{ readonly code: number | null; readonly signal: NodeJS.Signals | null }>;
};

/** The environment without any LUFTPAUSE_* variable of the person who runs the tests. */
export function cleanEnvironment(extra: { readonly [name: string]: string } = {}): { [name: string]: string } {
  const own = Object.entries(process.env).filter(
    (entry): entry is [string, string] => entry[1] !== undefined && !entry[0].startsWith("LUFTPAUSE_"),
  );
  return { ...Object.fromEntries(own), ...extra };
}

/** Starts `luftpause …` from source in a folder without a config file. */
export function luftpause(
  args: readonly string[],
  options: { readonly environment?: { readonly [name: string]: string }; readonly folder?: string } = {},
): Running {
  // A journal of its own, unless the test names one to share.
  const stateDir = options.environment?.["LUFTPAUSE_STATE_DIR"] ?? mkdtempSync(path.join(stateRoot(), "state-"));
  const child = spawn(process.execPath, [MAIN, ...args], {
    cwd: options.folder ?? import.meta.dirname,
    env: cleanEnvironment({ ...options.environment, LUFTPAUSE_STATE_DIR: stateDir }),
    stdio: ["ignore", "pipe", "pipe"],
  });
  started.add(child);
  let text = "";
  const waiting = new Set<() => void>();
  const wake = (): void => {
    for (const check of waiting) check();
  };
  const take = (bytes: Buffer): void => {
    text += bytes.toString("utf8");
    wake();
  };
  child.stdout.on("data", take);
  child.stderr.on("data", take);
  child.on("exit", () => {
    started.delete(child);
    wake();
  });
  const ended = once(child, "exit");
  const exited = (): boolean => child.exitCode !== null || child.signalCode !== null;

  return {
    child,
    output: () => text,
    waitFor(pattern, timeoutMs = READY_MS) {
      return new Promise((resolve, reject) => {
        const settle = (): void => {
          waiting.delete(check);
          clearTimeout(timer);
        };
        const check = (): void => {
          const match = text.match(pattern);
          if (match !== null) {
            settle();
            resolve(match);
          } else if (exited()) {
            settle();
            reject(new Error(`ended before ${pattern} was seen:\n${text}`));
          }
        };
        const timer = setTimeout(() => {
          settle();
          reject(new Error(`${pattern} was not seen within ${timeoutMs} ms:\n${text}`));
        }, timeoutMs);
        waiting.add(check);
        check();
      });
    },
    async end(signal) {
      if (!exited()) {
        child.kill(signal);
        const timer = setTimeout(() => child.kill("SIGKILL"), EXIT_MS);
        await ended;
        clearTimeout(timer);
      }
      return { code: child.exitCode, signal: child.signalCode };
    },
  };
}

/** Waits until a check returns something, asking again every few milliseconds. */
export async function eventually<T>(
  what: string,
  check: () => Promise<T | undefined> | T | undefined,
  timeoutMs = 10_000,
): Promise<T> {
  const deadline = performance.now() + timeoutMs;
  for (;;) {
    const value = await check();
    if (value !== undefined) return value;
    if (performance.now() > deadline) throw new Error(`not within ${timeoutMs} ms: ${what}`);
    await new Promise((resolve) => {
      setTimeout(resolve, 20);
    });
  }
}
