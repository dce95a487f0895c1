/**
 * The fast lane: HTTP/1.1 straight on the socket for requests of the plain grammar (request-head.ts). One connection
 * serves one request after the other; what it does not understand it hands over to node:http, socket and bytes.
 *
 * It does not: pipeline answers (further bytes wait), decode chunked requests, answer HEAD or HTTP/1.0.
 *
 * L1: a connection has at most one exchange; the next request is parsed only when the answer before it has ended.
 * L2: `onGone` is called at most once, and never after the answer was ended or broken off.
 * L3: after a hand-over nothing here touches the socket again.
 */
import type { Socket } from "node:net";
import { invariant } from "../base/invariant.ts";
import { answerHead } from "./answer-head.ts";
import type { AnswerFraming, Exchange } from "./exchange.ts";
import { HEAD_BYTES_MAX, headerCount, headerValue, parseRequestHead, type RequestHead } from "./request-head.ts";

export type LaneOptions = {
  readonly onExchange: (exchange: Exchange) => void;
  /** Takes a connection that needs node:http, with the bytes that were read already. */
  readonly handOver: (socket: Socket, bytes: Buffer) => void;
  /** A connection without a request is closed after this long. */
  readonly idleMs: number;
  /** A request's head must be whole this soon after its first byte, its body after `bodyMs`. */
  readonly headMs: number;
  readonly bodyMs: number;
  /** A client that takes nothing for this long while bytes wait for it is cut off. */
  readonly stallMs: number;
};

/** Bytes of following requests that are kept while an answer runs; beyond it reading stops. */
const AHEAD_BYTES_MAX = 65_536;
const BLANK_LINE = Buffer.from("\r\n\r\n", "latin1");
const LAST_CHUNK = Buffer.from("0\r\n\r\n", "latin1");
const EMPTY = Buffer.alloc(0);

/** Serves one connection until it is closed or handed over. */
export class LaneConnection {
  readonly socket: Socket;
  readonly #options: LaneOptions;
  #exchange: LaneExchange | undefined;
  /** Bytes that were read and belong to no finished request. */
  #bytes: Buffer = EMPTY;
  #handed = false;
  #pausedAhead = false;
  #closing = false;
  #headSinceMs = 0;

  constructor(socket: Socket, options: LaneOptions) {
    this.socket = socket;
    this.#options = options;
    socket.setNoDelay(true);
    socket.setTimeout(options.headMs);
    socket.on("data", this.#onData);
    socket.on("end", this.#onLeft);
    socket.on("close", this.#onLeft);
    // A second error after the first must not crash the process: the listener stays.
    socket.on("error", this.#onLeft);
    socket.on("timeout", this.#onTimeout);
    socket.on("drain", this.#onDrain);
  }

  /** Closes now when no request runs, else after the running answer. */
  closeWhenIdle(): void {
    if (this.#handed) return;
    if (this.#exchange === undefined) this.socket.end();
    else this.#closing = true;
  }

  readonly #onData = (bytes: Buffer): void => {
    const exchange = this.#exchange;
    if (exchange !== undefined && exchange.takesBody) {
      const rest = exchange.takeBody(bytes);
      if (rest === undefined) return;
      this.#bytes = rest;
      return;
    }
    this.#bytes = this.#bytes.length === 0 ? bytes : Buffer.concat([this.#bytes, bytes]);
    if (exchange === undefined) {
      this.#next();
    } else if (this.#bytes.length > AHEAD_BYTES_MAX && !this.#pausedAhead) {
      this.#pausedAhead = true;
      this.socket.pause();
    }
  };

  /** Parses the next request of what was read. */
  #next(): void {
    const bytes = this.#bytes;
    if (bytes.length === 0 || this.#handed) return;
    const end = bytes.indexOf(BLANK_LINE);
    if (end === -1) {
      // A request line that can never be ours goes to node:http at once, which knows how to refuse it.
      if (bytes.length > HEAD_BYTES_MAX || !mayBecomeRequest(bytes) || hasBareLineFeed(bytes)) {
        this.#handOver();
        return;
      }
      if (this.#headSinceMs === 0) this.#headSinceMs = performance.now();
      else if (performance.now() - this.#headSinceMs > this.#options.headMs) this.socket.destroy();
      return;
    }
    this.#headSinceMs = 0;
    const head = end > HEAD_BYTES_MAX ? undefined : parseRequestHead(bytes.toString("latin1", 0, end));
    if (head === undefined) {
      this.#handOver();
      return;
    }
    this.socket.setTimeout(0);
    const body = bytes.subarray(end + 4);
    this.#bytes = EMPTY;
    const exchange = new LaneExchange(this, head, this.#options);
    this.#exchange = exchange;
    this.#bytes = exchange.takeBody(body) ?? EMPTY;
    this.#options.onExchange(exchange);
  }

  #handOver(): void {
    this.#handed = true;
    const { socket } = this;
    socket.off("data", this.#onData);
    socket.off("end", this.#onLeft);
    socket.off("close", this.#onLeft);
    socket.off("timeout", this.#onTimeout);
    socket.off("drain", this.#onDrain);
    socket.setTimeout(0);
    const bytes = this.#bytes;
    this.#bytes = EMPTY;
    this.#options.handOver(socket, bytes);
    socket.off("error", this.#onLeft);
  }

  /** The answer has ended: serves the next request, or closes. */
  finished(exchange: LaneExchange, close: boolean): void {
    invariant(this.#exchange === exchange, "L1: only the running exchange can end");
    this.#exchange = undefined;
    if (close || this.#closing) {
      this.socket.end();
      // The client has its answer; what it still sends is not read, and it does not keep the socket for ever.
      this.socket.setTimeout(this.#options.headMs);
      return;
    }
    if (this.#pausedAhead) {
      this.#pausedAhead = false;
      this.socket.resume();
    }
    this.socket.setTimeout(this.#options.idleMs);
    if (this.#bytes.length > 0) this.#next();
  }

  /** The answer was broken off: nothing follows on this connection. */
  abandoned(): void {
    this.#exchange = undefined;
    this.#handed = true;
  }

  readonly #onLeft = (): void => {
    const exchange = this.#exchange;
    this.#exchange = undefined;
    this.socket.destroy();
    exchange?.left();
  };

  readonly #onTimeout = (): void => {
    this.#onLeft();
  };

  readonly #onDrain = (): void => {
    const exchange = this.#exchange;
    if (exchange === undefined) return;
    this.socket.setTimeout(0);
    exchange.onDrain?.();
  };
}

/** Whether the first bytes can be the start of a request line of the lane. */
function mayBecomeRequest(bytes: Buffer): boolean {
  const first = bytes[0];
  return first === 0x47 || first === 0x50 || first === 0x44;
}

/** A line feed alone never ends a line of the lane's grammar: no blank line will come. */
function hasBareLineFeed(bytes: Buffer): boolean {
  for (let at = bytes.indexOf(0x0a); at !== -1; at = bytes.indexOf(0x0a, at + 1)) {
    if (bytes[at - 1] !== 0x0d) return true;
  }
  return false;
}

type BodyState =
  | { readonly kind: "collecting"; parts: Buffer[]; missing: number; done: BodyCallback | undefined; refused: boolean }
  | { readonly kind: "whole"; readonly body: Buffer }
  | { readonly kind: "taken" };

type BodyCallback = (body: Buffer | "too-large" | "aborted") => void;

class LaneExchange implements Exchange {
  readonly method: string;
  readonly path: string;
  readonly query: string;
  readonly rawHeaders: readonly string[];
  readonly takesFrames = true;
  begun = false;
  over = false;
  onDrain: (() => void) | undefined;
  onGone: (() => void) | undefined;
  readonly #connection: LaneConnection;
  readonly #head: RequestHead;
  readonly #options: LaneOptions;
  #body: BodyState;
  #close: boolean;
  /** Status and headers that are not on their way yet. */
  #pendingHead: string | undefined;
  #chunked = false;

  constructor(connection: LaneConnection, head: RequestHead, options: LaneOptions) {
    this.#connection = connection;
    this.#head = head;
    this.#options = options;
    this.#close = head.close;
    this.method = head.method;
    this.path = head.path;
    this.query = head.query;
    this.rawHeaders = head.rawHeaders;
    this.#body =
      head.bodyBytes === 0
        ? { kind: "whole", body: EMPTY }
        : { kind: "collecting", parts: [], missing: head.bodyBytes, done: undefined, refused: false };
  }

  header(name: string): string | undefined {
    return headerValue(this.#head, name);
  }

  headerCount(name: string): number {
    return headerCount(this.#head, name);
  }

  get takesBody(): boolean {
    return this.#body.kind === "collecting";
  }

  /** Takes bytes of the body; returns what follows it, or undefined while it is not whole. */
  takeBody(bytes: Buffer): Buffer | undefined {
    const body = this.#body;
    if (body.kind !== "collecting") return bytes;
    const mine = bytes.length > body.missing ? bytes.subarray(0, body.missing) : bytes;
    body.missing -= mine.length;
    if (!body.refused && mine.length > 0) body.parts.push(mine);
    if (body.missing > 0) return undefined;
    const whole = body.parts.length === 1 ? (body.parts[0] ?? EMPTY) : Buffer.concat(body.parts);
    this.#connection.socket.setTimeout(0);
    if (body.done === undefined) {
      this.#body = { kind: "whole", body: whole };
    } else {
      this.#body = { kind: "taken" };
      body.done(whole);
    }
    return bytes.subarray(mine.length);
  }

  readBody(bytesMax: number, done: BodyCallback): void {
    const body = this.#body;
    invariant(body.kind !== "taken", "a body is read once");
    if (this.#head.bodyBytes > bytesMax) {
      this.#refuseBody();
      done("too-large");
      return;
    }
    if (body.kind === "whole") {
      this.#body = { kind: "taken" };
      done(body.body);
      return;
    }
    body.done = done;
    this.#connection.socket.setTimeout(this.#options.bodyMs);
  }

  /** What is not read is not waited for either: the connection closes after the answer. */
  #refuseBody(): void {
    this.#close = true;
    if (this.#body.kind === "collecting") {
      this.#body.refused = true;
      this.#body.parts = [];
    }
  }

  begin(status: number, headers: readonly string[], framing: AnswerFraming): void {
    invariant(!this.begun, "an answer begins once");
    if (this.over) return;
    this.begun = true;
    if (this.#body.kind === "collecting") this.#refuseBody();
    this.#chunked = framing.kind === "stream";
    this.#pendingHead = answerHead(status, headers, framing, this.#close);
    // Travels with the first body bytes of this tick, or alone when there are none.
    process.nextTick(flushHead, this);
  }

  flushHead(): void {
    const head = this.#pendingHead;
    if (head === undefined || this.over) return;
    this.#pendingHead = undefined;
    this.#send(Buffer.from(head, "latin1"));
  }

  write(bytes: Uint8Array): boolean {
    if (this.over || bytes.length === 0) return true;
    return this.#chunked ? this.#sendChunk(bytes) : this.#sendCopy(bytes);
  }

  writeFramed(bytes: Uint8Array): boolean {
    if (this.over || bytes.length === 0) return true;
    return this.#sendCopy(bytes);
  }

  #sendCopy(bytes: Uint8Array): boolean {
    const head = this.#takeHead();
    const copy = Buffer.allocUnsafe(head.length + bytes.length);
    if (head.length > 0) copy.write(head, 0, "latin1");
    copy.set(bytes, head.length);
    return this.#send(copy);
  }

  #sendChunk(bytes: Uint8Array): boolean {
    const prefix = `${this.#takeHead()}${bytes.length.toString(16)}\r\n`;
    const frame = Buffer.allocUnsafe(prefix.length + bytes.length + 2);
    frame.write(prefix, 0, "latin1");
    frame.set(bytes, prefix.length);
    frame[frame.length - 2] = 0x0d;
    frame[frame.length - 1] = 0x0a;
    return this.#send(frame);
  }

  #takeHead(): string {
    const head = this.#pendingHead ?? "";
    this.#pendingHead = undefined;
    return head;
  }

  #send(bytes: Buffer): boolean {
    const { socket } = this.#connection;
    if (socket.write(bytes)) return true;
    socket.setTimeout(this.#options.stallMs);
    return false;
  }

  end(options?: { readonly framed?: boolean }): void {
    if (this.over) return;
    const head = this.#takeHead();
    const needsLast = this.#chunked && options?.framed !== true;
    if (head.length > 0) {
      this.#send(Buffer.from(needsLast ? `${head}0\r\n\r\n` : head, "latin1"));
    } else if (needsLast) {
      this.#send(LAST_CHUNK);
    }
    this.over = true;
    this.#connection.finished(this, this.#close || this.#body.kind === "collecting");
  }

  breakOff(last?: Uint8Array): void {
    if (this.over) return;
    const { socket } = this.#connection;
    if (last !== undefined) this.write(last);
    else this.flushHead();
    this.over = true;
    this.#connection.abandoned();
    // Destroying in the tick of the write would lose it; a client that takes nothing does not hold us up for ever.
    if (socket.writableLength === 0) {
      socket.destroy();
      return;
    }
    socket.setTimeout(this.#options.stallMs);
    socket.write(EMPTY, () => socket.destroy());
  }

  /** The client is gone (L2). */
  left(): void {
    if (this.over) return;
    this.over = true;
    const body = this.#body;
    this.#body = { kind: "taken" };
    if (body.kind === "collecting" && body.done !== undefined) body.done("aborted");
    const gone = this.onGone;
    this.onGone = undefined;
    gone?.();
  }
}

function flushHead(exchange: LaneExchange): void {
  exchange.flushHead();
}
