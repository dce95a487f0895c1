/**
 * Every constant of the system: value, unit, why (spec 5). Each is a default: the config has a key for it.
 * `docs/constants.md` is tested against this file both ways.
 */
export const DEFAULTS = {
  /** Turn without a sign of life from its dataplane: a dataplane that died mid-turn must not hold a slot for ever. */
  turnExpiryMs: 600_000,
  /** A dataplane names its open turns this often: the sign of life. */
  openTurnsEveryMs: 60_000,
  /** A dataplane whose link is lost keeps its in-flight turns counted this long. */
  dataplaneGraceMs: 10_000,
  /** A run without a turn is forgotten: own-loop agents never say that they are done. */
  runIdleExpiryMs: 1_800_000,
  /** Health and load probe: period. Admission lags the engine by this much. */
  probeEveryMs: 2_000,
  /** Health and load probe: time-out of one probe. */
  probeTimeoutMs: 2_000,
  /** Failed load probes in a row after which the load is stale and the replica "reports no load". */
  loadStaleAfterProbes: 3,
  /** Room is kept for a paused interactive run this long after its pause (policy classic). */
  pausedRoomSeconds: 1_800,
  /** The scheduler's tick; drives the expiries. */
  tickMs: 1_000,
  /** Wait after an engine's 429 or 503 without Retry-After. */
  retryAfterDefaultMs: 1_000,
  /** Longest Retry-After of an engine that is honoured. */
  retryAfterHonouredMaxMs: 60_000,
  /** Connecting to an engine. */
  connectTimeoutMs: 2_000,
  /** A request that failed on a reused idle socket is tried once more only this soon after it was sent. */
  reusedSocketRetryMs: 1_000,
  /** Reconnect of the scheduler link, and asking again for a turn that got no answer. */
  linkRetryMs: 1_000,
  /** A retry takes over the arrival of its run's abandoned or failed turn when it comes this soon. */
  arrivalKeptMs: 60_000,
  /** Held streaming turn: first sign to the client after this long. */
  holdSignAfterMs: 10_000,
  /** ... then every so often, until the engine's first body byte. */
  holdSignEveryMs: 10_000,
  /** Held non-streaming turn is answered this long before the client's deadline. */
  holdAnswerBeforeMs: 10_000,
  /** Deadline of clients on Node, whose fetch gives up without headers. */
  holdDeadlineNodeMs: 300_000,
  /** Deadline of other clients. */
  holdDeadlineMs: 600_000,
  /** Bounds of the Retry-After that we send, whole seconds: older OpenAI clients ignore 60 and more. */
  retryAfterSentMinSeconds: 1,
  retryAfterSentMaxSeconds: 30,
  /** Memory of the tool call ids of an answer. */
  identityTtlMs: 1_800_000,
  /** The identity tables are swept this often. */
  identitySweepMs: 60_000,
  /** Keys in the identity table. */
  identityKeysMax: 200_000,
  /** Body of a request: images travel as base64. */
  bodyBytesMax: 67_108_864,
  /** Bodies of held turns together; a quarter of the memory where that is smaller. */
  heldBodyBytesMax: 1_073_741_824,
  /** Requests at once per replica that are not turns (embeddings, count_tokens, decide). */
  auxiliaryRequestsMax: 32,
  /** ... and how long the next one waits for its place. */
  auxiliaryWaitMs: 10_000,
  /** The caller header is cut here, not inside a UTF-8 character. */
  callerBytesMax: 128,
  /** The run id header. */
  runIdBytesMax: 256,
  /** SIGTERM: streams may end for this long; a second SIGTERM ends at once. */
  drainSeconds: 30,
} as const;

/** The numbers of DEFAULTS as configured; a service takes the ones it needs. */
export type Limits = { readonly [Name in keyof typeof DEFAULTS]: number };
