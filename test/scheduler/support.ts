/** A scheduler without engines, on a clock that stands until it is moved. */
import { afterEach } from "vitest";
import { asCallerId, asDataplaneId, asPrincipalId, asReplicaId, asRunId, asTurnId } from "../../src/base/ids.ts";
import { createScheduler, type EventLog, type Scheduler } from "../../src/scheduler/index.ts";
import type { SchedulingConfig } from "../../src/scheduling/index.ts";
import { SILENT_LOG } from "../../src/telemetry/index.ts";
import type { EndpointConfig } from "../../src/wire/endpoint.ts";
import type { DataplaneMessage, FlightReport, TurnRequest } from "../../src/wire/admission.ts";

export const CONFIG: SchedulingConfig = {
  policy: "classic",
  capRelease: "step",
  pausedRoomMs: 1_800_000,
  turnExpiryMs: 600_000,
  dataplaneGraceMs: 10_000,
  runIdleExpiryMs: 1_800_000,
  arrivalKeptMs: 60_000,
  loadStaleAfterProbes: 3,
  identityTtlMs: 1_800_000,
  identityKeysMax: 1_000,
  principalWeights: [],
  replicas: [{ replica: asReplicaId("a"), kind: "generative", models: ["m"], speaks: ["chat"], maxInFlight: 1 }],
};

export const principal = asPrincipalId("p");
export const hello: Extract<DataplaneMessage, { readonly type: "hello" }> = {
  type: "hello",
  protocol: 1,
  dataplane: asDataplaneId("d"),
  runs: [],
  flights: [],
  keys: [],
  models: [],
};

export function request(turn: string, run = `run-${turn}`): TurnRequest {
  return {
    type: "requested",
    turn: asTurnId(turn),
    principal,
    caller: asCallerId(""),
    class: "interactive",
    model: "m",
    api: "chat",
    run: asRunId(run),
    keys: [],
    freshRun: asRunId(`fresh-${turn}`),
    side: false,
    heldMs: 0,
    attempt: 0,
  };
}

/** A turn in flight on `a`, as a dataplane hands it over. */
export function flight(turn: string, run: string): FlightReport {
  return {
    turn: asTurnId(turn),
    run: asRunId(run),
    principal,
    caller: asCallerId(""),
    class: "interactive",
    replica: asReplicaId("a"),
    side: false,
    ageMs: 5,
    model: "m",
    api: "chat",
    source: "header",
  };
}

/** A clock that stands until it is moved; timers run in order of time. */
export function fakeClock() {
  let now = 0;
  const timers = new Set<{ at: number; action: () => void }>();
  return {
    nowMs: () => now,
    after(delayMs: number, action: () => void) {
      const timer = { at: now + delayMs, action };
      timers.add(timer);
      return () => void timers.delete(timer);
    },
    advance(ms: number) {
      const end = now + ms;
      for (;;) {
        const next = [...timers].filter(({ at }) => at <= end).toSorted((a, b) => a.at - b.at)[0];
        if (next === undefined) break;
        timers.delete(next);
        now = next.at;
        next.action();
      }
      now = end;
    },
  };
}

export const stops: (() => unknown)[] = [];
afterEach(async () => {
  for (const stop of stops.splice(0).toReversed()) await stop();
});

export function makeScheduler(
  config = CONFIG,
  eventLog?: EventLog,
  endpoints: readonly EndpointConfig[] = [],
): { scheduler: Scheduler; clock: ReturnType<typeof fakeClock> } {
  const clock = fakeClock();
  const scheduler = createScheduler({
    config,
    // Without endpoints nothing is probed: the tests speak through `attach` and the pool's own config.
    endpoints,
    clock,
    log: SILENT_LOG,
    tickMs: 1_000,
    probeEveryMs: 2_000,
    probeTimeoutMs: 2_000,
    connectTimeoutMs: 2_000,
    eventLog,
  });
  stops.push(() => scheduler.stop());
  return { scheduler, clock };
}
