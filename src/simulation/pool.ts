/** The engines of a world, each the model of src/engine under virtual time, and what a prober would read of them. */
import { invariant } from "../base/invariant.ts";
import {
  abort,
  createEngine,
  createSharedGpu,
  load,
  nextEventAtMs,
  paramsForProfile,
  PROFILES,
  readGauges,
  step,
  submit,
  type Engine,
  type EngineEvent,
  type EngineRequest,
  type ProfileName,
} from "../engine/index.ts";
import type { LoadSample } from "../wire/load.ts";
import type { VirtualTime } from "./timeline.ts";

export type Dialect = "sglang" | "vllm";

export type PoolOptions = {
  readonly engines: number;
  readonly dialect: Dialect;
  readonly profile: ProfileName;
  /** The engines order what waits in them by priority, and their metrics show it (SGLang). */
  readonly priorities: boolean;
};

/** What becomes of a request. */
export type RequestWatcher = {
  /** Left the engine's queue; again after each preemption. */
  onAdmitted(cachedTokens: number): void;
  onFirstToken(): void;
  onFinished(generated: number): void;
};

export class SimulatedPool {
  readonly #time: VirtualTime;
  readonly #options: PoolOptions;
  readonly #engines: readonly Engine[];
  readonly #watchers = new Map<string, RequestWatcher>();
  /** Of each engine, when it is to be looked at next, and how that is taken back. */
  readonly #due: ({ readonly atMs: number; readonly stop: () => void } | undefined)[];

  constructor(time: VirtualTime, options: PoolOptions) {
    this.#time = time;
    this.#options = options;
    const profile = PROFILES[options.profile];
    let gpu = profile.enginesPerGpu > 1 ? createSharedGpu() : undefined;
    this.#engines = Array.from({ length: options.engines }, (_, at) => {
      if (profile.enginesPerGpu > 1 && at % profile.enginesPerGpu === 0) gpu = createSharedGpu();
      const params = paramsForProfile(options.dialect, profile, {
        tokenEvents: false,
        priorityScheduling: options.priorities,
        ...(gpu === undefined ? {} : { gpu }),
      });
      return createEngine(params, time.nowMs);
    });
    this.#due = this.#engines.map(() => undefined);
  }

  get size(): number {
    return this.#engines.length;
  }

  /** @returns why it was not taken, in words; undefined: it was. */
  send(at: number, request: EngineRequest, watcher: RequestWatcher): string | undefined {
    const engine = this.#at(at);
    this.#look(at);
    const refusal = submit(engine, request, this.#time.nowMs);
    if (refusal !== undefined) return refusal.kind;
    this.#watchers.set(request.id, watcher);
    // Those of one moment arrive together: the engine looks once all of them are there.
    this.#arm(at, this.#time.nowMs);
    return undefined;
  }

  /** The client is gone. */
  abort(at: number, id: string): void {
    this.#look(at);
    this.#watchers.delete(id);
    this.#tell(abort(this.#at(at), id, this.#time.nowMs));
    this.#armNext(at);
  }

  /** What the metrics page would say now, as stale as the real one. */
  sample(at: number): LoadSample {
    this.#look(at);
    const engine = this.#at(at);
    const { counters } = engine;
    const now = load(engine);
    const takesPriority = this.#options.dialect === "sglang" && this.#options.priorities;
    const kvCapacityTokens = now.kvTokens;
    if (this.#options.dialect === "sglang") {
      const { running, waiting, usedTokens, cacheHitRate } = readGauges(engine, this.#time.nowMs);
      const kvUsage = usedTokens / kvCapacityTokens;
      return { running, waiting, kvUsage, kvCapacityTokens, cacheHitRate, takesPriority };
    }
    const cacheHitRate = counters.promptTokens === 0 ? undefined : counters.cachedTokens / counters.promptTokens;
    const { running, waiting, usedTokens } = now;
    return { running, waiting, kvUsage: usedTokens / kvCapacityTokens, kvCapacityTokens, cacheHitRate, takesPriority };
  }

  #at(at: number): Engine {
    const engine = this.#engines[at];
    invariant(engine, "an engine of the pool");
    return engine;
  }

  #look(at: number): void {
    this.#tell(step(this.#at(at), this.#time.nowMs));
  }

  #tell(events: readonly EngineEvent[]): void {
    for (const event of events) {
      const watcher = this.#watchers.get(event.id);
      if (watcher === undefined) continue;
      if (event.kind === "admitted") watcher.onAdmitted(event.cachedTokens);
      else if (event.kind === "token" && event.generated === 1) watcher.onFirstToken();
      else if (event.kind === "finished") {
        this.#watchers.delete(event.id);
        watcher.onFinished(event.generated);
      }
    }
  }

  #armNext(at: number): void {
    const nextMs = nextEventAtMs(this.#at(at));
    if (nextMs !== undefined) this.#arm(at, nextMs);
  }

  #arm(at: number, atMs: number): void {
    const due = this.#due[at];
    if (due !== undefined && due.atMs <= atMs) return;
    due?.stop();
    const stop = this.#time.at(atMs, () => {
      this.#due[at] = undefined;
      this.#look(at);
      this.#armNext(at);
    });
    this.#due[at] = { atMs, stop };
  }
}
