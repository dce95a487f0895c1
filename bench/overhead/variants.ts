// The proxies that are compared, each started as its own process with the configuration that the results describe:
// one worker, no buffering of answers, pools of kept connections, nothing logged.
import fs from "node:fs";
import net from "node:net";
import path from "node:path";
import { descendants, openFilesLimit } from "../support/accounting.ts";
import { MODELS, type Bench } from "./bench.ts";
import { runLoad, type Target } from "./load.ts";
import type { VariantName } from "./options.ts";
import { logTail, startServer, waitUntil, type Running } from "../support/processes.ts";
import { preparePortkey, REPOSITORY } from "./tools.ts";

export type Variant = {
  readonly name: VariantName;
  readonly target: Target;
  /** null: direct, no process in between. */
  readonly process: Running | null;
  readonly pids: () => number[];
};

const START_TIMEOUT_MS = 30_000;
const BODY_BYTES_MAX = "64m"; // luftpause's own default

async function freePort(): Promise<number> {
  const server = net.createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  const { port } = server.address() as net.AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** Whether anything answers there, whatever its status; `status` set: only that one. */
async function answers(port: number, route: string, status?: number): Promise<boolean> {
  try {
    const response = await fetch(`http://127.0.0.1:${port}${route}`, { signal: AbortSignal.timeout(2000) });
    await response.arrayBuffer();
    return status === undefined || response.status === status;
  } catch {
    return false;
  }
}

function nginxConfig(port: number, upstream: number): string {
  const connections = Math.min(30_000, openFilesLimit());
  const user = process.getuid?.() === 0 ? "user root;" : "";
  const temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
    .map((n) => `${n}_temp_path temp-${n};`)
    .join(" ");
  return `${user} worker_processes 1; daemon off; pid nginx.pid; error_log nginx-error.log;
events { worker_connections ${connections}; }
http {
  access_log off; ${temporary}
  keepalive_requests 100000000; keepalive_timeout 600s; tcp_nodelay on;
  client_body_buffer_size 512k; client_max_body_size ${BODY_BYTES_MAX};
  upstream engine { server 127.0.0.1:${upstream}; keepalive 8192; keepalive_requests 100000000; keepalive_timeout 600s; }
  server {
    listen 127.0.0.1:${port} backlog=4096;
    location / {
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 600s;
    }
  }
}
`;
}

function haproxyConfig(port: number, upstream: number): string {
  const connections = Math.floor((Math.min(openFilesLimit(), 60_000) - 400) / 2);
  return `global
  nbthread 1
  maxconn ${connections}
defaults
  mode http
  timeout connect 5s
  timeout client 600s
  timeout server 600s
  option http-keep-alive
  http-reuse always
  option http-no-delay
  option abortonclose
frontend front
  bind 127.0.0.1:${port} backlog 4096
  default_backend engine
backend engine
  server stub 127.0.0.1:${upstream} pool-max-conn 8192
`;
}

type Launch = {
  readonly command: readonly string[];
  readonly headers?: readonly string[];
  readonly env?: Record<string, string>;
  readonly ready: () => Promise<boolean>;
};

function write(folder: string, name: string, text: string): string {
  const file = path.join(folder, name);
  fs.writeFileSync(file, text);
  return file;
}

function luftpauseLaunch(bench: Bench, folder: string, port: number): Launch {
  const config = {
    listen: `127.0.0.1:${port}`,
    endpoints: [
      { name: "stub", url: `http://127.0.0.1:${bench.stub.port}`, engine: "vllm", models: Object.values(MODELS) },
    ],
  };
  const main = path.join(REPOSITORY, bench.options.dist ? "dist/cli/main.js" : "src/cli/main.ts");
  if (!fs.existsSync(main)) {
    throw new Error(`${path.relative(REPOSITORY, main)} is not there${bench.options.dist ? ": npm run build" : ""}`);
  }
  // JSON is YAML; defaults for everything else: recognition, admission, probing and splices as a user has them.
  const file = write(folder, "luftpause.yaml", JSON.stringify(config, null, 2));
  return {
    command: [process.execPath, main, "up", "--config", file],
    ready: async () => await answers(port, "/readyz", 200),
  };
}

async function launch(
  bench: Bench,
  name: Exclude<VariantName, "direct">,
  folder: string,
  port: number,
): Promise<Launch> {
  switch (name) {
    case "nginx":
      return {
        command: ["nginx", "-p", folder, "-c", write(folder, "nginx.conf", nginxConfig(port, bench.stub.port))],
        ready: async () => await answers(port, "/health", 200),
      };
    case "haproxy":
      return {
        command: ["haproxy", "-f", write(folder, "haproxy.cfg", haproxyConfig(port, bench.stub.port))],
        ready: async () => await answers(port, "/health", 200),
      };
    case "portkey": {
      const { script } = await preparePortkey();
      return {
        command: [process.execPath, script, "--headless", `--port=${port}`],
        env: { TRUSTED_CUSTOM_HOSTS: "127.0.0.1,localhost" },
        headers: [
          "x-portkey-provider: openai",
          `x-portkey-custom-host: http://127.0.0.1:${bench.stub.port}/v1`,
          "authorization: Bearer none",
        ],
        ready: async () => await answers(port, "/"),
      };
    }
    case "luftpause":
      return luftpauseLaunch(bench, folder, port);
  }
}

/** Sends a few turns of each kind, one after the other, and refuses a variant that does not answer them well. */
async function checkFirstTurns(bench: Bench, variant: Variant): Promise<void> {
  for (const load of [{ model: MODELS.fast }, { model: MODELS.short, chunks: 16 }]) {
    const result = await runLoad(bench, { ...load, conns: 1, turns: 5, seconds: 10 }, variant.target);
    if (result.failed > 0 || result.served !== 5) {
      const log = variant.process === null ? "" : `\n${logTail(variant.process)}`;
      throw new Error(
        `${variant.name}: ${result.served} of 5 first turns were answered well; ${result.firstFailure}${log}`,
      );
    }
  }
}

let starts = 0;

/** Starts a variant, waits until it is ready, and checks a first few turns through it. */
export async function startVariant(bench: Bench, name: VariantName): Promise<Variant> {
  if (name === "direct") {
    const direct: Variant = { name, target: { port: bench.stub.port, headers: [] }, process: null, pids: () => [] };
    await checkFirstTurns(bench, direct);
    return direct;
  }
  const folder = path.join(bench.folder, `${name}-${++starts}`);
  fs.mkdirSync(folder);
  const port = await freePort();
  const { command, ready, headers = [], env = {} } = await launch(bench, name, folder, port);
  const running = startServer(name, command, folder, { cpu: bench.options.cpus?.proxy ?? null, cwd: folder, env });
  await waitUntil(`${name} is not ready`, running, START_TIMEOUT_MS, ready);
  const variant: Variant = { name, target: { port, headers }, process: running, pids: () => descendants(running.pid) };
  await checkFirstTurns(bench, variant);
  return variant;
}
