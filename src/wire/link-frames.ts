/**
 * What the frames of the link between processes hold (docs/decisions/0022), and the check of what comes out of one. Both
 * ends are of one version and authenticated; the check keeps a fault of the peer from becoming one of ours: what reaches
 * the core has every field that its type promises, of the right kind. Texts are not judged, additional fields are let be.
 */
import type { DataplaneMessage, SchedulerMessage } from "./admission.ts";

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
type Fields = readonly (readonly [name: string, check: Check])[];

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
const record =
  (fields: Fields): Check =>
  (value) =>
    object(value) && fields.every(([name, check]) => check((value as { readonly [key: string]: unknown })[name]));
const oneOf =
  (...values: readonly string[]): Check =>
  (value) =>
    typeof value === "string" && values.includes(value);

const serviceClass = oneOf("interactive", "batch");
const identityKeys = list(
  record([
    ["source", text],
    ["hash", text],
    ["weak", optional(flag)],
  ]),
);
const owner: Fields = [
  ["run", text],
  ["principal", text],
  ["caller", text],
  ["class", serviceClass],
];
const runReport = record([
  ...owner,
  ["phase", oneOf("paused", "idle")],
  ["replica", optional(text)],
  ["quietMs", count],
  ["pausedMs", optional(count)],
]);
const flightReport = record([
  ...owner,
  ["turn", text],
  ["model", text],
  ["api", text],
  ["source", text],
  ["replica", text],
  ["side", flag],
  ["ageMs", count],
]);
const keyReport = record([
  ["run", text],
  ["principal", text],
  ["keys", identityKeys],
  ["ageMs", count],
]);
const turn: Fields = [["turn", text]];
const turnAndReason: Fields = [...turn, ["reason", text]];
const recognised: Fields = [...turn, ["run", text], ["source", text]];

const FROM_DATAPLANE: { readonly [Type in DataplaneMessage["type"]]: Check } = {
  hello: record([
    ["protocol", count],
    ["dataplane", text],
    ["runs", list(runReport)],
    ["flights", list(flightReport)],
    ["keys", list(keyReport)],
  ]),
  requested: record([
    ...turn,
    ["principal", text],
    ["caller", text],
    ["class", serviceClass],
    ["model", text],
    ["api", text],
    ["run", optional(text)],
    ["keys", identityKeys],
    ["freshRun", text],
    ["side", flag],
    ["heldMs", count],
    ["attempt", count],
    ["traceparent", optional(text)],
  ]),
  abandoned: record(turnAndReason),
  started: record(turn),
  finished: record([
    ...turn,
    [
      "usage",
      record([
        ["promptTokens", optional(count)],
        ["completionTokens", optional(count)],
        ["cachedTokens", optional(count)],
      ]),
    ],
    ["finishReason", optional(text)],
    ["paused", flag],
    ["keys", identityKeys],
  ]),
  failed: record(turnAndReason),
  "pushed-back": record([...turn, ["retryAfterMs", count]]),
  withdrawn: record(turn),
  "too-late": record(turn),
  "open-turns": record([["turns", list(text)]]),
  "run-ended": record([
    ["run", text],
    ["principal", text],
  ]),
  explain: record(turn),
  "run-query": record([
    ["query", count],
    ["run", text],
    ["principal", text],
  ]),
};

const replicaView = record([
  ["replica", text],
  ["kind", oneOf("generative", "single-pass")],
  ["engine", text],
  ["healthy", flag],
  ["models", list(text)],
  ["speaks", list(text)],
  ["reportsLoad", flag],
]);

const FROM_SCHEDULER: { readonly [Type in SchedulerMessage["type"]]: Check } = {
  welcome: record([["protocol", count]]),
  admitted: record([...recognised, ["replica", text]]),
  held: record(recognised),
  rejected: record([...recognised, ["code", text], ["message", text]]),
  withdraw: record(turn),
  drain: object,
  explained: record([...turnAndReason, ["place", count]]),
  "run-known": record([
    ["query", count],
    ["view", optional(record([...owner, ["phase", text], ["heldTurns", count], ["turnsInFlight", count]]))],
  ]),
  pool: record([["replicas", list(replicaView)]]),
};

export function isLinkOpening(value: unknown): value is LinkOpening {
  return isOpening(value);
}

const isOpening = record([
  ["protocol", count],
  ["token", optional(text)],
]);

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
