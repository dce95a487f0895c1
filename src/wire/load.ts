/**
 * What an engine says about its load at one moment. A value that the engine does not report is undefined, never 0:
 * a missing gauge read as 0 makes a saturated engine look idle (spec 2, Load signals).
 */
export type LoadSample = {
  /** Requests in the engine's running batch. */
  readonly running: number | undefined;
  /** Requests that wait inside the engine for capacity. */
  readonly waiting: number | undefined;
  /** Share of the KV pool in use, 0 to 1. */
  readonly kvUsage: number | undefined;
  /** Size of the KV pool in tokens. */
  readonly kvCapacityTokens: number | undefined;
  /** Prefix cache hit rate as the engine counts it, 0 to 1. */
  readonly cacheHitRate: number | undefined;
  /** The engine shows series by priority, which means that it accepts the field (SGLang). */
  readonly takesPriority: boolean;
};
