/** The example in examples/mcp-fan-out as a person runs it, with simulated tools in Wikipedia's place. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { expect, test } from "vitest";
import { loadConfig } from "../../src/cli/config/load.ts";
import { startFakeEngine, startFakeTools } from "../../src/testbed/index.ts";
import { cleanEnvironment, luftpause } from "./processes.ts";

const FOLDER = path.resolve(import.meta.dirname, "../../examples/mcp-fan-out");

async function fanOut(tasks: readonly string[], mcp: string) {
  const child = spawn(process.execPath, [path.join(FOLDER, "fan-out.ts"), ...tasks], {
    env: cleanEnvironment({ LUFTPAUSE_MCP: mcp }),
  });
  let [out, err] = ["", ""];
  child.stdout.on("data", (bytes: Buffer) => (out += bytes.toString("utf8")));
  child.stderr.on("data", (bytes: Buffer) => (err += bytes.toString("utf8")));
  const [code] = (await once(child, "close")) as [number | null];
  return { code, out, err };
}

test("every task gets its answer, in the order of the arguments", async () => {
  const engine = await startFakeEngine({ profile: "h100-8b", timeScale: 0.05 });
  const tools = await startFakeTools({ lookupMs: [20, 20] });
  const folder = mkdtempSync(path.join(tmpdir(), "luftpause-fan-out-"));
  const config = path.join(folder, "luftpause.yaml");
  writeFileSync(
    config,
    `endpoints: [{ name: a, url: "${engine.url}" }]\ntools: [{ name: lab, url: "${tools.url}", allow: [lookup] }]\n`,
  );
  const up = luftpause(["up", "--listen", "127.0.0.1:0", "--config", config], { folder });
  const [, base = ""] = await up.waitFor(/base_url\s+(\S+)\/v1/);
  const asked = ["Who was Ada Lovelace?", "What is a lighthouse?", "Where does the Elbe rise?"];
  const { code, out, err } = await fanOut(asked, `${base}/mcp`);
  expect(code, err).toBe(0);
  const places = asked.map((task) => out.indexOf(`${task}\n[Completed, `));
  expect(places.every((place) => place >= 0)).toBe(true);
  expect(places).toEqual(places.toSorted((one, other) => one - other));
  expect(out.match(/Placeholder text/g)).toHaveLength(3);
  await up.end("SIGTERM");
  await Promise.all([engine.close(), tools.close()]);
  rmSync(folder, { recursive: true, force: true });
});

test("without a task it says how it is used", async () => {
  expect(await fanOut([], "http://127.0.0.1:1/mcp")).toMatchObject({
    code: 2,
    err: expect.stringContaining("TASK...") as string,
  });
});

test("its config is valid, and names the package by version", () => {
  const file = path.join(FOLDER, "luftpause.yaml");
  expect(loadConfig({ file, environment: {}, overrides: [] })).toMatchObject({
    config: { tools: [{ name: "wikipedia", command: "npx" }] },
  });
  expect(readFileSync(file, "utf8")).toMatch(/wikipedia-mcp@\d+\.\d+\.\d+/);
});
