/**
 * Random but sensible sequences of events. An operation names its subject by a number; which turn, run or replica that is
 * depends on what is there at that moment, so that a sequence stays meaningful while fast-check makes it shorter.
 */
import * as fc from "fast-check";
import { asDataplaneId, asPrincipalId, asReplicaId, asRunId, asTurnId } from "../../src/base/ids.ts";
import type { ReplicaConfig, SchedulerEvent, SchedulingConfig } from "../../src/scheduling/index.ts";
import type { FailureReason, FlightReport, RunReport, RunSource } from "../../src/wire/admission.ts";
import { config, finished, key, linked, probed, replica, requested, sample } from "./support.ts";

/** What is there at a moment: the subjects from which events choose. */
export type SeenWorld = {
  readonly nowMs: number;
  readonly turns: readonly SeenTurn[];
  readonly runs: readonly { readonly id: string; readonly principal: string }[];
  ofDataplane(dataplane: string): readonly SeenTurn[];
};

export type SeenTurn = {
  readonly event: Extract<SchedulerEvent, { readonly type: "turn-requested" }>;
  readonly run: { readonly id: string };
  readonly source: RunSource;
  readonly arrivalMs: number;
  readonly replica: { readonly config: ReplicaConfig } | undefined;
  readonly aliveMs: number;
};

export type Operation = {
  readonly kind: keyof typeof KINDS;
  /** Three numbers from which everything else follows. */
  readonly a: number;
  readonly b: number;
  readonly c: number;
  readonly waitMs: number;
};

/** How often each comes up. */
const KINDS = {
  request: 7,
  chat: 2,
  "ask-again": 1,
  finish: 4,
  start: 1,
  fail: 1,
  abandon: 1,
  "push-back": 1,
  withdraw: 1,
  "probe-sent": 1,
  probe: 5,
  health: 1,
  replace: 1,
  tick: 1,
  name: 1,
  "end-run": 1,
  lose: 1,
  link: 1,
  configure: 1,
} as const;

const operation: fc.Arbitrary<Operation> = fc.record({
  kind: fc.oneof(
    ...Object.entries(KINDS).map(([kind, weight]) => ({ weight, arbitrary: fc.constant(kind as keyof typeof KINDS) })),
  ),
  a: fc.nat(1_000),
  b: fc.nat(1_000),
  c: fc.nat(1_000),
  waitMs: fc.oneof(
    { weight: 6, arbitrary: fc.constantFrom(0, 0, 1, 7, 250) },
    { weight: 2, arbitrary: fc.constantFrom(1_000, 2_000, 10_000) },
    { weight: 1, arbitrary: fc.constantFrom(60_000, 121_000, 600_000, 1_800_000) },
  ),
});

export const operations = (length: number): fc.Arbitrary<Operation[]> =>
  fc.array(operation, { maxLength: length, size: "max" });

export const WORLDS: readonly SchedulingConfig[] = [
  config({
    replicas: [replica("a"), replica("b"), replica("c", { models: ["m", "n"], maxInFlight: 3 })],
    principalWeights: [
      { principal: asPrincipalId("p1"), weight: 3 },
      { principal: asPrincipalId("p2"), weight: 0.1 },
    ],
  }),
  config({
    capRelease: "at-once",
    pausedRoomMs: 120_000,
    replicas: [
      replica("a", { models: [], speaks: undefined }),
      replica("b", { models: ["m"], speaks: ["chat", "messages"], maxInFlight: 1 }),
      replica("s", { kind: "single-pass", models: ["m", "labels"] }),
    ],
  }),
  config({
    replicas: [replica("b", { maxInFlight: 2 }), replica("d", { models: ["m", "n"], speaks: undefined })],
    principalWeights: [{ principal: asPrincipalId("p0"), weight: 2 }],
    pausedRoomMs: 60_000,
  }),
];

const pick = <Item>(items: readonly Item[], number: number): Item | undefined => items[number % items.length];
const at = <Item>(items: readonly Item[], number: number): Item => items[number % items.length]!;
const REASONS: readonly FailureReason[] = ["client-left", "engine-unreachable", "engine-lost", "engine-error"];

/** The event that an operation means now, or undefined when it has no subject. */
export function eventFor(world: SeenWorld, step: Operation, number: number): SchedulerEvent | undefined {
  const { a, b, c } = step;
  const nowMs = world.nowMs + step.waitMs;
  const held = world.turns.filter((turn) => turn.replica === undefined);
  const flying = world.turns.filter((turn) => turn.replica !== undefined);
  const name = at(["a", "b", "c", "d", "s"], a);
  switch (step.kind) {
    case "request":
      return { ...requested(nowMs, `t${number}`, askFor(world, step)), ...factsFor(step) };
    case "chat": {
      const keys = at([["prefix~:k0"], ["prompt-cache-key~:k1", "prefix~:k2"], ["tool-calls:k3", "tool-calls:k4"]], a);
      return requested(nowMs, `t${number}`, {
        keys,
        class: b % 3 === 0 ? "batch" : "interactive",
        caller: `c${c % 2}`,
      });
    }
    case "ask-again": {
      const turn = pick(world.turns, a);
      return turn === undefined ? undefined : { ...turn.event, nowMs };
    }
    case "finish": {
      const turn = pick(flying, a);
      const keys =
        b % 2 === 0
          ? [at(["prefix~:k0", "prefix~:k2", "tool-calls:k3", "prompt-cache-key~:k1"], c), `tool-calls:k${c % 6}`]
          : [];
      if (turn === undefined) return undefined;
      return { ...finished(nowMs, turn.event.turn, { paused: b % 3 > 0, keys }), ...answerFor(step) };
    }
    case "start":
    case "withdraw": {
      const turn = pick(flying, a)?.event.turn;
      const type = step.kind === "start" ? "turn-started" : "turn-withdrawn";
      return turn === undefined ? undefined : { type, nowMs, turn };
    }
    case "fail": {
      const turn = pick(flying, a)?.event.turn;
      return turn === undefined ? undefined : { type: "turn-failed", nowMs, turn, reason: at(REASONS, b) };
    }
    case "abandon": {
      const turn = pick(b % 4 === 0 ? flying : held, a)?.event.turn;
      return turn === undefined ? undefined : { type: "turn-abandoned", nowMs, turn, reason: "client-left" };
    }
    case "push-back": {
      const turn = pick(flying, a)?.event.turn;
      const retryAfterMs = at([0, 1_000, 2_000], b);
      return turn === undefined ? undefined : { type: "turn-pushed-back", nowMs, turn, retryAfterMs };
    }
    case "probe-sent":
      return { type: "probe-sent", nowMs, replica: asReplicaId(name) };
    case "probe":
      return { ...probed(nowMs, name, { models: modelsSeen(name, c) }), load: loadSeen(b, c), speaks: speaksSeen(c) };
    case "health":
      return probed(nowMs, name, { healthy: b % 3 > 0 });
    case "replace":
      return probed(nowMs, name, { replaced: true, models: modelsSeen(name, c) });
    case "tick":
      return { type: "ticked", nowMs };
    case "name": {
      const dataplane = asDataplaneId(`d${a % 2}`);
      const turns = world.ofDataplane(dataplane).map((turn) => turn.event.turn);
      return { type: "turns-named", nowMs, dataplane, turns: turns.filter((_, index) => (b + index) % 5 > 0) };
    }
    case "end-run": {
      const run = pick(world.runs, a);
      if (run === undefined) return undefined;
      return { type: "run-ended", nowMs, run: asRunId(run.id), principal: asPrincipalId(run.principal) };
    }
    case "lose":
      return { type: "dataplane-lost", nowMs, dataplane: asDataplaneId(`d${a % 2}`) };
    case "link":
      return linkFor(world, step, nowMs, number);
    case "configure":
      return { type: "pool-configured", nowMs, config: at(WORLDS, a) };
  }
}

function askFor(world: SeenWorld, { a, b, c }: Operation): Parameters<typeof requested>[2] {
  const known = pick(world.runs, a);
  // Mostly another turn of a run that is there, else a new one.
  const again = known !== undefined && b % 4 > 0;
  return {
    run: again ? known.id : `r${a % 12}`,
    principal: again ? known.principal : `p${c % 3}`,
    class: (a + c) % 2 === 0 ? "interactive" : "batch",
    caller: `c${b % 3}`,
    model: at(["m", "m", "m", "n", "unknown", "labels"], c),
    api: at(["chat", "chat", "chat", "messages"], b),
    side: (a + b + c) % 7 === 0,
    heldMs: at([0, 0, 0, 500, 30_000], c),
    dataplane: `d${(a + b) % 2}`,
  };
}

/** What a dataplane tells of a prompt; some tell nothing. */
function factsFor({ a, b, c }: Operation): Partial<SeenTurn["event"]> {
  if (a % 5 === 0) return {};
  return {
    promptBytes: (b + 1) * 4,
    streams: c % 3 > 0,
    ...(b % 4 === 0 ? {} : { prefixKey: `prefix-${c % 2}` }),
  };
}

function answerFor({ a, b, c }: Operation): Pick<Extract<SchedulerEvent, { type: "turn-finished" }>, "usage" | "tool"> {
  const promptTokens = 1 + (a % 900);
  const tool = at([undefined, "Read", "Bash"], b);
  if (c % 5 === 0) return { usage: {}, tool };
  const cachedTokens = Math.floor((promptTokens * (b % 5)) / 4);
  return { usage: { promptTokens, completionTokens: c % 90, ...(c % 4 === 0 ? {} : { cachedTokens }) }, tool };
}

function modelsSeen(name: string, c: number): readonly string[] {
  return name === "a" ? at([["m"], ["m", "n"], ["n"]], c) : ["m"];
}

function speaksSeen(c: number): readonly ("chat" | "messages")[] | undefined {
  return at([undefined, ["chat"], ["chat", "messages"], ["messages"]], c);
}

function loadSeen(b: number, c: number): ReturnType<typeof sample> | undefined {
  return at(
    [
      undefined,
      sample({}),
      sample({ running: c % 5, waiting: 0 }),
      sample({ running: c % 5, waiting: 0 }),
      sample({ running: c % 5, waiting: 2 }),
      sample({ running: c % 5, waiting: 2 }),
      sample({ waiting: 1 }),
      sample({ running: (c % 5) + 3, waiting: 0 }),
      sample({ running: c % 5, waiting: 0, kvCapacityTokens: 2_000, takesPriority: c % 2 === 0 }),
      sample({ running: c % 5, waiting: 1, kvCapacityTokens: 2_000, takesPriority: c % 2 === 0 }),
    ],
    b,
  );
}

/** A dataplane reports: what it has in flight is mostly what is known, with a turn missing here and another one there. */
function linkFor(world: SeenWorld, { a, b, c }: Operation, nowMs: number, number: number): SchedulerEvent {
  const dataplane = `d${a % 2}`;
  const mine = world.ofDataplane(dataplane).filter((turn) => turn.replica !== undefined);
  const flights = mine.filter((_, index) => (b + index) % 4 > 0).map((turn) => flightOf(turn, nowMs - world.nowMs));
  if (c % 3 === 0) flights.push(strangeFlight(number, c));
  const runs: RunReport[] = world.runs
    .filter((_, index) => (c + index) % 2 === 0)
    .map((run, index) => ({
      run: asRunId(run.id),
      principal: asPrincipalId(run.principal),
      caller: requested(0, "x", { caller: `c${index % 3}` }).caller,
      class: index % 2 === 0 ? "interactive" : "batch",
      phase: (b + index) % 2 === 0 ? "paused" : "idle",
      replica: index % 4 === 0 ? undefined : asReplicaId(at(["a", "b", "gone"], b + index)),
      quietMs: at([0, 10, 5_000, 500_000], c + index),
      ...(index % 2 === 0 ? { pausedMs: at([10, 5_000, 500_000], c + index) } : {}),
    }));
  runs.push({ ...requestedRun(number), phase: "paused", replica: asReplicaId("b"), quietMs: c * 10 });
  const keys = runs.slice(0, 2).map(({ run, principal }, index) => ({
    run,
    principal,
    keys: [key(at(["prefix~:k0", "tool-calls:k3"], c + index))],
    ageMs: (b % 50) * 100,
  }));
  const models = ["a", "gone", "c"].map((name, index) => ({
    replica: asReplicaId(name),
    models: at([[], ["m"], ["m", "x"]], b + c + index),
  }));
  return linked(nowMs, dataplane, { runs, flights, keys, models });
}

function requestedRun(number: number): Pick<RunReport, "run" | "principal" | "caller" | "class"> {
  const { principal, caller } = requested(0, "x", { principal: `p${number % 3}`, caller: "c0" });
  return { run: asRunId(`r${number % 12}`), principal, caller, class: "interactive" };
}

function flightOf(turn: SeenTurn, waitedMs: number): FlightReport {
  const { event, run, source, arrivalMs, replica } = turn;
  return {
    turn: event.turn,
    run: asRunId(run.id),
    principal: event.principal,
    caller: event.caller,
    class: event.class,
    model: event.model,
    api: event.api,
    source,
    replica: replica!.config.replica,
    side: event.side,
    ageMs: Math.max(0, waitedMs + turn.aliveMs - arrivalMs),
  };
}

function strangeFlight(number: number, c: number): FlightReport {
  return {
    ...requestedRun(number),
    turn: asTurnId(`s${number}`),
    model: "m",
    api: "chat",
    source: "header",
    replica: asReplicaId(at(["a", "b", "gone"], c)),
    side: c % 5 === 0,
    ageMs: c * 20,
  };
}
