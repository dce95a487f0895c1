/** The dataplane with the real scheduler in one process, in front of simulated engines: the whole way of a turn. */
import { describe, expect, it } from "vitest";
import { asDataplaneId } from "../../src/base/ids.ts";
import { createDataplane, type Dataplane } from "../../src/dataplane/index.ts";
import { createAuth, createEngineClient, createFront } from "../../src/http/index.ts";
import type { SchedulingConfig } from "../../src/scheduling/index.ts";
import { createScheduler, type Scheduler } from "../../src/scheduler/index.ts";
import { REAL_CLOCK, SILENT_LOG } from "../../src/telemetry/index.ts";
import { startFakeEngine, type FakeEngine, type FakeEngineOptions } from "../../src/testbed/index.ts";
import { DEFAULTS } from "../../src/wire/limits.ts";
import { endpointOf, LIMITS, onCleanUp, send, until, type Answer } from "./support.ts";

type Pool = {
  readonly port: number;
  readonly engines: readonly FakeEngine[];
  readonly scheduler: Scheduler;
  readonly dataplane: Dataplane;
  chat(fields?: object, headers?: Record<string, string>): Promise<Answer>;
};

async function startPool(
  options: readonly FakeEngineOptions[],
  maxInFlight?: number,
  policy: SchedulingConfig["policy"] = "classic",
): Promise<Pool> {
  const engines = await Promise.all(options.map((one) => startFakeEngine(one)));
  const endpoints = engines.map((engine, at) =>
    endpointOf("ab"[at] ?? "c", engine.url, { maxInFlight, splice: true, speaks: ["chat"] }),
  );
  const scheduler = createScheduler({
    config: {
      policy,
      capRelease: "step",
      pausedRoomMs: DEFAULTS.pausedRoomSeconds * 1000,
      turnExpiryMs: DEFAULTS.turnExpiryMs,
      dataplaneGraceMs: DEFAULTS.dataplaneGraceMs,
      runIdleExpiryMs: DEFAULTS.runIdleExpiryMs,
      arrivalKeptMs: DEFAULTS.arrivalKeptMs,
      loadStaleAfterProbes: DEFAULTS.loadStaleAfterProbes,
      identityTtlMs: DEFAULTS.identityTtlMs,
      identityKeysMax: DEFAULTS.identityKeysMax,
      principalWeights: [],
      replicas: endpoints.map(({ name, kind }) => ({
        replica: name,
        kind,
        models: [],
        speaks: undefined,
        maxInFlight,
      })),
    },
    endpoints,
    clock: REAL_CLOCK,
    log: SILENT_LOG,
    tickMs: DEFAULTS.tickMs,
    probeEveryMs: 50,
    probeTimeoutMs: DEFAULTS.probeTimeoutMs,
    connectTimeoutMs: DEFAULTS.connectTimeoutMs,
    eventLog: undefined,
  });
  const engineClient = createEngineClient(LIMITS);
  const dataplane = createDataplane({
    dataplane: asDataplaneId("dp"),
    hop: "dp",
    endpoints,
    limits: LIMITS,
    port: scheduler.localPort(),
    clock: REAL_CLOCK,
    authenticate: createAuth({ token: undefined, serviceToken: undefined, principals: [] }),
    engineClient,
    log: SILENT_LOG,
    metricsPublic: false,
  });
  await scheduler.start();
  const front = createFront({ handler: (exchange) => dataplane.handle(exchange) });
  const { port } = await front.listen("127.0.0.1", 0);
  onCleanUp(async () => {
    dataplane.close();
    engineClient.close();
    await Promise.all([scheduler.stop(), front.close(), ...engines.map((engine) => engine.close())]);
  });
  return {
    port,
    engines,
    scheduler,
    dataplane,
    chat: (fields = {}, headers = {}) => send(port, { body: { ...SIM, ...fields }, headers }).answer,
  };
}

const SIM = {
  model: "sim-8b",
  max_tokens: 16,
  messages: [{ role: "user", content: "What does the river do?" }],
} as const;
const LOOKUP = {
  type: "function",
  function: { name: "lookup", parameters: { type: "object", properties: { q: { type: "string" } }, required: ["q"] } },
} as const;
const inFlight = (pool: Pool): number => pool.scheduler.status().turns.inFlight;

describe("a pool of simulated engines", () => {
  it("recognises an agent without our header by the tool calls that it echoes, and keeps it on its replica", async () => {
    const pool = await startPool([{ name: "a" }, { name: "b" }]);
    const messages: object[] = [...SIM.messages];
    const answers: Answer[] = [];
    for (let round = 0; round < 3; round += 1) {
      const answer = await pool.chat({ messages, tools: [LOOKUP], tool_choice: "required", max_tokens: 200 });
      answers.push(answer);
      const choice = (answer.json as { choices: { message: { tool_calls: { id: string }[] } }[] }).choices[0];
      expect(choice?.message.tool_calls.length).toBeGreaterThan(0);
      messages.push(choice?.message ?? {});
      for (const { id } of choice?.message.tool_calls ?? []) {
        messages.push({ role: "tool", tool_call_id: id, content: "12 m above the sea" });
      }
    }
    const header = (name: string): unknown[] => answers.map((answer) => answer.headers[name]);
    expect(new Set(header("x-luftpause-run-id")).size).toBe(1);
    expect(header("x-luftpause-run-source")).toEqual(["new", "tool-calls", "tool-calls"]);
    expect(new Set(header("x-luftpause-replica")).size).toBe(1);
    await until("the slot is free", () => inFlight(pool) === 0);
  });

  it("keeps every turn beyond the room in luftpause, serves all of them, and counts return to zero", async () => {
    const pool = await startPool([{ name: "a" }, { name: "b" }], 3);
    const turns = Array.from({ length: 60 }, (_, at) =>
      pool.chat({ stream: at % 2 === 0 }, { "x-luftpause-caller": `c${at % 5}` }),
    );
    const answers = await Promise.all(turns);
    expect(answers.map((answer) => answer.status)).toEqual(Array.from({ length: 60 }, () => 200));
    expect(answers.every((answer) => answer.clean)).toBe(true);
    expect(new Set(answers.map((answer) => answer.headers["x-luftpause-replica"]))).toEqual(new Set(["a", "b"]));
    await until("the slots are free", () => inFlight(pool) === 0);
    expect(pool.dataplane.openTurns()).toEqual([]);
  });

  it.each([
    ["die-at-once", 502, true],
    ["die-after-bytes=300", 200, false],
    ["cut-event=2", 200, false],
    ["end-after-events=2", 200, false],
    ["no-done", 200, true],
    ["refuse=500", 500, true],
    ["crlf", 200, true],
    ["no-space", 200, true],
    ["split-utf8", 200, true],
    ["wrong-length=40", 200, false],
  ])("ends a stream of an engine with %s as it should be", async (fault, status, clean) => {
    const pool = await startPool([{ name: "a" }]);
    const answer = await pool.chat({ stream: true }, { "x-fake-fault": fault });
    expect([answer.status, answer.clean]).toEqual([status, clean]);
    if (!clean) expect(answer.text).not.toContain("[DONE]");
    await until("the slot is free", () => inFlight(pool) === 0);
    // The engine is as good as before for the next turn.
    expect((await pool.chat({ stream: true })).text).toContain("[DONE]");
  });

  it("never shows an engine's back-pressure to the client", async () => {
    const pool = await startPool([{ name: "a", faults: ["refuse=503", "refuse-first=2", "retry-after=0"] }]);
    const answer = await pool.chat({ stream: true });
    expect(answer.text).toContain("[DONE]");
    expect(pool.engines[0]?.stats().requests.length).toBe(3);
  });

  it("closes the engine's request when a client leaves, in every window of a turn, and frees the slot", async () => {
    const pool = await startPool([{ name: "a" }], 4);
    const [engine] = pool.engines;
    for (const fault of ["slow-headers=60000", "stall=0", "stall=3"]) {
      for (const stream of [true, false]) {
        const turn = send(pool.port, { body: { ...SIM, stream }, headers: { "x-fake-fault": fault } });
        await until(`the engine has it (${fault})`, () => inFlight(pool) === 1);
        if (fault === "stall=3" && stream) await until("tokens came", () => turn.text() !== "");
        turn.leave();
        await until(`the slot is free (${fault})`, () => inFlight(pool) === 0);
      }
    }
    await engine?.until((stats) => stats.running === 0 && stats.waiting === 0);
  });

  it("retries once on an idle connection that the engine has closed, and the turn stays one turn", async () => {
    const pool = await startPool([{ name: "a" }]);
    expect((await pool.chat()).status).toBe(200);
    pool.engines[0]?.setFault("drop-reused");
    const answers = await Promise.all([pool.chat(), pool.chat(), pool.chat()]);
    expect(answers.map((answer) => answer.status)).toEqual([200, 200, 200]);
    const page = await pool.dataplane.metrics.metrics();
    expect(page).toMatch(/luftpause_dataplane_engine_retries [1-9]/);
    expect(page).toContain('luftpause_dataplane_turns_total{outcome="finished",class="interactive"} 4');
  });

  it("sends an unknown model away at once, with the published words", async () => {
    const pool = await startPool([{ name: "a" }]);
    const answer = await pool.chat({ model: "nope" });
    expect(answer.status).toBe(404);
    expect(answer.json.error?.["message"]).toBe("no Generative replica serves model 'nope'");
  });

  it("shows a held turn in the status, and serves it when the place is free", async () => {
    const pool = await startPool([{ name: "a" }], 1);
    const busy = send(pool.port, { body: { ...SIM, stream: true }, headers: { "x-fake-fault": "stall=1" } });
    await until("the only place is taken", () => inFlight(pool) === 1);
    const dataplane = pool.dataplane;
    const waiting = send(pool.port, { body: { ...SIM, stream: true } });
    await until("it is held", () => dataplane.openTurns().some((turn) => turn.phase === "held"));
    expect(pool.scheduler.status().held.length).toBeGreaterThan(0);
    busy.leave();
    expect((await waiting.answer).text).toContain("[DONE]");
  });

  it("shows a run to its principal, and forgets it on DELETE", async () => {
    const pool = await startPool([{ name: "a" }]);
    await pool.chat({}, { "x-luftpause-run-id": "r/1" });
    await until("it has ended", () => inFlight(pool) === 0);
    const get = () => send(pool.port, { method: "GET", path: "/v1/runs/r%2F1" }).answer;
    expect((await get()).json).toMatchObject({
      run: "r/1",
      class: "interactive",
      phase: "idle",
      replica: "a",
      turns: 1,
    });
    expect((await send(pool.port, { method: "DELETE", path: "/v1/runs/r%2F1" }).answer).status).toBe(204);
    expect((await get()).json.error?.["code"]).toBe("run_unknown");
  });

  it("classifies at a minimal single-pass engine by /v1/decide, whatever the generative ones do", async () => {
    const engine = await startFakeEngine({ dialect: "single-pass", models: ["judge"], labels: ["no", "yes"] });
    onCleanUp(() => engine.close());
    const pool = await startPool([{ name: "a" }]);
    pool.dataplane.reconfigure([endpointOf("s", engine.url, { kind: "single-pass" })]);
    pool.scheduler.reconfigure(
      {
        policy: "classic",
        capRelease: "step",
        pausedRoomMs: 1,
        turnExpiryMs: 1_000,
        dataplaneGraceMs: 1_000,
        runIdleExpiryMs: 1_000,
        arrivalKeptMs: 1_000,
        loadStaleAfterProbes: 3,
        identityTtlMs: 1_000,
        identityKeysMax: 10,
        principalWeights: [],
        replicas: [
          { replica: "s" as never, kind: "single-pass", models: [], speaks: undefined, maxInFlight: undefined },
        ],
      },
      [endpointOf("s", engine.url, { kind: "single-pass" })],
    );
    const ask = () => send(pool.port, { path: "/v1/decide", body: { model: "judge", input: "is it?" } }).answer;
    // Until the first probe nobody knows the model: the request waits.
    const answer = await ask();
    expect(answer.status).toBe(200);
    expect(answer.json["data"]).toMatchObject([{ num_classes: 2 }]);
  });
});

describe("the active set over real sockets", () => {
  const priorities = (pool: Pool): readonly unknown[] =>
    (pool.engines[0]?.stats().requests ?? [])
      .filter(({ body }) => body.length > 0)
      .map(({ body }) => (JSON.parse(body.toString()) as { readonly priority?: unknown }).priority);

  it("tells an engine that shows that it takes one the priority of each class, and the client that it did", async () => {
    const pool = await startPool([{ name: "a", dialect: "sglang", priority: true }], undefined, "active-set");
    const load = async (): Promise<boolean> => pool.scheduler.status().replicas[0]?.reportsLoad === true;
    for (let tries = 0; tries < 200 && !(await load()); tries += 1) await new Promise((next) => setTimeout(next, 10));
    const interactive = await pool.chat({ stream: true });
    const batch = await pool.chat({ priority: 99 }, { "x-luftpause-class": "batch" });
    expect([interactive.status, batch.status]).toEqual([200, 200]);
    expect(priorities(pool)).toEqual([1, 0]);
    expect(interactive.headers["x-luftpause-spliced"]).toBe("stream_options.include_usage, priority");
    expect(batch.headers["x-luftpause-spliced"]).toBe("priority");
    // The usage chunk that only our splice asked for is cut out again; that of a client who asked is not.
    expect(interactive.text).not.toContain('"usage"');
    const asked = await pool.chat({ stream: true, stream_options: { include_usage: true } });
    expect(asked.headers["x-luftpause-spliced"]).toBe("priority");
    expect(asked.text).toContain('"usage":{');
  });

  it("tells none to an engine that does not show it: vLLM would refuse the turn", async () => {
    const pool = await startPool([{ name: "a", dialect: "vllm" }], undefined, "active-set");
    expect((await pool.chat({}, { "x-luftpause-class": "batch" })).status).toBe(200);
    expect(priorities(pool)).toEqual([undefined]);
  });

  it("lets every run of a crowd through, one shared prefix counted once", async () => {
    const pool = await startPool([{ name: "a", timeScale: 0.05 }], undefined, "active-set");
    const system = { role: "system", content: "You know rivers. ".repeat(400) };
    const answers = await Promise.all(
      Array.from({ length: 40 }, (_, at) =>
        pool.chat(
          { messages: [system, { role: "user", content: `River ${at}?` }], stream: at % 2 === 0 },
          { "x-luftpause-class": at % 4 === 0 ? "interactive" : "batch", "x-luftpause-caller": `c${at % 3}` },
        ),
      ),
    );
    expect(answers.every(({ status, clean }) => status === 200 && clean)).toBe(true);
    await until("the slots are free", () => inFlight(pool) === 0);
    expect(pool.dataplane.openTurns()).toEqual([]);
  });
});
