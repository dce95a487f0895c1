/**
 * One connection to an engine, over plain TCP or TLS, as its pool and its calls see it. All connections read into one
 * shared buffer.
 *
 * C1: a connection serves one call at a time; it is idle again only after a whole, well-formed answer to a whole request.
 * C2: once it is dropped or has failed, nothing is called any more.
 * C3: the shared buffer is never kept beyond a callback.
 */
import { connect, isIP, type Socket } from "node:net";
import {
  connect as connectTls,
  type ConnectionOptions as ConnectionOptionsTls,
  type SecureContext,
  type TLSSocket,
} from "node:tls";
import type { EngineFailure, EngineTarget } from "./engine-call.ts";

/** Head and body travel in one write up to this size. */
const ONE_WRITE_BYTES_MAX = 32_768;
const READ_BYTES = 65_536;
/** A server's `Keep-Alive: timeout` is believed up to this. */
const KEEP_ALIVE_MAX_MS = 60_000;
/** ... and our last use of a connection lies this long before it. */
const KEEP_ALIVE_MARGIN_MS = 1_000;
/** HTTP/1.1 only, said in the handshake: a server must not choose another protocol. */
const ALPN = ["http/1.1"];

/** One buffer for every socket: what is read is looked at and copied before the next read (C3). */
const shared = Buffer.allocUnsafe(READ_BYTES);

/** The connections to one origin that wait for a call, the oldest first. */
export type Pool = {
  readonly idle: EngineConnection[];
  /** What TLS needs to open the next connection to the same server more cheaply. */
  tlsSession: Buffer | undefined;
};

export type ConnectionOptions = {
  readonly connectTimeoutMs: number;
  readonly idleMs: number;
  /** Trusted certificates, for https; made once, since making it reads all of them. */
  readonly secureContext: () => SecureContext;
};

/** What a connection tells its pool's owner. */
export type ConnectionHost = {
  gone(connection: EngineConnection): void;
  idle(connection: EngineConnection): void;
};

/** What a connection tells the call that it serves. */
export type ConnectionUser = {
  take(buffer: Buffer, bytes: number): void;
  /** The server sends nothing more; true when that is the end of the answer. */
  serverClosed(): boolean;
  failed(failure: EngineFailure, reused: boolean): void;
};

/** Documented for both kinds of sockets, missing in the types of one. */
type OnRead = { buffer: Buffer; callback: (bytes: number, buffer: Uint8Array) => boolean };

export class EngineConnection {
  readonly pool: Pool;
  idleSinceMs = 0;
  idleMs: number;
  /** It has served a call before: a failure may be the server's idle close. */
  reused = false;
  readonly #socket: Socket;
  readonly #host: ConnectionHost;
  readonly #defaultIdleMs: number;
  #user: ConnectionUser | undefined;
  #connectTimer: NodeJS.Timeout | undefined;
  #over = false;

  constructor(target: EngineTarget, pool: Pool, options: ConnectionOptions, host: ConnectionHost) {
    this.pool = pool;
    this.#host = host;
    this.#defaultIdleMs = options.idleMs;
    this.idleMs = options.idleMs;
    this.#connectTimer = setTimeout(() => {
      const seconds = options.connectTimeoutMs / 1000;
      this.#fail({ kind: "unreachable", reason: `connect timed out after ${seconds} s` });
    }, options.connectTimeoutMs);
    this.#socket = target.protocol === "https:" ? this.#openTls(target, options) : this.#openPlain(target);
    this.#socket.on("error", (error: NodeJS.ErrnoException) => {
      this.#fail({ kind: this.#connectTimer === undefined ? "lost" : "unreachable", reason: errorInWords(error) });
    });
    this.#socket.on("end", () => {
      if (this.#user?.serverClosed() !== true) this.#fail({ kind: "lost", reason: "connection closed" });
    });
    this.#socket.on("close", () => this.#fail({ kind: "lost", reason: "connection closed" }));
  }

  #openPlain(target: EngineTarget): Socket {
    const socket = connect({ host: target.hostname, port: target.port, noDelay: true, onread: this.#onread() });
    socket.once("connect", () => this.#connected());
    return socket;
  }

  #openTls(target: EngineTarget, options: ConnectionOptions): TLSSocket {
    const { hostname: host, port } = target;
    const { pool } = this;
    const wanted: ConnectionOptionsTls & { readonly onread: OnRead } = {
      host,
      port,
      // A name is sent and checked; of an address only the certificate is checked.
      ...(isIP(host) === 0 ? { servername: host } : {}),
      secureContext: options.secureContext(),
      ALPNProtocols: ALPN,
      onread: this.#onread(),
      ...(pool.tlsSession === undefined ? {} : { session: pool.tlsSession }),
    };
    const socket = connectTls(wanted);
    socket.setNoDelay(true);
    socket.once("secureConnect", () => this.#connected());
    socket.on("session", (session: Buffer) => {
      pool.tlsSession = session;
    });
    return socket;
  }

  #onread(): OnRead {
    return {
      buffer: shared,
      callback: (bytes, buffer) => {
        const user = this.#user;
        // Bytes that nobody asked for: this connection cannot be trusted with another request.
        if (user === undefined) this.drop();
        else user.take(buffer as Buffer, bytes);
        return true;
      },
    };
  }

  #connected(): void {
    clearTimeout(this.#connectTimer);
    this.#connectTimer = undefined;
  }

  usable(nowMs: number): boolean {
    return !this.#over && !this.#socket.destroyed && nowMs - this.idleSinceMs < this.idleMs;
  }

  start(user: ConnectionUser, head: string, body: Uint8Array | undefined): void {
    this.#user = user;
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

  /** The answer was whole: the connection may serve another call, unless the request is not (C1). */
  release(keepAliveMs: number | undefined): void {
    this.#user = undefined;
    // An early answer: the server may never read the rest, and the next request would wait behind it.
    if (this.#socket.writableLength > 0) {
      this.drop();
      return;
    }
    this.reused = true;
    this.idleMs =
      keepAliveMs === undefined
        ? this.#defaultIdleMs
        : Math.min(KEEP_ALIVE_MAX_MS, Math.max(0, keepAliveMs - KEEP_ALIVE_MARGIN_MS));
    this.idleSinceMs = performance.now();
    if (this.#socket.isPaused()) this.#socket.resume();
    this.#host.idle(this);
  }

  /** Ends the connection without telling its call. */
  drop(): void {
    if (this.#over) return;
    this.#over = true;
    this.#user = undefined;
    clearTimeout(this.#connectTimer);
    this.#host.gone(this);
    this.#socket.destroy();
  }

  #fail(failure: EngineFailure): void {
    if (this.#over) return; // C2
    const user = this.#user;
    this.drop();
    user?.failed(failure, this.reused);
  }
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
  EMFILE: "this process has no file descriptor left",
  EADDRNOTAVAIL: "this machine has no port left for the connection",
  EPROTO: "TLS handshake failed: is this an https server?",
};

/** Short words for an error of the system; never its message, which can hold addresses of this machine. */
function errorInWords(error: NodeJS.ErrnoException): string {
  const { code } = error;
  if (code === undefined) return "connection failed";
  if (/CERT|SIGNATURE/.test(code)) return `its certificate is not accepted (${code})`;
  if (code.startsWith("ERR_SSL_")) return `TLS handshake failed (${code})`;
  return WORDS[code] ?? `connection failed (${code})`;
}
