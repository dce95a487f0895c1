/**
 * Claude Code, Codex and Gemini CLI, as npm has them, with a scripted model behind their APIs and a home of their own: they
 * find luftpause's tools, fan out six runs, await them and pass a person's approvals on.
 */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { readLedger } from "../../src/testbed/fake-tools/ledger.ts";
import { startFakeEngine, startFakeTools } from "../../src/testbed/index.ts";
import { luftpause, type Running } from "../e2e/processes.ts";
import { FAN } from "./model.ts";
import { startModelApi, type ModelApi } from "./model-api.ts";
import { PROGRAMS } from "./setup.ts";

const WISH = "Ask six sub-agents how long six rivers are, and tell me what they answered.";
const TOKEN = "token-of-the-agents";
const AGENT_MS = 90_000;

const folder = mkdtempSync(path.join(tmpdir(), "luftpause-clis-"));
const ledger = path.join(folder, "ledger");
const closers: (() => Promise<unknown>)[] = [];
let up: Running;
let url = "";

beforeAll(async () => {
  const engine = await startFakeEngine({ profile: "h100-8b", timeScale: 0.05 });
  const tools = await startFakeTools({ lookupMs: [20, 20], ledger });
  closers.push(
    () => engine.close(),
    () => tools.close(),
  );
  const config = path.join(folder, "luftpause.yaml");
  writeFileSync(
    config,
    [
      `endpoints: [{ name: a, url: "${engine.url}" }]`,
      `tools: [{ name: lab, url: "${tools.url}", allow: [lookup] }]`,
      "logs: { level: warn }",
    ].join("\n"),
  );
  const environment = { LUFTPAUSE_TOKEN: TOKEN };
  up = luftpause(["up", "--listen", "127.0.0.1:0", "--config", config], { folder, environment });
  [, url = ""] = await up.waitFor(/base_url\s+(\S+)\/v1/);
});
afterAll(async () => {
  await up?.end("SIGKILL");
  for (const close of closers) await close();
  rmSync(folder, { recursive: true, force: true });
});

/** What a person would set up, in a home of its own; `home` and `api` are the agent's. */
type Setup = (at: { readonly home: string; readonly api: ModelApi }) => {
  readonly args: readonly string[];
  readonly env: { readonly [name: string]: string };
};

const AGENTS: { readonly [name in keyof typeof PROGRAMS]: Setup } = {
  claude({ home, api }) {
    const file = path.join(home, "mcp.json");
    const server = { type: "http", url: `${url}/mcp`, headers: { Authorization: `Bearer ${TOKEN}` } };
    writeFileSync(file, JSON.stringify({ mcpServers: { luftpause: server } }));
    return {
      args: ["-p", WISH, "--mcp-config", file, "--strict-mcp-config", "--allowedTools", "mcp__luftpause"],
      env: {
        ANTHROPIC_BASE_URL: api.url,
        ANTHROPIC_API_KEY: "none",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
        DISABLE_AUTOUPDATER: "1",
      },
    };
  },
  codex({ home, api }) {
    mkdirSync(path.join(home, ".codex"));
    writeFileSync(
      path.join(home, ".codex/config.toml"),
      [
        'model = "scripted"',
        'model_provider = "scripted"',
        'approval_policy = "never"',
        "[model_providers.scripted]",
        'name = "scripted"',
        `base_url = "${api.url}/v1"`,
        'wire_api = "responses"',
        "[mcp_servers.luftpause]",
        `url = "${url}/mcp"`,
        'bearer_token_env_var = "LUFTPAUSE_TOKEN"',
        // Without it `codex exec` refuses every tool that is not read-only.
        'default_tools_approval_mode = "approve"',
      ].join("\n"),
    );
    return { args: ["exec", "--skip-git-repo-check", WISH], env: { LUFTPAUSE_TOKEN: TOKEN } };
  },
  gemini({ home, api }) {
    mkdirSync(path.join(home, ".gemini"));
    const server = { httpUrl: `${url}/mcp`, headers: { Authorization: `Bearer ${TOKEN}` }, trust: true };
    const settings = {
      mcpServers: { luftpause: server },
      security: { auth: { selectedType: "gemini-api-key" } },
      privacy: { usageStatisticsEnabled: false },
    };
    writeFileSync(path.join(home, ".gemini/settings.json"), JSON.stringify(settings));
    return {
      args: ["-m", "gemini-2.5-flash", "--yolo", "-p", WISH],
      env: { GEMINI_API_KEY: "none", GOOGLE_GEMINI_BASE_URL: api.url, GEMINI_CLI_TRUST_WORKSPACE: "true" },
    };
  },
};

async function runAgent(
  name: keyof typeof PROGRAMS,
  api: ModelApi,
): Promise<{ readonly out: string; readonly err: string }> {
  const home = path.join(folder, name);
  const work = path.join(home, "work");
  mkdirSync(work, { recursive: true });
  const { args, env } = AGENTS[name]({ home, api });
  // A clean environment: nothing of the person who runs the tests, their keys least of all.
  const { PATH = "" } = process.env;
  const child = spawn(process.execPath, [PROGRAMS[name], ...args], {
    cwd: work,
    env: { PATH, HOME: home, LANG: "C.UTF-8", ...env },
    stdio: ["ignore", "pipe", "pipe"],
    timeout: AGENT_MS,
    killSignal: "SIGKILL",
  });
  let [out, err] = ["", ""];
  child.stdout.on("data", (bytes: Buffer) => (out += bytes.toString("utf8")));
  child.stderr.on("data", (bytes: Buffer) => (err += bytes.toString("utf8")));
  await once(child, "close");
  return { out, err };
}

type Shown = {
  readonly handle: string;
  readonly state: string;
  readonly toolCalls: number;
  readonly failedToolCalls: number;
};

async function runsOf(handles: readonly string[]): Promise<readonly Shown[]> {
  const { out } = await shell(["await", ...handles, "--json", "--timeout-s", "0"]);
  return (JSON.parse(out) as { readonly results: readonly Shown[] }).results;
}

async function shell(args: readonly string[]): Promise<{ readonly out: string }> {
  const process = luftpause([...args, "--url", url], { environment: { LUFTPAUSE_TOKEN: TOKEN } });
  await once(process.child, "close");
  return { out: process.output() };
}

describe.each(Object.keys(AGENTS) as (keyof typeof PROGRAMS)[])("%s", (name) => {
  test(`finds the tools, fans out ${FAN} runs, awaits them and passes approvals on`, async () => {
    const api = await startModelApi();
    const callsBefore = readLedger(ledger).length;
    try {
      const { out, err } = await runAgent(name, api);
      const said = `${out}\n${err}\n${api.requests.join("\n")}`;
      const done = /DONE (\[.*\])/.exec(out)?.[1];
      expect(done, said).toBeDefined();
      const ended = JSON.parse(done ?? "[]") as readonly { readonly handle: string; readonly state: string }[];
      expect(ended.map(({ state }) => state)).toEqual(Array.from({ length: FAN }, () => "Completed"));
      // What the agent says is what luftpause knows, and every call that a person allowed was made once.
      const runs = await runsOf(ended.map(({ handle }) => handle));
      const calls = runs.reduce((sum, { toolCalls }) => sum + toolCalls, 0);
      expect(calls).toBeGreaterThan(0);
      expect(runs.every(({ failedToolCalls }) => failedToolCalls === 0)).toBe(true);
      expect(readLedger(ledger).length - callsBefore).toBe(calls);
      const approvals = api.requests.filter((line) => /calls \S*approve$/.test(line)).length;
      expect(approvals).toBe(calls);
    } finally {
      await api.close();
    }
  });
});
