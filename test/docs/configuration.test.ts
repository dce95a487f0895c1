/** The documents that are made from the code, or that list what the code holds, compared both ways. */
import { readFileSync } from "node:fs";
import path from "node:path";
import { expect, test } from "vitest";
import { configPaths } from "../../src/cli/config/paths.ts";
import { configReference } from "../../src/cli/config/reference.ts";
import { schedulingOf } from "../../src/cli/config/resolve.ts";
import { configJsonSchema, configSchema } from "../../src/cli/config/schema.ts";
import { DEFAULTS } from "../../src/wire/limits.ts";

const ROOT = path.resolve(import.meta.dirname, "../..");

test("docs/configuration.md is what the schema says", async () => {
  await expect(configReference(configPaths(configJsonSchema()))).toMatchFileSnapshot("../../docs/configuration.md");
});

test("every constant has a key in the config, and its default is the constant", () => {
  const keys = new Map(
    configPaths(configJsonSchema()).map(({ path: key, fallback }) => [key.split(".").at(-1), fallback]),
  );
  // The one that depends on the policy: classic's is the constant.
  expect(keys.get("pausedRoomSeconds")).toBe("by-policy");
  keys.set("pausedRoomSeconds", schedulingOf(configSchema.parse({}), []).pausedRoomMs / 1000);
  for (const [name, value] of Object.entries(DEFAULTS)) expect([name, keys.get(name)]).toEqual([name, value]);
});

test("docs/constants.md lists every constant with its value, and each names a test that shows it", () => {
  const rows = readFileSync(path.join(ROOT, "docs/constants.md"), "utf8")
    .split("\n")
    .map((line) => /^\| `(\w+)` \| ([\d,]+) \| .* \| `(test\/[^`]+)` › (.+) \|$/.exec(line))
    .filter((match) => match !== null);
  const listed = rows.map(([, name, value]) => [name, Number(value?.replaceAll(",", ""))]);
  expect(Object.fromEntries(listed)).toEqual(DEFAULTS);
  for (const [, name, , file, title] of rows) {
    const text = readFileSync(path.join(ROOT, file ?? ""), "utf8");
    expect(text.includes(title ?? ""), `${name}: ${file} has no test "${title}"`).toBe(true);
  }
});
