/** luftpause as a front: the real scheduling core, fed as the scheduler's host and a dataplane feed it. */
import { asCallerId, asDataplaneId, asPrincipalId, asReplicaId, asRunId, asTurnId } from "../base/ids.ts";
import { invariant } from "../base/invariant.ts";
import {
  createState,
  decide,
  type SchedulerEffect,
  type SchedulerEvent,
  type SchedulingConfig,
} from "../scheduling/index.ts";
import { DEFAULTS } from "../wire/limits.ts";
import type { AskedTurn, Front, TurnActions } from "./front.ts";
import type { SimulatedPool } from "./pool.ts";
import type { VirtualTime } from "./timeline.ts";

const DATAPLANE = asDataplaneId("simulated");
const PRINCIPAL = asPrincipalId("default");
const MODEL = "simulated";

/** What of a configuration a simulation chooses; the rest has the defaults of the config file. */
export type SimulatedPolicy = Pick<SchedulingConfig, "policy" | "capRelease" | "pausedRoomMs" | "activeSet"> & {
  readonly priority: "auto" | "higher-first" | "lower-first" | "off";
};

type Event = SchedulerEvent extends infer Each ? (Each extends SchedulerEvent ? Omit<Each, "nowMs"> : never) : never;

type OpenTurn = { readonly turn: AskedTurn; readonly actions: TurnActions };

export function luftpauseFront(time: VirtualTime, pool: SimulatedPool, policy: SimulatedPolicy): Front {
  const replicas = Array.from({ length: pool.size }, (_, at) => asReplicaId(`engine-${at}`));
  const indexes = new Map(replicas.map((replica, at) => [replica, at]));
  const { priority, ...chosen } = policy;
  const config: SchedulingConfig = {
    ...chosen,
    turnExpiryMs: DEFAULTS.turnExpiryMs,
    dataplaneGraceMs: DEFAULTS.dataplaneGraceMs,
    runIdleExpiryMs: DEFAULTS.runIdleExpiryMs,
    arrivalKeptMs: DEFAULTS.arrivalKeptMs,
    loadStaleAfterProbes: DEFAULTS.loadStaleAfterProbes,
    identityTtlMs: DEFAULTS.identityTtlMs,
    identityKeysMax: DEFAULTS.identityKeysMax,
    principalWeights: [],
    replicas: replicas.map((replica) => ({
      replica,
      kind: "generative",
      models: [MODEL],
      speaks: ["chat"],
      maxInFlight: undefined,
      priority,
    })),
  };
  let state = createState(config, time.nowMs);
  const open = new Map<string, OpenTurn>();
  const queue: SchedulerEvent[] = [];
  let running = false;

  // As in the host: what an effect brings about at once is an event after it, never inside it.
  const feed = (event: Event): void => {
    queue.push({ ...event, nowMs: time.nowMs });
    if (running) return;
    running = true;
    for (let next = queue.shift(); next !== undefined; next = queue.shift()) {
      const outcome = decide(state, next);
      state = outcome.state;
      for (const effect of outcome.effects) carryOut(effect);
    }
    running = false;
  };

  const carryOut = (effect: SchedulerEffect): void => {
    const turn = open.get(effect.turn);
    if (turn === undefined) return;
    switch (effect.type) {
      case "admit-turn": {
        const refusal = turn.actions.send(indexes.get(effect.replica) ?? 0, effect.priority);
        if (refusal === undefined) return;
        feed({ type: "turn-pushed-back", turn: effect.turn, retryAfterMs: DEFAULTS.retryAfterDefaultMs });
        return;
      }
      case "withdraw-turn":
        feed({ type: turn.actions.takeBack() ? "turn-withdrawn" : "turn-too-late", turn: effect.turn });
        return;
      case "reject-turn":
        open.delete(effect.turn);
        turn.actions.fail(effect.message);
    }
  };

  const tick = (): void => {
    feed({ type: "ticked" });
    time.after(DEFAULTS.tickMs, tick);
  };
  const probe = (): void => {
    for (const [at, replica] of replicas.entries()) {
      feed({ type: "probe-sent", replica });
      const learned = { models: [MODEL], speaks: ["chat"], engine: undefined, replaced: false } as const;
      feed({ type: "replica-probed", replica, healthy: true, load: pool.sample(at), ...learned });
    }
    time.after(DEFAULTS.probeEveryMs, probe);
  };
  // Dataplanes name their open turns, or they would expire.
  const name = (): void => {
    feed({ type: "turns-named", dataplane: DATAPLANE, turns: [...open.keys()].map(asTurnId) });
    time.after(DEFAULTS.openTurnsEveryMs, name);
  };
  feed({ type: "dataplane-linked", dataplane: DATAPLANE, runs: [], flights: [], keys: [], models: [] });
  probe();
  tick();
  name();

  return {
    ask(turn, actions) {
      open.set(turn.id, { turn, actions });
      feed({
        type: "turn-requested",
        dataplane: DATAPLANE,
        turn: asTurnId(turn.id),
        principal: PRINCIPAL,
        caller: asCallerId(turn.caller),
        class: turn.class,
        model: MODEL,
        api: "chat",
        run: asRunId(turn.run),
        keys: [],
        freshRun: asRunId(turn.run),
        side: false,
        heldMs: 0,
        promptBytes: turn.promptBytes,
        prefixKey: turn.prefixKey,
        streams: true,
      });
    },
    runEnded: (run) => feed({ type: "run-ended", run: asRunId(run), principal: PRINCIPAL }),
    started: (turn) => feed({ type: "turn-started", turn: asTurnId(turn.id) }),
    finished(turn, { usage, tool }) {
      invariant(open.delete(turn.id), "a turn ends once");
      const finishReason = tool === undefined ? "stop" : "tool_calls";
      const how = { usage, finishReason, paused: tool !== undefined, keys: [], tool };
      feed({ type: "turn-finished", turn: asTurnId(turn.id), ...how });
    },
  };
}
