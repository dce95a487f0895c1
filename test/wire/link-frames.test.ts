/** What passes the border of the link, and what does not: each field of each message. */
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  isDataplaneMessage,
  isLinkAnswer,
  isLinkOpening,
  isSchedulerFrame,
  nameOfMessage,
} from "../../src/wire/link-frames.ts";

type Plain = { readonly [key: string]: unknown };

const keys = [
  { source: "tool-calls", hash: "h" },
  { source: "prefix", hash: "w", weak: true },
];
const owner = { run: "r", principal: "p", caller: "", class: "batch" };

const FROM_DATAPLANE: readonly Plain[] = [
  {
    type: "hello",
    protocol: 1,
    dataplane: "d",
    runs: [{ ...owner, phase: "paused", replica: "a", quietMs: 5, pausedMs: 5 }],
    flights: [{ ...owner, turn: "t", model: "m", api: "chat", source: "header", replica: "a", side: false, ageMs: 1 }],
    keys: [{ run: "r", principal: "p", keys, ageMs: 1 }],
    models: [{ replica: "a", models: ["m"] }],
  },
  {
    type: "requested",
    turn: "t",
    principal: "p",
    caller: "c",
    class: "interactive",
    model: "m",
    api: "chat",
    run: "r",
    keys,
    freshRun: "f",
    side: true,
    heldMs: 0,
    attempt: 0,
    traceparent: "00-…",
  },
  { type: "abandoned", turn: "t", reason: "client-left" },
  { type: "started", turn: "t" },
  {
    type: "finished",
    turn: "t",
    usage: { promptTokens: 1, completionTokens: 2, cachedTokens: 0 },
    finishReason: "stop",
    paused: false,
    keys,
  },
  { type: "failed", turn: "t", reason: "engine-lost" },
  { type: "pushed-back", turn: "t", retryAfterMs: 1_000 },
  { type: "withdrawn", turn: "t" },
  { type: "too-late", turn: "t" },
  { type: "open-turns", turns: ["t", "u"] },
  { type: "run-ended", run: "r", principal: "p" },
  { type: "explain", turn: "t" },
  { type: "run-query", query: 7, run: "r", principal: "p" },
];

const recognised = { turn: "t", run: "r", source: "header" };
const FROM_SCHEDULER: readonly Plain[] = [
  { type: "welcome", protocol: 1 },
  { type: "admitted", ...recognised, replica: "a" },
  { type: "held", ...recognised },
  { type: "rejected", ...recognised, code: "model_not_found", message: "no" },
  { type: "withdraw", turn: "t" },
  { type: "drain" },
  { type: "explained", turn: "t", reason: "pinned", place: 1 },
  {
    type: "run-known",
    query: 7,
    view: {
      run: "r",
      class: "batch",
      caller: "",
      phase: "idle",
      replica: "a",
      heldTurns: 0,
      turnsInFlight: 1,
      turns: 2,
      quietMs: 3,
    },
  },
  {
    type: "pool",
    replicas: [
      {
        replica: "a",
        kind: "generative",
        engine: "vllm",
        healthy: true,
        probed: true,
        models: ["m"],
        speaks: ["chat"],
        reportsLoad: true,
      },
    ],
  },
];

const frame = (message: unknown): Plain => ({ epoch: 1, message });
/** Fields that may be missing, by their last name; where one of that name is needed the test says so. */
const OPTIONAL = new Set([
  "run",
  "traceparent",
  "finishReason",
  "weak",
  "replica",
  "pausedMs",
  "promptTokens",
  "completionTokens",
  "cachedTokens",
]);

/** Every value with one field, at any depth, replaced by `value`; with where it was. */
function* spoilt(value: unknown, by: unknown, at = ""): Generator<readonly [string, unknown]> {
  if (Array.isArray(value)) {
    for (const [index, item] of value.entries()) {
      for (const [where, other] of spoilt(item, by, `${at}[]`)) yield [where, value.with(index, other)];
      yield [`${at}[]`, value.with(index, by)];
    }
  } else if (typeof value === "object" && value !== null) {
    for (const [key, item] of Object.entries(value)) {
      for (const [where, other] of spoilt(item, by, `${at}.${key}`)) yield [where, { ...value, [key]: other }];
      yield [`${at}.${key}`, { ...value, [key]: by }];
    }
  }
}

describe("a message of a dataplane", () => {
  test.each(FROM_DATAPLANE.map((message) => [message["type"], message]))("%s passes as it is", (_type, message) => {
    expect(isDataplaneMessage(JSON.parse(JSON.stringify(message)))).toBe(true);
    expect(isDataplaneMessage({ ...message, added: "by a later version" })).toBe(true);
  });

  test.each(FROM_DATAPLANE.map((message) => [message["type"], message]))(
    "%s does not pass with a field of another kind, at any depth",
    (_type, message) => {
      for (const by of [null, Symbol("no JSON"), -1]) {
        for (const [where, other] of spoilt(message, by)) {
          expect(isDataplaneMessage(other), `${where} = ${String(by)}`).toBe(false);
        }
      }
    },
  );

  test.each(FROM_DATAPLANE.map((message) => [message["type"], message]))(
    "%s does not pass without a field that it needs",
    (_type, message) => {
      for (const [where, other] of spoilt(message, undefined)) {
        const { type } = message;
        const needed =
          /\[\]\.run$|^\.(flights|models)\[\]\.replica$/.test(where) || (where === ".run" && type !== "requested");
        const optional = OPTIONAL.has(where.split(".").at(-1) ?? "");
        expect(isDataplaneMessage(other), where).toBe(optional && !needed);
      }
    },
  );
});

describe("a frame of the scheduler", () => {
  test.each(FROM_SCHEDULER.map((message) => [message["type"], message]))("%s passes as it is", (_type, message) => {
    expect(isSchedulerFrame(JSON.parse(JSON.stringify(frame(message))))).toBe(true);
  });

  test.each(FROM_SCHEDULER.map((message) => [message["type"], message]))(
    "%s does not pass with a field of another kind",
    (_type, message) => {
      for (const by of [null, Symbol("no JSON")]) {
        for (const [where, other] of spoilt(message, by)) {
          expect(isSchedulerFrame(frame(other)), `${where} = ${String(by)}`).toBe(false);
        }
      }
    },
  );

  test("needs its epoch", () => {
    expect(isSchedulerFrame({ message: { type: "drain" } })).toBe(false);
    expect(isSchedulerFrame({ epoch: "1", message: { type: "drain" } })).toBe(false);
  });
});

test("messages of one side are not those of the other, and no name of a prototype is one", () => {
  for (const message of FROM_SCHEDULER) expect(isDataplaneMessage(message)).toBe(false);
  for (const message of FROM_DATAPLANE) expect(isSchedulerFrame(frame(message))).toBe(false);
  for (const type of ["constructor", "__proto__", "toString", "hasOwnProperty"]) {
    expect(isDataplaneMessage({ type })).toBe(false);
    expect(isSchedulerFrame(frame({ type }))).toBe(false);
  }
});

test("openings and answers", () => {
  expect(isLinkOpening({ protocol: 1 })).toBe(true);
  expect(isLinkOpening({ protocol: 1, token: "t" })).toBe(true);
  expect(isLinkOpening({ protocol: "1" })).toBe(false);
  expect(isLinkOpening({ protocol: 1, token: 1 })).toBe(false);
  expect(isLinkOpening([])).toBe(false);
  expect(isLinkAnswer({ accepted: true, epoch: 1 })).toBe(true);
  expect(isLinkAnswer({ accepted: true })).toBe(false);
  expect(isLinkAnswer({ accepted: false, reason: "no" })).toBe(true);
  expect(isLinkAnswer({ accepted: false })).toBe(false);
  expect(isLinkAnswer({ accepted: "yes", epoch: 1 })).toBe(false);
});

test("no value whatever throws", () => {
  fc.assert(
    fc.property(fc.anything(), (value) => {
      const types = [...FROM_DATAPLANE, ...FROM_SCHEDULER].map((message) => message["type"]);
      for (const candidate of [value, ...types.map((type) => ({ type, turn: value, runs: value, replicas: value }))]) {
        isDataplaneMessage(candidate);
        isSchedulerFrame(candidate);
        isLinkOpening(candidate);
        isLinkAnswer(candidate);
        nameOfMessage(candidate);
      }
    }),
  );
});

test("a message is named without its content", () => {
  expect(nameOfMessage({ type: "requested", turn: "secret" })).toBe("'requested'");
  expect(nameOfMessage({ type: "x".repeat(99) })).toBe("without a type");
  expect(nameOfMessage(7)).toBe("without a type");
});
