/** An Exchange over node:http: for everything that the fast lane does not take. */
import type { IncomingMessage, ServerResponse } from "node:http";
import { invariant } from "../base/invariant.ts";
import { isHeaderName, isHeaderValue } from "./answer-head.ts";
import type { AnswerFraming, Exchange } from "./exchange.ts";
import { headerCount, headerValue } from "./request-head.ts";

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

  constructor(request: IncomingMessage, response: ServerResponse, options: NodeExchangeOptions) {
    this.#request = request;
    this.#response = response;
    this.#options = options;
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
    const request = this.#request;
    const announced = Number(request.headers["content-length"] ?? 0);
    if (announced > bytesMax) {
      this.#response.shouldKeepAlive = false;
      done("too-large");
      return;
    }
    if (this.#options.expectsContinue) this.#response.writeContinue();
    const parts: Buffer[] = [];
    let bytes = 0;
    let settled = false;
    const settle = (result: Buffer | "too-large" | "aborted"): void => {
      if (settled) return;
      settled = true;
      done(result);
    };
    request.on("data", (part: Buffer) => {
      bytes += part.length;
      if (bytes > bytesMax) {
        request.pause();
        this.#response.shouldKeepAlive = false;
        settle("too-large");
        return;
      }
      parts.push(part);
    });
    request.on("end", () => settle(Buffer.concat(parts)));
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
    const framed = framing.kind === "length" ? ["content-length", String(framing.bytes)] : [];
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
    this.#response.end();
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

/** An absolute-form target names our own origin: only its path counts. */
function originForm(target: string): string {
  if (target.startsWith("/")) return target;
  if (!URL.canParse(target)) return "/";
  const url = new URL(target);
  return url.pathname + url.search;
}
