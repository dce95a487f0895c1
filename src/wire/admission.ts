/**
 * The link between a dataplane and the scheduler (spec 2, The link): one ordered, bidirectional stream per dataplane.
 * Order on the stream is the order of events. In one process the same messages go by function call.
 * Everything here is plain JSON data; ages and durations travel instead of clock readings, since clocks differ.
 */
import type { CallerId, DataplaneId, PrincipalId, ReplicaId, RunId, TurnId } from "../base/ids.ts";
import type { EngineKind, ReplicaKind, WireApi } from "./endpoint.ts";
import type { ErrorCode } from "./errors.ts";

/** Raised when a message changes its meaning; a peer of another version is refused at hello. */
export const LINK_PROTOCOL = 1;

export type ServiceClass = "interactive" | "batch";

/** What a run's last main turn left: `generating` and `held` follow from its open turns (spec 1, States). */
export type RunPhase = "held" | "generating" | "paused" | "idle";

/** Which rule recognised a run (spec 8, Which run is this?). */
export type RunSource =
  | "header"
  | "claude-code"
  | "codex"
  | "session-header"
  | "body"
  | "response-id"
  | "tool-calls"
  | "prompt-cache-key"
  | "prefix"
  | "new";

/**
 * One thing that names a run, from a request (to look up) or an answer (to remember).
 * `hash` is a digest already scoped to the principal; `weak` keys give a placement preference only,
 * until a second turn confirms (spec 8, Weak rules). Any key counts only if exactly one live run has left it.
 */
export type IdentityKey = {
  readonly source: RunSource;
  readonly hash: string;
  readonly weak?: boolean;
};

export type Usage = {
  readonly promptTokens?: number;
  readonly completionTokens?: number;
  /** Part of the prompt that the engine found in its cache. */
  readonly cachedTokens?: number;
};

/** A run as a dataplane remembers it, for resync. */
export type RunReport = {
  readonly run: RunId;
  readonly principal: PrincipalId;
  readonly caller: CallerId;
  readonly class: ServiceClass;
  /** What its last main turn left. */
  readonly phase: "paused" | "idle";
  /** Replica of the last admitted main turn. */
  readonly replica: ReplicaId | undefined;
  /** Since its last turn began or ended, whichever is later. */
  readonly quietMs: number;
  /** Since it was paused; undefined when idle. */
  readonly pausedMs?: number | undefined;
};

/** A turn in flight as its dataplane knows it, for resync. */
export type FlightReport = {
  readonly turn: TurnId;
  readonly run: RunId;
  readonly principal: PrincipalId;
  readonly caller: CallerId;
  readonly class: ServiceClass;
  /** What it asked for: an engine may still give it back, and then it is held again. */
  readonly model: string;
  readonly api: WireApi;
  readonly source: RunSource;
  readonly replica: ReplicaId;
  readonly side: boolean;
  /** Since its request arrived. */
  readonly ageMs: number;
};

/** Keys of an answer that were reported, for resync. */
export type KeyReport = {
  readonly run: RunId;
  readonly principal: PrincipalId;
  readonly keys: readonly IdentityKey[];
  readonly ageMs: number;
};

export type TurnRequest = {
  readonly type: "requested";
  readonly turn: TurnId;
  readonly principal: PrincipalId;
  readonly caller: CallerId;
  readonly class: ServiceClass;
  readonly model: string;
  readonly api: WireApi;
  /** From the client's own header (rule 1); undefined: recognise by `keys`. */
  readonly run: RunId | undefined;
  /** Ordered, first hit wins. */
  readonly keys: readonly IdentityKey[];
  /** The id of the run if no key is known (rule 10): the core has no randomness of its own. */
  readonly freshRun: RunId;
  /** A side call belongs to its run, but neither moves its pin nor marks it paused. */
  readonly side: boolean;
  /** Since the request arrived at the dataplane: asked again after an outage, a turn keeps its arrival. */
  readonly heldMs: number;
  /** Times that this turn was pushed back or withdrawn, and is asked for again. */
  readonly attempt: number;
  /** Size of the request's body: what a first prompt is estimated from. */
  readonly promptBytes?: number;
  /** Digest of what its prompt begins with (model, tools, system prompt); left out where nothing is shared. */
  readonly prefixKey?: string;
  /** The answer comes as a stream, so that its first byte shows the end of the prefill. */
  readonly streams?: boolean;
  readonly traceparent?: string;
};

/** What a replica was last seen to serve. */
export type ModelReport = { readonly replica: ReplicaId; readonly models: readonly string[] };

/** How a turn failed, as far as scheduling cares. */
export type FailureReason =
  | "client-left"
  | "engine-unreachable"
  | "engine-lost"
  | "engine-error"
  | "hold-deadline"
  | "draining"
  | "internal";

export type DataplaneMessage =
  | {
      readonly type: "hello";
      readonly protocol: number;
      readonly dataplane: DataplaneId;
      readonly runs: readonly RunReport[];
      readonly flights: readonly FlightReport[];
      readonly keys: readonly KeyReport[];
      readonly models: readonly ModelReport[];
    }
  | TurnRequest
  /** The client left, or its deadline was answered, while the turn was held. */
  | { readonly type: "abandoned"; readonly turn: TurnId; readonly reason: FailureReason }
  /** First content byte of the answer. */
  | { readonly type: "started"; readonly turn: TurnId }
  | {
      readonly type: "finished";
      readonly turn: TurnId;
      readonly usage: Usage;
      readonly finishReason: string | undefined;
      /** The answer ended in tool calls: the run is paused. */
      readonly paused: boolean;
      readonly keys: readonly IdentityKey[];
      /** Name of the tool for whose result the run is paused; the first one of several. */
      readonly tool?: string;
    }
  | { readonly type: "failed"; readonly turn: TurnId; readonly reason: FailureReason }
  /** The engine answered 429 or 503: hold the turn again with its old arrival, not before `retryAfterMs`. */
  | { readonly type: "pushed-back"; readonly turn: TurnId; readonly retryAfterMs: number }
  | { readonly type: "withdrawn"; readonly turn: TurnId }
  | { readonly type: "too-late"; readonly turn: TurnId }
  /** Every turn that the dataplane has asked for and not reported as ended; each 60 s. */
  | { readonly type: "open-turns"; readonly turns: readonly TurnId[] }
  | { readonly type: "run-ended"; readonly run: RunId; readonly principal: PrincipalId }
  /** Why is this turn held, and at which place among the held ones? Answered by `explained`. */
  | { readonly type: "explain"; readonly turn: TurnId }
  /** `GET /v1/runs/{id}`: answered by `run-known`. */
  | { readonly type: "run-query"; readonly query: number; readonly run: RunId; readonly principal: PrincipalId };

/** What a dataplane needs to know of a replica: for `/v1/models`, auxiliary requests, and errors. */
export type ReplicaView = {
  readonly replica: ReplicaId;
  readonly kind: ReplicaKind;
  readonly engine: EngineKind;
  readonly healthy: boolean;
  /** A probe of it has ended: before, nothing is known of the models and APIs that it has. */
  readonly probed: boolean;
  readonly models: readonly string[];
  readonly speaks: readonly WireApi[];
  /** A load signal is read: back-pressure is held by default. */
  readonly reportsLoad: boolean;
};

/** What is known of a run, as `GET /v1/runs/{id}` shows it. */
export type RunView = {
  readonly run: RunId;
  readonly class: ServiceClass;
  readonly caller: CallerId;
  readonly phase: RunPhase;
  /** Where its prefix is. */
  readonly replica: ReplicaId | undefined;
  readonly heldTurns: number;
  readonly turnsInFlight: number;
  readonly turns: number;
  readonly quietMs: number;
};

/** Every message carries the scheduler's epoch in its envelope (see link-codec); always 1 without high availability. */
export type SchedulerMessage =
  /** Answer to hello: synced from here on. */
  | { readonly type: "welcome"; readonly protocol: number }
  | {
      readonly type: "admitted";
      readonly turn: TurnId;
      readonly replica: ReplicaId;
      readonly run: RunId;
      readonly source: RunSource;
      /** The engine shall be told this priority; left out: none. */
      readonly priority?: number;
    }
  /** The turn was recognised and is held; sent once, when it could not be admitted at once. */
  | { readonly type: "held"; readonly turn: TurnId; readonly run: RunId; readonly source: RunSource }
  | {
      readonly type: "rejected";
      readonly turn: TurnId;
      readonly run: RunId;
      readonly source: RunSource;
      readonly code: ErrorCode;
      readonly message: string;
    }
  /** Give the turn back unless a byte arrived: answered by `withdrawn` or `too-late`. */
  | { readonly type: "withdraw"; readonly turn: TurnId }
  | { readonly type: "drain" }
  | { readonly type: "explained"; readonly turn: TurnId; readonly reason: string; readonly place: number }
  | { readonly type: "run-known"; readonly query: number; readonly view: RunView | undefined }
  /** The whole pool, sent after welcome and at every change. */
  | { readonly type: "pool"; readonly replicas: readonly ReplicaView[] };

/**
 * A dataplane's end of the link. Messages of the scheduler may arrive synchronously inside `send`.
 * `linked` false: messages are dropped by the adapter, and the dataplane hands its state over at the next `onLinked`.
 */
export type AdmissionPort = {
  readonly linked: boolean;
  /** The scheduler is in this process and ends with it: there is never another one to which state must be handed over. */
  readonly inProcess?: true;
  send(message: DataplaneMessage): void;
  /** Sets the one receiver; must be called once before anything is sent. */
  attach(receiver: AdmissionReceiver): void;
};

export type AdmissionReceiver = {
  /** The stream is open: the receiver sends `hello` first, then asks again for its held turns. */
  onLinked(): void;
  onLost(): void;
  onMessage(message: SchedulerMessage): void;
};
