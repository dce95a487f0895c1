/** The core itself as the world from which random events choose their subjects; its invariants are checked after each one. */
import {
  checkInvariants,
  checkJudged,
  createState,
  decide,
  type SchedulerState,
  type SchedulingConfig,
} from "../../src/scheduling/index.ts";
import type { SchedulerEffect, SchedulerEvent } from "../../src/scheduling/index.ts";
import type { SeenTurn, SeenWorld } from "./random-events.ts";

export class LiveWorld implements SeenWorld {
  state: SchedulerState;
  readonly #asked = new Map<string, SeenTurn["event"]>();

  constructor(config: SchedulingConfig) {
    this.state = createState(config, 0);
  }

  decide(event: SchedulerEvent): readonly SchedulerEffect[] {
    if (event.type === "turn-requested") this.#asked.set(event.turn, event);
    const decided = decide(this.state, event);
    this.state = decided.state;
    checkInvariants(this.state);
    if (event.type === "ticked") checkJudged(this.state);
    return decided.effects;
  }

  get nowMs(): number {
    return this.state.nowMs;
  }

  get turns(): readonly SeenTurn[] {
    return [...this.state.turns.values()].map((turn) => {
      const { id, dataplane, run, caller, model, api, side, source, arrivalMs, replica, aliveMs } = turn;
      const reported: SeenTurn["event"] = {
        type: "turn-requested",
        nowMs: 0,
        dataplane: dataplane.id,
        turn: id,
        principal: caller.principal.id,
        caller: caller.id,
        class: turn.class,
        model,
        api,
        run: run.id,
        keys: [],
        freshRun: run.id,
        side,
        heldMs: 0,
      };
      return { event: this.#asked.get(id) ?? reported, run, source, arrivalMs, replica, aliveMs };
    });
  }

  get runs(): SeenWorld["runs"] {
    return [...this.state.principals.values()].flatMap(({ id, runs }) =>
      [...runs.keys()].map((run) => ({ id: run, principal: id })),
    );
  }

  ofDataplane(dataplane: string): readonly SeenTurn[] {
    return this.turns.filter(({ event }) => event.dataplane === dataplane);
  }
}
