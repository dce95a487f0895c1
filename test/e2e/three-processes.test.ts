/**
 * Scheduler, dataplane and engine as processes of their own, killed under load: a dead scheduler loses nothing, a dead
 * dataplane's slots come back, a dead engine is an error for its clients and never a clean end.
 */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { request } from "node:http";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterAll, afterEach, describe, expect, test } from "vitest";
import type { Status } from "../../src/scheduler/index.ts";
import { eventually, luftpause, type Running } from "./processes.ts";

const folder = mkdtempSync(path.join(tmpdir(), "luftpause-three-"));
afterAll(() => rmSync(folder, { recursive: true }));

const TOKEN = "three-processes";
const environment = { LUFTPAUSE_TOKEN: TOKEN };
const running: Running[] = [];
afterEach(async () => {
  await Promise.all(running.splice(0).map((process) => process.end("SIGKILL")));
});

type World = {
  readonly scheduler: Running;
  readonly dataplane: Running;
  readonly base: string;
  readonly status: string;
};

function start(args: string[]): Running {
  const process = luftpause(args, { environment, folder });
  running.push(process);
  return process;
}

/** A slow simulated engine: every token takes long enough that turns stay open while something is killed. */
async function startEngine(slower = 3): Promise<{ process: Running; url: string }> {
  const process = start(["fake-engine", "--profile", "h100-8b", "--time-scale", String(slower)]);
  const [, url = ""] = await process.waitFor(/on (http:\S+)/);
  return { process, url };
}

async function startWorld(engines: readonly string[], more = ""): Promise<World> {
  const config = path.join(folder, `${running.length}.yaml`);
  const endpoints = engines.map((url, at) => `  - { name: engine-${at}, url: "${url}" }`).join("\n");
  writeFileSync(config, `endpoints:\n${endpoints}\n${more}`);
  const scheduler = start(["scheduler", "--config", config, "--link", "127.0.0.1:0", "--listen", "127.0.0.1:0"]);
  const [, link = "", status = ""] = await scheduler.waitFor(/link on (\S+), status on (\S+)\/status/);
  const dataplane = start(["dataplane", "--config", config, "--scheduler", link, "--listen", "127.0.0.1:0"]);
  const [, base = ""] = await dataplane.waitFor(/base_url (\S+)\/v1/);
  await eventually("the pool is healthy", async () => {
    const now = await statusOf(status);
    return now?.replicas.every((replica) => replica.healthy) === true ? true : undefined;
  });
  return { scheduler, dataplane, base, status };
}

/** Starts a scheduler again at the same addresses. */
async function startSchedulerAgain(world: World): Promise<Running> {
  const args = world.scheduler.child.spawnargs.slice(2);
  const link = /link on (\S+),/.exec(world.scheduler.output())?.[1] ?? "";
  args[args.indexOf("--link") + 1] = link;
  args[args.indexOf("--listen") + 1] = new URL(world.status).host;
  const scheduler = start(args);
  await scheduler.waitFor(/link on/);
  return scheduler;
}

async function statusOf(url: string): Promise<Status | undefined> {
  try {
    const answer = await fetch(`${url}/status`, { headers: { authorization: `Bearer ${TOKEN}` } });
    return (await answer.json()) as Status;
  } catch {
    return undefined;
  }
}

type Ended = { readonly status: number; readonly text: string; readonly clean: boolean };

type Turn = { readonly ended: Promise<Ended>; readonly run: Promise<string>; leave(): void };

/** One streamed turn by node:http, which tells a cut connection from a clean end. */
function turn(base: string, run: string, options: { class?: string; tokens?: number } = {}): Turn {
  const body = JSON.stringify({
    model: "sim-8b",
    stream: true,
    max_tokens: options.tokens ?? 200,
    messages: [{ role: "user", content: `What does ${run} see?` }],
  });
  let ready: (id: string) => void = () => undefined;
  const id = new Promise<string>((resolve) => {
    ready = resolve;
  });
  let leave = (): void => undefined;
  const ended = new Promise<Ended>((resolve) => {
    const call = request(`${base}/v1/chat/completions`, {
      method: "POST",
      agent: false,
      headers: {
        "content-type": "application/json",
        authorization: `Bearer ${TOKEN}`,
        "x-luftpause-run-id": run,
        "x-luftpause-class": options.class ?? "interactive",
      },
    });
    leave = () => call.destroy();
    call.on("error", () => resolve({ status: 0, text: "", clean: false }));
    call.on("response", (answer) => {
      ready(String(answer.headers["x-luftpause-run-id"]));
      let text = "";
      answer.setEncoding("utf8");
      answer.on("data", (part: string) => {
        text += part;
      });
      answer.on("error", () => undefined);
      answer.on("close", () => resolve({ status: answer.statusCode ?? 0, text, clean: answer.complete }));
    });
    call.end(body);
  });
  return { ended, run: id, leave };
}

const pinsOf = async (base: string, runs: readonly string[]): Promise<{ [run: string]: unknown }> => {
  const pins: { [run: string]: unknown } = {};
  for (const run of runs) {
    const answer = await fetch(`${base}/v1/runs/${run}`, { headers: { authorization: `Bearer ${TOKEN}` } });
    pins[run] = answer.status === 200 ? ((await answer.json()) as { replica?: unknown }).replica : answer.status;
  }
  return pins;
};

describe("kill -9 of the scheduler", () => {
  test("under 200 open turns loses no turn, and pins and slot counts are as before", async () => {
    const [a, b] = await Promise.all([startEngine(8), startEngine(8)]);
    const world = await startWorld([a.url, b.url]);
    const names = Array.from({ length: 200 }, (_, at) => `run-${at}`);
    const turns = names.map((name) => turn(world.base, name));
    await eventually("all turns are in flight", async () =>
      (await statusOf(world.status))?.turns.inFlight === 200 ? true : undefined,
    );
    const before = await statusOf(world.status);
    const pinsBefore = await pinsOf(world.base, names.slice(0, 20));
    await world.scheduler.end("SIGKILL");
    // Turns that come while there is no scheduler wait for the next one.
    const late = Array.from({ length: 10 }, (_, at) => turn(world.base, `late-${at}`, { tokens: 20 }));
    await startSchedulerAgain(world);
    const after = await eventually("the state is handed over", async () => {
      const now = await statusOf(world.status);
      return now !== undefined && now.turns.inFlight >= 150 ? now : undefined;
    });
    const counts = (status: Status | undefined) => status?.replicas.map((replica) => [replica.replica, replica.limit]);
    expect(counts(after)).toEqual(counts(before));
    expect(await pinsOf(world.base, names.slice(0, 20))).toEqual(pinsBefore);
    const ends = await Promise.all([...turns, ...late].map(({ ended }) => ended));
    expect(ends.filter(({ status, clean, text }) => status !== 200 || !clean || !text.includes("[DONE]"))).toEqual([]);
    await eventually("every slot is free again", async () =>
      (await statusOf(world.status))?.turns.inFlight === 0 ? true : undefined,
    );
  }, 60_000);
});

describe("kill -9 of the dataplane", () => {
  test("frees its slots within 10 s, and its clients see a broken connection", async () => {
    const engine = await startEngine();
    const world = await startWorld([engine.url], "scheduler: { dataplaneGraceMs: 2000 }\n");
    const turns = Array.from({ length: 20 }, (_, at) => turn(world.base, `run-${at}`));
    await eventually("all turns are in flight", async () =>
      (await statusOf(world.status))?.turns.inFlight === 20 ? true : undefined,
    );
    await Promise.all(turns.map(({ run }) => run));
    await world.dataplane.end("SIGKILL");
    const ends = await Promise.all(turns.map(({ ended }) => ended));
    expect(ends.some(({ clean }) => clean)).toBe(false);
    // Still counted during the grace: it could have been the link alone.
    expect((await statusOf(world.status))?.turns.inFlight).toBe(20);
    await eventually(
      "its slots are free",
      async () => ((await statusOf(world.status))?.turns.inFlight === 0 ? true : undefined),
      10_000,
    );
  }, 40_000);
});

describe("an engine killed mid-stream", () => {
  test("is an error for its clients, never a clean end, and a retry under the same run id goes elsewhere", async () => {
    const [a, b] = await Promise.all([startEngine(), startEngine()]);
    const world = await startWorld([a.url, b.url]);
    const turns = Array.from({ length: 8 }, (_, at) => turn(world.base, `run-${at}`));
    await Promise.all(turns.map(({ run }) => run));
    const pins = await pinsOf(world.base, ["run-0"]);
    const victim = pins["run-0"] === "engine-0" ? a : b;
    await victim.process.end("SIGKILL");
    const first = await turns[0]?.ended;
    expect(first).toMatchObject({ status: 200, clean: false });
    expect(first?.text).not.toContain("[DONE]");
    const retry = await turn(world.base, "run-0", { tokens: 10 }).ended;
    expect(retry).toMatchObject({ status: 200, clean: true });
    const ends = await Promise.all(turns.slice(1).map(({ ended }) => ended));
    for (const { clean, text } of ends) expect(clean).toBe(text.includes("[DONE]"));
  }, 40_000);
});

test("a dataplane with a wrong token is refused in words and keeps trying", async () => {
  const engine = await startEngine();
  const world = await startWorld([engine.url]);
  const link = /link on (\S+),/.exec(world.scheduler.output())?.[1] ?? "";
  const config = path.join(folder, "wrong.yaml");
  writeFileSync(config, `endpoints: [{ name: a, url: "${engine.url}" }]\n`);
  const args = ["dataplane", "--config", config, "--scheduler", link, "--listen", "127.0.0.1:0"];
  const wrong = luftpause(args, { environment: { LUFTPAUSE_TOKEN: "another" }, folder });
  running.push(wrong);
  await wrong.waitFor(/refused: the token is missing or wrong/);
});

test("SIGTERM lets streams end and exits with 0; a second one ends at once", async () => {
  const engine = await startEngine();
  const world = await startWorld([engine.url]);
  const open = turn(world.base, "drained", { tokens: 60 });
  await open.run;
  const end = world.dataplane.end("SIGTERM");
  await world.dataplane.waitFor(/draining/);
  expect(await open.ended).toMatchObject({ status: 200, clean: true });
  expect((await end).code).toBe(0);
});
