/** The tools that the answers in this folder call, and a run that has them. */
import { liveRun, type JsonObject, type RunState } from "../../../src/runs/index.ts";
import type { OfferedTool } from "../../../src/runtime/tool-servers/port.ts";
import { createTable } from "../../runs/bench-tree.ts";

const object = (properties: JsonObject, required: readonly string[] = []): JsonObject => ({
  type: "object",
  properties,
  required,
});

const SCHEMAS: { readonly [name: string]: JsonObject } = {
  get_weather: object(
    { city: { type: "string" }, days: { type: "integer" }, unit: { type: "string", enum: ["C", "F"] } },
    ["city"],
  ),
  get_time: object({ zone: { type: "string" } }),
  add: object({ a: { type: "number" }, b: { type: "number" } }, ["a", "b"]),
  shell: object({ command: { type: "string" } }, ["command"]),
  write_file: object({ path: { type: "string" }, text: { type: "string" } }, ["path"]),
};

export const OFFERED: readonly OfferedTool[] = Object.entries(SCHEMAS).map(([name, inputSchema]) => ({
  server: "lab",
  name,
  description: name,
  inputSchema,
  effect: "read-only",
  onCrash: "ask",
  asks: undefined,
  state: "ok",
}));

export function runWithTools(): RunState {
  const table = createTable();
  table.spawn({ tools: OFFERED.map(({ server, name }) => ({ server, tool: name, function: name })) });
  const run = liveRun(table.tree, "r");
  if (run === undefined) throw new Error("the run does not live");
  return run;
}
