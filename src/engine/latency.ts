/**
 * How long one step takes. Decode is bound by memory bandwidth, prefill by arithmetic; a mixed step pays the larger of
 * both for its weights and every part of the rest. Numbers of the profiles: see profiles.ts.
 */

export type LatencyProfile = {
  /** Reading the weights once: the least a step with any work takes. */
  readonly decodeBaseMs: number;
  /** Per decoding request. */
  readonly decodePerRequestMs: number;
  /** Per 1,000 KV tokens that the decoding requests read. */
  readonly decodePerKiloTokenMs: number;
  /** Start of a prefill. */
  readonly prefillBaseMs: number;
  /** Infinity: prefill takes no time. */
  readonly prefillTokensPerSecond: number;
  /** Attention of prefill: per pair of a new token and a token that it looks at. */
  readonly prefillPerPairMs: number;
  /** Work of the host between steps; not shared by engines on one GPU. */
  readonly hostMs: number;
  /** More host time for batches of more than `hostExtraAbove` requests. */
  readonly hostExtraMs: number;
  readonly hostExtraAbove: number;
};

/** What one step computes. */
export type StepWork = {
  readonly decodeRequests: number;
  /** KV tokens that the decoding requests read. */
  readonly decodeKvTokens: number;
  readonly prefillTokens: number;
  /** Sum over the prefills of new tokens × (cached context + new tokens ÷ 2). */
  readonly prefillPairs: number;
};

/**
 * A GPU that several engines share. Each runs at `efficiency ÷ n` of its speed while n of them have work; looked at
 * once per step, at its start.
 */
export type SharedGpu = {
  readonly efficiency: number;
  /** Engines that have work. */
  working: number;
};

/** A GPU to hand to several engines; 0.95: what two processes together reach of one (research note, 2). */
export function createSharedGpu(efficiency = 0.95): SharedGpu {
  return { efficiency, working: 0 };
}

/** Duration of one step in simulated milliseconds. */
export function stepMs(profile: LatencyProfile, work: StepWork, gpu: SharedGpu | undefined): number {
  const computeMs = (work.prefillTokens * 1_000) / profile.prefillTokensPerSecond;
  const gpuMs =
    Math.max(profile.decodeBaseMs, computeMs) +
    work.decodeRequests * profile.decodePerRequestMs +
    (work.decodeKvTokens / 1_000) * profile.decodePerKiloTokenMs +
    (work.prefillTokens > 0 ? profile.prefillBaseMs : 0) +
    work.prefillPairs * profile.prefillPerPairMs;
  const hostMs = profile.hostMs + (work.decodeRequests > profile.hostExtraAbove ? profile.hostExtraMs : 0);
  const slowdown = gpu !== undefined && gpu.working > 1 ? gpu.working / gpu.efficiency : 1;
  return gpuMs * slowdown + hostMs;
}
