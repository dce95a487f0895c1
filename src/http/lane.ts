/**
 * The fast lane: HTTP/1.1 straight on the socket for requests of the plain grammar (request-head.ts). One connection
 * serves one request after the other; what it does not understand it hands over to node:http, socket and bytes.
 *
 * It does not: answer several requests at once (further bytes wait), decode chunked requests, answer HEAD or HTTP/1.0.
 *
 * L1: a connection has at most one exchange; the next request is parsed only when the answer before it has ended and
 *     the client has taken what was written.
 * L2: bytes after the end of a request are either the next request or dropped: once the connection is closing, nothing
 *     is parsed any more.
 * L3: after a hand-over nothing here touches the socket again.
 * L4: what a client can make this hold is bounded: a head by HEAD_BYTES_MAX, bytes ahead by AHEAD_BYTES_MAX and one
 *     read, a body by what its handler allows, time by the options.
 */
import type { Socket } from "node:net";
import { invariant } from "../base/invariant.ts";
import type { Exchange } from "./exchange.ts";
import { LaneExchange, type LaneHost } from "./lane-exchange.ts";
import { HEAD_BYTES_MAX, parseRequestHead } from "./request-head.ts";

export type LaneOptions = {
  readonly onExchange: (exchange: Exchange) => void;
  /** Takes a connection that needs node:http, with the bytes that were read already. */
  readonly handOver: (socket: Socket, bytes: Buffer) => void;
  /** A connection without a request is closed after this long. */
  readonly idleMs: number;
  /** A request's head must be whole this soon after its first byte, its body this soon after it was asked for. */
  readonly headMs: number;
  readonly bodyMs: number;
  /** A client that takes nothing for this long while bytes wait for it is cut off. */
  readonly stallMs: number;
};

/** Bytes of following requests, or of a body that nobody reads, that are kept; beyond it reading stops. */
const AHEAD_BYTES_MAX = 65_536;
/** A closing connection reads on, so that its client, which may still be sending, gets to see the answer ... */
const LINGER_IDLE_MS = 5_000;
/** ... but not longer than this. (Closing with unread bytes resets the connection and loses the answer.) */
const LINGER_MS = 30_000;
const BLANK_LINE = Buffer.from("\r\n\r\n", "latin1");
const EMPTY = Buffer.alloc(0);

/** Serves one connection until it is closed or handed over. */
export class LaneConnection implements LaneHost {
  readonly socket: Socket;
  /** The connection closes after the running answer. */
  closing = false;
  readonly #options: LaneOptions;
  #exchange: LaneExchange | undefined;
  /** Bytes that were read and belong to no finished request. */
  #bytes: Buffer = EMPTY;
  #phase: "serving" | "lingering" | "handed-over" = "serving";
  /** Requests are taken in a loop, never from inside the end of the one before: many small ones would end the stack. */
  #advancing = false;
  #pausedReading = false;
  /** Until when the head or the body that is being read, or a lingering client, must have come to its end. */
  #deadlineMs = 0;

  constructor(socket: Socket, options: LaneOptions) {
    this.socket = socket;
    this.#options = options;
    socket.setTimeout(options.headMs);
    socket.on("data", this.#onData);
    socket.on("end", this.#onEnd);
    socket.on("close", this.#onLeft);
    // A second error after the first must not crash the process: the listener stays.
    socket.on("error", this.#onLeft);
    socket.on("timeout", this.#onTimeout);
    socket.on("drain", this.#onDrain);
  }

  get stallMs(): number {
    return this.#options.stallMs;
  }

  /** Closes now when no request runs, else after the running answer. */
  closeWhenIdle(): void {
    if (this.#phase !== "serving") return;
    this.closing = true;
    if (this.#exchange === undefined) this.#linger();
  }

  readonly #onData = (bytes: Buffer): void => {
    if (this.#phase !== "serving") {
      if (performance.now() > this.#deadlineMs) this.socket.destroy();
      return; // L2
    }
    const exchange = this.#exchange;
    if (exchange !== undefined && exchange.takesBody) {
      this.#takeBody(exchange, bytes);
      return;
    }
    if (exchange !== undefined && exchange.dropsBody) return; // L2
    this.#bytes = this.#bytes.length === 0 ? bytes : Buffer.concat([this.#bytes, bytes]);
    if (exchange === undefined) this.#advance();
    if (this.#bytes.length > AHEAD_BYTES_MAX) this.#pauseReading();
  };

  #takeBody(exchange: LaneExchange, bytes: Buffer): void {
    // A trickle of bytes keeps a socket's own time-out away for ever: the whole body has a deadline too.
    if (this.#deadlineMs !== 0 && performance.now() > this.#deadlineMs) {
      this.#onLeft();
      return;
    }
    this.#bytes = exchange.addBody(bytes);
    if (exchange.takesBody) {
      if (exchange.unaskedBytes > AHEAD_BYTES_MAX) this.#pauseReading();
      return;
    }
    this.#deadlineMs = 0;
    this.#expectNothing();
    exchange.bodyArrived();
  }

  wantsBody(): void {
    const { bodyMs } = this.#options;
    this.#deadlineMs = performance.now() + bodyMs;
    this.socket.setTimeout(bodyMs);
    this.#resumeReading();
  }

  /**
   * The socket's time-out is that of an idle connection, also while an answer runs: to set another one for each request
   * and back makes two timers a turn. `#onTimeout` knows whether it means anything.
   */
  #expectNothing(): void {
    const { socket } = this;
    if (socket.timeout !== this.#options.idleMs) socket.setTimeout(this.#options.idleMs);
  }

  /** Silence for too long: of an idle connection, or of a client that owes its head or body or takes no answer. */
  readonly #onTimeout = (): void => {
    const exchange = this.#exchange;
    const answering = exchange !== undefined && !exchange.waitsForBody && !this.socket.writableNeedDrain;
    // An engine may be silent for as long as it likes.
    if (answering) this.socket.setTimeout(this.#options.idleMs);
    else this.#onLeft();
  };

  #pauseReading(): void {
    if (this.#pausedReading || this.#phase !== "serving") return;
    this.#pausedReading = true;
    this.socket.pause();
  }

  #resumeReading(): void {
    if (!this.#pausedReading) return;
    this.#pausedReading = false;
    this.socket.resume();
  }

  /** Takes the requests that were read, as far as their answers end at once (L1). */
  #advance(): void {
    if (this.#advancing) return;
    this.#advancing = true;
    while (
      this.#exchange === undefined &&
      this.#phase === "serving" &&
      this.#bytes.length > 0 &&
      !this.socket.writableNeedDrain &&
      this.#next()
    );
    this.#advancing = false;
    if (this.#bytes.length <= AHEAD_BYTES_MAX) this.#resumeReading();
  }

  /** Parses the next request of what was read; false when there is none. */
  #next(): boolean {
    const bytes = this.#bytes;
    const end = bytes.indexOf(BLANK_LINE);
    if (end === -1) {
      // A request line that can never be ours goes to node:http at once, which knows how to refuse it.
      if (bytes.length > HEAD_BYTES_MAX || !mayBecomeRequest(bytes) || hasBareLineFeed(bytes)) this.#handOver();
      else this.#awaitHead();
      return false;
    }
    const head = end > HEAD_BYTES_MAX ? undefined : parseRequestHead(bytes.toString("latin1", 0, end));
    if (head === undefined) {
      this.#handOver();
      return false;
    }
    this.#deadlineMs = 0;
    this.#expectNothing();
    const exchange = new LaneExchange(this, head);
    this.#exchange = exchange;
    this.#bytes = exchange.addBody(bytes.subarray(end + 4));
    this.#options.onExchange(exchange);
    return true;
  }

  #awaitHead(): void {
    const nowMs = performance.now();
    const { headMs } = this.#options;
    if (this.#deadlineMs === 0) {
      this.#deadlineMs = nowMs + headMs;
      this.socket.setTimeout(headMs);
    } else if (nowMs > this.#deadlineMs) {
      this.socket.destroy();
    }
  }

  #handOver(): void {
    this.#phase = "handed-over";
    this.#resumeReading();
    const { socket } = this;
    socket.off("data", this.#onData);
    socket.off("end", this.#onEnd);
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
    if (close || this.closing) {
      this.#linger();
      return;
    }
    if (this.socket.writableNeedDrain) this.socket.setTimeout(this.#options.stallMs);
    else this.#expectNothing();
    if (this.#bytes.length > 0 || this.#pausedReading) this.#advance();
  }

  abandoned(exchange: LaneExchange): void {
    invariant(this.#exchange === exchange, "L1: only the running exchange can be broken off");
    this.#exchange = undefined;
    this.#drop();
  }

  /** Sends what is left, says that nothing follows, and drops what the client still sends. */
  #linger(): void {
    const { socket } = this;
    this.#drop();
    socket.end(() => {
      this.#deadlineMs = performance.now() + LINGER_MS;
      socket.setTimeout(LINGER_IDLE_MS);
    });
  }

  #drop(): void {
    const { stallMs } = this.#options;
    this.#phase = "lingering";
    this.#bytes = EMPTY;
    // What was written may have to wait for a slow client; its own bytes must not keep that wait up.
    this.#deadlineMs = performance.now() + stallMs + LINGER_MS;
    this.socket.setTimeout(stallMs);
    this.#resumeReading();
  }

  /** The client sends nothing more. While an exchange runs it has left; else what was written may still be taken. */
  readonly #onEnd = (): void => {
    if (this.#exchange !== undefined || this.socket.writableLength === 0) this.#onLeft();
    else if (this.#phase === "serving") this.#drop();
  };

  readonly #onLeft = (): void => {
    const exchange = this.#exchange;
    this.#exchange = undefined;
    this.socket.destroy();
    exchange?.left();
  };

  readonly #onDrain = (): void => {
    const exchange = this.#exchange;
    if (this.#phase !== "serving") return;
    this.#expectNothing();
    if (exchange === undefined) this.#advance();
    else exchange.onDrain?.();
  };
}

/** Whether the first byte can be that of a request of the lane: GET, POST, DELETE. */
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
