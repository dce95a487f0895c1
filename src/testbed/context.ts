/**
 * What the routes of one simulated engine share: the model and its driver, the turns that are open, the fault switches.
 *
 * C1: each id is in `turns` or in `passes` from its submission to its last event, never in both.
 */
import { randomUUID } from "node:crypto";
import { createRandom } from "../base/random.ts";
import { createEngine, paramsForProfile, PROFILES } from "../engine/index.ts";
import type { Discipline, Engine, EngineEvent } from "../engine/index.ts";
import type { Clock } from "../base/clock.ts";
import { createDriver, MACHINE_CLOCK } from "./driver.ts";
import type { Driver } from "./driver.ts";
import { faultNumber, NO_FAULTS } from "./faults.ts";
import type { FaultSet } from "./faults.ts";
import type { WireDialect, ResolvedOptions } from "./options.ts";
import { createRecorder } from "./recorder.ts";
import type { Recorder } from "./recorder.ts";
import { deliver } from "./turn.ts";
import type { OpenTurn } from "./turn.ts";

export type Context = {
  readonly options: ResolvedOptions;
  readonly engine: Engine;
  readonly driver: Driver;
  readonly recorder: Recorder;
  readonly turns: Map<string, OpenTurn>;
  /** Single-pass requests and what to do when they end. */
  readonly passes: Map<string, (outcome: "finished" | "aborted") => void>;
  readonly finishReasons: { stop: number; length: number };
  readonly newId: (kind: "chat" | "completion" | "call" | "classify") => string;
  /** Switches for the whole engine. */
  faults(): FaultSet;
  setFaults(faults: FaultSet): void;
  /** Takes one refusal out of those that `refuse-first` allows; without that switch there is no end of them. */
  takeRefusal(): boolean;
  /** Calls now, or when the engine thaws. */
  whenThawed(action: () => void): void;
};

const DISCIPLINE: { readonly [Of in WireDialect]: Discipline } = {
  vllm: "vllm",
  sglang: "sglang",
  "llama.cpp": "slots",
  ollama: "slots",
  "single-pass": "single-pass",
};

export function createContext(options: ResolvedOptions, clock: Clock = MACHINE_CLOCK): Context {
  const engine = createEngine(paramsOf(options), 0);
  const recorder = createRecorder(options.recordLast);
  const turns: Context["turns"] = new Map();
  const passes: Context["passes"] = new Map();
  const finishReasons = { stop: 0, length: 0 };
  let admissions = 0;
  const nextAdmission = (): number => admissions++;
  const onEvents = (events: readonly EngineEvent[]): void => {
    for (const event of events) {
      if (event.kind !== "finished" && event.kind !== "aborted") continue;
      const turn = turns.get(event.id);
      if (turn !== undefined && event.kind === "finished") {
        finishReasons[turn.request.answer.finish === "length" ? "length" : "stop"] += 1;
      }
      passes.get(event.id)?.(event.kind);
      passes.delete(event.id);
    }
    deliver(events, turns, { recorder, nextAdmission });
  };
  const driver = createDriver({ engine, clock, timeScale: options.timeScale, onEvents });
  let faults: FaultSet = NO_FAULTS;
  let refusals = 0;
  let frozen: (() => void)[] = [];
  return {
    options,
    engine,
    driver,
    recorder,
    turns,
    passes,
    finishReasons,
    newId: idMaker(options),
    faults: () => faults,
    setFaults(next) {
      faults = next;
      refusals = 0;
      driver.freeze(next.has("freeze"));
      if (next.has("freeze")) return;
      const waiting = frozen;
      frozen = [];
      for (const action of waiting) action();
    },
    takeRefusal() {
      if (refusals >= (faultNumber(faults, "refuse-first") ?? Infinity)) return false;
      refusals += 1;
      return true;
    },
    whenThawed(action) {
      if (faults.has("freeze")) frozen.push(action);
      else action();
    },
  };
}

function paramsOf(options: ResolvedOptions): ReturnType<typeof paramsForProfile> {
  const { slots, kvTokens, contextTokens, gpu } = options;
  return paramsForProfile(DISCIPLINE[options.dialect], PROFILES[options.profile], {
    queueMax: options.queueMax,
    priorityScheduling: options.priority,
    latency: options.latency,
    ...(slots === undefined ? {} : { maxRunning: slots }),
    ...(kvTokens === undefined ? {} : { kvTokens }),
    ...(contextTokens === undefined ? {} : { contextTokens }),
    ...(gpu === undefined ? {} : { gpu }),
  });
}

/** Ids in the form of each engine: harnesses and proxies tell them apart by it. */
function idMaker({ dialect, idSeed }: ResolvedOptions): Context["newId"] {
  const random = idSeed === undefined ? undefined : createRandom(idSeed);
  const hex32 = (): string => {
    if (random === undefined) return randomUUID().replaceAll("-", "");
    return Array.from({ length: 4 }, () => random.integer(0, 0xffffffff).toString(16).padStart(8, "0")).join("");
  };
  return (kind) => {
    const id = hex32();
    if (kind === "call") {
      if (dialect === "sglang") return `call_${id.slice(0, 24)}`;
      if (dialect === "ollama") return `call_${id.slice(0, 8)}`;
      return dialect === "llama.cpp" ? id : `chatcmpl-tool-${id}`;
    }
    if (dialect === "sglang") return id;
    return `${kind === "chat" ? "chatcmpl" : kind === "completion" ? "cmpl" : "classify"}-${id}`;
  };
}
