/**
 * Our own HTTP/1.1 client to engines, on plain http and on https: keep-alive pool per origin, chunk frames passed on as
 * they stand, one retry where a reused connection was closed under the request (spec 3, Forwarding; measured in
 * bench/overhead).
 *
 * It does not: follow redirects, limit connections, decode content, time out an answer (a long prefill is silence, not
 * a failure: the client's patience is the only bound).
 *
 * E1: exactly one of onEnd and onFail ends a call, unless it was aborted: then nothing follows.
 * E2: a request is sent twice only where its connection was reused and no byte of an answer had come.
 */
import { createSecureContext, type SecureContext } from "node:tls";
import { invariant } from "../base/invariant.ts";
import { AnswerReader } from "./answer-reader.ts";
import type {
  EngineCall,
  EngineClient,
  EngineFailure,
  EngineHandler,
  EngineRequest,
  EngineTarget,
} from "./engine-call.ts";
import { EngineConnection, type ConnectionHost, type ConnectionUser, type Pool } from "./engine-connection.ts";
import { isHeaderName, isHeaderValue } from "./header-grammar.ts";

export type EngineClientOptions = {
  readonly connectTimeoutMs: number;
  /** A request that failed on a reused connection is sent again only this soon after it was sent. */
  readonly reusedSocketRetryMs: number;
  /** An idle connection is given up after this long: below the 5 s of common servers, so that they do not close first. */
  readonly idleMs?: number;
  /** Certificates in PEM that https endpoints are checked against, instead of those that Node trusts. */
  readonly ca?: string;
};

const IDLE_MS = 4_000;
/** Idle connections are looked through this often. */
const SWEEP_MS = 500;

/** Makes a client; its sockets and timers do not keep the process alive once it is closed. */
export function createEngineClient(options: EngineClientOptions): EngineClient {
  const pools = new Map<string, Pool>();
  const connections = new Set<EngineConnection>();
  const idleMs = options.idleMs ?? IDLE_MS;
  let retriedOnFresh = 0;
  let closed = false;
  let sweeper: NodeJS.Timeout | undefined;

  const poolOf = (target: EngineTarget): Pool => {
    const key = `${target.protocol}//${target.hostname}:${target.port}`;
    let pool = pools.get(key);
    if (pool === undefined) {
      pool = { idle: [], tlsSession: undefined };
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
        sweeper = setInterval(sweep, SWEEP_MS);
        sweeper.unref();
      }
    },
  };

  let context: SecureContext | undefined;
  const secureContext = (): SecureContext => {
    context ??= createSecureContext(options.ca === undefined ? {} : { ca: options.ca });
    return context;
  };
  const { connectTimeoutMs } = options;
  const open = (target: EngineTarget, pool: Pool): EngineConnection => {
    const connection = new EngineConnection(target, pool, { connectTimeoutMs, idleMs, secureContext }, host);
    connections.add(connection);
    return connection;
  };

  const takeIdle = (pool: Pool): EngineConnection | undefined => {
    const now = performance.now();
    for (let connection = pool.idle.pop(); connection !== undefined; connection = pool.idle.pop()) {
      if (connection.usable(now)) return connection;
      connection.drop();
    }
    return undefined;
  };

  return {
    call(target, request, handler) {
      // Before a connection is taken: a request that may not be sent leaves none behind.
      const head = requestHead(target, request);
      const pool = poolOf(target);
      const fresh = (): EngineConnection => open(target, pool);
      const call = new PooledCall(target, request, handler, {
        fresh() {
          retriedOnFresh += 1;
          return fresh();
        },
        retryMs: options.reusedSocketRetryMs,
      });
      call.send(takeIdle(pool) ?? fresh(), head);
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

type CallHost = { fresh(): EngineConnection; readonly retryMs: number };

class PooledCall implements EngineCall, ConnectionUser {
  readonly #target: EngineTarget;
  readonly #request: EngineRequest;
  readonly #handler: EngineHandler;
  readonly #host: CallHost;
  #reader: AnswerReader;
  #connection: EngineConnection | undefined;
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

  send(connection: EngineConnection, head: string): void {
    this.#connection = connection;
    this.#sentMs = performance.now();
    connection.start(this, head, this.#request.body);
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
      this.send(this.#host.fresh(), requestHead(this.#target, this.#request)); // E2
      return;
    }
    this.#over = true;
    this.#connection = undefined;
    this.#handler.onFail(failure);
  }

  abort(): void {
    if (this.#over) return;
    this.#over = true;
    this.#reader.stop(); // E1: also when this comes from inside one of its callbacks.
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

const METHOD = /^[A-Z]+$/;
const PATH = /^\/[\x21-\x7e]*$/;

/**
 * The text of a request's head. What a client sent was checked by the front that read it, and config by its schema: here
 * a line break would smuggle a request, so it is a programmer's error.
 */
function requestHead(target: EngineTarget, request: EngineRequest): string {
  const { method, path, headers, body } = request;
  invariant(METHOD.test(method) && PATH.test(path), "a request's method and path have no spaces and no controls");
  const host = target.hostname.includes(":") ? `[${target.hostname}]` : target.hostname;
  let head = `${method} ${path} HTTP/1.1\r\nhost: ${host}:${target.port}\r\n`;
  for (let at = 0; at < headers.length; at += 2) {
    const name = headers[at] ?? "";
    const value = headers[at + 1] ?? "";
    invariant(isHeaderName(name) && isHeaderValue(value), "a header that may not be sent");
    head += `${name}: ${value}\r\n`;
  }
  if (body !== undefined) head += `content-length: ${body.length}\r\n`;
  return `${head}connection: keep-alive\r\n\r\n`;
}
