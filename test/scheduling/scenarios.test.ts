/**
 * Stories of the scheduling core: test/scenarios/*.txt. `vitest run test/scheduling/scenarios.test.ts -u` writes the outcomes
 * anew; commit only a difference that you can explain.
 */
import { readdirSync, readFileSync } from "node:fs";
import path from "node:path";
import { expect, test } from "vitest";
import { runScript } from "./scenario.ts";

const FOLDER = path.join(import.meta.dirname, "..", "scenarios");

/** Every story by name: one that is lost is missed. */
const STORIES = [
  "abandoned",
  "back-pressure",
  "batch-room",
  "cap-at-once",
  "cap-step",
  "classes",
  "dataplane-restart",
  "engine-dies",
  "engine-replaced",
  "fan-out",
  "foreign-load",
  "many-callers",
  "models",
  "own-loop-chat",
  "placement",
  "principals",
  "reload",
  "run-end",
  "scheduler-restart",
  "side-calls",
  "strict-pin",
  "tool-call-ids",
];

test("every story is there and every file is a story", () => {
  expect(readdirSync(FOLDER).toSorted()).toEqual(STORIES.map((name) => `${name}.txt`));
});

for (const name of STORIES) {
  test(`story: ${name.replaceAll("-", " ")}`, async () => {
    const file = path.join(FOLDER, `${name}.txt`);
    await expect(runScript(readFileSync(file, "utf8"))).toMatchFileSnapshot(file);
  });
}
