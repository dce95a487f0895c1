/** What a load saw, in simulated time: runs per minute, how long they took, first content, cache. */
import type { ServiceClass } from "../wire/admission.ts";

export type TurnSample = {
  readonly class: ServiceClass;
  /** When its answer ended. */
  readonly atMs: number;
  readonly firstContentMs: number;
  readonly promptTokens: number;
  readonly cachedTokens: number;
  readonly completionTokens: number;
  readonly replica: string | undefined;
};

export type RunSample = {
  readonly class: ServiceClass;
  readonly endedMs: number;
  readonly ms: number;
  readonly turns: number;
  readonly toolCalls: number;
  /** Undefined: it was answered. */
  readonly failure: string | undefined;
};

export type Spread = { readonly count: number; readonly p50: number; readonly p95: number; readonly max: number };

export type ClassReport = {
  readonly runs: number;
  readonly failed: number;
  readonly runsPerMinute: number;
  readonly runSeconds: Spread;
  readonly turns: number;
  readonly turnsPerMinute: number;
  /** From asking to the first content. */
  readonly firstContentSeconds: Spread;
  /** Cached tokens ÷ prompt tokens. */
  readonly cachedShare: number;
};

export type LoadReport = {
  /** Simulated seconds that were counted. */
  readonly seconds: number;
  readonly interactive: ClassReport;
  readonly batch: ClassReport;
  readonly cachedShare: number;
  readonly outputTokensPerSecond: number;
  /** Turns by replica, where the proxy names it. */
  readonly byReplica: { readonly [replica: string]: number };
  /** How often each failure was seen. */
  readonly failures: { readonly [reason: string]: number };
};

export type Samples = {
  readonly turns: readonly TurnSample[];
  readonly runs: readonly RunSample[];
  /** On the clock of the samples: what ended from here on counts ... */
  readonly fromMs: number;
  /** ... up to here. */
  readonly untilMs: number;
  /** Milliseconds of the samples' clock per simulated one. */
  readonly timeScale: number;
};

/** Different texts of failures that are told apart. */
const FAILURES_MAX = 20;

export function measure({ turns, runs, fromMs, untilMs, timeScale }: Samples): LoadReport {
  const seconds = Math.max(0, untilMs - fromMs) / 1_000 / timeScale;
  const turnsIn = turns.filter(({ atMs }) => atMs >= fromMs && atMs <= untilMs);
  const runsIn = runs.filter(({ endedMs }) => endedMs >= fromMs && endedMs <= untilMs);
  const simulated = (ms: number): number => ms / 1_000 / timeScale;
  const of = (serviceClass: ServiceClass): ClassReport => {
    const ownTurns = turnsIn.filter((turn) => turn.class === serviceClass);
    const own = runsIn.filter((run) => run.class === serviceClass);
    const answered = own.filter(({ failure }) => failure === undefined);
    const perMinute = (count: number): number => (seconds === 0 ? 0 : (count * 60) / seconds);
    return {
      runs: answered.length,
      failed: own.length - answered.length,
      runsPerMinute: perMinute(answered.length),
      runSeconds: spread(answered.map(({ ms }) => simulated(ms))),
      turns: ownTurns.length,
      turnsPerMinute: perMinute(ownTurns.length),
      firstContentSeconds: spread(ownTurns.map(({ firstContentMs }) => simulated(firstContentMs))),
      cachedShare: cachedShare(ownTurns),
    };
  };
  const byReplica: { [replica: string]: number } = {};
  for (const { replica } of turnsIn) if (replica !== undefined) byReplica[replica] = (byReplica[replica] ?? 0) + 1;
  const failures: { [reason: string]: number } = {};
  for (const { failure } of runsIn) {
    if (failure === undefined) continue;
    const key = failure in failures || Object.keys(failures).length < FAILURES_MAX ? failure : "others";
    failures[key] = (failures[key] ?? 0) + 1;
  }
  const output = turnsIn.reduce((sum, { completionTokens }) => sum + completionTokens, 0);
  return {
    seconds,
    interactive: of("interactive"),
    batch: of("batch"),
    cachedShare: cachedShare(turnsIn),
    outputTokensPerSecond: seconds === 0 ? 0 : output / seconds,
    byReplica,
    failures,
  };
}

function cachedShare(turns: readonly TurnSample[]): number {
  let prompt = 0;
  let cached = 0;
  for (const { promptTokens, cachedTokens } of turns) {
    prompt += promptTokens;
    cached += cachedTokens;
  }
  return prompt === 0 ? 0 : cached / prompt;
}

function spread(values: readonly number[]): Spread {
  const sorted = [...values].sort((a, b) => a - b);
  const at = (share: number): number => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? 0;
  return { count: sorted.length, p50: at(0.5), p95: at(0.95), max: sorted.at(-1) ?? 0 };
}
