import { describe, expect, it, onTestFinished } from "vitest";
import { createEngineClient, type EngineTarget } from "../../src/http/index.ts";
import { startFakeEngine, runClosedLoop, type ClosedLoop, type FakeEngine } from "../../src/testbed/index.ts";
import { callChat, type ChatOutcome } from "../../src/testbed/loadgen/chat-call.ts";
import { measure, WORLDS, type RunSample, type TurnSample } from "../../src/workload/index.ts";

async function engineWith(options: Parameters<typeof startFakeEngine>[0] = {}): Promise<FakeEngine> {
  const engine = await startFakeEngine({ models: ["m"], ...options });
  onTestFinished(() => engine.close());
  return engine;
}

const targetOf = ({ port }: FakeEngine): EngineTarget => ({
  protocol: "http:",
  hostname: "127.0.0.1",
  port,
  basePath: "",
});

const loop = (
  engine: FakeEngine,
  options: Partial<ClosedLoop> = {},
): Promise<Awaited<ReturnType<typeof runClosedLoop>>> =>
  runClosedLoop({
    target: targetOf(engine),
    model: "m",
    world: WORLDS["own-loop"],
    agents: { interactive: 1, batch: 3 },
    seed: 7,
    timeScale: 0.01,
    warmUpSeconds: 0,
    seconds: 60,
    headersOf: ({ class: serviceClass }) => ["x-luftpause-class", serviceClass],
    priorityOf: () => undefined,
    ...options,
  });

describe("a closed loop", () => {
  it("runs agents through their tool calls to the answer, one run after the other", async () => {
    const engine = await engineWith();
    const report = await loop(engine);
    expect(report.failures).toEqual({});
    expect(report.seconds).toBeCloseTo(60, 1);
    for (const one of [report.interactive, report.batch]) {
      expect(one.runs).toBeGreaterThan(1);
      expect(one.turns).toBeGreaterThanOrEqual(one.runs);
      expect(one.runsPerMinute).toBeCloseTo(one.runs, 0);
      expect(one.runSeconds.p50).toBeLessThanOrEqual(one.runSeconds.p95);
    }
    // Three agents do more than one, and later turns find the prompt of those before.
    expect(report.batch.runs).toBeGreaterThan(report.interactive.runs);
    expect(report.cachedShare).toBeGreaterThan(0.2);
    const { requests } = engine.stats();
    const echoes = requests.filter(({ body }) => body.includes('"role":"tool"'));
    expect(echoes.length).toBeGreaterThan(0);
  });

  it("asks the same of every engine that it is run against, and something else with another seed", async () => {
    const bodies = async (seed: number): Promise<string[]> => {
      const engine = await engineWith();
      const enough = new AbortController();
      const load = loop(engine, { seed, seconds: 3_600, agents: { interactive: 1, batch: 0 }, signal: enough.signal });
      await engine.until(({ finished }) => finished >= 4);
      enough.abort();
      await load;
      const { requests } = engine.stats();
      // Ids of tool calls are the engine's: no two engines give the same ones.
      return requests.slice(0, 4).map(({ body }) => body.toString().replaceAll(/"(?:id|tool_call_id)":"[^"]*"/g, ""));
    };
    const first = await bodies(7);
    expect(await bodies(7)).toEqual(first);
    expect(await bodies(8)).not.toEqual(first);
  });

  it("asks again where it is refused for want of capacity, and counts the wait", async () => {
    const engine = await engineWith({ faults: ["refuse=429"] });
    const load = loop(engine, { seconds: 300, agents: { interactive: 1, batch: 0 } });
    await engine.until(({ refused, failed }) => refused + failed >= 2);
    engine.setFault("refuse", false);
    const report = await load;
    expect(report.failures).toEqual({});
    expect(report.interactive.runs).toBeGreaterThan(0);
    expect(report.interactive.firstContentSeconds.max).toBeGreaterThan(1);
  });

  it("counts runs that failed by their reason, and goes on with the next", async () => {
    const engine = await engineWith({ faults: ["end-after-events=1"] });
    const report = await loop(engine, { seconds: 5, agents: { interactive: 0, batch: 1 } });
    expect(report.batch.runs).toBe(0);
    expect(report.batch.failed).toBeGreaterThan(1);
    expect(Object.keys(report.failures)).toEqual(["the stream ended before the answer did"]);
  });

  it("leaves at once when it is told to", async () => {
    const engine = await engineWith({ profile: "laptop-1b-x2", faults: ["freeze"] });
    const over = new AbortController();
    const load = loop(engine, { seconds: 3_600, timeScale: 1, signal: over.signal });
    await engine.until(({ connections }) => connections === 4);
    over.abort();
    const report = await load;
    expect(report.interactive.runs + report.batch.runs).toBe(0);
    await engine.until(({ connections }) => connections === 0);
  });
});

describe("a turn of an agent", () => {
  const ask = async (engine: FakeEngine, headers: readonly string[] = []): Promise<ChatOutcome> => {
    const client = createEngineClient({ connectTimeoutMs: 2_000, reusedSocketRetryMs: 1_000 });
    onTestFinished(() => client.close());
    const body = {
      model: "m",
      stream: true,
      stream_options: { include_usage: true },
      messages: [{ role: "user", content: "u" }],
    };
    return new Promise((resolve) => callChat(client, { target: targetOf(engine), headers, body }, resolve));
  };

  it("is read whole, with its usage and where it was served", async () => {
    const outcome = await ask(await engineWith());
    expect(outcome).toMatchObject({ kind: "answer", toolCalls: [], replica: undefined });
    if (outcome.kind !== "answer") return;
    expect(outcome.content).toMatch(/^Placeholder text/);
    expect(outcome.promptTokens).toBeGreaterThan(0);
    expect(outcome.completionTokens).toBeGreaterThan(0);
  });

  it.each([
    ["a refusal", "refuse=503", { kind: "refused", status: 503 }],
    ["a cut", "cut-event=2", { kind: "lost" }],
    ["an end without an end", "end-after-events=2", { kind: "lost", reason: "the stream ended before the answer did" }],
    ["an error in the stream", "error-event=1", { kind: "lost" }],
  ])("that meets %s is no answer", async (_, fault, expected) => {
    expect(await ask(await engineWith(), ["x-fake-fault", fault])).toMatchObject(expected);
  });
});

describe("what a load says", () => {
  const turn = (atMs: number, cachedTokens: number): TurnSample => ({
    class: "batch",
    atMs,
    firstContentMs: 50,
    promptTokens: 100,
    cachedTokens,
    completionTokens: 10,
    replica: "a",
  });
  const run = (endedMs: number, failure?: string): RunSample => ({
    class: "batch",
    endedMs,
    ms: 200,
    turns: 1,
    toolCalls: 0,
    failure,
  });

  it("counts what ended inside its window, in simulated time", () => {
    const report = measure({
      turns: [turn(900, 0), turn(1_500, 50), turn(2_000, 100), turn(7_100, 0)],
      runs: [run(500), run(1_500), run(2_500), run(6_900), run(3_000, "why"), run(8_000)],
      fromMs: 1_000,
      untilMs: 7_000,
      timeScale: 0.1,
    });
    expect(report.seconds).toBe(60);
    expect(report.batch).toMatchObject({ runs: 3, failed: 1, runsPerMinute: 3, turns: 2, cachedShare: 0.75 });
    expect(report.batch.runSeconds).toEqual({ count: 3, p50: 2, p95: 2, max: 2 });
    expect(report.batch.firstContentSeconds.p50).toBe(0.5);
    expect(report.interactive).toMatchObject({ runs: 0, runsPerMinute: 0 });
    expect(report.byReplica).toEqual({ a: 2 });
    expect(report.failures).toEqual({ why: 1 });
    expect(report.outputTokensPerSecond).toBeCloseTo(20 / 60);
  });

  it("names only so many different failures", () => {
    const runs = Array.from({ length: 50 }, (_, at) => run(at, `reason ${at}`));
    const { failures } = measure({ turns: [], runs, fromMs: 0, untilMs: 100, timeScale: 1 });
    expect(Object.keys(failures)).toHaveLength(21);
    expect(failures["others"]).toBe(30);
  });
});
