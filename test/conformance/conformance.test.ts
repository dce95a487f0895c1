/** The official conformance suite, all of it, in both eras. */
import { spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { expect, test } from "vitest";
import { onCleanUp } from "../runtime/fake-dataplane.ts";
import { serveForConformance } from "./server.ts";

const HERE = import.meta.dirname;
const CLI = path.join(HERE, "../../node_modules/@modelcontextprotocol/conformance/dist/index.js");

test("the MCP face passes every scenario of what it offers", { timeout: 180_000 }, async () => {
  const url = await serveForConformance();
  const folder = await mkdtemp(path.join(tmpdir(), "luftpause-conformance-"));
  onCleanUp(() => rm(folder, { recursive: true, force: true }));
  const expected = path.join(HERE, "expected-failures.yaml");
  const args = [CLI, "server", "--url", url, "--suite", "all", "--expected-failures", expected, "-o", folder];
  const { code, output } = await run(args);
  expect(output).toMatch(/Total: \d+ passed/);
  expect(code, output.slice(output.indexOf("=== SUMMARY ==="))).toBe(0);
});

function run(args: readonly string[]): Promise<{ readonly code: number | null; readonly output: string }> {
  const child = spawn(process.execPath, args, { stdio: ["ignore", "pipe", "pipe"] });
  onCleanUp(() => void child.kill("SIGKILL"));
  let output = "";
  const note = (part: Buffer): void => void (output += part.toString("utf8"));
  child.stdout.on("data", note);
  child.stderr.on("data", note);
  return new Promise((resolve, reject) => {
    child.on("error", reject);
    child.on("close", (code) => resolve({ code, output }));
  });
}
