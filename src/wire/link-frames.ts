/**
 * What the frames of the link between processes hold (docs/decisions/0022), and the check of what comes out of one. Both
 * ends are of one version and authenticated; the check keeps a fault of the peer from becoming one of ours: what reaches
 * the core has every field that its type promises, of the right kind. Texts are not judged, additional fields are let be.
 */
import type {
  DataplaneMessage,
  FlightReport,
  IdentityKey,
  KeyReport,
  ModelReport,
  ReplicaView,
  RunReport,
  RunView,
  SchedulerMessage,
  Usage,
} from "./admission.ts";

/** The first frame of a dataplane. */
export type LinkOpening = { readonly protocol: number; readonly token: string | undefined };

/** The scheduler's answer to it: from then on both sides send messages. */
export type LinkAnswer =
  | { readonly accepted: true; readonly epoch: number }
  | { readonly accepted: false; readonly reason: string };

/** Each message of a scheduler carries its epoch; a dataplane ignores lower ones than it has seen. */
export type SchedulerFrame = { readonly epoch: number; readonly message: SchedulerMessage };

/** Frames before the opening is accepted are no larger. */
export const OPENING_BYTES_MAX = 8_192;

type Check = (value: unknown) => boolean;
/** A check for each field of a type, so that none can be forgotten. */
type Fields<T> = { readonly [Name in keyof T]-?: Check };

const text: Check = (value) => typeof value === "string";
const flag: Check = (value) => typeof value === "boolean";
const count: Check = (value) => typeof value === "number" && value >= 0;
const object: Check = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const optional =
  (check: Check): Check =>
  (value) =>
    value === undefined || check(value);
const list =
  (check: Check): Check =>
  (value) =>
    Array.isArray(value) && value.every(check);
const oneOf =
  (...values: readonly string[]): Check =>
  (value) =>
    typeof value === "string" && values.includes(value);

function record<T>(fields: Fields<T>): Check {
  const checks = Object.entries<Check>(fields);
  return (value) =>
    object(value) && checks.every(([name, check]) => check((value as { readonly [key: string]: unknown })[name]));
}

const serviceClass = oneOf("interactive", "batch");
const identityKeys = list(record<IdentityKey>({ source: text, hash: text, weak: optional(flag) }));
const owner = { run: text, principal: text, caller: text, class: serviceClass };
const recognised = { turn: text, run: text, source: text };

const runReport = record<RunReport>({
  ...owner,
  phase: oneOf("paused", "idle"),
  replica: optional(text),
  quietMs: count,
  pausedMs: optional(count),
});
const flightReport = record<FlightReport>({
  ...owner,
  turn: text,
  model: text,
  api: text,
  source: text,
  replica: text,
  side: flag,
  ageMs: count,
});
const keyReport = record<KeyReport>({ run: text, principal: text, keys: identityKeys, ageMs: count });
const modelReport = record<ModelReport>({ replica: text, models: list(text) });
const usage = record<Usage>({
  promptTokens: optional(count),
  completionTokens: optional(count),
  cachedTokens: optional(count),
});

type Of<Message extends { readonly type: string }, Type extends Message["type"]> = Omit<
  Extract<Message, { readonly type: Type }>,
  "type"
>;
const says = <Type extends DataplaneMessage["type"]>(fields: Fields<Of<DataplaneMessage, Type>>): Check =>
  record(fields);
const answers = <Type extends SchedulerMessage["type"]>(fields: Fields<Of<SchedulerMessage, Type>>): Check =>
  record(fields);

const FROM_DATAPLANE: { readonly [Type in DataplaneMessage["type"]]: Check } = {
  hello: says<"hello">({
    protocol: count,
    dataplane: text,
    runs: list(runReport),
    flights: list(flightReport),
    keys: list(keyReport),
    models: list(modelReport),
  }),
  requested: says<"requested">({
    turn: text,
    principal: text,
    caller: text,
    class: serviceClass,
    model: text,
    api: text,
    run: optional(text),
    keys: identityKeys,
    freshRun: text,
    side: flag,
    heldMs: count,
    attempt: count,
    promptBytes: optional(count),
    prefixKey: optional(text),
    streams: optional(flag),
    traceparent: optional(text),
  }),
  abandoned: says<"abandoned">({ turn: text, reason: text }),
  started: says<"started">({ turn: text }),
  finished: says<"finished">({
    turn: text,
    usage,
    finishReason: optional(text),
    paused: flag,
    keys: identityKeys,
    tool: optional(text),
  }),
  failed: says<"failed">({ turn: text, reason: text }),
  "pushed-back": says<"pushed-back">({ turn: text, retryAfterMs: count }),
  withdrawn: says<"withdrawn">({ turn: text }),
  "too-late": says<"too-late">({ turn: text }),
  "open-turns": says<"open-turns">({ turns: list(text) }),
  "run-ended": says<"run-ended">({ run: text, principal: text }),
  explain: says<"explain">({ turn: text }),
  "run-query": says<"run-query">({ query: count, run: text, principal: text }),
};

const replicaView = record<ReplicaView>({
  replica: text,
  kind: oneOf("generative", "single-pass"),
  engine: text,
  healthy: flag,
  probed: flag,
  models: list(text),
  speaks: list(text),
  reportsLoad: flag,
});
const runView = record<RunView>({
  run: text,
  class: serviceClass,
  caller: text,
  phase: text,
  replica: optional(text),
  heldTurns: count,
  turnsInFlight: count,
  turns: count,
  quietMs: count,
});

const FROM_SCHEDULER: { readonly [Type in SchedulerMessage["type"]]: Check } = {
  welcome: answers<"welcome">({ protocol: count }),
  admitted: answers<"admitted">({ ...recognised, replica: text, priority: optional(count) }),
  held: answers<"held">(recognised),
  rejected: answers<"rejected">({ ...recognised, code: text, message: text }),
  withdraw: answers<"withdraw">({ turn: text }),
  drain: answers<"drain">({}),
  explained: answers<"explained">({ turn: text, reason: text, place: count }),
  "run-known": answers<"run-known">({ query: count, view: optional(runView) }),
  pool: answers<"pool">({ replicas: list(replicaView) }),
};

export function isLinkOpening(value: unknown): value is LinkOpening {
  return isOpening(value);
}

const isOpening = record<LinkOpening>({ protocol: count, token: optional(text) });

export function isLinkAnswer(value: unknown): value is LinkAnswer {
  return object(value) && isAnswer(value as { readonly accepted?: unknown });
}

function isAnswer(value: {
  readonly accepted?: unknown;
  readonly epoch?: unknown;
  readonly reason?: unknown;
}): boolean {
  return value.accepted === true ? count(value.epoch) : value.accepted === false && text(value.reason);
}

export function isDataplaneMessage(value: unknown): value is DataplaneMessage {
  return passes(FROM_DATAPLANE, value);
}

export function isSchedulerFrame(value: unknown): value is SchedulerFrame {
  if (!object(value)) return false;
  const { epoch, message } = value as { readonly epoch?: unknown; readonly message?: unknown };
  return count(epoch) && passes(FROM_SCHEDULER, message);
}

/** What a message is, for the words with which a connection is closed; never its content. */
export function nameOfMessage(value: unknown): string {
  const type: unknown = object(value) ? (value as { readonly type?: unknown }).type : undefined;
  return typeof type === "string" && /^[a-z-]{1,40}$/.test(type) ? `'${type}'` : "without a type";
}

function passes(table: { readonly [type: string]: Check }, value: unknown): boolean {
  if (!object(value)) return false;
  const { type } = value as { readonly type?: unknown };
  // Own keys only: `constructor` is no message.
  return typeof type === "string" && Object.hasOwn(table, type) && table[type]?.(value) === true;
}
