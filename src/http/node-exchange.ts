/**
 * An Exchange over node:http: for everything that the fast lane does not take.
 *
 * N1: `onGone` is called at most once, and never after the answer was ended or broken off.
 * N2: a connection whose request was not read to its end, and will not be, serves no other request.
 */
import type { IncomingMessage, ServerResponse } from "node:http";
import { invariant } from "../base/invariant.ts";
import { isHeaderName, isHeaderValue } from "./header-grammar.ts";
import type { AnswerFraming, Exchange } from "./exchange.ts";
import { headerCount, headerValue } from "./request-head.ts";

/** A client that is still sending a body that was refused gets this long to stop and to read the answer. */
const LINGER_MS = 5_000;

export type NodeExchangeOptions = {
  readonly stallMs: number;
  /** The client asked to be told before it sends its body. */
  readonly expectsContinue: boolean;
};

/** Wraps one request of node:http. */
export function nodeExchange(
  request: IncomingMessage,
  response: ServerResponse,
  options: NodeExchangeOptions,
): Exchange {
  return new NodeExchange(request, response, options);
}

class NodeExchange implements Exchange {
  readonly method: string;
  readonly path: string;
  readonly query: string;
  readonly rawHeaders: readonly string[];
  readonly takesFrames = false;
  begun = false;
  over = false;
  onDrain: (() => void) | undefined;
  onGone: (() => void) | undefined;
  readonly #request: IncomingMessage;
  readonly #response: ServerResponse;
  readonly #options: NodeExchangeOptions;
  readonly #names: string[] = [];
  /** Closed connection is the only end of the body: a client of HTTP/1.0. */
  #closeDelimited = false;
  /** The whole answer is delimited by its length: the client knows its end before the connection closes. */
  #hasLength = false;
  /** The body is over the limit: what comes of it is dropped. */
  #refused = false;
  /** The client waits for an invitation to send its body, and has none. */
  #uninvited: boolean;

  constructor(request: IncomingMessage, response: ServerResponse, options: NodeExchangeOptions) {
    this.#request = request;
    this.#response = response;
    this.#options = options;
    this.#uninvited = options.expectsContinue;
    const target = originForm(request.url ?? "/");
    const mark = target.indexOf("?");
    this.method = request.method ?? "GET";
    this.path = mark === -1 ? target : target.slice(0, mark);
    this.query = mark === -1 ? "" : target.slice(mark);
    this.rawHeaders = request.rawHeaders;
    for (let at = 0; at < request.rawHeaders.length; at += 2) {
      this.#names.push((request.rawHeaders[at] ?? "").toLowerCase());
    }
    response.on("close", () => this.#left());
    response.on("error", () => this.#left());
    request.on("error", () => this.#left());
    response.on("drain", () => {
      response.socket?.setTimeout(0);
      if (!this.over) this.onDrain?.();
    });
  }

  header(name: string): string | undefined {
    return headerValue({ names: this.#names, rawHeaders: this.#request.rawHeaders }, name);
  }

  headerCount(name: string): number {
    return headerCount({ names: this.#names }, name);
  }

  readBody(bytesMax: number, done: (body: Buffer | "too-large" | "aborted") => void): void {
    if (this.over) {
      done("aborted");
      return;
    }
    const request = this.#request;
    const announced = Number(this.header("content-length") ?? 0);
    if (announced > bytesMax) {
      this.#refused = true;
      done("too-large");
      return;
    }
    if (this.#uninvited) {
      this.#uninvited = false;
      this.#response.writeContinue();
    }
    let parts: Buffer[] = [];
    let bytes = 0;
    let settled = false;
    const settle = (result: Buffer | "too-large" | "aborted"): void => {
      if (settled) return;
      settled = true;
      parts = [];
      done(result);
    };
    request.on("data", (part: Buffer) => {
      if (settled) return;
      bytes += part.length;
      if (bytes > bytesMax) {
        this.#refused = true;
        settle("too-large");
      } else {
        parts.push(part);
      }
    });
    request.on("end", () => settle(Buffer.concat(parts, bytes)));
    request.on("close", () => settle("aborted"));
  }

  begin(status: number, headers: readonly string[], framing: AnswerFraming): void {
    invariant(!this.begun, "an answer begins once");
    if (this.over) return;
    this.begun = true;
    const response = this.#response;
    for (let at = 0; at < headers.length; at += 2) {
      const name = headers[at] ?? "";
      const value = headers[at + 1] ?? "";
      invariant(isHeaderName(name) && isHeaderValue(value), `header ${JSON.stringify(name)} may not be sent`);
    }
    this.#hasLength = framing.kind === "length";
    const framed = framing.kind === "length" ? ["content-length", String(framing.bytes)] : [];
    if (this.#refused || this.#uninvited) response.shouldKeepAlive = false; // N2
    this.#closeDelimited = framing.kind === "stream" && this.#request.httpVersion === "1.0";
    response.writeHead(status, [...headers, ...framed]);
    // A head without body bytes in this tick goes alone: an early 200 must not wait for the first byte.
    process.nextTick(() => {
      if (!this.over) response.flushHeaders();
    });
  }

  write(bytes: Uint8Array): boolean {
    if (this.over || bytes.length === 0) return true;
    const taken = this.#response.write(Buffer.from(bytes));
    // Node's server destroys a socket that times out; a listener of our own would be one more at every stall.
    if (!taken) this.#response.socket?.setTimeout(this.#options.stallMs);
    return taken;
  }

  writeFramed(): boolean {
    throw new Error("node:http frames its answers itself");
  }

  end(): void {
    if (this.over) return;
    this.over = true;
    if (this.#refused && this.#hasLength && !this.#request.complete) this.#endLate();
    else this.#response.end();
  }

  /**
   * The client has the whole answer but may still be sending: node:http closes the connection at the end of a response,
   * and closing with unread bytes resets it, which loses the answer. So the end waits until the client has stopped.
   */
  #endLate(): void {
    const request = this.#request;
    const end = (): void => {
      clearTimeout(timer);
      this.#response.end();
    };
    const timer = setTimeout(end, LINGER_MS);
    request.once("end", end);
    request.once("close", end);
    request.resume();
  }

  breakOff(last?: Uint8Array): void {
    if (this.over) return;
    this.over = true;
    const { socket } = this.#response;
    if (socket === null) return;
    // A closed connection is how an HTTP/1.0 body ends well: only a reset tells that it did not.
    const cut = (): void => {
      if (this.#closeDelimited) socket.resetAndDestroy();
      else socket.destroy();
    };
    if (!this.begun) {
      cut();
      return;
    }
    socket.setTimeout(this.#options.stallMs, cut);
    if (last !== undefined && last.length > 0) this.#response.write(Buffer.from(last), () => setImmediate(cut));
    else if (socket.writableLength === 0) cut();
    else socket.write(Buffer.alloc(0), cut);
  }

  #left(): void {
    if (this.over) return;
    this.over = true;
    const gone = this.onGone;
    this.onGone = undefined;
    gone?.();
  }
}

/** An absolute-form target names our own origin: only its path counts, byte for byte. */
function originForm(target: string): string {
  if (target.startsWith("/")) return target;
  const rest = /^[a-z][a-z0-9+.-]*:\/\/[^/?]*(.*)$/is.exec(target)?.[1];
  if (rest === undefined) return "/"; // OPTIONS *
  return rest.startsWith("/") ? rest : `/${rest}`;
}
