/** One world under one policy: builds it, lets its time pass, and says what its agents saw. */
import { ACTIVE_SET_DEFAULTS, ACTIVE_SET_PAUSED_ROOM_SECONDS, type ActiveSetConfig } from "../scheduling/index.ts";
import type { ServiceClass } from "../wire/admission.ts";
import { DEFAULTS } from "../wire/limits.ts";
import { measure, type LoadReport, type RunSample, type TurnSample } from "../workload/index.ts";
import type { ProfileName } from "../engine/index.ts";
import { startAgents } from "./agents.ts";
import type { Front } from "./front.ts";
import { luftpauseFront } from "./luftpause.ts";
import { SimulatedPool, type Dialect } from "./pool.ts";
import type { Program } from "./program.ts";
import { routerFront } from "./routers.ts";
import { VirtualTime } from "./timeline.ts";

export type Simulation = {
  readonly policy: SimulationPolicy;
  readonly program: Program;
  readonly dialect: Dialect;
  readonly profile: ProfileName;
  readonly engines: number;
  readonly agents: { readonly [Class in ServiceClass]: number };
  readonly seed: number;
  /** Not counted, then counted. */
  readonly warmUpSeconds: number;
  readonly seconds: number;
};

/** A column of the policy table. */
export type SimulationPolicy = {
  readonly name: string;
  /** One line for the table's legend. */
  readonly about: string;
  /** Only the interactive agents: the bound of an idle pool. */
  readonly interactiveOnly?: true;
  readonly front: (time: VirtualTime, pool: SimulatedPool, dialect: Dialect) => Front;
};

const classic = (capRelease: "step" | "at-once"): SimulationPolicy["front"] => {
  return (time, pool) =>
    luftpauseFront(time, pool, {
      policy: "classic",
      capRelease,
      pausedRoomMs: DEFAULTS.pausedRoomSeconds * 1_000,
      priority: "off",
    });
};

const activeSet = (changed: Partial<ActiveSetConfig>, priorities = true): SimulationPolicy["front"] => {
  return (time, pool, dialect) =>
    luftpauseFront(time, pool, {
      policy: "active-set",
      capRelease: "step",
      pausedRoomMs: ACTIVE_SET_PAUSED_ROOM_SECONDS * 1_000,
      activeSet: { ...ACTIVE_SET_DEFAULTS, ...changed },
      // vLLM does not show that it takes one: one tells us.
      priority: !priorities ? "off" : dialect === "vllm" ? "lower-first" : "higher-first",
    });
};

const priorityOf = (dialect: Dialect) => (serviceClass: ServiceClass) =>
  (serviceClass === "interactive") === (dialect === "sglang") ? 1 : 0;

/** Every policy that is compared, the losers too. The first one is what the others are compared to. */
export const POLICIES: readonly SimulationPolicy[] = [
  { name: "router", about: "cache-aware router, class-blind", front: (_time, pool) => routerFront(pool.size) },
  {
    name: "router+priority",
    about: "the same; the harness sends the engine's priority",
    front: (_time, pool, dialect) => routerFront(pool.size, priorityOf(dialect)),
  },
  { name: "classic", about: "luftpause, policy classic", front: classic("step") },
  { name: "classic-at-once", about: "luftpause, policy classic, capRelease at-once", front: classic("at-once") },
  { name: "active-set", about: "luftpause, policy active-set", front: activeSet({}) },
  { name: "-bound", about: "active-set without a bound on live batch runs", front: activeSet({ bound: "none" }) },
  { name: "survival", about: "active-set, bound by the survival of prefixes", front: activeSet({ bound: "survival" }) },
  { name: "-growth", about: "active-set without the check of growth", front: activeSet({ growth: false }) },
  { name: "-slices", about: "active-set without slices", front: activeSet({ sliceFactor: 0 }) },
  { name: "-conserving", about: "active-set, not work-conserving", front: activeSet({ workConservingBelow: 0 }) },
  {
    name: "-preempt",
    about: "active-set without preemption before the first byte",
    front: activeSet({ preempt: false }),
  },
  { name: "-shares", about: "active-set with shares in turns", front: activeSet({ tokenShares: false }) },
  { name: "-priority", about: "active-set without the engines' priority", front: activeSet({}, false) },
  {
    name: "idle-pool",
    about: "the interactive agents alone, through the router: the bound",
    interactiveOnly: true,
    front: (_time, pool) => routerFront(pool.size),
  },
];

export function simulate(simulation: Simulation): LoadReport {
  const { policy, program, dialect, profile, engines, seed, warmUpSeconds, seconds } = simulation;
  const time = new VirtualTime();
  const pool = new SimulatedPool(time, { engines, dialect, profile, priorities: true });
  const turns: TurnSample[] = [];
  const runs: RunSample[] = [];
  startAgents({
    time,
    pool,
    front: policy.front(time, pool, dialect),
    program,
    seed,
    agents: policy.interactiveOnly === true ? { ...simulation.agents, batch: 0 } : simulation.agents,
    unranked: dialect === "sglang" ? Number.MIN_SAFE_INTEGER : 0,
    onTurn: (sample) => turns.push(sample),
    onRun: (sample) => runs.push(sample),
  });
  const fromMs = warmUpSeconds * 1_000;
  const untilMs = fromMs + seconds * 1_000;
  time.runUntil(untilMs);
  return measure({ turns, runs, fromMs, untilMs, timeScale: 1 });
}
