/** A real luftpause process in front of simulated engines of this process, whose handles show what reached them. */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterAll } from "vitest";
import type { Status } from "../../src/scheduler/index.ts";
import { startFakeEngine, type FakeEngine, type FakeEngineOptions } from "../../src/testbed/index.ts";
import { luftpause, type Running } from "./processes.ts";

export type EngineSetup = FakeEngineOptions & {
  /** Keys of its endpoint in the config, as YAML flow, such as `maxInFlight: 1`. */
  readonly endpoint?: string;
};

export type World = {
  readonly process: Running;
  readonly engines: readonly FakeEngine[];
  /** Base URL for SDKs. */
  readonly baseURL: string;
  status(): Promise<Status>;
};

const closers: (() => Promise<unknown>)[] = [];
afterAll(async () => {
  for (const close of closers.splice(0).toReversed()) await close();
});

export const TOKEN = "end-to-end-token";

/** Starts engines and luftpause; everything ends with the test file. */
export async function startWorld(
  setups: readonly EngineSetup[],
  options: { readonly set?: readonly string[]; readonly token?: boolean } = {},
): Promise<World> {
  const folder = mkdtempSync(path.join(tmpdir(), "luftpause-e2e-"));
  closers.push(async () => rmSync(folder, { recursive: true }));
  const engines = await Promise.all(setups.map(({ endpoint: _endpoint, ...engine }) => startFakeEngine(engine)));
  closers.push(() => Promise.all(engines.map((engine) => engine.close())));
  const endpoints = engines.map(
    ({ url }, at) =>
      `  - { name: engine-${at}, url: "${url}"${setups[at]?.endpoint === undefined ? "" : `, ${setups[at].endpoint}`} }`,
  );
  const config = path.join(folder, "luftpause.yaml");
  writeFileSync(config, `endpoints:\n${endpoints.join("\n")}\n`);
  const set = (options.set ?? []).flatMap((text) => ["--set", text]);
  const environment: { [name: string]: string } = options.token === true ? { LUFTPAUSE_TOKEN: TOKEN } : {};
  const process = luftpause(["up", "--listen", "127.0.0.1:0", "--config", config, ...set], { folder, environment });
  closers.push(() => process.end("SIGKILL"));
  const [, base = ""] = await process.waitFor(/base_url\s+(\S+)\/v1/);
  const headers = options.token === true ? { authorization: `Bearer ${TOKEN}` } : {};
  return {
    process,
    engines,
    baseURL: `${base}/v1`,
    status: async () => (await (await fetch(`${base}/status`, { headers })).json()) as Status,
  };
}

/** The turns that reached the engines; a probe that asks which APIs there are has no body. */
export function turnsAt({ engines }: World): ReturnType<FakeEngine["stats"]>["requests"] {
  return engines.flatMap((engine) => engine.stats().requests).filter(({ body }) => body.length > 0);
}

/** Slow enough that a turn stays open while something is done to it. */
export const SLOW: FakeEngineOptions = { profile: "h100-8b", timeScale: 3 };
