/**
 * Our own HTTP/1.1 client to engines on plain http: keep-alive pool per origin, one shared read buffer for all sockets,
 * chunk frames passed on as they stand (spec 3, Forwarding; measured in bench/overhead).
 *
 * E1: a connection serves one call at a time and returns to the pool only after a whole, well-formed answer.
 * E2: exactly one of onEnd and onFail ends a call, unless it was aborted: then nothing follows.
 * E3: the shared buffer is never kept beyond a callback.
 */
import { connect, type Socket } from "node:net";
import { AnswerReader } from "./answer-reader.ts";
import type {
  EngineCall,
  EngineClient,
  EngineFailure,
  EngineHandler,
  EngineRequest,
  EngineTarget,
} from "./engine-call.ts";

export type EngineClientOptions = {
  readonly connectTimeoutMs: number;
  readonly reusedSocketRetryMs: number;
  /** An idle connection is given up after this long: below the 5 s of common servers, so that they do not close first. */
  readonly idleMs?: number;
};

const IDLE_MS = 4_000;
/** Head and body travel in one write up to this size. */
const ONE_WRITE_BYTES_MAX = 32_768;
const READ_BYTES = 65_536;

/** One buffer for every socket: what is read is looked at and copied before the next read (E3). */
const shared = Buffer.allocUnsafe(READ_BYTES);

type Pool = { readonly key: string; readonly idle: Connection[] };

export function createPlainClient(options: EngineClientOptions): EngineClient {
  const pools = new Map<string, Pool>();
  const connections = new Set<Connection>();
  const idleMs = options.idleMs ?? IDLE_MS;
  let retriedOnFresh = 0;
  let closed = false;
  let sweeper: NodeJS.Timeout | undefined;

  const poolOf = (target: EngineTarget): Pool => {
    const key = `${target.hostname}:${target.port}`;
    let pool = pools.get(key);
    if (pool === undefined) {
      pool = { key, idle: [] };
      pools.set(key, pool);
    }
    return pool;
  };

  // The oldest stand first: newest are reused first, so that a burst's connections can go.
  const sweep = (): void => {
    const now = performance.now();
    let left = 0;
    for (const pool of pools.values()) {
      while (pool.idle[0] !== undefined && now - pool.idle[0].idleSinceMs >= pool.idle[0].idleMs) pool.idle[0].drop();
      left += pool.idle.length;
    }
    if (left === 0 && sweeper !== undefined) {
      clearInterval(sweeper);
      sweeper = undefined;
    }
  };

  const host: ConnectionHost = {
    opened: (connection) => connections.add(connection),
    gone(connection) {
      connections.delete(connection);
      const at = connection.pool.idle.indexOf(connection);
      if (at !== -1) connection.pool.idle.splice(at, 1);
    },
    idle(connection) {
      if (closed) {
        connection.drop();
        return;
      }
      connection.pool.idle.push(connection);
      if (sweeper === undefined) {
        sweeper = setInterval(sweep, 500);
        sweeper.unref();
      }
    },
  };

  const takeIdle = (pool: Pool): Connection | undefined => {
    const now = performance.now();
    for (let connection = pool.idle.pop(); connection !== undefined; connection = pool.idle.pop()) {
      if (connection.usable(now)) return connection;
      connection.drop();
    }
    return undefined;
  };

  return {
    call(target, request, handler) {
      const pool = poolOf(target);
      const fresh = (): Connection => new Connection(target, pool, { ...options, idleMs }, host);
      const call = new PlainCall(target, request, handler, {
        fresh() {
          retriedOnFresh += 1;
          return fresh();
        },
        retryMs: options.reusedSocketRetryMs,
      });
      call.send(takeIdle(pool) ?? fresh());
      return call;
    },
    stats() {
      let idle = 0;
      for (const pool of pools.values()) idle += pool.idle.length;
      return { open: connections.size, idle, retriedOnFresh };
    },
    close() {
      closed = true;
      if (sweeper !== undefined) clearInterval(sweeper);
      for (const pool of pools.values()) while (pool.idle[0] !== undefined) pool.idle[0].drop();
    },
  };
}

type ConnectionHost = {
  opened(connection: Connection): void;
  gone(connection: Connection): void;
  idle(connection: Connection): void;
};

class Connection {
  readonly pool: Pool;
  idleSinceMs = 0;
  idleMs: number;
  /** It has served a call before: a failure may be the server's idle close. */
  reused = false;
  readonly #socket: Socket;
  readonly #host: ConnectionHost;
  readonly #defaultIdleMs: number;
  #call: PlainCall | undefined;
  #connectTimer: NodeJS.Timeout | undefined;
  #over = false;

  constructor(
    target: EngineTarget,
    pool: Pool,
    options: { readonly connectTimeoutMs: number; readonly idleMs: number },
    host: ConnectionHost,
  ) {
    this.pool = pool;
    this.#host = host;
    this.#defaultIdleMs = options.idleMs;
    this.idleMs = options.idleMs;
    this.#socket = connect({
      host: target.hostname,
      port: target.port,
      noDelay: true,
      onread: { buffer: shared, callback: (bytes, buffer) => this.#onRead(bytes, buffer as Buffer) },
    });
    this.#connectTimer = setTimeout(() => {
      const seconds = options.connectTimeoutMs / 1000;
      this.#fail({ kind: "unreachable", reason: `connect timed out after ${seconds} s` });
    }, options.connectTimeoutMs);
    this.#socket.on("connect", () => this.#connected());
    this.#socket.on("error", (error: NodeJS.ErrnoException) => {
      this.#fail({ kind: this.#connectTimer === undefined ? "lost" : "unreachable", reason: errorInWords(error) });
    });
    this.#socket.on("end", () => this.#ended());
    this.#socket.on("close", () => this.#fail({ kind: "lost", reason: "connection closed" }));
    host.opened(this);
  }

  usable(nowMs: number): boolean {
    return !this.#over && !this.#socket.destroyed && nowMs - this.idleSinceMs < this.idleMs;
  }

  start(call: PlainCall, head: string, body: Uint8Array | undefined): void {
    this.#call = call;
    const socket = this.#socket;
    if (body === undefined || body.length === 0) {
      socket.write(head, "latin1");
    } else if (head.length + body.length <= ONE_WRITE_BYTES_MAX) {
      const bytes = Buffer.allocUnsafe(head.length + body.length);
      bytes.write(head, 0, "latin1");
      bytes.set(body, head.length);
      socket.write(bytes);
    } else {
      socket.cork();
      socket.write(head, "latin1");
      socket.write(body);
      socket.uncork();
    }
  }

  pause(): void {
    this.#socket.pause();
  }

  resume(): void {
    this.#socket.resume();
  }

  /** The answer was whole and the connection may serve another call (E1). */
  release(keepAliveMs: number | undefined): void {
    this.#call = undefined;
    this.reused = true;
    // A server that says how long it keeps the connection closes a little later than our last use of it.
    this.idleMs = keepAliveMs === undefined ? this.#defaultIdleMs : Math.min(60_000, Math.max(0, keepAliveMs - 1_000));
    this.idleSinceMs = performance.now();
    if (this.#socket.isPaused()) this.#socket.resume();
    this.#host.idle(this);
  }

  /** Ends the connection without telling anybody. */
  drop(): void {
    if (this.#over) return;
    this.#over = true;
    this.#call = undefined;
    clearTimeout(this.#connectTimer);
    this.#host.gone(this);
    this.#socket.destroy();
  }

  #connected(): void {
    clearTimeout(this.#connectTimer);
    this.#connectTimer = undefined;
  }

  #onRead(bytes: number, buffer: Buffer): boolean {
    const call = this.#call;
    // Bytes that nobody asked for: this connection cannot be trusted with another request.
    if (call === undefined) this.drop();
    else call.take(buffer, bytes);
    return true;
  }

  #ended(): void {
    if (this.#call?.serverClosed() === true) return;
    this.#fail({ kind: "lost", reason: "connection closed" });
  }

  #fail(failure: EngineFailure): void {
    if (this.#over) return;
    const call = this.#call;
    this.drop();
    call?.failed(failure, this.reused);
  }
}

type CallHost = { fresh(): Connection; readonly retryMs: number };

class PlainCall implements EngineCall {
  readonly #target: EngineTarget;
  readonly #request: EngineRequest;
  readonly #handler: EngineHandler;
  readonly #host: CallHost;
  #reader: AnswerReader;
  #connection: Connection | undefined;
  #sentMs = 0;
  #retried = false;
  #over = false;

  constructor(target: EngineTarget, request: EngineRequest, handler: EngineHandler, host: CallHost) {
    this.#target = target;
    this.#request = request;
    this.#handler = handler;
    this.#host = host;
    this.#reader = new AnswerReader(handler, request.method);
  }

  get betweenFrames(): boolean {
    return this.#reader.betweenFrames;
  }

  send(connection: Connection): void {
    this.#connection = connection;
    this.#sentMs = performance.now();
    connection.start(this, requestHead(this.#target, this.#request), this.#request.body);
  }

  take(buffer: Buffer, bytes: number): void {
    const outcome = this.#reader.push(buffer, bytes);
    if (this.#over) return;
    if (outcome === "more") return;
    const connection = this.#connection;
    this.#over = true;
    this.#connection = undefined;
    if (typeof outcome === "object") {
      connection?.drop();
      this.#handler.onFail({ kind: "lost", reason: outcome.malformed });
      return;
    }
    if (outcome === "whole-reusable") connection?.release(this.#reader.keepAliveMs);
    else connection?.drop();
    this.#handler.onEnd();
  }

  /** The server has closed: the end of a body that is delimited so, else a loss. */
  serverClosed(): boolean {
    if (this.#over || !this.#reader.closeEnds) return false;
    const connection = this.#connection;
    this.#over = true;
    this.#connection = undefined;
    connection?.drop();
    this.#handler.onEnd();
    return true;
  }

  failed(failure: EngineFailure, reused: boolean): void {
    if (this.#over) return;
    const soon = performance.now() - this.#sentMs <= this.#host.retryMs;
    if (reused && soon && !this.#retried && !this.#reader.began) {
      this.#retried = true;
      this.#reader = new AnswerReader(this.#handler, this.#request.method);
      this.send(this.#host.fresh());
      return;
    }
    this.#over = true;
    this.#connection = undefined;
    this.#handler.onFail(failure);
  }

  abort(): void {
    if (this.#over) return;
    this.#over = true;
    this.#connection?.drop();
    this.#connection = undefined;
  }

  pause(): void {
    this.#connection?.pause();
  }

  resume(): void {
    this.#connection?.resume();
  }
}

/** The text of a request's head. Values were checked where they came in; a line break here would be smuggling. */
function requestHead(target: EngineTarget, request: EngineRequest): string {
  const host = target.hostname.includes(":") ? `[${target.hostname}]` : target.hostname;
  let head = `${request.method} ${request.path} HTTP/1.1\r\nhost: ${host}:${target.port}\r\n`;
  const { headers, body } = request;
  for (let at = 0; at < headers.length; at += 2) head += `${headers[at]}: ${headers[at + 1]}\r\n`;
  if (body !== undefined) head += `content-length: ${body.length}\r\n`;
  return `${head}connection: keep-alive\r\n\r\n`;
}

const WORDS: { readonly [code: string]: string } = {
  ECONNREFUSED: "connection refused",
  ECONNRESET: "connection reset",
  EPIPE: "connection closed",
  EHOSTUNREACH: "no route to host",
  ENETUNREACH: "network unreachable",
  ENOTFOUND: "host name not found",
  EAI_AGAIN: "host name could not be resolved",
  ETIMEDOUT: "connection timed out",
};

/** Short words for an error of the system; never its message, which can hold addresses of this machine. */
export function errorInWords(error: NodeJS.ErrnoException): string {
  const { code } = error;
  if (code === undefined) return "connection failed";
  return WORDS[code] ?? `connection failed (${code})`;
}
