/**
 * Agents in a closed loop under virtual time: each begins its next run when the last one has ended. The k-th run of an agent
 * is the same work whatever stands in front.
 */
import { createRandom, type Random } from "../base/random.ts";
import type { EngineRequest } from "../engine/index.ts";
import type { ServiceClass } from "../wire/admission.ts";
import type { RunSample, TurnSample } from "../workload/index.ts";
import type { AskedTurn, Front } from "./front.ts";
import type { SimulatedPool } from "./pool.ts";
import type { Program, RunProgram } from "./program.ts";
import type { VirtualTime } from "./timeline.ts";

export type AgentsOptions = {
  readonly time: VirtualTime;
  readonly pool: SimulatedPool;
  readonly front: Front;
  readonly program: Program;
  readonly seed: number;
  readonly agents: { readonly [Class in ServiceClass]: number };
  /** A priority where nobody names one: SGLang puts those last, vLLM counts them as 0. */
  readonly unranked: number;
  readonly onTurn: (sample: TurnSample) => void;
  readonly onRun: (sample: RunSample) => void;
};

/** After a failure an agent comes again after a second, as SDKs do. */
const FAILED_PAUSE_MS = 1_000;

type Agent = { readonly class: ServiceClass; readonly number: number; readonly draws: Random };

type Run = {
  readonly name: string;
  readonly class: ServiceClass;
  readonly program: RunProgram;
  readonly startedMs: number;
  turns: number;
  toolCalls: number;
  readonly end: (failure: string | undefined) => void;
};

export function startAgents(options: AgentsOptions): void {
  for (const serviceClass of ["interactive", "batch"] as const) {
    for (let number = 0; number < options.agents[serviceClass]; number += 1) {
      const draws = createRandom(options.seed).split(`${serviceClass} ${number}`);
      beginRun(options, { class: serviceClass, number, draws }, 0);
    }
  }
}

function beginRun(options: AgentsOptions, agent: Agent, at: number): void {
  const { program, time, front, onRun } = options;
  const { class: serviceClass, number, draws } = agent;
  const run: Run = {
    name: `${serviceClass}-${number}-${at}`,
    class: serviceClass,
    program: program.begin(serviceClass, draws.split(`run ${at}`)),
    startedMs: time.nowMs,
    turns: 0,
    toolCalls: 0,
    end(failure) {
      const endedMs = time.nowMs;
      const { turns, toolCalls } = run;
      onRun({ class: serviceClass, endedMs, ms: endedMs - run.startedMs, turns, toolCalls, failure });
      if (program.tellsEnd) front.runEnded(run.name);
      // A moment later: a run that fails at once must not begin the next one inside itself.
      time.after(failure === undefined ? 0 : FAILED_PAUSE_MS, () => beginRun(options, agent, at + 1));
    },
  };
  askTurn(options, run);
}

function askTurn(options: AgentsOptions, run: Run): void {
  const { time, pool, front, unranked } = options;
  const { promptTokens, outputTokens, maxTokens, promptBytes, promptHashes, blockHashes, tools } = run.program.next();
  const id = `${run.name}-${run.turns}`;
  const { prefixKey } = options.program;
  const about = { id, run: run.name, class: run.class, caller: "" };
  const turn: AskedTurn = { ...about, promptBytes, prefixKey, promptHashes };
  const request: Omit<EngineRequest, "priority"> = { id, blockHashes, promptTokens, outputTokens, maxTokens };
  const askedMs = time.nowMs;
  let at = -1;
  let begun = false;
  let firstContentMs = 0;
  // Of the first time that it left the queue: what was computed before a preemption is not cached afterwards.
  let cachedTokens: number | undefined;
  const start = (): void => {
    if (begun) return;
    begun = true;
    firstContentMs = time.nowMs - askedMs;
    front.started(turn);
  };
  front.ask(turn, {
    send(engine, priority) {
      at = engine;
      cachedTokens = undefined;
      return pool.send(
        engine,
        { ...request, priority: priority ?? unranked },
        {
          onAdmitted: (cached) => (cachedTokens ??= cached),
          onFirstToken: start,
          onFinished(completionTokens) {
            start();
            run.turns += 1;
            const usage = { promptTokens, completionTokens, cachedTokens: cachedTokens ?? 0 };
            options.onTurn({
              class: run.class,
              atMs: time.nowMs,
              firstContentMs,
              ...usage,
              replica: `engine-${engine}`,
            });
            front.finished(turn, { usage, tool: tools?.name });
            if (tools === undefined) {
              run.end(undefined);
              return;
            }
            run.toolCalls += tools.calls;
            time.after(tools.ms, () => askTurn(options, run));
          },
        },
      );
    },
    takeBack() {
      if (begun || at < 0) return false;
      pool.abort(at, id);
      return true;
    },
    fail: (why) => run.end(why),
  });
}
