import { describe, expect, it } from "vitest";
import { createEngine, createSharedGpu, paramsForProfile, PROFILES, step, submit } from "../../src/engine/index.ts";
import { stepMs } from "../../src/engine/latency.ts";
import { lines, plainEngine, play, request } from "./support.ts";

const NOTHING = { decodeRequests: 0, decodeKvTokens: 0, prefillTokens: 0, prefillPairs: 0 };

describe("the duration of a step", () => {
  it("is, for the laptop's decode of 12 requests over 20,000 tokens, what its parts add up to", () => {
    const ms = stepMs(
      PROFILES["laptop-1b-x2"].latency,
      { ...NOTHING, decodeRequests: 12, decodeKvTokens: 20_000 },
      undefined,
    );
    expect(ms).toBeCloseTo(11.5 + 12 * 0.33 + 20 * 0.16 + 3.7 + 8.6, 10);
  });

  it("spares the extra host time up to 8 requests", () => {
    const ms = stepMs(PROFILES["laptop-1b-x2"].latency, { ...NOTHING, decodeRequests: 8 }, undefined);
    expect(ms).toBeCloseTo(11.5 + 8 * 0.33 + 3.7, 10);
  });

  it("is bound by arithmetic for a prefill of 2,048 tokens", () => {
    const pairs = 2_048 * 1_024;
    const ms = stepMs(
      PROFILES["laptop-1b-x2"].latency,
      { ...NOTHING, prefillTokens: 2_048, prefillPairs: pairs },
      undefined,
    );
    expect(ms).toBeCloseTo((2_048 / 10_100) * 1_000 + pairs * 6.9e-6 + 3.7, 10);
  });

  it("is never less than reading the weights once, however small the prefill", () => {
    expect(stepMs(PROFILES["h100-8b"].latency, { ...NOTHING, prefillTokens: 1 }, undefined)).toBeCloseTo(7.13, 10);
  });

  it("is zero in the instant profile", () => {
    const work = { decodeRequests: 9, decodeKvTokens: 9_000, prefillTokens: 900, prefillPairs: 1e6 };
    expect(stepMs(PROFILES.instant.latency, work, undefined)).toBe(0);
  });

  it("stretches on a GPU that others use, the host's part excepted", () => {
    const { latency } = PROFILES["laptop-1b-x2"];
    const gpu = { ...createSharedGpu(), working: 2 };
    expect(stepMs(latency, { ...NOTHING, decodeRequests: 1 }, gpu)).toBeCloseTo((11.5 + 0.33) * (2 / 0.95) + 3.7, 10);
  });
});

describe("engines on one GPU", () => {
  it("slow one another down only while both have work", () => {
    const gpu = createSharedGpu(1);
    const params = paramsForProfile("vllm", PROFILES.instant, { gpu });
    const latency = { ...params.latency, decodeBaseMs: 10 };
    const [left, right] = [createEngine({ ...params, latency }, 0), createEngine({ ...params, latency }, 0)];
    submit(left, request("l", { prompt: 16, output: 3 }), 0);
    submit(right, request("r", { prompt: 16, output: 1 }), 0);
    expect(gpu.working).toBe(2);
    expect(lines([...step(left, 0), ...step(right, 0), ...step(right, 20), ...step(left, 100)], ["token"])).toEqual([
      "token r @20 #1",
      "token l @20 #1",
      "token l @30 #2",
      "token l @40 #3",
    ]);
    expect(gpu.working).toBe(0);
  });
});

describe("a mixed step", () => {
  it("makes the running requests wait for the prompt that is prefilled with them", () => {
    const engine = plainEngine("vllm", {});
    const events = play(engine, [
      { atMs: 0, request: request("r1", { prompt: 10, output: 3 }) },
      { atMs: 15, request: request("r2", { prompt: 200, output: 1 }) },
    ]);
    expect(lines(events, ["token"])).toEqual([
      "token r1 @10 #1",
      "token r1 @20 #2",
      "token r1 @220 #3",
      "token r2 @220 #1",
    ]);
  });
});
