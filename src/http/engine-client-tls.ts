/** Calls to hosted endpoints over https, by undici: TLS, pooling and its own retry rules are its business. */
import { Agent, type Dispatcher } from "undici";
import type { EngineCall, EngineClient, EngineFailure, EngineHandler, EngineTarget } from "./engine-call.ts";
import { errorInWords } from "./engine-client.ts";

export type TlsClientOptions = {
  readonly connectTimeoutMs: number;
  /** Accepts any certificate: for tests only. */
  readonly insecure?: boolean;
};

export function createTlsClient(options: TlsClientOptions): EngineClient {
  const agent = new Agent({
    connect: { timeout: options.connectTimeoutMs, rejectUnauthorized: options.insecure !== true },
    // A long prefill is silence, not a failure: the client's patience is the only bound (spec 3, Connections).
    headersTimeout: 0,
    bodyTimeout: 0,
    pipelining: 1,
  });
  let open = 0;
  return {
    call(target, request, handler) {
      open += 1;
      const call = new TlsCall(handler, options.connectTimeoutMs, () => {
        open -= 1;
      });
      agent.dispatch(
        {
          origin: originOf(target),
          path: request.path,
          method: request.method,
          headers: [...request.headers],
          body: request.body === undefined ? null : Buffer.from(request.body),
        },
        call,
      );
      return call;
    },
    stats: () => ({ open, idle: 0, retriedOnFresh: 0 }),
    close() {
      void agent.close(); // Running calls end by themselves.
    },
  };
}

function originOf(target: EngineTarget): string {
  const host = target.hostname.includes(":") ? `[${target.hostname}]` : target.hostname;
  return `${target.protocol}//${host}:${target.port}`;
}

class TlsCall implements EngineCall, Dispatcher.DispatchHandler {
  /** There are no frames: bytes of our own may stand anywhere between events. */
  readonly betweenFrames = true;
  readonly #handler: EngineHandler;
  readonly #connectTimeoutMs: number;
  readonly #ended: () => void;
  #controller: Dispatcher.DispatchController | undefined;
  #over = false;
  #connected = false;

  constructor(handler: EngineHandler, connectTimeoutMs: number, ended: () => void) {
    this.#handler = handler;
    this.#connectTimeoutMs = connectTimeoutMs;
    this.#ended = ended;
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.#controller = controller;
    this.#connected = true;
    if (this.#over) controller.abort(new Error("the turn has ended"));
  }

  onResponseStart(
    _controller: Dispatcher.DispatchController,
    status: number,
    headers: { readonly [name: string]: string | string[] | undefined },
  ): void {
    if (this.#over || status < 200) return;
    const rawHeaders: string[] = [];
    let lengthBytes: number | undefined;
    for (const [name, value] of Object.entries(headers)) {
      for (const one of Array.isArray(value) ? value : [value ?? ""]) rawHeaders.push(name, one);
      if (name === "content-length") lengthBytes = Number(value);
    }
    this.#handler.onHead({ status, rawHeaders, framed: false, lengthBytes });
  }

  onResponseData(_controller: Dispatcher.DispatchController, chunk: Buffer): void {
    if (!this.#over) this.#handler.onPayload(chunk, 0, chunk.length);
  }

  onResponseEnd(): void {
    if (this.#finish()) this.#handler.onEnd();
  }

  onResponseError(_controller: Dispatcher.DispatchController, error: Error): void {
    if (this.#finish()) this.#handler.onFail(this.#failure(error));
  }

  #failure(error: NodeJS.ErrnoException): EngineFailure {
    if (error.code === "UND_ERR_CONNECT_TIMEOUT") {
      return { kind: "unreachable", reason: `connect timed out after ${this.#connectTimeoutMs / 1000} s` };
    }
    return { kind: this.#connected ? "lost" : "unreachable", reason: errorInWords(error) };
  }

  #finish(): boolean {
    if (this.#over) return false;
    this.#over = true;
    this.#ended();
    return true;
  }

  abort(): void {
    if (this.#finish()) this.#controller?.abort(new Error("the turn has ended"));
  }

  pause(): void {
    this.#controller?.pause();
  }

  resume(): void {
    this.#controller?.resume();
  }
}
