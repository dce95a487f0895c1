/**
 * The server side: one TCP listener; the fast lane takes each connection first and hands what it does not understand to
 * node:http on the same socket. Handlers see an Exchange either way.
 */
import { createServer as createHttpServer, type IncomingMessage, type ServerResponse } from "node:http";
import { createServer, type AddressInfo, type Socket } from "node:net";
import type { Exchange } from "./exchange.ts";
import { LaneConnection, type LaneOptions } from "./lane.ts";
import { nodeExchange } from "./node-exchange.ts";
import { HEAD_BYTES_MAX } from "./request-head.ts";

export type FrontOptions = {
  readonly handler: (exchange: Exchange) => void;
  /** Everything by node:http: for tests that compare the two, and as a way out. */
  readonly lane?: boolean;
  /** Connections at once; further ones are closed at once. */
  readonly connectionsMax?: number;
  readonly idleMs?: number;
  readonly headMs?: number;
  readonly bodyMs?: number;
  readonly stallMs?: number;
};

export type Front = {
  /** @returns the address in use: with port 0 the one that was chosen. Rejects with the system's error. */
  listen(host: string, port: number): Promise<{ readonly host: string; readonly port: number }>;
  /** Takes no new connections and closes idle ones; running answers go on and their connections close after them. */
  stopListening(): void;
  /** Closes everything at once. */
  close(): Promise<void>;
  /**
   * Connections that are open; since the start: those that went to node:http, those that were refused because of
   * `connectionsMax`, and those that the system could not accept (out of file descriptors).
   */
  stats(): {
    readonly connections: number;
    readonly handedOver: number;
    readonly refused: number;
    readonly acceptErrors: number;
  };
};

/** Longer than the idle time-out of usual load balancers (60 s), so that they close first and never race a request. */
const IDLE_MS = 65_000;
const HEAD_MS = 60_000;
const BODY_MS = 300_000;
const STALL_MS = 300_000;
const CONNECTIONS_MAX = 65_536;

export function createFront(options: FrontOptions): Front {
  const connections = new Map<Socket, LaneConnection | undefined>();
  let handedOver = 0;
  let refused = 0;
  let acceptErrors = 0;
  let stopping = false;
  const stallMs = options.stallMs ?? STALL_MS;

  const http = createHttpServer({
    keepAliveTimeout: options.idleMs ?? IDLE_MS,
    // Node refuses a head that may take longer than the whole request.
    headersTimeout: Math.min(options.headMs ?? HEAD_MS, options.bodyMs ?? BODY_MS),
    requestTimeout: options.bodyMs ?? BODY_MS,
    maxHeaderSize: HEAD_BYTES_MAX,
    // Not left to the environment (NODE_OPTIONS=--insecure-http-parser): leniency here is request smuggling.
    insecureHTTPParser: false,
    requireHostHeader: true,
    noDelay: true,
  });
  const take = (request: IncomingMessage, response: ServerResponse, expectsContinue: boolean): void => {
    if (stopping) response.shouldKeepAlive = false;
    // An answer that began before `stopListening` promised to keep its connection: it is idle a moment after its end.
    response.once("finish", () => {
      if (stopping) setImmediate(() => http.closeIdleConnections());
    });
    options.handler(nodeExchange(request, response, { stallMs, expectsContinue }));
  };
  http.on("request", (request, response) => take(request, response, false));
  http.on("checkContinue", (request, response) => take(request, response, true));
  // The server listens to nothing itself, but its time-outs for slow heads and bodies begin with this event.
  http.emit("listening");

  const laneOptions: LaneOptions = {
    onExchange: options.handler,
    handOver(socket, bytes) {
      handedOver += 1;
      connections.set(socket, undefined);
      // The bytes are back in the stream before node:http attaches its reader.
      if (bytes.length > 0) socket.unshift(bytes);
      http.emit("connection", socket);
    },
    idleMs: options.idleMs ?? IDLE_MS,
    headMs: options.headMs ?? HEAD_MS,
    bodyMs: options.bodyMs ?? BODY_MS,
    stallMs,
  };

  const server = createServer({ noDelay: true }, (socket) => {
    connections.set(socket, undefined);
    socket.once("close", () => connections.delete(socket));
    if (options.lane === false) http.emit("connection", socket);
    else connections.set(socket, new LaneConnection(socket, laneOptions));
  });
  server.maxConnections = options.connectionsMax ?? CONNECTIONS_MAX;
  server.on("drop", () => {
    refused += 1;
  });

  return {
    listen(host, port) {
      return new Promise((resolve, reject) => {
        server.once("error", reject);
        server.listen({ host, port, backlog: 1024 }, () => {
          server.off("error", reject);
          // From here on an error is one of accepting a connection: it must not end the process.
          server.on("error", () => {
            acceptErrors += 1;
          });
          const address = server.address() as AddressInfo;
          resolve({ host: address.address, port: address.port });
        });
      });
    },
    stopListening() {
      stopping = true;
      server.close();
      http.closeIdleConnections();
      for (const lane of connections.values()) lane?.closeWhenIdle();
    },
    close() {
      return new Promise((resolve) => {
        stopping = true;
        server.close(() => resolve());
        http.close();
        for (const socket of connections.keys()) socket.destroy();
      });
    },
    stats: () => ({ connections: connections.size, handedOver, refused, acceptErrors }),
  };
}
