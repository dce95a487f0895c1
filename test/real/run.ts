/**
 * `npm run test:real`: turns through luftpause to a real llama.cpp with a small real model (docs/real-engines.md).
 * Words behind it choose test files by name. Closes with a line of counts.
 *
 * I1: the tests run in a process group of their own, and nothing of it outlives this process: not after the end, not
 *     after Ctrl-C, not when this process is killed (suite.ts watches its channel to it).
 * I2: it ends within WHOLE_RUN_MS.
 */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";
import { SetupError, setUp } from "./setup.ts";

const SUITE = fileURLToPath(import.meta.resolve("./suite.ts"));
const WHOLE_RUN_MS = 540_000;

const began = performance.now();
const seconds = (): string => ((performance.now() - began) / 1000).toFixed(1);

async function main(): Promise<number> {
  try {
    await setUp((line) => console.log(line));
  } catch (error) {
    if (!(error instanceof SetupError)) throw error;
    console.error(`\ntest:real cannot run: ${error.message}\n`);
    console.log("0 passed, 1 failed");
    return 1;
  }
  console.log(`engine and model are in place after ${seconds()} s`);
  return runSuite(process.argv.slice(2));
}

async function runSuite(filters: readonly string[]): Promise<number> {
  const suite = spawn(process.execPath, [SUITE, ...filters], {
    detached: true,
    stdio: ["ignore", "inherit", "inherit", "ipc"],
  });
  const endGroup = (): void => {
    if (suite.pid === undefined) return;
    try {
      process.kill(-suite.pid, "SIGKILL");
    } catch {
      // ESRCH: nothing of the group is left, which is what is wanted.
    }
  };
  let code: number | undefined;
  const stop = (why: string, exitCode: number): void => {
    console.error(`\ntest:real is ended: ${why}`);
    code = exitCode;
    endGroup();
  };
  process.once("SIGINT", () => stop("SIGINT", 130));
  process.once("SIGTERM", () => stop("SIGTERM", 143));
  const watchdog = setTimeout(() => stop(`not done within ${WHOLE_RUN_MS / 1000} s`, 1), WHOLE_RUN_MS);
  const summary = once(suite, "message").then(([line]) => String(line));
  const [ended] = (await once(suite, "close")) as [number | null];
  clearTimeout(watchdog);
  endGroup();
  console.log(`test:real took ${seconds()} s`);
  console.log(await Promise.race([summary, Promise.resolve("0 passed, 1 failed")]));
  return code ?? ended ?? 1;
}

process.exitCode = await main();
