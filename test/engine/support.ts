import { createEngine, nextEventAtMs, paramsForProfile, PROFILES, step, submit } from "../../src/engine/index.ts";
import { hashText } from "../../src/base/random.ts";
import type { Discipline, Engine, EngineEvent, EngineParams, EngineRequest } from "../../src/engine/index.ts";

/** One decode step takes 10 ms, a prefill 1 ms a token where that is more: durations that a person can add up. */
const PLAIN = {
  decodeBaseMs: 10,
  decodePerRequestMs: 0,
  decodePerKiloTokenMs: 0,
  prefillBaseMs: 0,
  prefillTokensPerSecond: 1_000,
  prefillPerPairMs: 0,
  hostMs: 0,
  hostExtraMs: 0,
  hostExtraAbove: Infinity,
};

export function plainEngine(discipline: Discipline, overrides: Partial<EngineParams>): Engine {
  const params = paramsForProfile(discipline, PROFILES.instant, { latency: PLAIN });
  return createEngine({ ...params, ...overrides }, 0);
}

/** Hashes of a private prompt; `family` and `shared` give the first blocks to several requests. */
function hashes(id: string, blocks: number, family = "", shared = 0): number[] {
  const word = (text: string): number => 1 + hashText(text);
  return Array.from({ length: blocks }, (_, at) => (at < shared ? word(`${family}/${at}`) : word(`${id}:${at}`)));
}

type Shape = {
  readonly prompt: number;
  readonly output: number;
  readonly max?: number;
  readonly priority?: number;
  readonly family?: string;
  readonly shared?: number;
  readonly stall?: number;
};

export function request(id: string, shape: Shape): EngineRequest {
  const { prompt, output, max = output, priority = 0, family, shared, stall } = shape;
  return {
    id,
    blockHashes: hashes(id, Math.floor((prompt + output) / 16), family, shared),
    promptTokens: prompt,
    outputTokens: output,
    maxTokens: max,
    priority,
    ...(stall === undefined ? {} : { stallAfterTokens: stall }),
  };
}

export type Arrival = { readonly atMs: number; readonly request: EngineRequest };

/** Runs arrivals to their end under a virtual clock and returns all events. */
export function play(engine: Engine, arrivals: readonly Arrival[], untilMs = Infinity): EngineEvent[] {
  const events: EngineEvent[] = [];
  const left = arrivals.toSorted((one, other) => one.atMs - other.atMs);
  for (;;) {
    const next = nextEventAtMs(engine);
    const arrival = left[0];
    const atMs = Math.min(next ?? Infinity, arrival?.atMs ?? Infinity);
    if (atMs > untilMs || atMs === Infinity) return events;
    events.push(...step(engine, atMs));
    while (left[0]?.atMs === atMs) {
      const { request: wanted } = left.shift()!;
      const refusal = submit(engine, wanted, atMs);
      if (refusal !== undefined) throw new Error(`refused: ${JSON.stringify(refusal)}`);
    }
    events.push(...step(engine, atMs));
  }
}

/** Events as short lines: `admitted r1 @64 cached 16`, `token r1 @74 #2`. */
export function lines(events: readonly EngineEvent[], kinds?: readonly EngineEvent["kind"][]): string[] {
  return events
    .filter((event) => kinds === undefined || kinds.includes(event.kind))
    .map((event) => {
      const at = `${event.kind} ${event.id} @${Math.round(event.atMs * 1_000) / 1_000}`;
      if (event.kind === "admitted") return `${at} cached ${event.cachedTokens}`;
      return event.kind === "token" ? `${at} #${event.generated}` : at;
    });
}
