import type { LatencyProfile, SharedGpu } from "./latency.ts";
import type { EngineProfile } from "./profiles.ts";
import type { Discipline, EngineParams } from "./types.ts";

/** SGLang `--max-prefill-tokens`. */
const MAX_PREFILL_TOKENS = 16_384;
/** `SGLANG_INIT_NEW_TOKEN_RATIO`. */
const INIT_NEW_TOKEN_RATIO = 0.7;
/** The real engines do not bound their queues unless told to; a simulated one must not grow for ever. */
const QUEUE_MAX = 10_000;

export type ProfileOverrides = {
  readonly kvTokens?: number;
  readonly maxRunning?: number;
  readonly queueMax?: number;
  readonly contextTokens?: number;
  readonly chunkTokens?: number;
  readonly priorityScheduling?: boolean;
  readonly prefixCaching?: boolean;
  readonly tokenEvents?: boolean;
  readonly latency?: Partial<LatencyProfile>;
  readonly gpu?: SharedGpu;
};

/** Parameters of one engine: the profile's, with what is given instead. */
export function paramsForProfile(
  discipline: Discipline,
  profile: EngineProfile,
  overrides: ProfileOverrides = {},
): EngineParams {
  return {
    discipline,
    latency: { ...profile.latency, ...overrides.latency },
    kvTokens: overrides.kvTokens ?? profile.kvTokens,
    maxRunning: overrides.maxRunning ?? profile.maxRunning,
    queueMax: overrides.queueMax ?? QUEUE_MAX,
    contextTokens: overrides.contextTokens ?? profile.contextTokens,
    chunkTokens: overrides.chunkTokens ?? profile.chunkTokens,
    maxPrefillTokens: MAX_PREFILL_TOKENS,
    prefixCaching: overrides.prefixCaching ?? discipline !== "single-pass",
    priorityScheduling: overrides.priorityScheduling ?? false,
    newTokenRatio: INIT_NEW_TOKEN_RATIO,
    tokenEvents: overrides.tokenEvents ?? true,
    gpu: overrides.gpu,
  };
}
