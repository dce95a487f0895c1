import { describe, expect, it } from "vitest";
import type { FakeEngine } from "../../src/testbed/index.ts";
import { chat, engineFor } from "./support.ts";

type Series = { readonly name: string; readonly labels: Readonly<Record<string, string>>; readonly value: number };

/** Reads a page strictly: every line is a comment or a series, and every series has a TYPE. */
async function scrape(engine: FakeEngine): Promise<Series[]> {
  const response = await fetch(`${engine.url}/metrics`);
  expect(response.headers.get("content-type")).toContain("text/plain");
  const typed = new Set<string>();
  const series: Series[] = [];
  for (const line of (await response.text()).split("\n")) {
    const type = /^# TYPE (\S+) (gauge|counter|histogram)$/.exec(line);
    if (type !== null) typed.add(type[1]!);
    if (line === "" || line.startsWith("#")) continue;
    const match = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (match === null) throw new Error(`no series: ${line}`);
    const labels = Object.fromEntries(
      [...(match[2] ?? "").matchAll(/(\w+)="([^"]*)"/g)].map((pair) => [pair[1]!, pair[2]!]),
    );
    const name = match[1]!;
    expect(typed.has(name) || typed.has(name.replace(/_(bucket|sum|count)$/, ""))).toBe(true);
    series.push({ name, labels, value: Number(match[3]) });
  }
  expect(series.every((one) => Number.isFinite(one.value))).toBe(true);
  return series;
}

function value(
  series: readonly Series[],
  name: string,
  labels: Readonly<Record<string, string>> = {},
): number | undefined {
  const found = series.filter(
    (one) => one.name === name && Object.entries(labels).every(([label, wanted]) => one.labels[label] === wanted),
  );
  expect(found.length, `${name} ${JSON.stringify(labels)}`).toBeLessThanOrEqual(1);
  return found[0]?.value;
}

/** Fills an engine: `slots` turns that stall, and further ones behind them. */
async function fill(engine: FakeEngine, bodies: readonly Readonly<Record<string, unknown>>[]): Promise<() => void> {
  const controller = new AbortController();
  for (const [at, body] of bodies.entries()) {
    chat(engine, { ...body, fake_fault: "stall" }, { signal: controller.signal }).catch(() => undefined);
    await engine.until((stats) => stats.running + stats.waiting === at + 1);
  }
  return () => controller.abort();
}

const VLLM_NAMES = [
  "vllm:cache_config_info",
  "vllm:e2e_request_latency_seconds",
  "vllm:engine_sleep_state",
  "vllm:generation_tokens_total",
  "vllm:kv_cache_usage_perc",
  "vllm:num_preemptions_total",
  "vllm:num_requests_running",
  "vllm:num_requests_waiting",
  "vllm:num_requests_waiting_by_reason",
  "vllm:prefix_cache_hits_total",
  "vllm:prefix_cache_queries_total",
  "vllm:prompt_tokens_cached_total",
  "vllm:prompt_tokens_total",
  "vllm:request_queue_time_seconds",
  "vllm:request_success_total",
  "vllm:time_to_first_token_seconds",
];

const SGLANG_NAMES = [
  "sglang:cache_config_info",
  "sglang:cache_hit_rate",
  "sglang:cached_tokens_total",
  "sglang:context_len",
  "sglang:e2e_request_latency_seconds",
  "sglang:gen_throughput",
  "sglang:generation_tokens_total",
  "sglang:kv_available_tokens",
  "sglang:kv_evictable_tokens",
  "sglang:kv_used_tokens",
  "sglang:max_total_num_tokens",
  "sglang:num_grammar_queue_reqs",
  "sglang:num_pages",
  "sglang:num_queue_reqs",
  "sglang:num_retracted_reqs",
  "sglang:num_retracted_requests_total",
  "sglang:num_running_reqs",
  "sglang:num_used_tokens",
  "sglang:page_size",
  "sglang:prompt_tokens_total",
  "sglang:queue_time_seconds",
  "sglang:realtime_tokens_total",
  "sglang:time_to_first_token_seconds",
  "sglang:token_usage",
  "sglang:utilization",
];

const LLAMA_NAMES = [
  "llamacpp:n_busy_slots_per_decode",
  "llamacpp:n_decode_total",
  "llamacpp:predicted_tokens_seconds",
  "llamacpp:prompt_tokens_total",
  "llamacpp:requests_deferred",
  "llamacpp:requests_processing",
  "llamacpp:tokens_predicted_total",
];

describe("the metrics page", () => {
  it.each([
    ["vllm", VLLM_NAMES],
    ["sglang", SGLANG_NAMES],
    ["llama.cpp", LLAMA_NAMES],
    ["single-pass", VLLM_NAMES],
  ] as const)("of %s has exactly these names", async (dialect, names) => {
    const series = await scrape(await engineFor({ dialect }));
    const found = new Set(series.map((one) => one.name.replace(/_(bucket|sum|count)$/, "")));
    expect([...found].toSorted()).toEqual(names);
  });

  it("of vLLM is fresh and counts waiting requests by reason", async () => {
    const engine = await engineFor({ slots: 2, models: ["sim-8b", "other"], kvTokens: 16_000 });
    const release = await fill(engine, [{}, {}, {}]);
    const series = await scrape(engine);
    const labels = { engine: "0", model_name: "sim-8b" };
    expect(value(series, "vllm:num_requests_running", labels)).toBe(2);
    expect(value(series, "vllm:num_requests_waiting", labels)).toBe(1);
    expect(value(series, "vllm:num_requests_waiting_by_reason", { ...labels, reason: "capacity" })).toBe(1);
    expect(value(series, "vllm:num_requests_waiting_by_reason", { ...labels, reason: "deferred" })).toBe(0);
    expect(value(series, "vllm:cache_config_info", { engine: "0", block_size: "16", num_gpu_blocks: "1000" })).toBe(1);
    expect(series.find((one) => one.name === "vllm:cache_config_info")?.labels).not.toHaveProperty("model_name");
    expect(value(series, "vllm:kv_cache_usage_perc", labels)).toBeGreaterThan(0);
    release();
    await engine.until((stats) => stats.running + stats.waiting === 0);
    expect(value(await scrape(engine), "vllm:num_requests_running")).toBe(0);
  });

  it("of vLLM counts tokens, cache hits and how requests ended", async () => {
    const engine = await engineFor();
    const messages = [{ role: "user", content: "river ".repeat(100) }];
    await chat(engine, { messages });
    await chat(engine, { messages, max_tokens: 3 });
    const series = await scrape(engine);
    const prompt = value(series, "vllm:prompt_tokens_total") ?? 0;
    expect(prompt).toBe(engine.stats().requests.reduce((sum, request) => sum + request.promptTokens, 0));
    expect(value(series, "vllm:prefix_cache_queries_total")).toBe(prompt);
    expect(value(series, "vllm:prefix_cache_hits_total")).toBe(engine.stats().requests[1]?.cachedTokens);
    expect(value(series, "vllm:prefix_cache_hits_total")).toBeGreaterThan(100);
    expect(value(series, "vllm:request_success_total", { finished_reason: "stop" })).toBe(1);
    expect(value(series, "vllm:request_success_total", { finished_reason: "length" })).toBe(1);
    expect(value(series, "vllm:time_to_first_token_seconds_count")).toBe(2);
    expect(value(series, "vllm:time_to_first_token_seconds_bucket", { le: "+Inf" })).toBe(2);
  });

  it("of SGLang carries its ranks, and is as stale as the real one while /v1/loads is not", async () => {
    const engine = await engineFor({ dialect: "sglang", slots: 1 });
    await fill(engine, [{}, {}, {}]);
    const series = await scrape(engine);
    const labels = { engine_type: "unified", model_name: "sim-8b", tp_rank: "0", pp_rank: "0", moe_ep_rank: "0" };
    // Written when the one prefill batch was formed: before it ran, and before the others came.
    expect(value(series, "sglang:num_running_reqs", labels)).toBe(0);
    expect(value(series, "sglang:num_queue_reqs", labels)).toBe(0);
    expect(value(series, "sglang:max_total_num_tokens", labels)).toBe(1_048_576);
    expect(value(series, "sglang:cache_config_info", { page_size: "16", num_pages: "65536" })).toBe(1);
    expect(series.every((one) => one.labels["priority"] === undefined)).toBe(true);
    const loads = (await (await fetch(`${engine.url}/v1/loads?include=core`)).json()) as { loads: readonly unknown[] };
    expect(loads.loads).toMatchObject([
      { dp_rank: 0, num_running_reqs: 1, num_waiting_reqs: 2, max_running_requests: 1 },
    ]);
  });

  it("of SGLang with priorities repeats its counts per priority beside the total under the empty label", async () => {
    const engine = await engineFor({ dialect: "sglang", slots: 2, priority: true, latency: { decodeBaseMs: 1 } });
    const controller = new AbortController();
    const headers = { "x-fake-agent": "tokens=20000" };
    for (const priority of [5, 5, 1, undefined]) {
      chat(engine, priority === undefined ? {} : { priority }, { headers, signal: controller.signal }).catch(
        () => undefined,
      );
      await engine.until((stats) => stats.started === stats.running + stats.waiting);
    }
    // Every 40th decode step writes the gauges.
    await engine.until((stats) => stats.counters.decodeSteps > 120);
    const series = await scrape(engine);
    controller.abort();
    expect(
      series.filter((one) => one.name !== "sglang:cache_config_info").every((one) => "priority" in one.labels),
    ).toBe(true);
    expect(value(series, "sglang:num_running_reqs", { priority: "" })).toBe(2);
    expect(value(series, "sglang:num_running_reqs", { priority: "5" })).toBe(2);
    expect(value(series, "sglang:num_queue_reqs", { priority: "" })).toBe(2);
    expect(value(series, "sglang:num_queue_reqs", { priority: "1" })).toBe(1);
    // One without a priority ranks last, below every number that a client sends.
    expect(value(series, "sglang:num_queue_reqs", { priority: String(Number.MIN_SAFE_INTEGER) })).toBe(1);
  });

  it("of llama.cpp counts slots and deferred requests", async () => {
    const engine = await engineFor({ dialect: "llama.cpp", slots: 2 });
    await fill(engine, [{}, {}, {}]);
    const series = await scrape(engine);
    expect(value(series, "llamacpp:requests_processing")).toBe(2);
    expect(value(series, "llamacpp:requests_deferred")).toBe(1);
    const props = (await (await fetch(`${engine.url}/props`)).json()) as { total_slots: number };
    expect(props.total_slots).toBe(2);
    const slots = (await (await fetch(`${engine.url}/slots`)).json()) as readonly { is_processing: boolean }[];
    expect(slots.map((slot) => slot.is_processing)).toEqual([true, true]);
  });

  it("is a 501 at llama.cpp without --metrics, and unknown elsewhere and at Ollama", async () => {
    const statusOf = async (engine: FakeEngine): Promise<number> => (await fetch(`${engine.url}/metrics`)).status;
    const llama = await engineFor({ dialect: "llama.cpp", metrics: false });
    const response = await fetch(`${llama.url}/metrics`);
    expect([response.status, await response.json()]).toEqual([
      501,
      expect.objectContaining({
        error: expect.objectContaining({ code: 501, type: "not_supported_error" }) as unknown,
      }),
    ]);
    expect(await statusOf(await engineFor({ dialect: "sglang", metrics: false }))).toBe(404);
    expect(await statusOf(await engineFor({ dialect: "ollama" }))).toBe(404);
  });

  it("names the engine by routes of its own", async () => {
    const paths = {
      vllm: "/version",
      sglang: "/get_server_info",
      "llama.cpp": "/props",
      ollama: "/api/version",
    } as const;
    for (const dialect of Object.keys(paths) as (keyof typeof paths)[]) {
      const engine = await engineFor({ dialect });
      const answered = [];
      for (const path of Object.values(paths)) if ((await fetch(engine.url + path)).ok) answered.push(path);
      expect(answered).toEqual([paths[dialect]]);
    }
  });
});
