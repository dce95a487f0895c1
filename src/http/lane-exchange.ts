/**
 * One request of the fast lane and its answer, written straight to the socket. Knows framing and order of bytes; the
 * connection (lane.ts) knows what comes before and after it.
 *
 * X1: status and headers leave in one write with the first bytes of the same tick, or alone at its end.
 * X2: `onGone` is called at most once, and never after the answer was ended or broken off.
 * X3: nothing is written after the answer was ended or broken off, or the client left.
 * X4: an answer with a length never sends another number of bytes and goes on as if it had: the connection breaks.
 */
import type { Socket } from "node:net";
import { invariant } from "../base/invariant.ts";
import { answerHead } from "./answer-head.ts";
import type { AnswerFraming, Exchange } from "./exchange.ts";
import { headerCount, headerValue, type RequestHead } from "./request-head.ts";

/** What an exchange needs of its connection. */
export type LaneHost = {
  readonly socket: Socket;
  /** The connection closes after the running answer. */
  readonly closing: boolean;
  readonly stallMs: number;
  /** The handler waits for the body: it may be read as it comes. */
  wantsBody(): void;
  /** The answer has ended. */
  finished(exchange: LaneExchange, close: boolean): void;
  /** The answer was broken off: nothing follows on this connection. */
  abandoned(exchange: LaneExchange): void;
};

type BodyCallback = (body: Buffer | "too-large" | "aborted") => void;

type BodyState =
  | { readonly kind: "collecting"; parts: Buffer[]; bytes: number; missing: number; done: BodyCallback | undefined }
  /** The answer does not need the rest: what comes is dropped. */
  | { readonly kind: "refused" }
  | { readonly kind: "whole"; readonly body: Buffer; readonly done: BodyCallback | undefined }
  | { readonly kind: "taken" };

const LAST_CHUNK = Buffer.from("0\r\n\r\n", "latin1");
const EMPTY = Buffer.alloc(0);
const NO_BODY: BodyState = { kind: "whole", body: EMPTY, done: undefined };
const TAKEN: BodyState = { kind: "taken" };
const REFUSED: BodyState = { kind: "refused" };

export class LaneExchange implements Exchange {
  readonly method: string;
  readonly path: string;
  readonly query: string;
  readonly rawHeaders: readonly string[];
  readonly takesFrames = true;
  begun = false;
  over = false;
  onDrain: (() => void) | undefined;
  onGone: (() => void) | undefined;
  readonly #host: LaneHost;
  readonly #head: RequestHead;
  #body: BodyState;
  /** Status and headers that are not on their way yet. */
  #pendingHead = "";
  #chunked = false;
  /** Bytes that an answer with a length still owes (X4). */
  #owedBytes = 0;

  constructor(host: LaneHost, head: RequestHead) {
    this.#host = host;
    this.#head = head;
    this.method = head.method;
    this.path = head.path;
    this.query = head.query;
    this.rawHeaders = head.rawHeaders;
    this.#body =
      head.bodyBytes === 0
        ? NO_BODY
        : { kind: "collecting", parts: [], bytes: 0, missing: head.bodyBytes, done: undefined };
  }

  header(name: string): string | undefined {
    return headerValue(this.#head, name);
  }

  headerCount(name: string): number {
    return headerCount(this.#head, name);
  }

  /** Bytes of the body are still to come and are wanted. */
  get takesBody(): boolean {
    return this.#body.kind === "collecting";
  }

  /** The handler waits for the rest of the body. */
  get waitsForBody(): boolean {
    return this.#body.kind === "collecting" && this.#body.done !== undefined;
  }

  /** The rest of the body is still coming, and nobody wants it. */
  get dropsBody(): boolean {
    return this.#body.kind === "refused";
  }

  /** Bytes of the body that nobody has asked for yet. */
  get unaskedBytes(): number {
    const body = this.#body;
    return body.kind === "collecting" && body.done === undefined ? body.bytes : 0;
  }

  /** Takes bytes of the body and returns those that follow it. The handler hears of it by `bodyArrived`. */
  addBody(bytes: Buffer): Buffer {
    const body = this.#body;
    if (body.kind !== "collecting") return bytes;
    const mine = bytes.length > body.missing ? bytes.subarray(0, body.missing) : bytes;
    if (mine.length > 0) body.parts.push(mine);
    body.bytes += mine.length;
    body.missing -= mine.length;
    if (body.missing === 0) {
      const whole = body.parts.length === 1 ? (body.parts[0] ?? EMPTY) : Buffer.concat(body.parts, body.bytes);
      this.#body = { kind: "whole", body: whole, done: body.done };
    }
    return bytes.subarray(mine.length);
  }

  /** Gives the body to a handler that waits for it. The connection has stored what follows by now. */
  bodyArrived(): void {
    const body = this.#body;
    if (body.kind !== "whole" || body.done === undefined) return;
    this.#body = TAKEN;
    body.done(body.body);
  }

  readBody(bytesMax: number, done: BodyCallback): void {
    if (this.over) {
      done("aborted");
      return;
    }
    const body = this.#body;
    invariant(body.kind === "collecting" || body.kind === "whole", "a body is read once, and before the answer");
    if (this.#head.bodyBytes > bytesMax) {
      // Its bytes are not kept; while they come the connection cannot serve another request.
      this.#body = body.kind === "collecting" ? REFUSED : TAKEN;
      done("too-large");
      return;
    }
    if (body.kind === "whole") {
      this.#body = TAKEN;
      done(body.body);
      return;
    }
    body.done = done;
    this.#host.wantsBody();
  }

  get #closes(): boolean {
    return this.#head.close || this.#host.closing || this.#body.kind === "refused";
  }

  begin(status: number, headers: readonly string[], framing: AnswerFraming): void {
    invariant(!this.begun, "an answer begins once");
    if (this.over) return;
    this.begun = true;
    if (this.#body.kind === "collecting") {
      this.#body = REFUSED;
      this.#host.socket.setTimeout(0);
    }
    this.#chunked = framing.kind === "stream";
    this.#owedBytes = framing.kind === "length" ? framing.bytes : 0;
    this.#pendingHead = answerHead(status, headers, framing, this.#closes);
    process.nextTick(flushHead, this); // X1
  }

  flushHead(): void {
    if (this.#pendingHead !== "" && !this.over) this.#send(Buffer.from(this.#takeHead(), "latin1"));
  }

  write(bytes: Uint8Array): boolean {
    if (this.over || bytes.length === 0) return true; // X3
    if (this.#chunked) return this.#sendChunk(bytes);
    this.#owedBytes -= bytes.length;
    return this.#sendCopy(bytes);
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
    const head = this.#pendingHead;
    this.#pendingHead = "";
    return head;
  }

  #send(bytes: Buffer): boolean {
    const { socket, stallMs } = this.#host;
    if (socket.write(bytes)) return true;
    socket.setTimeout(stallMs);
    return false;
  }

  end(options?: { readonly framed?: boolean }): void {
    if (this.over) return;
    if (this.#owedBytes !== 0) {
      this.breakOff(); // X4
      return;
    }
    const head = this.#takeHead();
    const needsLast = this.#chunked && options?.framed !== true;
    if (head.length > 0) this.#send(Buffer.from(needsLast ? `${head}0\r\n\r\n` : head, "latin1"));
    else if (needsLast) this.#send(LAST_CHUNK);
    this.over = true;
    this.#host.finished(this, this.#closes);
  }

  breakOff(last?: Uint8Array): void {
    if (this.over) return;
    const { socket, stallMs } = this.#host;
    if (last !== undefined && last.length > 0) this.write(last);
    else this.flushHead();
    this.over = true;
    this.#host.abandoned(this);
    // Destroying before the write was taken would lose it; a client that takes nothing does not hold us up for ever.
    if (socket.writableLength === 0) {
      socket.destroy();
      return;
    }
    socket.setTimeout(stallMs);
    socket.write(EMPTY, () => socket.destroy());
  }

  /** The client is gone (X2). */
  left(): void {
    if (this.over) return;
    this.over = true;
    const body = this.#body;
    this.#body = TAKEN;
    const gone = this.onGone;
    this.onGone = undefined;
    if (body.kind === "collecting" || body.kind === "whole") body.done?.("aborted");
    gone?.();
  }
}

function flushHead(exchange: LaneExchange): void {
  exchange.flushHead();
}
