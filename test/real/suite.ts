/** The tests beside this file, run by vitest in the process group that run.ts made. Needs what setup.ts installs. */
import path from "node:path";
import { createVitest } from "vitest/node";

// I1 of run.ts: whoever started the group has gone, so the group goes; only a group's leader may say so.
process.once("disconnect", () => process.kill(-process.pid, "SIGKILL"));

const vitest = await createVitest("test", {
  root: path.resolve(import.meta.dirname, "../.."),
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
const { testModules, unhandledErrors } = await vitest.start(process.argv.slice(2));
const tests = testModules.flatMap((module) => [...module.children.allTests()]);
const count = (state: string): number => tests.filter((test) => test.result().state === state).length;
const [passed, skipped] = [count("passed"), count("skipped")];
// A file that did not load, or an error outside of any test, has no test to count it.
const broken = unhandledErrors.length + testModules.filter((file) => file.errors().length > 0).length;
const failed = count("failed") + count("pending") + broken;
await vitest.close();
process.exitCode = failed === 0 && passed > 0 && skipped === 0 ? 0 : 1;
process.send?.(`${passed} passed, ${failed} failed${skipped > 0 ? `, ${skipped} skipped` : ""}`, () => {
  process.removeAllListeners("disconnect");
  process.disconnect();
});
