/** The official OpenAI SDK for Python as a client of a real luftpause process. */
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import path from "node:path";
import { describe, expect, test } from "vitest";
import { cleanEnvironment, eventually } from "./processes.ts";
import { SLOW, startWorld, TOKEN, turnsAt, type World } from "./world.ts";

const ROOT = path.resolve(import.meta.dirname, "../..");
const PYTHON = path.join(ROOT, ".cache/python/bin/python");
const SCRIPT = path.join(import.meta.dirname, "python/client.py");
const there = existsSync(PYTHON);

/** Runs one case; `onReading` is called when the script says that it is in the middle of a stream. */
async function run(
  name: string,
  world: World,
  options: { token?: string; onReading?: () => void } = {},
): Promise<unknown> {
  const child = spawn(PYTHON, [SCRIPT, name, world.baseURL, options.token ?? "none"], {
    env: cleanEnvironment(),
    stdio: ["ignore", "pipe", "pipe"],
    timeout: 30_000,
  });
  let out = "";
  let err = "";
  child.stdout.on("data", (bytes: Buffer) => {
    const reading = out.includes("READING");
    out += bytes.toString("utf8");
    if (!reading && out.includes("READING")) options.onReading?.();
  });
  child.stderr.on("data", (bytes: Buffer) => {
    err += bytes.toString("utf8");
  });
  const code = await new Promise((resolve) => {
    child.on("close", resolve);
  });
  if (code !== 0) throw new Error(`${name} ended with ${String(code)}:\n${err}`);
  return JSON.parse(out.trim().split("\n").at(-1) ?? "") as unknown;
}

test("the Python SDK is set up (tools/setup-python.sh), at least where CI runs", () => {
  expect(there || process.env["CI"] === undefined).toBe(true);
});

describe.skipIf(!there)("the Python SDK", () => {
  test("gets whole answers, streams, tool calls, and usage on a stream only when it asks", async () => {
    const found = (await run("answers", await startWorld([{}]))) as { whole: string };
    expect(found).toEqual({
      whole: expect.stringContaining("Placeholder text") as string,
      stream: { text: found.whole, usages: 0 },
      with_usage: { text: found.whole, usages: 1 },
      finish: "tool_calls",
      tool: "lookup",
    });
  });

  test("raises its own classes of error", async () => {
    const world = await startWorld([{}], { token: true });
    expect(await run("errors", world, { token: TOKEN })).toEqual({
      unknown: { class: "NotFoundError", status: 404, code: "model_not_found", param: null },
      bad_class: { class: "BadRequestError", status: 400, code: "bad_class", param: "x-luftpause-class" },
    });
    expect(await run("wrong_token", world)).toEqual({
      class: "AuthenticationError",
      status: 401,
      code: "invalid_token",
      param: null,
    });
  });

  test("waits as a 429 says and succeeds by itself", async () => {
    const world = await startWorld([{ endpoint: "backpressure: pass" }]);
    world.engines[0]?.setFault("refuse-first", 1);
    world.engines[0]?.setFault("retry-after", 1);
    world.engines[0]?.setFault("refuse", 429);
    expect(await run("retry", world)).toEqual({ finish: "stop" });
    expect(turnsAt(world).map(({ status }) => status)).toEqual([429, 200]);
  });

  test("that gives up while its turn is held never reaches an engine with it", async () => {
    const world = await startWorld([{ ...SLOW, endpoint: "maxInFlight: 1" }]);
    expect(await run("abort_held", world)).toEqual({ left: "APITimeoutError", answered: "hold_deadline" });
    await eventually("nothing is open", async () => {
      const { held, inFlight } = (await world.status()).turns;
      return held + inFlight === 0 ? true : undefined;
    });
    expect(turnsAt(world)).toHaveLength(1);
  });

  test("that closes a stream stops the engine", async () => {
    const world = await startWorld([SLOW]);
    expect(await run("abort_stream", world)).toEqual({ closed: true });
    await world.engines[0]?.until(({ aborted }) => aborted === 1);
  });

  test("does not see the signs of life of a held stream", async () => {
    const world = await startWorld([{ ...SLOW, endpoint: "maxInFlight: 1" }], {
      set: ["limits.holdSignAfterMs=100", "limits.holdSignEveryMs=100"],
    });
    expect(await run("held", world)).toEqual({ same: true, answers: 2 });
  });

  test("gets an error when the engine dies mid-stream, never a clean end", async () => {
    const world = await startWorld([SLOW]);
    const found = await run("engine_lost", world, { onReading: () => world.engines[0]?.dropConnections() });
    expect(found).toMatchObject({ class: "APIError", code: "engine_lost" });
  });
});
