/**
 * The MCP face over HTTP (spec 4): one address, two eras. Clients with sessions (2025-03-26 … 2025-11-25) and requests
 * without one (2026-07-28) are told apart by what they send.
 */
import { createHash, randomBytes } from "node:crypto";
import {
  createMcpHandler,
  createRequestStateCodec,
  isJsonContentType,
  isLegacyRequest,
  type AuthInfo,
} from "@modelcontextprotocol/server";
import { answerWhole, type Authenticate, type Exchange } from "../../http/index.ts";
import type { Log } from "../../telemetry/index.ts";
import { Gauge, type Registry } from "../../telemetry/index.ts";
import type { RunStore } from "../store/port.ts";
import type { FaceDeps } from "./deps.ts";
import { originProblem } from "./origin.ts";
import { rpcError } from "./rpc-error.ts";
import { buildServer, LONG_TOOLS, type ServerDeps } from "./server.ts";
import { Sessions } from "./sessions.ts";
import { Tasks } from "./tasks.ts";
import { WaitingCalls } from "./waiting-calls.ts";
import type { Wait } from "./waiting.ts";
import { requestOf, send } from "./web-bridge.ts";

export type McpFaceOptions = FaceDeps & {
  readonly store: Pick<RunStore, "metaOnce">;
  readonly log: Log;
  readonly metrics: Registry;
  readonly version: string;
  readonly authenticate: Authenticate;
  /** Host names besides this machine's own under which the face may be reached; `*`: all. */
  readonly allowedHosts: readonly string[];
  /** Undefined: made once, and kept in the journal. */
  readonly requestStateKey: string | undefined;
};

export type McpFace = {
  /** Whether the path is this face's. */
  readonly owns: (path: string) => boolean;
  readonly handle: (exchange: Exchange) => void;
  close(): Promise<void>;
};

const BODY_BYTES_MAX = 4 * 1024 * 1024;
const WAITING_CALLS_MAX = 5_000;
const KEEP_ALIVE_MS = 10_000;
const REQUEST_STATE_TTL_SECONDS = 86_400;
const METHODS = "POST, GET, DELETE";

export async function createMcpFace(options: McpFaceOptions): Promise<McpFace> {
  const { log, authenticate, allowedHosts } = options;
  const waiting = new WaitingCalls(WAITING_CALLS_MAX);
  const requestState = createRequestStateCodec<Wait>({
    key: await stateKey(options),
    ttlSeconds: REQUEST_STATE_TTL_SECONDS,
    bind: (context) => `${context.mcpReq.method}\0${context.http?.authInfo?.clientId ?? ""}`,
  });
  const deps: ServerDeps = { ...options, tasks: new Tasks(options), waiting, requestState };
  const sessions = new Sessions(deps);
  const handler = (responseMode: "auto" | "sse") =>
    createMcpHandler(() => buildServer(deps, undefined), {
      legacy: "reject",
      responseMode,
      keepAliveMs: KEEP_ALIVE_MS,
      onerror: (error) => log("debug", "mcp-request-refused", { error: error.message }),
    });
  // A long call's headers have to go out at once; any other answers with the HTTP status that its error has.
  const quick = handler("auto");
  const long = handler("sse");
  showMetrics(options.metrics, { sessions, waiting });

  const answer = async (exchange: Exchange, authInfo: AuthInfo, body: Buffer | undefined): Promise<void> => {
    const gone = new AbortController();
    exchange.onGone = () => gone.abort();
    const request = requestOf(exchange, body, gone.signal);
    const { response, over } = await respond(request, authInfo, body);
    try {
      await send(exchange, response, gone.signal);
    } finally {
      over();
    }
  };

  const respond = async (request: Request, authInfo: AuthInfo, body: Buffer | undefined) => {
    const whole = (response: Response) => ({ response, over: () => undefined });
    if (request.method !== "POST") return sessions.handle(request, authInfo, undefined);
    if (!isJsonContentType(request.headers.get("content-type"))) {
      return whole(rpcError(415, -32000, "content-type: must be application/json"));
    }
    let parsed: unknown;
    try {
      parsed = JSON.parse(body?.toString("utf8") ?? "");
    } catch {
      return whole(rpcError(400, -32700, "the body is not JSON"));
    }
    if (await isLegacyRequest(request, parsed)) return sessions.handle(request, authInfo, parsed);
    const serve = isLongCall(parsed) ? long : quick;
    return whole(await serve.fetch(request, { authInfo, parsedBody: parsed }));
  };

  return {
    owns: (path) => path === "/mcp" || path.startsWith("/.well-known/"),
    handle(exchange) {
      if (exchange.path !== "/mcp") {
        // A client that finds nothing here sends its token; anything else would begin an OAuth flow.
        refuse(exchange, 404, `nothing is at ${exchange.path.slice(0, 200)}: send the token as a bearer token`);
        return;
      }
      const problem = originProblem({ host: exchange.header("host"), origin: exchange.header("origin") }, allowedHosts);
      if (problem !== undefined) {
        refuse(exchange, 403, problem);
        return;
      }
      const identity = authenticate(exchange);
      if (identity === undefined) {
        const message = "no valid token: send it as `Authorization: Bearer …`";
        refuse(exchange, 401, message, ["www-authenticate", "Bearer"]);
        return;
      }
      const authInfo: AuthInfo = { token: "", clientId: identity.principal, scopes: [] };
      const begin = (body: Buffer | undefined): void => {
        answer(exchange, authInfo, body).catch((error: unknown) => {
          log("error", "mcp-fault", { error: String(error) });
          if (!exchange.begun) refuse(exchange, 500, "an error of luftpause's own; its log has more");
          else if (!exchange.over) exchange.breakOff();
        });
      };
      if (exchange.method === "GET" || exchange.method === "DELETE") begin(undefined);
      else if (exchange.method !== "POST") refuse(exchange, 405, `/mcp takes ${METHODS}`, ["allow", METHODS]);
      else {
        exchange.readBody(BODY_BYTES_MAX, (body) => {
          if (body === "aborted") return;
          if (body === "too-large") refuse(exchange, 413, `a request has at most ${BODY_BYTES_MAX} bytes`);
          else begin(body);
        });
      }
    },
    async close() {
      await Promise.all([quick.close(), long.close(), sessions.close()]);
    },
  };
}

function isLongCall(body: unknown): boolean {
  const { method, params } = (body ?? {}) as {
    readonly method?: unknown;
    readonly params?: { readonly name?: unknown };
  };
  return method === "tools/call" && typeof params?.name === "string" && LONG_TOOLS.has(params.name);
}

function refuse(exchange: Exchange, status: number, message: string, headers: readonly string[] = []): void {
  const body = { jsonrpc: "2.0", error: { code: -32000, message }, id: null };
  answerWhole(exchange, status, headers, JSON.stringify(body));
}

async function stateKey({ store, requestStateKey }: McpFaceOptions): Promise<Uint8Array> {
  const secret = requestStateKey ?? (await store.metaOnce("request-state-key", randomBytes(32).toString("base64url")));
  return createHash("sha256").update(secret, "utf8").digest();
}

function showMetrics(
  registry: Registry,
  { sessions, waiting }: { readonly sessions: Sessions; readonly waiting: WaitingCalls },
): void {
  const gauge = (name: string, help: string, read: () => number) =>
    new Gauge({
      name: `luftpause_runtime_${name}`,
      help,
      registers: [registry],
      collect() {
        this.set(read());
      },
    });
  gauge("mcp_sessions", "MCP sessions that are open.", () => sessions.size);
  gauge("mcp_calls_waiting", "Calls of run, await and decide that wait.", () => waiting.now);
}
