/**
 * A closed loop: so many agents of each class, each beginning its next run when the last one has ended, for a while.
 * The k-th run of an agent is the same in every load with the same seed, whatever the proxy in front does.
 */
import { createRandom } from "../../base/random.ts";
import { createEngineClient, type EngineTarget } from "../../http/index.ts";
import type { ServiceClass } from "../../wire/admission.ts";
import { measure, type LoadReport, type LoadWorld, type RunSample, type TurnSample } from "../../workload/index.ts";
import { runAgent } from "./agent.ts";

export type ClosedLoop = {
  readonly target: EngineTarget;
  readonly model: string;
  readonly world: LoadWorld;
  readonly agents: { readonly [Class in ServiceClass]: number };
  readonly seed: number;
  /** Real milliseconds per simulated one. */
  readonly timeScale: number;
  /** Simulated seconds that are not counted, then those that are. */
  readonly warmUpSeconds: number;
  readonly seconds: number;
  /** Headers of an agent's turns, names and values alternating. */
  readonly headersOf: (agent: AgentName) => readonly string[];
  /** Further members of the bodies of an agent's turns, for a proxy that reads who it is from there. */
  readonly membersOf?: (agent: AgentName) => object;
  readonly priorityOf: (serviceClass: ServiceClass) => number | undefined;
  /** Called about once a second with what was counted so far. */
  readonly onProgress?: (report: LoadReport) => void;
  readonly signal?: AbortSignal;
};

export type AgentName = { readonly class: ServiceClass; readonly agent: number; readonly run: number };

/** Samples that are kept; a load beyond it is cut short rather than the memory of the process. */
const SAMPLES_MAX = 2_000_000;
const CONNECT_MS = 10_000;
const CLASSES: readonly ServiceClass[] = ["interactive", "batch"];

/** Runs the load and says what it saw. Runs that are open at the end are left, and counted as open. */
export async function runClosedLoop(load: ClosedLoop): Promise<LoadReport> {
  const client = createEngineClient({ connectTimeoutMs: CONNECT_MS, reusedSocketRetryMs: 1_000 });
  const over = new AbortController();
  const signal = load.signal === undefined ? over.signal : AbortSignal.any([over.signal, load.signal]);
  const turns: TurnSample[] = [];
  const runs: RunSample[] = [];
  const startedMs = performance.now();
  const fromMs = startedMs + load.warmUpSeconds * 1_000 * load.timeScale;
  const untilMs = fromMs + load.seconds * 1_000 * load.timeScale;
  const report = (nowMs: number): LoadReport =>
    measure({ turns, runs, fromMs, untilMs: Math.min(nowMs, untilMs), timeScale: load.timeScale });

  const end = setTimeout(() => over.abort(), untilMs - performance.now());
  const progress = setInterval(() => load.onProgress?.(report(performance.now())), 1_000);
  const agent = async (serviceClass: ServiceClass, number: number): Promise<void> => {
    const draws = createRandom(load.seed).split(`${serviceClass} ${number}`);
    for (let run = 0; !signal.aborted; run += 1) {
      const sample = await runAgent({
        client,
        target: load.target,
        model: load.model,
        world: load.world,
        class: serviceClass,
        headers: load.headersOf({ class: serviceClass, agent: number, run }),
        members: load.membersOf?.({ class: serviceClass, agent: number, run }) ?? {},
        priority: load.priorityOf(serviceClass),
        timeScale: load.timeScale,
        random: draws.split(`run ${run}`),
        onTurn: (one) => turns.push(one),
        signal,
      });
      if (sample.failure !== "aborted") runs.push(sample);
      if (turns.length + runs.length > SAMPLES_MAX) over.abort();
    }
  };
  try {
    await Promise.all(
      CLASSES.flatMap((serviceClass) =>
        Array.from({ length: load.agents[serviceClass] }, (_, number) => agent(serviceClass, number)),
      ),
    );
  } finally {
    clearTimeout(end);
    clearInterval(progress);
    client.close();
  }
  return report(performance.now());
}
