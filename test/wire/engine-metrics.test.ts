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

  test("takes neither buckets, creation times nor other metrics with the same beginning for a gauge", () => {
    const noise = `# HELP vllm:num_requests_running Number of requests in model execution batches.
python_info{implementation="CPython",major="3",minor="12"} 1.0
process_start_time_seconds 1.77e+09
process_max_fds 1.048576e+06
vllm:lora_requests_info{max_lora="0",running_lora_adapters="",waiting_lora_adapters=""} 1.7e+09
vllm:e2e_request_latency_seconds_bucket{engine="0",le="0.3",model_name="m"} 4.0
vllm:num_requests_running_total{engine="0",model_name="m"} 99.0
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.7e+09
vllm:num_requests_running{engine="0",model_name="m"} 2.0
`;
    expect(load(noise)).toEqual({
      running: 2,
      waiting: undefined,
      kvUsage: undefined,
      kvCapacityTokens: undefined,
      cacheHitRate: undefined,
      takesPriority: false,
    });
  });

  test("takes the pool of each data-parallel engine, and its cache's counters with or without their suffix", () => {
    const page = `vllm:num_requests_running 1
vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0",num_gpu_blocks="1000"} 1.0
vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="1",num_gpu_blocks="500"} 1.0
vllm:prefix_cache_queries{engine="0"} 100
vllm:prefix_cache_hits{engine="0"} 75
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
`;
    expect(load(page)).toMatchObject({ kvCapacityTokens: 24_000, cacheHitRate: 0.75, kvUsage: 0.75 });
  });

  test("does not know the pool while the engine has not sized it", () => {
    const page = `vllm:num_requests_running 1\nvllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0\n`;
    expect(load(page)?.kvCapacityTokens).toBeUndefined();
  });

  test("reads labels with commas, braces, escaped quotes and spaces in them, and a time stamp behind the value", () => {
    const page = `vllm:num_requests_running{model_name="a, {b} = \\"c\\"" , engine = "0"} 3 1700000000000\r
vllm:num_requests_running{model_name="d",engine="0",} 4
`;
    expect(load(page)?.running).toBe(7);
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

describe("SGLang's pool", () => {
  test("is its number of tokens, else pages times their size, each rank of a batch once", () => {
    const pages = `sglang:num_running_reqs{tp_rank="0"} 1
sglang:cache_config_info{num_pages="100",page_size="64",tp_rank="0"} 1
sglang:cache_config_info{num_pages="100",page_size="64",tp_rank="1"} 1
`;
    expect(load(pages)?.kvCapacityTokens).toBe(6_400);
    expect(load(`${pages}sglang:max_total_num_tokens{tp_rank="0"} 7000\n`)?.kvCapacityTokens).toBe(7_000);
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

  test.each(["NaN", "+Inf", "-1", "many", "", "1 2 3"])("a value of %s counts as missing", (value) => {
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

describe("work is bounded", () => {
  // A matcher that backtracks needs hours for these: the test's time-out is the assertion.
  test.each([
    ["labels without an end", `vllm:num_requests_running{${"a".repeat(4_000_000)}`],
    ["many braces", `vllm:num_requests_running{${"}".repeat(4_000_000)} 1`],
    ["an open string", `vllm:num_requests_running{a="${"x".repeat(4_000_000)}`],
    ["blanks", `vllm:num_requests_running${" ".repeat(4_000_000)}x y`],
    ["many such lines", `vllm:num_requests_running{${'a="b",'.repeat(2_000)} 1\n`.repeat(300)],
  ])("on %s", (_name, text) => {
    expect(load(`sglang:num_running_reqs 5\n${text}\n`)).toMatchObject({ running: 5 });
  });

  test("on series without number: the first some thousand count", () => {
    const text = Array.from({ length: 50_000 }, (_, at) => `vllm:num_requests_running{engine="${at}"} 1\n`).join("");
    expect(load(text)?.running).toBe(4_096);
  });

  test("a page is cut off at the limit, and the sample that the cut goes through does not count", () => {
    const head = "sglang:num_running_reqs 5\n";
    const filler = `# ${"x".repeat(4 * 1024 * 1024 - head.length - 30)}\n`;
    expect(load(`${head}${filler}sglang:num_queue_reqs 123456789`)).toMatchObject({ running: 5, waiting: undefined });
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
