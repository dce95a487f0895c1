/** Metrics pages as engines write them, and the traps in them (spec 2, Load signals). */
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { readEngineMetrics, sumLoads } from "../../src/wire/engine-metrics.ts";

const load = (text: string) => readEngineMetrics(text).load;

describe("vLLM", () => {
  const page = `# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 7.0
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 200.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 50.0
process_start_time_seconds 1.7e+09
`;

  test("is recognised with its load, pool and start", () => {
    expect(readEngineMetrics(page)).toEqual({
      engine: "vllm",
      startedAtSeconds: 1_700_000_000,
      load: {
        running: 7,
        waiting: 3,
        kvUsage: 0.5,
        kvCapacityTokens: 16_000,
        cacheHitRate: 0.25,
        takesPriority: false,
      },
    });
  });

  test("waits only with what waits for capacity, where the reason is told", () => {
    const reasons = `${page}vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 1
vllm:num_requests_waiting_by_reason{engine="0",reason="deferred"} 2
`;
    expect(load(reasons)?.waiting).toBe(1);
  });

  test("a longer name with the same beginning is another metric", () => {
    expect(
      load(`vllm:num_requests_running 1\nvllm:num_requests_waiting_by_reason{reason="deferred"} 9\n`),
    ).toMatchObject({
      running: 1,
      waiting: undefined,
    });
  });

  test("sums over data-parallel engines", () => {
    const parallel = `vllm:num_requests_running{engine="0"} 2\nvllm:num_requests_running{engine="1"} 3\n`;
    expect(load(parallel)?.running).toBe(5);
  });

  test("accepts the spelling with an underscore", () => {
    expect(load("vllm_num_requests_running 4\nvllm_num_requests_waiting 0\n")).toMatchObject({
      running: 4,
      waiting: 0,
    });
  });
});

describe("SGLang", () => {
  test("counts the total once where every series comes again per priority", () => {
    const page = `sglang:num_running_reqs{model_name="m",priority="",tp_rank="0"} 5
sglang:num_running_reqs{model_name="m",priority="1",tp_rank="0"} 2
sglang:num_running_reqs{model_name="m",priority="0",tp_rank="0"} 3
sglang:num_queue_reqs{model_name="m",priority="",tp_rank="0"} 1
sglang:num_queue_reqs{model_name="m",priority="1",tp_rank="0"} 1
`;
    expect(load(page)).toMatchObject({ running: 5, waiting: 1, takesPriority: true });
  });

  test("takes the maximum over tensor-parallel ranks and the sum over data-parallel ones", () => {
    const page = `sglang:num_running_reqs{dp_rank="0",tp_rank="0"} 4
sglang:num_running_reqs{dp_rank="0",tp_rank="1"} 4
sglang:num_running_reqs{dp_rank="1",tp_rank="0"} 6
sglang:num_queue_reqs{dp_rank="0",tp_rank="0"} 0
`;
    expect(load(page)).toMatchObject({ running: 10, waiting: 0, takesPriority: false });
  });
});

describe("llama.cpp", () => {
  test("is recognised by its own names", () => {
    expect(readEngineMetrics("llamacpp:requests_processing 2\nllamacpp:requests_deferred 1\n")).toMatchObject({
      engine: "llama.cpp",
      load: { running: 2, waiting: 1, kvUsage: undefined },
    });
  });
});

describe("what is not there", () => {
  test("is undefined, never 0", () => {
    expect(load("vllm:num_requests_running 3\n")).toMatchObject({
      running: 3,
      waiting: undefined,
      kvUsage: undefined,
      kvCapacityTokens: undefined,
    });
  });

  test.each(["NaN", "+Inf", "-1", "many", ""])("a value of %s counts as missing", (value) => {
    expect(load(`vllm:num_requests_running 1\nvllm:num_requests_waiting ${value}\n`)?.waiting).toBeUndefined();
  });

  test("makes a router's load unknown as soon as one engine behind it is", () => {
    const sample = load("vllm:num_requests_running 3\nvllm:num_requests_waiting 1\n");
    expect(sumLoads([sample, sample])).toMatchObject({ running: 6, waiting: 2 });
    expect(sumLoads([sample, undefined])).toBeUndefined();
    expect(sumLoads([])).toBeUndefined();
  });

  test("an unknown page has no load", () => {
    expect(readEngineMetrics("<html>hello</html>")).toEqual({
      engine: "unknown",
      load: undefined,
      startedAtSeconds: undefined,
    });
  });
});

test("no text whatever throws, and no number that comes out is negative or not finite", () => {
  const line = fc.oneof(
    fc.string(),
    fc
      .constantFrom("vllm:num_requests_running", "sglang:num_queue_reqs", "llamacpp:requests_processing")
      .chain((name) =>
        fc
          .tuple(fc.string(), fc.oneof(fc.double().map(String), fc.string()))
          .map(([labels, value]) => `${name}{${labels}} ${value}`),
      ),
  );
  fc.assert(
    fc.property(fc.array(line), (lines) => {
      const found = load(lines.join("\n"));
      for (const value of [found?.running, found?.waiting, found?.kvUsage]) {
        expect(value === undefined || (Number.isFinite(value) && value >= 0)).toBe(true);
      }
    }),
  );
});
