/** Sub-agents from a shell: the commands as a person or a script runs them, against a whole luftpause of its own. */
import { spawn as spawnProcess } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { startFakeEngine, startFakeTools } from "../../src/testbed/index.ts";
import { cleanEnvironment, luftpause, type Running } from "./processes.ts";

const MAIN = path.resolve(import.meta.dirname, "../../src/cli/main.ts");
const TERMINAL = path.resolve(import.meta.dirname, "python/terminal.py");
const TOKEN = "shell-token";

const folder = mkdtempSync(path.join(tmpdir(), "luftpause-shell-"));
const config = path.join(folder, "luftpause.yaml");
const closers: (() => Promise<unknown>)[] = [];
let up: Running;
let url = "";

beforeAll(async () => {
  const engine = await startFakeEngine({ profile: "h100-8b", timeScale: 0.05 });
  const tools = await startFakeTools({});
  closers.push(
    () => engine.close(),
    () => tools.close(),
  );
  writeFileSync(
    config,
    [
      `endpoints: [{ name: a, url: "${engine.url}" }]`,
      `tools: [{ name: lab, url: "${tools.url}", allow: [lookup, destroy] }]`,
      "logs: { level: warn }",
    ].join("\n"),
  );
  await start("127.0.0.1:0");
});
afterAll(async () => {
  await up.end("SIGKILL");
  for (const close of closers) await close();
  rmSync(folder, { recursive: true, force: true });
});

async function start(listen: string): Promise<void> {
  const environment = { LUFTPAUSE_TOKEN: TOKEN, LUFTPAUSE_STATE_DIR: path.join(folder, "state") };
  up = luftpause(["up", "--listen", listen, "--config", config], { folder, environment });
  [, url = ""] = await up.waitFor(/base_url\s+(\S+)\/v1/);
}

type Ended = { readonly code: number | null; readonly out: string; readonly err: string };
type Options = { readonly input?: string; readonly token?: string; readonly onError?: (so: string) => void };

async function sh(args: readonly string[], options: Options = {}): Promise<Ended> {
  return ended([process.execPath, MAIN, ...args, ...(args.includes("--url") ? [] : ["--url", url])], options);
}

async function ended(command: readonly string[], { input = "", token = TOKEN, onError }: Options = {}): Promise<Ended> {
  const [file = "", ...args] = command;
  const child = spawnProcess(file, args, { cwd: tmpdir(), env: cleanEnvironment({ LUFTPAUSE_TOKEN: token }) });
  child.stdin.end(input);
  let [out, err] = ["", ""];
  child.stdout.on("data", (bytes: Buffer) => (out += bytes.toString("utf8")));
  child.stderr.on("data", (bytes: Buffer) => {
    err += bytes.toString("utf8");
    onError?.(err);
  });
  const [code] = (await once(child, "close")) as [number | null];
  return { code, out, err };
}

const HANDLE = /^run-[0-9a-f-]{36}$/;
const lines = (text: string): readonly string[] => text.trim().split("\n");

/** A run that may make one call, for which a person is asked. */
async function asking(): Promise<{ readonly handle: string; readonly id: string }> {
  const bounds = ["--tools", "lookup", "--approve-tools", "lab/lookup", "--max-tool-calls", "1"];
  const { out } = await sh(["spawn", "ask me", ...bounds]);
  const handle = out.trim();
  for (;;) {
    const { pendingApprovals } = JSON.parse((await sh(["approvals", "ls", "--json"])).out) as {
      readonly pendingApprovals: readonly { readonly handle: string; readonly id: string }[];
    };
    const found = pendingApprovals.find((approval) => approval.handle === handle);
    if (found !== undefined) return found;
  }
}

describe("spawn and await", () => {
  test("an awaited answer is alone on stdout, what it took on stderr", async () => {
    const { code, out, err } = await sh(["spawn", "tell me a story", "--no-tools", "--await"]);
    expect(code, err).toBe(0);
    expect(out).toMatch(/^Placeholder text[^\n]+\n$/);
    expect(err).toMatch(/^started run-\S+; they go on also when this command ends\n/);
    expect(err).toMatch(/Completed · 1 turn · 0 tool calls · \d+ tokens, \d+ of them cached · \d+\.\d s\n$/);
  });

  test("handles of a list are one a line, and await tells which answer is whose", async () => {
    const spawned = await sh(["spawn", "one", "two", "--no-tools", "--class", "batch"]);
    const handles = lines(spawned.out);
    expect(handles).toHaveLength(2);
    for (const handle of handles) expect(handle).toMatch(HANDLE);
    const awaited = await sh(["await", ...handles]);
    expect(awaited.code).toBe(0);
    for (const handle of handles) expect(awaited.out).toContain(`== ${handle}\nPlaceholder text`);
    const again = JSON.parse((await sh(["await", ...handles, "--json"])).out) as { done: boolean; results: object[] };
    expect(again).toMatchObject({ done: true, results: handles.map((handle) => ({ handle, state: "Completed" })) });
  });

  test("a task of - comes from stdin; an empty one is refused before anything starts", async () => {
    const good = await sh(["spawn", "-", "--max-tool-calls", "0", "--json"], { input: "from a file\n" });
    expect(JSON.parse(good.out)).toMatchObject({ handles: [expect.stringMatching(HANDLE)], model: expect.any(String) });
    const empty = await sh(["spawn", "-"], { input: " \n" });
    expect(empty).toMatchObject({ code: 2, err: "luftpause spawn: the task on stdin is empty\n" });
  });

  test("the same idempotency key gives the same run", async () => {
    const args = ["spawn", "once", "--no-tools", "--idempotency-key", "shell-once"];
    expect((await sh(args)).out).toBe((await sh(args)).out);
  });

  test("a time-out says that nothing is lost, and with what to go on", async () => {
    const { handle } = await asking();
    const { code, out, err } = await sh(["await", handle, "--timeout-s", "1"]);
    expect({ code, out }).toEqual({ code: 1, out: "" });
    expect(err).toContain(`${handle} waits for a person: lab/lookup {`);
    expect(err).toContain(`still running: 1 run; nothing is lost: luftpause await ${handle}\n`);
    await sh(["runs", "cancel", handle]);
  });

  test("--any ends with the first one", async () => {
    const { handle } = await asking();
    const quick = (await sh(["spawn", "quick", "--no-tools"])).out.trim();
    const { code, out } = await sh(["await", handle, quick, "--any"]);
    expect(code).toBe(0);
    expect(out).toContain(`== ${quick}\n`);
    await sh(["runs", "cancel", handle]);
  });

  test("what did not complete is exit code 1, with its reason", async () => {
    const { handle } = await asking();
    expect(await sh(["runs", "cancel", handle])).toMatchObject({ code: 0, out: "cancelled 1 run\n" });
    expect(await sh(["runs", "cancel", handle])).toMatchObject({ code: 0, out: "it had ended already\n" });
    const { code, err } = await sh(["await", handle, "run-nobody-knows"]);
    expect(code).toBe(1);
    expect(err).toContain(`${handle}  Cancelled · 1 turn · 1 tool call`);
    expect(err).toContain("run-nobody-knows  unknown handle\n");
  });

  test("the waiting outlives a kill -9 of the runtime", async () => {
    const { handle, id } = await asking();
    const seen = Promise.withResolvers<void>();
    const waiting = sh(["await", handle], {
      onError: (so) => {
        if (so.includes("waits for a person")) seen.resolve();
      },
    });
    await seen.promise;
    await up.end("SIGKILL");
    await start(new URL(url).host);
    expect((await sh(["approvals", "deny", handle, "--id", id])).code).toBe(0);
    const { code, out, err } = await waiting;
    expect(code, err).toBe(0);
    expect(err).toContain("luftpause is away; asking again");
    expect(err).toContain("1 tool call (1 failed)");
    expect(out).toMatch(/^Placeholder text/);
  });
});

describe("runs", () => {
  test("ls is a table, newest first, and says when there is more", async () => {
    const [one, two] = lines((await sh(["spawn", "a", "b", "--no-tools"])).out);
    await sh(["await", one ?? "", two ?? ""]);
    const { out, err } = await sh(["runs", "ls", "--limit", "2"]);
    const [head, ...rows] = lines(out);
    expect(head).toMatch(/^RUN +STATE +TURNS +TOOL CALLS +FAILED +TIME +MODEL$/);
    expect(new Set(rows.map((row) => row.split(" ")[0]))).toEqual(new Set([one, two]));
    expect(err).toBe("there are older ones: --limit 4\n");
  });

  test("show and tree have the child under its parent, with the sums of both", async () => {
    const parent = await asking();
    const child = (await sh(["spawn", "below", "--no-tools", "--parent", parent.handle])).out.trim();
    await sh(["await", child]);
    const shown = await sh(["runs", "show", parent.handle]);
    expect(shown.out).toContain(`  children  ${child}\n`);
    expect(shown.out).toContain(`  asks      ${parent.id}: lab/lookup {`);
    const tree = await sh(["runs", "tree", child]);
    const [above = "", below = ""] = lines(tree.out);
    expect(above).toMatch(/^run-\S+ {2}AwaitingApproval, 1 pending approval .* whole tree: 2 turns, 1 tool call,/);
    expect(below).toMatch(new RegExp(`^└─ ${child} {2}completed {2}1 turn, 0 tool calls, \\d+ tokens$`));
    await sh(["runs", "cancel", parent.handle]);
  });
});

describe("approvals", () => {
  test("allow lets the call be made; whoever comes later is told that the first answer counts", async () => {
    const { handle, id } = await asking();
    const listed = await sh(["approvals", "ls"]);
    expect(listed.out).toContain(`luftpause approvals allow ${handle} --id ${id}   (or: deny)`);
    const args = [handle, "--id", id];
    const allowed = await sh(["approvals", "allow", ...args, "--scope", "run"]);
    expect(allowed).toMatchObject({ code: 0, out: `${handle}: lab/lookup is allowed (run)\n` });
    const late = await sh(["approvals", "deny", ...args]);
    expect(late).toMatchObject({ code: 1, err: "The first answer counts: this one came too late.\n" });
    await sh(["runs", "cancel", handle]);
  });

  test("whoever sits at the terminal is asked while they wait", async () => {
    const { handle } = await asking();
    const command = ["python3", TERMINAL, "later  ", "no", process.execPath, MAIN, "await", handle, "--url", url];
    const { code, out } = await ended(command);
    expect(code, out).toBe(0);
    expect(out).toContain(`${handle} waits for a person: lab/lookup {`);
    expect(out).toContain("allow it? [y]es, [n]o, anything else: later");
    expect(out).toContain("1 tool call (1 failed)");
    expect(out).toContain("Placeholder text");
  });
});

describe("what goes wrong", () => {
  test.each([
    [["runs", "shw"], 2, "luftpause runs: 'shw' is not one of ls, show, tree, cancel"],
    [["runs", "show"], 2, "luftpause runs show needs a handle; runs ls shows them"],
    [["runs", "ls", "run-1"], 2, "luftpause runs ls takes no handle, got 'run-1'"],
    [["approvals", "alow", "run-1"], 2, "luftpause approvals: 'alow' is not one of ls, allow, deny"],
    [["approvals", "deny"], 2, "luftpause approvals deny needs a handle; approvals ls shows them"],
    [["approvals", "ls", "--id", "1"], 2, "luftpause approvals ls takes no --id"],
    [["spawn", "x", "--class", "fast"], 2, "luftpause spawn: --class 'fast' is not interactive or batch"],
    [["spawn", "x", "--tools", "a", "--no-tools"], 2, "luftpause spawn: --tools and --no-tools cannot both be meant"],
    [["spawn", "x", "--url", "nowhere"], 2, "--url 'nowhere' is no http or https address"],
    [["spawn", "x", "--tools", "nosuch"], 1, "nosuch"],
    [["runs", "show", "run-1"], 1, "unknown handle run-1; status without a handle lists your runs"],
    [["runs", "cancel", "run-1"], 1, "unknown handle run-1"],
    [["approvals", "allow", "run-1"], 1, "unknown handle run-1"],
  ])("%j ends with %i", async (args, code, words) => {
    const outcome = await sh(args);
    expect(outcome.err).toContain(words);
    expect(outcome.code).toBe(code);
  });

  test("nobody there is exit code 4, a wrong token exit code 1, both say what to do", async () => {
    const gone = await startFakeEngine();
    await gone.close();
    const nobody = await sh(["runs", "ls", "--url", gone.url]);
    expect(nobody).toMatchObject({
      code: 4,
      err: `${gone.url}: no answer; is luftpause running? Name another with --url\n`,
    });
    const wrong = await sh(["runs", "ls"], { token: "wrong" });
    expect(wrong).toMatchObject({ code: 1, err: `${url}: the token is missing or wrong; set LUFTPAUSE_TOKEN\n` });
  });
});
