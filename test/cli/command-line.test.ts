/** What a person meets at the shell: help, slips of the finger, exit codes. */
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { once } from "node:events";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterAll, describe, expect, test } from "vitest";
import { cleanEnvironment } from "../e2e/processes.ts";

const MAIN = path.resolve(import.meta.dirname, "../../src/cli/main.ts");
const folder = mkdtempSync(path.join(tmpdir(), "luftpause-cli-"));
afterAll(() => rmSync(folder, { recursive: true }));

function run(args: string[], environment: { [name: string]: string } = {}) {
  const result = spawnSync(process.execPath, [MAIN, ...args], {
    cwd: folder,
    env: cleanEnvironment(environment),
    encoding: "utf8",
    timeout: 15_000,
  });
  return { code: result.status, out: result.stdout, err: result.stderr };
}

const SERVICES = ["up", "scheduler", "dataplane", "runtime", "fake-engine", "fake-tools", "demo", "sim", "loadgen"];
const TOOLS = ["spawn", "await", "runs", "approvals", "status", "replay", "journal", "config"];
const NAMES = [...SERVICES, ...TOOLS];

describe("help", () => {
  test("the overview names every command and exits with 0", () => {
    const { code, out } = run(["--help"]);
    expect(code).toBe(0);
    expect([...out.matchAll(/^ {2}([\w-]+) /gm)].map(([, name]) => name)).toEqual(NAMES);
  });

  test("a command without arguments shows the overview and exits with the usage code", () => {
    expect(run([]).code).toBe(2);
  });

  test.each(NAMES)("%s --help names its flags", (name) => {
    const { code, out } = run([name, "--help"]);
    expect(code).toBe(0);
    expect(out).toContain("Flags:");
  });

  test("the version is that of the package", () => {
    expect(run(["--version"]).out).toMatch(/^\d+\.\d+\.\d+\n$/);
  });
});

describe("slips of the finger", () => {
  test("an unknown command names the nearest", () => {
    const { code, err } = run(["statsu"]);
    expect(code).toBe(2);
    expect(err).toContain("unknown command 'statsu'; did you mean 'status'?");
  });

  test("an unknown flag names the nearest", () => {
    const { code, err } = run(["up", "--lisen", "127.0.0.1:0"]);
    expect(code).toBe(2);
    expect(err).toContain("unknown flag --lisen; did you mean --listen?");
  });

  test("a flag without its value says what it needs", () => {
    expect(run(["up", "--engine"]).err).toContain("--engine needs a value: --engine URL");
  });

  test("an extra argument is refused", () => {
    expect(run(["up", "now"]).err).toContain("unexpected argument 'now'");
  });

  test("names of the object prototype are no commands", () => {
    expect(run(["constructor"]).code).toBe(2);
  });
});

describe("config", () => {
  test("check says what is wrong with line and column and exits with 3", () => {
    const file = path.join(folder, "bad.yaml");
    writeFileSync(file, "listen: 127.0.0.1:7700\npolcy: classic\n");
    const { code, err } = run(["config", "check", "--config", file]);
    expect(code).toBe(3);
    expect(err).toContain("bad.yaml:2:1: polcy: unknown key; did you mean policy?");
  });

  test("schema prints JSON Schema that names the endpoints", () => {
    const schema = JSON.parse(run(["config", "schema"]).out) as { properties: object };
    expect(Object.keys(schema.properties)).toContain("endpoints");
  });

  test("show prints the config in force without secrets", () => {
    const { out } = run(["config", "show"], { LUFTPAUSE_TOKEN: "very-secret" });
    expect(out).toContain("token: (set)");
    expect(out).not.toContain("very-secret");
  });
});

describe("listening", () => {
  test("an address beyond this machine without a token is refused with the ways out", () => {
    const { code, err } = run(["up", "--listen", "0.0.0.0:0"]);
    expect(code).toBe(3);
    expect(err).toContain("LUFTPAUSE_TOKEN");
    expect(err).toContain("--insecure");
  });

  test("a taken port names the flag that changes it", async () => {
    const holder = createServer().listen(0, "127.0.0.1");
    await once(holder, "listening");
    const { port } = holder.address() as { port: number };
    const { code, err } = run(["up", "--listen", `127.0.0.1:${port}`]);
    holder.close();
    expect(code).toBe(1);
    expect(err).toMatch(new RegExp(`127\\.0\\.0\\.1:${port} is taken by .*--listen`));
  });
});
