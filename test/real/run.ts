/**
 * `npm run test:real`: turns through luftpause to a real llama.cpp with a small real model (docs/real-engines.md).
 * Words behind it choose test files by name. Sets itself up, runs the tests beside this file, ends all it started, and closes with a line of counts.
 */
import path from "node:path";
import { createVitest } from "vitest/node";
import { SetupError, setUp } from "./setup.ts";

const ROOT = path.resolve(import.meta.dirname, "../..");
/** Beyond it something hangs that no single bound has caught. */
const WHOLE_RUN_MS = 540_000;

const began = performance.now();
const seconds = (sinceMs: number): string => ((performance.now() - sinceMs) / 1000).toFixed(1);

async function main(): Promise<number> {
  try {
    await setUp((line) => console.log(line));
  } catch (error) {
    if (!(error instanceof SetupError)) throw error;
    console.error(`\ntest:real cannot run: ${error.message}\n`);
    console.log("0 passed, 1 failed");
    return 1;
  }
  console.log(`engine and model are in place after ${seconds(began)} s`);

  const vitest = await createVitest("test", {
    root: ROOT,
    config: false,
    watch: false,
    include: ["test/real/**/*.test.ts"],
    reporters: ["verbose"],
    // The engine takes all cores: files side by side would only wait for one another.
    fileParallelism: false,
    testTimeout: 90_000,
    hookTimeout: 120_000,
    teardownTimeout: 20_000,
  });
  // The running test ends, then its file's clean-up runs, and the rest is skipped: all that was started is ended.
  const stop = (): void => void vitest.cancelCurrentRun("keyboard-input"); // Settles start() below.
  process.once("SIGINT", stop);
  process.once("SIGTERM", stop);
  const { testModules, unhandledErrors } = await vitest.start(process.argv.slice(2));
  const tests = testModules.flatMap((module) => [...module.children.allTests()]);
  const count = (state: string): number => tests.filter((test) => test.result().state === state).length;
  const [passed, skipped] = [count("passed"), count("skipped")];
  // A file that did not load, or an error outside of any test, has no test to count it.
  const broken = unhandledErrors.length + testModules.filter((file) => file.errors().length > 0).length;
  const failed = count("failed") + count("pending") + broken;
  await vitest.close();
  console.log(`test:real took ${seconds(began)} s`);
  console.log(`${passed} passed, ${failed} failed${skipped > 0 ? `, ${skipped} skipped` : ""}`);
  return failed === 0 && passed > 0 && skipped === 0 ? 0 : 1;
}

const watchdog = setTimeout(() => {
  console.error(`test:real was not done within ${WHOLE_RUN_MS / 1000} s and is ended`);
  process.exit(1);
}, WHOLE_RUN_MS);
watchdog.unref();
process.exitCode = await main();
