/**
 * Sessions of clients that speak 2025-03-26 … 2025-11-25. Nothing hangs on one: runs belong to the principal, so a client
 * whose session is gone (a restart, idle for long) starts a new one and finds everything again.
 */
import { randomUUID } from "node:crypto";
import {
  isInitializeRequest,
  WebStandardStreamableHTTPServerTransport,
  type AuthInfo,
  type Server,
} from "@modelcontextprotocol/server";
import type { Clock } from "../../base/clock.ts";
import { rpcError } from "./rpc-error.ts";
import { buildServer, type ServerDeps } from "./server.ts";

type Session = {
  readonly transport: WebStandardStreamableHTTPServerTransport;
  readonly server: Server;
  readonly principal: string;
  /** Requests whose answers are not over, its GET stream among them. */
  open: number;
  usedAtMs: number;
};

/** Idle for longer, a session is ended: some clients never begin a new one, so it is long. */
const IDLE_MS = 24 * 3_600_000;
const SWEEP_EVERY_MS = 60_000;
const SESSIONS_MAX = 5_000;
const KEEP_ALIVE_MS = 10_000;

export class Sessions {
  readonly #deps: ServerDeps;
  readonly #clock: Clock;
  /** The longest unused one first. */
  readonly #byId = new Map<string, Session>();
  #stopSweep: () => void = () => undefined;

  constructor(deps: ServerDeps) {
    this.#deps = deps;
    this.#clock = deps.clock;
    this.#armSweep();
  }

  get size(): number {
    return this.#byId.size;
  }

  /**
   * @param body parsed; undefined for GET and DELETE.
   * @returns the answer, and what to call when it is over.
   */
  async handle(request: Request, authInfo: AuthInfo, body: unknown): Promise<{ response: Response; over: () => void }> {
    const nothing = (): void => undefined;
    const id = request.headers.get("mcp-session-id");
    // One that begins anew may still send the id of the session that it has lost.
    if (isInitializeRequest(body)) return { response: await this.#begin(request, authInfo, body), over: nothing };
    const session = id === null ? undefined : this.#byId.get(id);
    if (id === null || session === undefined || session.principal !== authInfo.clientId) {
      return { response: refusalOf(request, id), over: nothing };
    }
    this.#touch(id, session);
    // A client whose stream was cut comes back before its end is seen here.
    if (request.method === "GET") session.transport.closeStandaloneSSEStream();
    session.open += 1;
    const over = (): void => {
      session.open -= 1;
      session.usedAtMs = this.#clock.nowMs();
    };
    try {
      return { response: await session.transport.handleRequest(request, { authInfo, parsedBody: body }), over };
    } catch (error) {
      over();
      throw error;
    }
  }

  async close(): Promise<void> {
    this.#stopSweep();
    await Promise.all([...this.#byId.values()].map(({ server }) => server.close()));
    this.#byId.clear();
  }

  async #begin(request: Request, authInfo: AuthInfo, body: unknown): Promise<Response> {
    if (!this.#makeRoom()) {
      return rpcError(503, -32000, `${SESSIONS_MAX} sessions are in use: try again later`, { "retry-after": "5" });
    }
    const transport = new WebStandardStreamableHTTPServerTransport({
      sessionIdGenerator: () => randomUUID(),
      keepAliveMs: KEEP_ALIVE_MS,
      onsessioninitialized: (id) => {
        const usedAtMs = this.#clock.nowMs();
        this.#byId.set(id, { transport, server, principal: authInfo.clientId, open: 0, usedAtMs });
      },
    });
    const server: Server = buildServer(this.#deps, () => ({
      name: server.getClientVersion()?.name,
      capabilities: server.getClientCapabilities(),
      endStream: (requestId) => transport.closeSSEStream(requestId),
    }));
    await server.connect(transport);
    const onClose = transport.onclose;
    transport.onclose = () => {
      if (transport.sessionId !== undefined) this.#byId.delete(transport.sessionId);
      onClose?.();
    };
    return transport.handleRequest(request, { authInfo, parsedBody: body });
  }

  #touch(id: string, session: Session): void {
    session.usedAtMs = this.#clock.nowMs();
    this.#byId.delete(id);
    this.#byId.set(id, session);
  }

  /** Ends the longest unused session without an open stream where all places are taken. */
  #makeRoom(): boolean {
    if (this.#byId.size < SESSIONS_MAX) return true;
    for (const [id, session] of this.#byId) {
      if (session.open > 0) continue;
      this.#end(id, session);
      return true;
    }
    return false;
  }

  #armSweep(): void {
    this.#stopSweep = this.#clock.after(SWEEP_EVERY_MS, () => {
      const before = this.#clock.nowMs() - IDLE_MS;
      for (const [id, session] of this.#byId) {
        if (session.usedAtMs < before && session.open === 0) this.#end(id, session);
      }
      this.#armSweep();
    });
  }

  #end(id: string, { server }: Session): void {
    this.#byId.delete(id);
    server.close().catch(() => undefined);
  }
}

function refusalOf(request: Request, id: string | null): Response {
  // 404 is what makes a client begin a new session.
  if (id !== null) return rpcError(404, -32001, "session not found: begin a new one; your runs are kept, see status");
  if (request.method === "POST") return rpcError(400, -32000, "no mcp-session-id header, and no initialize request");
  return rpcError(405, -32000, `${request.method} needs a session`, { allow: "POST" });
}
