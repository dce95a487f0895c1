/** Simulated tool servers as processes, and supervised clients of them. */
import { spawn, type ChildProcess } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { connectToServer, type Connect } from "../../../src/runtime/tool-servers/connection.ts";
import type { OfferedTool, ToolOutcome } from "../../../src/runtime/tool-servers/port.ts";
import type { ToolServerConfig, ToolServerTransport } from "../../../src/runtime/tool-servers/server-config.ts";
import { createToolServers, type SupervisedToolServers } from "../../../src/runtime/tool-servers/tool-servers.ts";
import { REAL_CLOCK, SILENT_LOG } from "../../../src/telemetry/index.ts";
import { onCleanUp, until } from "../fake-dataplane.ts";

const MAIN = path.resolve(import.meta.dirname, "../../../src/cli/main.ts");
const QUICK = ["--lookup-ms", "20", "--deep-search-ms", "3000"];

export function stdio(...args: readonly string[]): ToolServerTransport {
  return {
    kind: "stdio",
    command: process.execPath,
    args: [MAIN, "fake-tools", "--stdio", ...QUICK, ...args],
    env: {},
  };
}

export type ServerProcess = { readonly transport: ToolServerTransport; readonly port: number; kill(): Promise<void> };

/** Starts one over HTTP. @param args with `--port` of one before, to start it again. */
export async function serveHttp(...args: readonly string[]): Promise<ServerProcess> {
  const child: ChildProcess = spawn(process.execPath, [MAIN, "fake-tools", ...QUICK, ...args], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  let output = "";
  child.stdout?.on("data", (bytes: Buffer) => (output += bytes.toString("utf8")));
  const exited = new Promise<void>((resolve) => child.once("exit", () => resolve()));
  const kill = async (): Promise<void> => {
    child.kill("SIGKILL");
    await exited;
  };
  onCleanUp(kill);
  await until("the tool server listens", () => output.includes("/mcp"), 15_000);
  const url = /http:\S+/.exec(output)?.[0] ?? "";
  return { transport: { kind: "http", url, headers: {} }, port: Number(new URL(url).port), kill };
}

export type Lab = {
  readonly servers: SupervisedToolServers;
  readonly call: (
    tool: string,
    given?: object,
    options?: { readonly signal?: AbortSignal; readonly key?: string },
  ) => Promise<ToolOutcome>;
  readonly tool: (name: string) => OfferedTool | undefined;
  readonly spilled: Map<string, string>;
};

/** One server, supervised; ready when it was tried once. */
export async function lab(
  transport: ToolServerTransport,
  config: Partial<ToolServerConfig> = {},
  connect: Connect = connectToServer,
): Promise<Lab> {
  const spilled = new Map<string, string>();
  const servers = createToolServers(
    [
      {
        name: "lab",
        transport,
        allow: ["*"],
        deny: [],
        trust: true,
        approve: "explicit",
        effects: {},
        onCrash: "ask",
        timeoutMs: 15_000,
        resultBytesMax: 65_536,
        ...config,
      },
    ],
    {
      clock: REAL_CLOCK,
      log: SILENT_LOG,
      connect,
      version: "0.0.0",
      random: () => 0,
      spill: (key, text) => {
        spilled.set(key, text);
        return Promise.resolve(`spill/${key}`);
      },
    },
  );
  onCleanUp(() => servers.close());
  await servers.tried(15_000);
  return {
    servers,
    spilled,
    call: (tool, given = {}, { signal = new AbortController().signal, key = "key" } = {}) =>
      servers.call({ server: "lab", tool, arguments: { ...given }, idempotencyKey: key, signal }),
    tool: (name) => servers.list().find((one) => one.name === name),
  };
}

export function temporaryFolder(): string {
  const folder = mkdtempSync(path.join(tmpdir(), "luftpause-tools-"));
  onCleanUp(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}
