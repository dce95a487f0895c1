/** Whoever asks while luftpause starts is answered at once: alive, not ready, come again. */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer, type AddressInfo } from "node:net";
import { once } from "node:events";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterAll, expect, test } from "vitest";
import { startFakeEngine } from "../../src/testbed/index.ts";
import { luftpause } from "./processes.ts";

const folder = mkdtempSync(path.join(tmpdir(), "luftpause-starting-"));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, "close");
  return port;
}

test("requests that come while tool servers are waited for", async () => {
  const engine = await startFakeEngine();
  const config = path.join(folder, "luftpause.yaml");
  // A tool server that never says anything: the start waits some seconds for it.
  const mute = { name: "mute", command: process.execPath, args: ["-e", "setInterval(() => {}, 1000)"] };
  writeFileSync(config, `endpoints: [{ name: a, url: "${engine.url}" }]\ntools: [${JSON.stringify(mute)}]\n`);
  const port = await freePort();
  const process_ = luftpause(["up", "--listen", `127.0.0.1:${port}`, "--config", config], { folder });
  const base = `http://127.0.0.1:${port}`;
  const ask = async (route: string, method = "GET"): Promise<Response | undefined> =>
    fetch(base + route, { method, signal: AbortSignal.timeout(2_000) }).catch((error: unknown) => {
      // A time-out is what must not be: an answer that never comes.
      if (error instanceof Error && error.name === "TimeoutError") throw error;
      return undefined;
    });
  let first: Response | undefined;
  while (first === undefined) first = await ask("/readyz");
  expect(first.status).toBe(503);
  expect(await first.json()).toMatchObject({ service: "luftpause" });
  expect((await ask("/healthz"))?.status).toBe(200);
  const early = await ask("/mcp", "POST");
  expect([early?.status, early?.headers.get("retry-after")]).toEqual([503, "1"]);
  expect(await early?.json()).toMatchObject({ error: { message: "luftpause is starting: ask again in a second" } });
  await process_.waitFor(/base_url/);
  expect((await ask("/readyz"))?.status).toBe(200);
  await process_.end("SIGTERM");
  await engine.close();
});
