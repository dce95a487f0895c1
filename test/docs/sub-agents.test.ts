/** The guides to sub-agents and tool servers name what there is, and nothing else. */
import { readFileSync } from "node:fs";
import path from "node:path";
import { describe, expect, it } from "vitest";
import { FACE_TOOLS } from "../../src/runtime/mcp/tool-list.ts";
import { toolFaultsHelp } from "../../src/testbed/fake-tools/faults.ts";
import { FAKE_TOOLS } from "../../src/testbed/fake-tools/tools.ts";

const read = (name: string): string => readFileSync(path.resolve(import.meta.dirname, "../../docs", name), "utf8");
const quoted = (text: string): readonly string[] => [...text.matchAll(/`([^`]+)`/g)].map(([, word]) => word ?? "");

/** The rows of the first table after a text: what stands in backticks in each cell. */
function rowsAfter(guide: string, text: string): readonly (readonly (readonly string[])[])[] {
  const lines = guide.slice(guide.indexOf(text) + text.length).split("\n");
  const from = lines.findIndex((line) => line.startsWith("| ---"));
  const rows = lines.slice(from + 1);
  const to = rows.findIndex((line) => !line.startsWith("|"));
  return rows.slice(0, to < 0 ? undefined : to).map((row) => row.split("|").slice(1, -1).map(quoted));
}

const argumentsOf = (tool: string): readonly string[] =>
  Object.keys(FACE_TOOLS.find(({ name }) => name === tool)?.inputSchema.properties ?? {});

describe("the guide to sub-agents", () => {
  const guide = read("sub-agents.md");

  it("has every tool with every argument", () => {
    const rows = rowsAfter(guide, "## Tools");
    expect(rows.map(([name]) => name?.[0])).toEqual(FACE_TOOLS.map(({ name }) => name));
    for (const [name, given] of rows) {
      const tool = name?.[0] ?? "";
      if (tool === "spawn" || tool === "run") continue;
      expect(given, tool).toEqual(argumentsOf(tool));
    }
  });

  it("has every argument of spawn", () => {
    const rows = rowsAfter(guide, "override the common ones:");
    expect(rows.flatMap(([names]) => names ?? []).toSorted()).toEqual([...argumentsOf("spawn")].toSorted());
  });
});

describe("the guide to tool servers", () => {
  const guide = read("tool-servers.md");

  it("has every simulated tool and every fault", () => {
    const section = guide.slice(guide.indexOf("## Simulated tools"));
    expect(quoted(section)).toEqual(expect.arrayContaining(Object.keys(FAKE_TOOLS)));
    const faults = toolFaultsHelp().split("\n");
    expect(rowsAfter(guide, "## Simulated tools").map(([name]) => name?.[0])).toEqual(
      faults.map((line) => line.split(/\s/)[0]),
    );
  });
});
