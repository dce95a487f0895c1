/**
 * Simulated tools (spec 6): an MCP server by HTTP and stdio, in both eras, with faults. The MCP SDK is loaded when one is
 * started: the other commands that use the test kit do without it.
 */
import { resolveToolsOptions, type FakeToolsOptions } from "./options.ts";
import type { FakeToolsServer } from "./over-http.ts";
import type { FakeToolsHost } from "./server.ts";

async function hostOf(options: FakeToolsOptions): Promise<FakeToolsHost> {
  const resolved = resolveToolsOptions(options);
  if (typeof resolved === "string") throw new Error(resolved);
  const { FakeToolsHost: Host } = await import("./server.ts");
  return new Host(resolved);
}

/** Serves over HTTP in this process. */
export async function startFakeTools(options: FakeToolsOptions): Promise<FakeToolsServer> {
  const { serveToolsOverHttp } = await import("./over-http.ts");
  return serveToolsOverHttp(await hostOf(options));
}

/** Serves on this process's standard input and output, until the input ends. */
export async function serveFakeToolsOnStdio(options: FakeToolsOptions): Promise<void> {
  const { serveToolsOverStdio } = await import("./over-stdio.ts");
  await serveToolsOverStdio(await hostOf(options), process.stdin, process.stdout);
}
