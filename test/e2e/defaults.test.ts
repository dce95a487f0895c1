/** Defaults of the constants table that only show over real time: one process with its defaults, one engine that watches. */
import { once } from "node:events";
import { createServer, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterAll, expect, test } from "vitest";
import type { Status } from "../../src/scheduler/index.ts";
import { DEFAULTS } from "../../src/wire/limits.ts";
import { eventually, luftpause } from "./processes.ts";

const polls: number[] = [];
let metricsWork = true;
let healthHangs = false;
const hanging = new Set<ServerResponse>();

const engine = createServer((request, response) => {
  if (request.url === "/metrics") {
    polls.push(performance.now());
    response.writeHead(metricsWork ? 200 : 500).end("vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n");
  } else if (request.url === "/health" && healthHangs) {
    hanging.add(response);
  } else if (request.url === "/v1/models") {
    response.end(JSON.stringify({ data: [{ id: "m" }] }));
  } else {
    response.writeHead(request.url === "/health" ? 200 : 400).end();
  }
});
afterAll(() => {
  engine.closeAllConnections();
  engine.close();
});

test("health and load are probed every 2 s with a time-out of 2 s, and load is stale after 3 failed probes", async () => {
  engine.listen(0, "127.0.0.1");
  await once(engine, "listening");
  const url = `http://127.0.0.1:${(engine.address() as AddressInfo).port}`;
  const process = luftpause(["up", "--listen", "127.0.0.1:0", "--engine", url]);
  const [, base = ""] = await process.waitFor(/base_url\s+(\S+)\/v1/);
  const replica = async () => {
    const status = (await (await fetch(`${base}/status`)).json()) as Status;
    return status.replicas[0];
  };
  expect(await replica()).toMatchObject({ healthy: true, reportsLoad: true });

  await eventually("four polls", () => (polls.length >= 4 ? true : undefined), 15_000);
  const gaps = polls.slice(1).map((at, index) => at - (polls[index] ?? 0));
  for (const gap of gaps) expect(Math.abs(gap - DEFAULTS.probeEveryMs)).toBeLessThan(700);

  metricsWork = false;
  const before = polls.length;
  await eventually(
    "the load is stale",
    async () => ((await replica())?.reportsLoad === false ? true : undefined),
    15_000,
  );
  // The third failed poll has been answered, the fourth has not been judged yet.
  expect(polls.length - before - DEFAULTS.loadStaleAfterProbes).toBeGreaterThanOrEqual(0);
  expect(polls.length - before - DEFAULTS.loadStaleAfterProbes).toBeLessThanOrEqual(1);
  expect((await replica())?.healthy).toBe(true);

  healthHangs = true;
  const asked = await eventually(
    "a health probe hangs",
    () => (hanging.size > 0 ? performance.now() : undefined),
    15_000,
  );
  await eventually("it is unhealthy", async () => ((await replica())?.healthy === false ? true : undefined), 15_000);
  expect(Math.abs(performance.now() - asked - DEFAULTS.probeTimeoutMs)).toBeLessThan(700);
  await process.end("SIGTERM");
}, 60_000);
