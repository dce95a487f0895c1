/**
 * The engine model (spec 6, Simulated engine): a pure stand-in for an inference server. Rules, constants and their
 * sources are in docs/simulated-engine.md.
 *
 * One engine is driven like this, by a virtual clock or by real timers alike; all times are simulated milliseconds:
 * `step(engine, t)`, then `submit` / `abort` at `t`, then `step(engine, t)` again, and next at `nextEventAtMs(engine)`.
 */
export { abort, createEngine, load, nextEventAtMs, promptTokensMax, step, submit } from "./engine.ts";
export type {
  Counters,
  Discipline,
  Engine,
  EngineEvent,
  EngineParams,
  EngineRequest,
  Refusal,
  SglangGauges,
} from "./types.ts";
export { readGauges } from "./sglang-gauges.ts";
export { BLOCK_TOKENS } from "./kv-pool.ts";
export type { Histogram } from "./histogram.ts";
export { createSharedGpu } from "./latency.ts";
export type { LatencyProfile, SharedGpu } from "./latency.ts";
export { PROFILES } from "./profiles.ts";
export type { ProfileName } from "./profiles.ts";
export { countTokens, hashBlocks, tokenTexts } from "./tokens.ts";
export { renderChat } from "./prompt.ts";
export type { Answer } from "./prompt.ts";
export { scriptChatAnswer, scriptCompletion, TESTBED_WORLD } from "./script.ts";
export type { AgentOverrides, AgentWorld } from "./script.ts";
export { tokenizeAnswer } from "./answer-tokens.ts";
export type { TokenizedAnswer, TokenPart } from "./answer-tokens.ts";
export { paramsForProfile } from "./params.ts";
export { createCacheAwareRouter } from "./cache-aware-router.ts";
export type { CacheAwareRouter } from "./cache-aware-router.ts";
