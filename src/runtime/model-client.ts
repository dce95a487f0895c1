/**
 * Turns through the dataplane, by HTTP, always as a stream (spec 4, Waiting and failing).
 *
 * M1: a turn is waited for as long as bytes come: hold comments are life. 60 s without one before the answer's first
 *     data withdraws the attempt.
 * M2: one attempt after its admission is bounded by `turnTimeoutMs`; time spent held is not.
 * M3: an attempt ends in exactly one outcome, and what it ends in says whether it counts against the run.
 * It does not repeat anything: the run host decides that.
 */
import type { Clock } from "../base/clock.ts";
import type { EngineCall, EngineClient, EngineHead, EngineTarget } from "../http/index.ts";
import type { ChatMessage, ServiceClass, TurnFailure, Usage } from "../runs/index.ts";
import { ERRORS, type ErrorCode } from "../wire/errors.ts";
import { HEADER } from "../wire/headers.ts";
import { DEFAULTS } from "../wire/limits.ts";
import { ChatAnswerBuilder, errorOf, type EngineError, type RawCall } from "./chat-answer.ts";
import { SseReader } from "./sse-reader.ts";

export type TurnRequest = {
  readonly run: string;
  readonly principal: string;
  readonly caller: string;
  readonly serviceClass: ServiceClass;
  readonly model: string;
  readonly messages: readonly ChatMessage[];
  /** In the API's own form; empty: none are sent. */
  readonly tools: readonly unknown[];
  readonly toolChoice: "auto" | "none";
  readonly parallelToolCalls: boolean;
  /** 0: the engine's own. */
  readonly maxTokens: number;
  readonly traceparent?: string | undefined;
};

export type TurnOutcome =
  | {
      readonly kind: "answered";
      readonly text: string;
      readonly calls: readonly RawCall[];
      readonly finish: string;
      readonly usage: Usage | undefined;
      readonly replica: string | undefined;
      /** Until the first byte of the answer, and until its end. */
      readonly heldMs: number;
      readonly tookMs: number;
    }
  /** Nothing counts: ask again under the same run after this long. */
  | { readonly kind: "again"; readonly afterMs: number; readonly message: string }
  /** An engine was reached, or no repeat can help. */
  | { readonly kind: "failed"; readonly failure: TurnFailure; readonly message: string };

export type TurnCall = {
  readonly outcome: Promise<TurnOutcome>;
  /** Withdraws the turn; `outcome` then never settles. */
  abort(): void;
  /** What the model has said so far. */
  partial(): string;
};

export type ModelClient = {
  /** @param onGenerating called once, when the first byte of the answer comes. */
  ask(request: TurnRequest, onGenerating: () => void): TurnCall;
  /** Tells the dataplane that the run has ended (spec 3). Nothing is lost when it does not arrive. */
  endRun(run: string, principal: string): void;
  /**
   * A request with a small answer that is not streamed, such as a classification.
   * Rejects when the dataplane does not answer, or the signal fires.
   */
  post(path: string, request: PlainRequest): Promise<PlainAnswer>;
  /** Models that healthy replicas serve; undefined when the dataplane does not answer. */
  models(): Promise<readonly string[] | undefined>;
  close(): void;
};

export type PlainRequest = Pick<TurnRequest, "run" | "principal" | "caller" | "serviceClass"> & {
  readonly body: unknown;
  readonly waitMs: number;
  readonly signal?: AbortSignal | undefined;
};

export type PlainAnswer = {
  readonly status: number;
  /** JSON, or undefined. */
  readonly body: unknown;
  readonly retryAfterMs: number | undefined;
};

export type ModelClientOptions = {
  /** Base address of the dataplane, without `/v1`. */
  readonly url: string;
  readonly token: string | undefined;
  readonly http: EngineClient;
  readonly clock: Clock;
  readonly turnTimeoutMs: number;
  /** Without any byte before the first one of the answer. */
  readonly silenceMs: number;
};

const ERROR_BODY_BYTES_MAX = 64 * 1024;
const AGAIN_MS = DEFAULTS.retryAfterDefaultMs;
/** Of an answer that is not streamed. */
const PLAIN_BYTES_MAX = 4 * 1024 * 1024;
const MODELS_WAIT_MS = 5_000;
const END_RUN_WAIT_MS = 5_000;

export function createModelClient(options: ModelClientOptions): ModelClient {
  const target = targetOf(options.url);
  /** Models whose endpoint refused `parallel_tool_calls`. */
  const refusesParallel = new Set<string>();
  return {
    ask(request, onGenerating) {
      const attempt = new Attempt(options, target, refusesParallel, request, onGenerating);
      return { outcome: attempt.outcome, abort: () => attempt.withdraw(), partial: () => attempt.partial() };
    },
    endRun(run, principal) {
      const headers = [...authHeaders(options.token), HEADER.principal, headerText(principal)];
      const path = `${target.basePath}/v1/runs/${encodeURIComponent(run)}`;
      plainCall(options, { method: "DELETE", path, headers, waitMs: END_RUN_WAIT_MS }).catch(() => undefined);
    },
    post(path, request) {
      const { body, waitMs, signal } = request;
      const bytes = Buffer.from(JSON.stringify(body), "utf8");
      const headers = headersOf(request, options.token, "application/json");
      return plainCall(options, {
        method: "POST",
        path: `${target.basePath}${path}`,
        headers,
        waitMs,
        body: bytes,
        signal,
      });
    },
    async models() {
      const headers = authHeaders(options.token);
      const path = `${target.basePath}/v1/models`;
      const answer = await plainCall(options, { method: "GET", path, headers, waitMs: MODELS_WAIT_MS }).catch(
        () => undefined,
      );
      const data = (answer?.body as { readonly data?: unknown } | undefined)?.data;
      if (!Array.isArray(data)) return undefined;
      return data.flatMap((row: { readonly id?: unknown }) => (typeof row.id === "string" ? [row.id] : []));
    },
    close() {
      options.http.close();
    },
  };
}

/** One attempt of a turn. */
class Attempt {
  readonly outcome: Promise<TurnOutcome>;
  readonly #options: ModelClientOptions;
  readonly #request: TurnRequest;
  readonly #refusesParallel: Set<string>;
  readonly #onGenerating: () => void;
  readonly #sentMs: number;
  readonly #builder = new ChatAnswerBuilder();
  readonly #sse = new SseReader();
  readonly #sentParallel: boolean;
  #settle: (outcome: TurnOutcome) => void = () => undefined;
  #over = false;
  #call: EngineCall | undefined;
  #head: EngineHead | undefined;
  #replica: string | undefined;
  /** A body that is no stream: an error, or an engine that does not stream. */
  #whole: Buffer[] = [];
  #wholeBytes = 0;
  #firstDataMs: number | undefined;
  #sawDone = false;
  #stopSilence: () => void = () => undefined;
  #stopAttempt: (() => void) | undefined;

  constructor(
    options: ModelClientOptions,
    target: EngineTarget,
    refusesParallel: Set<string>,
    request: TurnRequest,
    onGenerating: () => void,
  ) {
    this.#options = options;
    this.#request = request;
    this.#refusesParallel = refusesParallel;
    this.#onGenerating = onGenerating;
    this.#sentMs = options.clock.nowMs();
    this.outcome = new Promise((resolve) => {
      this.#settle = resolve;
    });
    this.#sentParallel = request.tools.length > 0 && !request.parallelToolCalls && !refusesParallel.has(request.model);
    const body = Buffer.from(JSON.stringify(bodyOf(request, this.#sentParallel)), "utf8");
    this.#life();
    const path = `${target.basePath}/v1/chat/completions`;
    const call = options.http.call(
      target,
      { method: "POST", path, headers: headersOf(request, options.token, "text/event-stream"), body },
      {
        onHead: (head) => this.#onHead(head),
        onPayload: (buffer, start, end) => this.#onPayload(buffer.subarray(start, end)),
        onFrames: () => undefined,
        onEnd: () => this.#onEnd(),
        onFail: (failure) => this.#onFail(failure.reason),
      },
    );
    this.#call = call;
    if (this.#over) call.abort();
  }

  partial(): string {
    return this.#builder.answer().text;
  }

  withdraw(): void {
    if (this.#over) return;
    this.#stop();
    this.#call?.abort();
  }

  #stop(): void {
    this.#over = true;
    this.#stopSilence();
    this.#stopAttempt?.();
  }

  #end(outcome: TurnOutcome): void {
    if (this.#over) return; // M3
    this.#stop();
    this.#settle(outcome);
  }

  /** Ends an attempt whose connection still runs. */
  #cut(outcome: TurnOutcome): void {
    this.#end(outcome);
    this.#call?.abort();
  }

  /** M1: a byte has come; the next one is waited for from here. */
  #life(): void {
    this.#stopSilence();
    if (this.#firstDataMs !== undefined) return;
    const { clock, silenceMs } = this.#options;
    this.#stopSilence = clock.after(silenceMs, () => {
      this.#cut({ kind: "again", afterMs: 0, message: `no sign of life for ${Math.round(silenceMs / 1000)} s` });
    });
  }

  /** M2 */
  #admitted(): void {
    if (this.#stopAttempt !== undefined) return;
    const { clock, turnTimeoutMs } = this.#options;
    this.#stopAttempt = clock.after(turnTimeoutMs, () => {
      const message = `no whole answer within ${Math.round(turnTimeoutMs / 1000)} s of its admission`;
      this.#cut({ kind: "failed", failure: "engine-error", message });
    });
  }

  #onHead(head: EngineHead): void {
    if (this.#over) return;
    this.#head = head;
    this.#replica = headerOf(head, HEADER.replica);
    this.#life();
    // An early 200 names no replica: the turn is still held then.
    if (this.#replica !== undefined) this.#admitted();
  }

  #onPayload(bytes: Buffer): void {
    const head = this.#head;
    if (this.#over || head === undefined) return;
    this.#life();
    if (head.status !== 200 || !isSse(head)) {
      this.#wholeBytes += bytes.length;
      // The buffer is the client's: what is kept is copied. An answer of an engine that does not stream may be long.
      const most = head.status === 200 ? DEFAULTS.bodyBytesMax : ERROR_BODY_BYTES_MAX;
      if (this.#wholeBytes <= most) this.#whole.push(Buffer.from(bytes));
      return;
    }
    const pieces = this.#sse.push(bytes);
    if (pieces === "too-long") {
      this.#cut(TOO_LONG);
      return;
    }
    for (const piece of pieces) {
      if (this.#over) return;
      if (piece.kind === "data") this.#onData(piece.data);
      else this.#onComment(piece.text);
    }
  }

  #onComment(text: string): void {
    const admitted = /^admitted to (.+), no byte of the answer so far$/.exec(text);
    if (admitted === null) return;
    this.#replica ??= admitted[1];
    this.#admitted();
  }

  #onData(data: string): void {
    if (this.#firstDataMs === undefined) {
      this.#firstDataMs = this.#options.clock.nowMs();
      this.#stopSilence();
      this.#admitted();
      this.#onGenerating();
    }
    if (data.trim() === "[DONE]") {
      this.#sawDone = true;
      return;
    }
    const error = this.#builder.add(parsed(data));
    if (error === "too-long") this.#cut(TOO_LONG);
    else if (error !== undefined) this.#cut(this.#streamError(error));
  }

  #onEnd(): void {
    const head = this.#head;
    if (this.#over || head === undefined) return;
    if (head.status !== 200) {
      this.#end(this.#answeredError(head));
      return;
    }
    if (!isSse(head)) {
      this.#firstDataMs = this.#options.clock.nowMs();
      const error = this.#builder.add(parsed(Buffer.concat(this.#whole).toString("utf8")));
      if (error !== undefined) {
        this.#end(error === "too-long" ? TOO_LONG : this.#streamError(error));
        return;
      }
    }
    const answer = this.#builder.answer();
    if (answer.finish === "" && !this.#sawDone) {
      this.#end({ kind: "failed", failure: "engine-lost", message: "the answer ended without saying how" });
      return;
    }
    const now = this.#options.clock.nowMs();
    const heldMs = Math.round((this.#firstDataMs ?? now) - this.#sentMs);
    this.#end({ kind: "answered", ...answer, replica: this.#replica, heldMs, tookMs: Math.round(now - this.#sentMs) });
  }

  #onFail(reason: string): void {
    // Before the first byte of an answer it is the dataplane that is away; after it an engine was at work.
    if (this.#firstDataMs === undefined) {
      this.#end({ kind: "again", afterMs: AGAIN_MS, message: `dataplane ${this.#options.url}: ${reason}` });
    } else {
      this.#end({ kind: "failed", failure: "engine-lost", message: `the stream broke off: ${reason}` });
    }
  }

  #answeredError(head: EngineHead): TurnOutcome {
    const text = Buffer.concat(this.#whole).toString("utf8");
    const error = errorOf(parsed(text)) ?? {
      message: text.slice(0, 1_000) || `status ${head.status}`,
      code: undefined,
    };
    if (this.#sentParallel && head.status === 400 && error.message.includes("parallel_tool_calls")) {
      this.#refusesParallel.add(this.#request.model);
      return { kind: "again", afterMs: 0, message: error.message };
    }
    const own = this.#replica === undefined;
    return verdict({ status: head.status, own, error, afterMs: retryAfterMs(headerOf(head, "retry-after")) });
  }

  /** An error event: of luftpause's own codes, or of the engine. */
  #streamError(error: EngineError): TurnOutcome {
    const { code } = error;
    if (typeof code === "string" && Object.hasOwn(ERRORS, code)) {
      const { status, retryAfterSeconds } = ERRORS[code as ErrorCode];
      const afterMs = retryAfterSeconds === undefined ? undefined : retryAfterSeconds * 1000;
      return verdict({ status, own: true, error, afterMs });
    }
    const status = typeof code === "number" && code >= 400 && code < 600 ? code : 500;
    return verdict({ status, own: false, error, afterMs: undefined });
  }
}

const TOO_LONG: TurnOutcome = {
  kind: "failed",
  failure: "engine-error",
  message: "the answer is longer than any bound",
};

/** What an error means for the run (spec 4, Waiting and failing). */
function verdict(answered: {
  readonly status: number;
  /** No engine was reached: the error is luftpause's. */
  readonly own: boolean;
  readonly error: EngineError;
  readonly afterMs: number | undefined;
}): TurnOutcome {
  const { status, own, error, afterMs } = answered;
  const { message, code } = error;
  if (code === "engine_unreachable" || status === 429 || status === 503) {
    return { kind: "again", afterMs: afterMs ?? AGAIN_MS, message };
  }
  if (code === "engine_lost" || status >= 500) {
    return own && status === 508
      ? { kind: "failed", failure: "refused", message }
      : { kind: "failed", failure: "engine-lost", message };
  }
  return { kind: "failed", failure: own ? "refused" : "engine-error", message };
}

function bodyOf(request: TurnRequest, forbidParallel: boolean): unknown {
  const { model, messages, tools, toolChoice, maxTokens } = request;
  return {
    model,
    messages,
    stream: true,
    stream_options: { include_usage: true },
    ...(maxTokens > 0 ? { max_tokens: maxTokens } : {}),
    ...(tools.length > 0 ? { tools } : {}),
    ...(tools.length > 0 && toolChoice === "none" ? { tool_choice: "none" } : {}),
    ...(forbidParallel ? { parallel_tool_calls: false } : {}),
  };
}

function headersOf(
  request: Pick<TurnRequest, "run" | "principal" | "caller" | "serviceClass" | "traceparent">,
  token: string | undefined,
  accept: string,
): readonly string[] {
  const headers = [
    "content-type",
    "application/json",
    "accept",
    accept,
    ...authHeaders(token),
    HEADER.runId,
    request.run,
    HEADER.class,
    request.serviceClass,
    HEADER.principal,
    headerText(request.principal),
  ];
  if (request.caller !== "") headers.push(HEADER.caller, headerText(request.caller));
  if (request.traceparent !== undefined) headers.push("traceparent", request.traceparent);
  return headers;
}

function authHeaders(token: string | undefined): string[] {
  return token === undefined ? [] : ["authorization", `Bearer ${token}`];
}

/** UTF-8 as the Latin-1 that headers are made of, without controls. */
function headerText(text: string): string {
  // eslint-disable-next-line no-control-regex
  return Buffer.from(text.replaceAll(/[\x00-\x1f\x7f]/g, " "), "utf8").toString("latin1");
}

function headerOf(head: EngineHead, name: string): string | undefined {
  for (let at = 0; at < head.rawHeaders.length; at += 2) {
    if (head.rawHeaders[at]?.toLowerCase() === name) return head.rawHeaders[at + 1];
  }
  return undefined;
}

function isSse(head: EngineHead): boolean {
  return /^text\/event-stream(?:[\s;]|$)/i.test(headerOf(head, "content-type") ?? "");
}

function retryAfterMs(value: string | undefined): number | undefined {
  if (value === undefined || !/^\d{1,5}$/.test(value.trim())) return undefined;
  return Math.min(Number(value) * 1000, DEFAULTS.retryAfterHonouredMaxMs);
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}

function targetOf(url: string): EngineTarget {
  const { protocol, hostname, port, pathname } = new URL(url);
  const secure = protocol === "https:";
  return {
    protocol: secure ? "https:" : "http:",
    hostname: hostname.replace(/^\[|\]$/g, ""),
    port: port === "" ? (secure ? 443 : 80) : Number(port),
    basePath: pathname.replace(/\/+$/, ""),
  };
}

/** A request whose answer is small and whole. */
function plainCall(
  options: ModelClientOptions,
  request: {
    readonly method: string;
    readonly path: string;
    readonly headers: readonly string[];
    readonly waitMs: number;
    readonly body?: Buffer;
    readonly signal?: AbortSignal | undefined;
  },
): Promise<PlainAnswer> {
  return new Promise((resolve, reject) => {
    const parts: Buffer[] = [];
    let bytes = 0;
    let head: EngineHead | undefined;
    const { method, path, headers, waitMs, body, signal } = request;
    const where = `${method} ${options.url}${path}`;
    const end = (): void => {
      stop();
      signal?.removeEventListener("abort", onAbort);
    };
    const call = options.http.call(
      targetOf(options.url),
      { method, path, headers, body },
      {
        onHead(answered) {
          head = answered;
        },
        onPayload(buffer, start, endAt) {
          bytes += endAt - start;
          if (bytes <= PLAIN_BYTES_MAX) parts.push(Buffer.from(buffer.subarray(start, endAt)));
        },
        onFrames: () => undefined,
        onEnd() {
          end();
          const retryAfter = head === undefined ? undefined : retryAfterMs(headerOf(head, "retry-after"));
          const text = Buffer.concat(parts).toString("utf8");
          resolve({ status: head?.status ?? 0, body: parsed(text), retryAfterMs: retryAfter });
        },
        onFail({ reason }) {
          end();
          reject(new Error(`${where}: ${reason}`));
        },
      },
    );
    const cut = (why: string): void => {
      end();
      call.abort();
      reject(new Error(`${where}: ${why}`));
    };
    const onAbort = (): void => cut("given up");
    const stop = options.clock.after(waitMs, () => cut(`no answer within ${Math.round(waitMs / 1000)} s`));
    signal?.addEventListener("abort", onAbort);
    if (signal?.aborted === true) onAbort();
  });
}
