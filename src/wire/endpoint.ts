/**
 * What an engine endpoint is, after the config has been validated and its defaults filled in (spec 7, Endpoints).
 * Scheduler and dataplane both read it: the scheduler to probe and place, the dataplane to connect.
 */
import type { ReplicaId } from "../base/ids.ts";

/** Two types of model serve in one pool: token by token with a KV cache, or one forward pass with labels. */
export type ReplicaKind = "generative" | "single-pass";

/** What is behind an endpoint; decides the defaults of the other keys. */
export type EngineKind = "sglang" | "vllm" | "llama.cpp" | "ollama" | "router" | "hosted" | "unknown";

/** An API that a replica can serve (`speaks`). */
export type WireApi =
  | "chat"
  | "completions"
  | "messages"
  | "responses"
  | "responses-stateful"
  | "embeddings"
  | "classify"
  | "decisions";

/** `hold`: the engine's own 429 and 503 are held again; `pass`: they go through to the client (spec 3, Back-pressure). */
export type Backpressure = "hold" | "pass";

/** How an engine orders what waits in it by a request's priority; `auto`: by what its metrics show (spec 9). */
export type PriorityOrder = "auto" | "higher-first" | "lower-first" | "off";

export type EndpointConfig = {
  /** The replica's id, in pins, metrics and status. */
  readonly name: ReplicaId;
  /** Base address without `/v1` and without a trailing slash; http or https. */
  readonly url: string;
  readonly kind: ReplicaKind;
  /** `auto`: found out by the prober from `/metrics`, `/v1/models` and headers. */
  readonly engine: EngineKind | "auto";
  /** Empty: read from `/v1/models` at every good probe. */
  readonly models: readonly string[];
  /** The engine's own key, already resolved from its reference. Never logged, never sent to a client. */
  readonly apiKey: string | undefined;
  readonly healthPath: string;
  /** Addresses of the engines behind a router whose load is summed; empty: the endpoint's own. */
  readonly loadFrom: readonly string[];
  /** Bound on turns in flight besides the measured cap; undefined: only the measured cap. */
  readonly maxInFlight: number | undefined;
  /** `auto`: probed once per API at the first good health probe; hosted endpoints default to chat and are never probed. */
  readonly speaks: readonly WireApi[] | "auto";
  /** `auto`: `hold` where a load signal is read. */
  readonly backpressure: Backpressure | "auto";
  readonly priority: PriorityOrder;
  /** Byte edits of the request body on or off (spec 3, Forwarding). */
  readonly splice: boolean;
  /** Single-pass: path of the classification route; undefined: by engine (`/classify`, SGLang `/v1/classify`). */
  readonly classifyPath: string | undefined;
  /** Single-pass: names of the classes in the order of `probs`. */
  readonly labels: readonly string[];
  /** Request headers that also pass to a hosted endpoint, lower case. */
  readonly forwardHeaders: readonly string[];
};
