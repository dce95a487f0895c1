/** The simulated tools over Streamable HTTP at /mcp, in both eras: sessions, and requests without one. */
import { randomUUID } from "node:crypto";
import http from "node:http";
import type { AddressInfo } from "node:net";
import { NodeStreamableHTTPServerTransport, toNodeHandler, toWebRequest } from "@modelcontextprotocol/node";
import { createMcpHandler, isInitializeRequest, isLegacyRequest } from "@modelcontextprotocol/server";
import { strikes } from "./faults.ts";
import type { FakeToolsHost } from "./server.ts";

export type FakeToolsServer = { readonly url: string; close(): Promise<void> };

/** A request of an HTTP server always has these; the SDK's adapter asks for them. */
type Incoming = http.IncomingMessage & { method: string; url: string };

const BODY_BYTES_MAX = 4 * 1024 * 1024;
const SESSIONS_MAX = 1_000;

export async function serveToolsOverHttp(host: FakeToolsHost): Promise<FakeToolsServer> {
  const { era, host: name, port: wanted } = host.options;
  const sessions = new Sessions(host);
  const handler = createMcpHandler(() => host.build("modern"), { legacy: "reject", responseMode: "sse" });
  const modern = toNodeHandler(handler);

  const serve = async (request: Incoming, response: http.ServerResponse): Promise<void> => {
    await host.awake;
    const body = request.method === "POST" ? await jsonOf(request) : undefined;
    const called = toolOf(body);
    if (called !== undefined && strikes(host.options.faults, "wrong-id", called)) shiftIds(response);
    const isOld = request.method !== "POST" || (await isLegacyRequest(await toWebRequest(request, body)));
    if (isOld && era === "sessionless") refuse(response, 400, "sessions of the old eras are not served");
    else if (!isOld && era === "sessions") refuse(response, 400, "only sessions of the old eras are served");
    else if (isOld) await sessions.serve(request, response, body);
    else await modern(request, response, body);
  };

  const server = http.createServer((request, response) => {
    if (new URL(request.url ?? "/", "http://localhost").pathname !== "/mcp") {
      response.writeHead(404).end("the simulated tools are at /mcp\n");
      return;
    }
    serve(request as Incoming, response).catch((error: unknown) => {
      if (!response.headersSent) response.writeHead(400);
      response.end(`${String(error)}\n`);
    });
  });
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    server.listen(wanted, name, resolve);
  });
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://${name}:${port}/mcp`,
    async close() {
      await handler.close();
      await sessions.close();
      server.closeAllConnections();
      await new Promise((resolve) => {
        server.close(resolve);
      });
    },
  };
}

class Sessions {
  readonly #host: FakeToolsHost;
  readonly #byId = new Map<string, NodeStreamableHTTPServerTransport>();

  constructor(host: FakeToolsHost) {
    this.#host = host;
  }

  async serve(request: Incoming, response: http.ServerResponse, body: unknown): Promise<void> {
    const id = request.headers["mcp-session-id"];
    if (isInitializeRequest(body)) {
      const transport = await this.#begin();
      await transport.handleRequest(request, response, body);
      return;
    }
    const session = typeof id === "string" ? this.#byId.get(id) : undefined;
    if (session === undefined) refuse(response, typeof id === "string" ? 404 : 400, "Session not found");
    else await session.handleRequest(request, response, body);
  }

  async #begin(): Promise<NodeStreamableHTTPServerTransport> {
    const transport = new NodeStreamableHTTPServerTransport({
      sessionIdGenerator: () => randomUUID(),
      onsessioninitialized: (id) => {
        this.#byId.set(id, transport);
        const [oldest] = this.#byId.keys();
        if (this.#byId.size > SESSIONS_MAX && oldest !== undefined) this.#byId.delete(oldest);
      },
    });
    transport.onclose = () => this.#byId.delete(transport.sessionId ?? "");
    await this.#host.build("legacy").connect(transport);
    return transport;
  }

  async close(): Promise<void> {
    await Promise.all([...this.#byId.values()].map((session) => session.close()));
  }
}

function refuse(response: http.ServerResponse, status: number, message: string): void {
  const error = { code: status === 404 ? -32_001 : -32_000, message };
  response.writeHead(status, { "content-type": "application/json" });
  response.end(JSON.stringify({ jsonrpc: "2.0", error, id: null }));
}

async function jsonOf(request: http.IncomingMessage): Promise<unknown> {
  const parts: Buffer[] = [];
  let bytes = 0;
  for await (const part of request as AsyncIterable<Buffer>) {
    bytes += part.length;
    if (bytes > BODY_BYTES_MAX) throw new Error(`a request has at most ${BODY_BYTES_MAX} bytes`);
    parts.push(part);
  }
  return JSON.parse(Buffer.concat(parts).toString("utf8"));
}

function toolOf(body: unknown): string | undefined {
  const { method, params } = (body ?? {}) as {
    readonly method?: unknown;
    readonly params?: { readonly name?: unknown };
  };
  return method === "tools/call" && typeof params?.name === "string" ? params.name : undefined;
}

/** The fault `wrong-id`: the answer carries the id of a call that was never made. */
function shiftIds(response: http.ServerResponse): void {
  const write = response.write.bind(response) as (chunk: unknown, ...rest: unknown[]) => boolean;
  const end = response.end.bind(response) as (chunk?: unknown, ...rest: unknown[]) => http.ServerResponse;
  response.write = ((chunk: unknown, ...rest: unknown[]) => write(shifted(chunk), ...rest)) as typeof response.write;
  response.end = ((chunk?: unknown, ...rest: unknown[]) => end(shifted(chunk), ...rest)) as typeof response.end;
}

function shifted(chunk: unknown): unknown {
  if (typeof chunk !== "string" && !(chunk instanceof Uint8Array)) return chunk;
  const words = typeof chunk === "string" ? chunk : Buffer.from(chunk).toString("utf8");
  return words.replace(/"id":(\d+)/, (_, id: string) => `"id":${Number(id) + 1000}`);
}
