import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { PROFILES } from "../../src/engine/index.ts";
import { DIALECTS, FAULTS } from "../../src/testbed/index.ts";

const guide = readFileSync(new URL("../../docs/simulated-engine.md", import.meta.url), "utf8");

/** First cells of the table under a heading, as written between backticks. */
function firstCells(heading: string): string[] {
  const section = guide.split(`\n## ${heading}\n`)[1]?.split("\n## ")[0] ?? "";
  return [...section.matchAll(/^\| (`[^|]*) \|/gm)].flatMap((row) =>
    [...row[1]!.matchAll(/`([^`]+)`/g)].map((cell) => cell[1]!),
  );
}

describe("the guide to the simulated engine", () => {
  it("has every fault switch, and no other", () => {
    expect(firstCells("Fault switches")).toEqual(Object.keys(FAULTS));
  });

  it("gives each switch the value that it has by default", () => {
    for (const [name, { value }] of Object.entries(FAULTS)) {
      const shown = value === "none" ? "" : typeof value === "number" ? `${value} ` : `\`${value[0]}\` `;
      expect(guide).toContain(`| \`${name}\` | ${shown}|`);
    }
  });

  it("has every dialect and every profile, and no other", () => {
    expect(firstCells("Dialects").toSorted()).toEqual(DIALECTS.toSorted());
    expect(firstCells("Profiles")).toEqual(Object.keys(PROFILES));
  });

  it("gives each profile its own numbers", () => {
    for (const { name, latency, kvTokens, maxRunning, chunkTokens } of Object.values(PROFILES)) {
      const row = guide.split("\n").find((line) => line.startsWith(`| \`${name}\``)) ?? "";
      expect(row).toContain(`| ${kvTokens.toLocaleString("en-US")}`);
      expect(row).toContain(`| ${maxRunning} |`);
      if (name === "instant") continue;
      expect(row).toContain(
        `${latency.prefillTokensPerSecond.toLocaleString("en-US")} tokens/s, chunks of ${chunkTokens.toLocaleString("en-US")}`,
      );
      for (const part of [
        latency.decodeBaseMs,
        latency.decodePerRequestMs,
        latency.decodePerKiloTokenMs,
        latency.hostMs,
      ]) {
        expect(row).toContain(String(part));
      }
    }
  });
});
