/** Whole runs of the example agent through luftpause to a real llama.cpp: recognised, kept on their cache, held, served. */
import { setTimeout as pause } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { runAgent, type AgentOptions, type AgentResult } from "../../examples/openai-loop/agent.ts";
import { eventually } from "../e2e/processes.ts";
import { MODEL, SLOTS, startRealEngine, type RealEngine } from "./engine.ts";
import { endless, post, startLuftpause, type Luftpause } from "./world.ts";

const CHAT = "/v1/chat/completions";

describe("runs through luftpause to a real llama.cpp", () => {
  let engine: RealEngine;
  let proxy: Luftpause;

  beforeAll(async () => {
    engine = await startRealEngine();
    proxy = await startLuftpause(engine.url, { maxInFlight: SLOTS });
  });
  afterAll(async () => {
    await proxy?.end();
    await engine?.end();
  });

  const agent = (task: string, more: Partial<AgentOptions> = {}): Promise<AgentResult> =>
    runAgent({
      baseURL: `${proxy.url}/v1`,
      model: MODEL,
      task,
      temperature: 0,
      seed: 7,
      maxTokens: 96,
      maxTurns: 3,
      firstToolChoice: "required",
      ...more,
    });

  it("follows a run by its header, and its later turns find its prefix in the cache", async () => {
    const cachedBefore = await engine.metric("prompt_tokens_cached_total");
    const { turns, toolResults, answer } = await agent("How long is the Rhine?", { runId: "river-1", caller: "tests" });
    expect(toolResults.length).toBeGreaterThan(0);
    expect(answer).not.toBe("");
    expect(turns.length).toBeGreaterThan(1);
    for (const turn of turns) expect(turn).toMatchObject({ runId: "river-1", runSource: "header", replica: "llama" });
    // The whole prompt of the turn before is in the slot; its answer is too, as far as it renders the same again.
    for (const [at, turn] of turns.entries()) {
      if (at > 0) expect(turn.cachedTokens).toBeGreaterThanOrEqual((turns[at - 1]?.promptTokens ?? Infinity) - 8);
    }
    // What usage says is what the engine's own counter says.
    const cached = turns.reduce((sum, turn) => sum + (turn.cachedTokens ?? 0), 0);
    expect((await engine.metric("prompt_tokens_cached_total")) - cachedBefore).toBe(cached);
  });

  it("follows a run without a header by the tool calls that it echoes", async () => {
    const { turns, toolResults } = await agent("What is 20 plus 22?");
    expect(toolResults.length).toBeGreaterThan(0);
    expect(turns.length).toBeGreaterThan(1);
    expect(new Set(turns.map((turn) => turn.runId)).size).toBe(1);
    expect(turns.map((turn) => turn.runSource)).toEqual(["new", ...turns.slice(1).map(() => "tool-calls")]);
    const run = await fetch(`${proxy.url}/v1/runs/${encodeURIComponent(turns[0]?.runId ?? "")}`);
    expect(run.status).toBe(200);
  });

  it("keeps two such runs apart", async () => {
    const results = await Promise.all([agent("How long is the Elbe?"), agent("How long is the Danube?")]);
    const ids = results.map(({ turns }) => [...new Set(turns.map((turn) => turn.runId))]);
    expect(ids.map((own) => own.length)).toEqual([1, 1]);
    expect(ids[0]).not.toEqual(ids[1]);
  });

  it("holds what the slots cannot take, says so, and lets every run finish", async () => {
    // Two turns that do not end by themselves fill the slots, so that what comes next is held for certain.
    const fillers = Array.from({ length: SLOTS }, (_, at) => post(proxy.url + CHAT, endless(`Story ${at}`)));
    await Promise.all(fillers.map((turn) => turn.events(2)));
    const tasks = ["How long is the Rhine?", "What is 3 plus 4?", "How long is the Elbe?", "What is 5 plus 6?"];
    const firstTurn = Promise.withResolvers<void>();
    const runs = tasks.map((task, at) =>
      agent(task, {
        runId: `flood-${at}`,
        caller: `caller-${at % 2}`,
        class: at === 0 ? "interactive" : "batch",
        onEvent: (event) => event.kind === "turn" && firstTurn.resolve(),
      }),
    );
    const finished = Promise.all(runs);
    const held = await eventually("all four are held", async () => {
      const now = await proxy.status();
      return now.turns.held === tasks.length ? now : undefined;
    });
    expect(held.turns.inFlight).toBe(SLOTS);
    expect(held.held.map((row) => row.turns).reduce((sum, turns) => sum + turns, 0)).toBe(tasks.length);
    for (const row of held.held) expect(row.why).not.toBe("");
    // Held at luftpause, not in the engine: there nothing is deferred.
    expect(await engine.metric("requests_deferred")).toBe(0);
    expect(await engine.metric("requests_processing")).toBe(SLOTS);

    for (const filler of fillers) filler.leave();
    // The engine frees a slot some milliseconds after luftpause does, when a client leaves: watched is what follows.
    await Promise.race([firstTurn.promise, finished]);
    const deferred = watchDeferred();
    const results = await finished;
    expect(await deferred.stop()).toBe(0);
    for (const [at, { answer, turns }] of results.entries()) {
      expect(answer, tasks[at]).not.toBe("");
      for (const turn of turns) expect(turn.runId).toBe(`flood-${at}`);
    }
    await eventually("nothing is left", async () => {
      const { turns } = await proxy.status();
      return turns.held === 0 && turns.inFlight === 0 ? true : undefined;
    });
  });

  /** Reads the engine's own queue over and over until it is stopped; the most that was in it. */
  function watchDeferred(): { stop(): Promise<number> } {
    const over = new AbortController();
    const watching = (async () => {
      let most = 0;
      while (!over.signal.aborted) {
        most = Math.max(most, await engine.metric("requests_deferred"));
        await pause(50);
      }
      return most;
    })();
    watching.catch(() => undefined); // Reported where it is awaited.
    return {
      stop() {
        over.abort();
        return watching;
      },
    };
  }
});
