/**
 * One request to an engine, as the dataplane sees it: our own HTTP/1.1 client on pooled sockets, plain or TLS, one
 * shared read buffer, chunk frames passed on unchanged (spec 3, Forwarding).
 */

/** Where a request goes: scheme, host and port of an endpoint, and its path prefix. */
export type EngineTarget = {
  readonly protocol: "http:" | "https:";
  readonly hostname: string;
  readonly port: number;
  /** Path before `/v1`, without a trailing slash; usually empty. */
  readonly basePath: string;
};

export type EngineRequest = {
  readonly method: string;
  /** Path and query as they go on the wire, base path included. */
  readonly path: string;
  /** Names and values alternating; the client adds host, content-length and connection. */
  readonly headers: readonly string[];
  readonly body: Uint8Array | undefined;
};

export type EngineHead = {
  readonly status: number;
  /** Names and values alternating, as received. */
  readonly rawHeaders: readonly string[];
  /** Wire bytes come by `onFrames` besides the payloads, and may be passed on unchanged. */
  readonly framed: boolean;
  /** From content-length; undefined for chunked and close-delimited bodies. */
  readonly lengthBytes: number | undefined;
};

export type EngineFailure = {
  /** `unreachable`: no connection; `lost`: the connection broke, or the answer was cut or malformed. */
  readonly kind: "unreachable" | "lost";
  /** Short and for people: `connection refused`, `connect timed out after 2 s`, `connection reset`, … */
  readonly reason: string;
};

/** Callbacks of one call, in this order: onHead, then onPayload/onFrames, then onEnd; or onFail at any point. */
export type EngineHandler = {
  onHead(head: EngineHead): void;
  /** Body bytes without framing: `buffer[start, end)`. Valid only during the call: copy what is kept. */
  onPayload(buffer: Buffer, start: number, end: number): void;
  /**
   * Wire bytes with their chunk frames, after the payloads of the same read were given to `onPayload`; only when
   * `head.framed`. Never ends inside a size line; the last chunk comes whole, without extension, and only when the
   * answer is whole. Valid only during the call.
   */
  onFrames(buffer: Buffer, start: number, end: number): void;
  /** The body is whole. Trailers were dropped; `onFrames` never sees them. */
  onEnd(): void;
  onFail(failure: EngineFailure): void;
};

export type EngineCall = {
  /** No chunk's data is open: bytes of our own may follow what `onFrames` gave. */
  readonly betweenFrames: boolean;
  /** Stops the request: the socket to the engine is destroyed at once, no callback follows, whenever it is called. */
  abort(): void;
  /** Stops and restarts reading from the engine, for a slow client. */
  pause(): void;
  resume(): void;
};

export type EngineClient = {
  /**
   * Sends a request. On a reused idle socket that fails before any byte of an answer came, within
   * `reusedSocketRetryMs` of sending, it is sent once more on a fresh connection (spec 3, Connections).
   */
  call(target: EngineTarget, request: EngineRequest, handler: EngineHandler): EngineCall;
  /** Sockets open and idle, for metrics. */
  stats(): { readonly open: number; readonly idle: number; readonly retriedOnFresh: number };
  /** Closes idle sockets now and the others when their call ends. */
  close(): void;
};
