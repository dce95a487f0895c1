/**
 * Named machines: pool, batch and latency. Sources, as far as known: roofline scaled from measurements on an RTX 4090
 * (LLMServingSim, Llama-3.1-8B, vLLM 0.19), the factors of BLIS, Splitwise's table for 70B, and for the laptop a fit to
 * published tables. They are consistent worlds, not measurements of the machine that they are named after.
 */
import type { LatencyProfile } from "./latency.ts";

export type EngineProfile = {
  readonly name: ProfileName;
  /** One line for `--help`. */
  readonly summary: string;
  readonly latency: LatencyProfile;
  readonly kvTokens: number;
  readonly maxRunning: number;
  readonly contextTokens: number;
  readonly chunkTokens: number;
  /** Engines that share one GPU in this world; 1: a GPU each. */
  readonly enginesPerGpu: number;
};

export type ProfileName = "instant" | "laptop-1b-x2" | "h100-8b" | "h100x8-70b";

const INSTANT: LatencyProfile = {
  decodeBaseMs: 0,
  decodePerRequestMs: 0,
  decodePerKiloTokenMs: 0,
  prefillBaseMs: 0,
  prefillTokensPerSecond: Infinity,
  prefillPerPairMs: 0,
  hostMs: 0,
  hostExtraMs: 0,
  hostExtraAbove: Infinity,
};

export const PROFILES: { readonly [Name in ProfileName]: EngineProfile } = {
  instant: {
    name: "instant",
    summary: "no time passes: answers come at once",
    latency: INSTANT,
    kvTokens: 1_048_576,
    maxRunning: 256,
    contextTokens: 131_072,
    chunkTokens: 8_192,
    enginesPerGpu: 1,
  },
  // Fitted to the published flood of two SGLang replicas on one RTX 4060 Laptop with Llama-3.2-1B FP8 (note, 3.1).
  "laptop-1b-x2": {
    name: "laptop-1b-x2",
    summary: "one of two replicas of a 1B model that share a laptop GPU",
    latency: {
      decodeBaseMs: 11.5,
      decodePerRequestMs: 0.33,
      decodePerKiloTokenMs: 0.16,
      prefillBaseMs: 0,
      prefillTokensPerSecond: 10_100,
      // 4090 figure × a quarter of the arithmetic per pair × 5.3 times fewer multiprocessors.
      prefillPerPairMs: 6.9e-6,
      hostMs: 3.7,
      hostExtraMs: 8.6,
      hostExtraAbove: 8,
    },
    kvTokens: 47_700,
    maxRunning: 12,
    contextTokens: 8_192,
    chunkTokens: 2_048,
    enginesPerGpu: 2,
  },
  "h100-8b": {
    name: "h100-8b",
    summary: "an 8B model on one H100",
    latency: {
      decodeBaseMs: 7,
      decodePerRequestMs: 0.03,
      decodePerKiloTokenMs: 0.06,
      prefillBaseMs: 0,
      prefillTokensPerSecond: 35_000,
      prefillPerPairMs: 1.3e-6,
      hostMs: 0.13,
      hostExtraMs: 0,
      hostExtraAbove: Infinity,
    },
    kvTokens: 420_000,
    maxRunning: 256,
    contextTokens: 131_072,
    chunkTokens: 8_192,
    enginesPerGpu: 1,
  },
  "h100x8-70b": {
    name: "h100x8-70b",
    summary: "a 70B model on eight H100",
    latency: {
      // Between the roofline (10–12 ms) and the 2023 stack (30 ms): the lower half of llm-d's table (18–28 ms).
      decodeBaseMs: 20,
      decodePerRequestMs: 0.3,
      decodePerKiloTokenMs: 0.014,
      prefillBaseMs: 0,
      prefillTokensPerSecond: 15_000,
      prefillPerPairMs: 0.9e-6,
      hostMs: 0.13,
      hostExtraMs: 0,
      hostExtraAbove: Infinity,
    },
    // 8 × 80 GB × 0.9 less 140 GB of weights, at 320 KiB a token.
    kvTokens: 1_330_000,
    maxRunning: 256,
    contextTokens: 131_072,
    chunkTokens: 8_192,
    enginesPerGpu: 1,
  },
};
