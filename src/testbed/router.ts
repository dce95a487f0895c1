/**
 * The dialect `router`: the SGLang router's cache-aware policy as an HTTP proxy in front of engines (spec 6, Dialects).
 * The policy is src/engine/cache-aware-router.ts; here are sockets and health only. It is a baseline, not a product: no
 * retries, no queue, no limits beside those of the front.
 */
import { createEngineClient, createFront, type EngineClient, type EngineTarget, type Exchange } from "../http/index.ts";
import { createCacheAwareRouter, hashBlocks, renderChat, type CacheAwareRouter } from "../engine/index.ts";

export type RouterOptions = {
  /** Base addresses of the engines, http, without `/v1`. */
  readonly engines: readonly string[];
  /** Default 127.0.0.1 and any free port. */
  readonly host?: string;
  readonly port?: number;
  /** As the router's own flags; default 64, 1.5 and 0.3. */
  readonly balanceAbs?: number;
  readonly balanceRel?: number;
  readonly cacheThreshold?: number;
};

export type FakeRouter = {
  readonly url: string;
  readonly port: number;
  /** Requests that each engine got. */
  routed(): readonly number[];
  close(): Promise<void>;
};

type Worker = { readonly target: EngineTarget; healthy: boolean };

const BODY_BYTES_MAX = 67_108_864;
const HEALTH_EVERY_MS = 10_000;
const HEALTH_FAILURES_MAX = 3;
const CONNECT_MS = 2_000;
const NONE = new Float64Array(0);

/**
 * Starts the router and resolves once it listens.
 * @throws Error with a `code` when the port cannot be had, TypeError when an engine's address is no URL.
 */
export async function startRouter(options: RouterOptions): Promise<FakeRouter> {
  const workers: Worker[] = options.engines.map((url) => ({ target: targetOf(url), healthy: true }));
  const { host = "127.0.0.1", engines: _engines, port: wanted = 0, ...thresholds } = options;
  const router = createCacheAwareRouter({ engines: workers.length, ...thresholds });
  const client = createEngineClient({ connectTimeoutMs: CONNECT_MS, reusedSocketRetryMs: 1_000 });
  const routed = workers.map(() => 0);
  const front = createFront({
    handler(exchange) {
      exchange.readBody(BODY_BYTES_MAX, (body) => {
        if (body === "aborted") return;
        if (body === "too-large") answer(exchange, 413, "the body is too large");
        else relay({ exchange, body, workers, router, client, routed });
      });
    },
  });
  const { port } = await front.listen(host, wanted);
  const stopHealth = watchHealth(workers, client);
  return {
    url: `http://${host}:${port}`,
    port,
    routed: () => [...routed],
    async close() {
      stopHealth();
      await front.close();
      client.close();
    },
  };
}

type Relay = {
  readonly exchange: Exchange;
  readonly body: Buffer;
  readonly workers: readonly Worker[];
  readonly router: CacheAwareRouter;
  readonly client: EngineClient;
  readonly routed: number[];
};

function relay({ exchange, body, workers, router, client, routed }: Relay): void {
  const usable = [...workers.keys()].filter((at) => workers[at]?.healthy === true);
  if (usable.length === 0) {
    answer(exchange, 503, "no healthy engine");
    return;
  }
  const chosen = router.choose(promptOf(exchange, body), usable);
  const target = workers[chosen]?.target;
  if (target === undefined) return;
  routed[chosen] = (routed[chosen] ?? 0) + 1;
  const end = (): void => {
    exchange.onGone = undefined;
    router.ended(chosen);
  };
  const request = {
    method: exchange.method,
    path: target.basePath + exchange.path + exchange.query,
    headers: ["content-type", "application/json"],
    body: body.length === 0 ? undefined : body,
  };
  const call = client.call(target, request, {
    onHead(head) {
      const headers: string[] = [];
      for (let at = 0; at < head.rawHeaders.length; at += 2) {
        const name = head.rawHeaders[at] ?? "";
        if (/^content-type$/i.test(name)) headers.push(name, head.rawHeaders[at + 1] ?? "");
      }
      const { lengthBytes } = head;
      exchange.begin(
        head.status,
        headers,
        lengthBytes === undefined ? { kind: "stream" } : { kind: "length", bytes: lengthBytes },
      );
    },
    onPayload(buffer, start, stop) {
      exchange.write(buffer.subarray(start, stop));
    },
    onFrames() {
      // The payloads are written with frames of our own.
    },
    onEnd() {
      end();
      exchange.end();
    },
    onFail({ reason }) {
      end();
      if (exchange.begun) exchange.breakOff();
      else answer(exchange, 502, reason);
    },
  });
  exchange.onGone = () => {
    call.abort();
    end();
  };
}

/** The text by which the router knows a prefix: the rendered conversation, without tools as the real one has it. */
function promptOf(exchange: Exchange, body: Buffer): Float64Array {
  if (exchange.path !== "/v1/chat/completions") return NONE;
  try {
    const { messages } = JSON.parse(body.toString("utf8")) as { readonly messages?: unknown };
    return Array.isArray(messages) ? hashBlocks(renderChat(messages, undefined)) : NONE;
  } catch {
    return NONE; // The engine says what is wrong with it.
  }
}

function answer(exchange: Exchange, status: number, message: string): void {
  const text = Buffer.from(JSON.stringify({ error: { message, type: "router_error", code: status } }), "utf8");
  exchange.begin(status, ["content-type", "application/json"], { kind: "length", bytes: text.length });
  exchange.write(text);
  exchange.end();
}

function watchHealth(workers: readonly Worker[], client: EngineClient): () => void {
  const failures = workers.map(() => 0);
  const check = (worker: Worker, at: number): void => {
    const settle = (well: boolean): void => {
      failures[at] = well ? 0 : (failures[at] ?? 0) + 1;
      worker.healthy = (failures[at] ?? 0) < HEALTH_FAILURES_MAX;
    };
    const { target } = worker;
    const call = client.call(
      target,
      { method: "GET", path: `${target.basePath}/health`, headers: [], body: undefined },
      {
        onHead: ({ status }) => settle(status === 200),
        onPayload: () => undefined,
        onFrames: () => undefined,
        onEnd: () => clearTimeout(late),
        onFail() {
          clearTimeout(late);
          settle(false);
        },
      },
    );
    const late = setTimeout(() => {
      call.abort();
      settle(false);
    }, HEALTH_EVERY_MS / 2);
  };
  const timer = setInterval(() => workers.forEach(check), HEALTH_EVERY_MS);
  timer.unref();
  return () => clearInterval(timer);
}

function targetOf(text: string): EngineTarget {
  const url = new URL(text);
  return {
    protocol: "http:",
    hostname: url.hostname.replace(/^\[(.*)\]$/, "$1"),
    port: Number(url.port === "" ? 80 : url.port),
    basePath: url.pathname.replace(/\/+$/, ""),
  };
}
