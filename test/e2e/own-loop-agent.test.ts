/** An agent with a loop of its own makes tool calls through a real luftpause, with and without the run header. */
import { describe, expect, test } from "vitest";
import { runAgent } from "../../examples/openai-loop/agent.ts";
import { startWorld, turnsAt, type World } from "./world.ts";

const task = "Which is longer, the Rhine or the Elbe, and by how much?";

async function agent(world: World, options: Partial<Parameters<typeof runAgent>[0]> = {}) {
  return runAgent({ baseURL: world.baseURL, model: "sim-8b", task, ...options });
}

// What each turn's answer said of its run, as the agent recorded it.
const runsOf = (result: Awaited<ReturnType<typeof runAgent>>) => result.turns.map(({ runId }) => runId);
const sourcesOf = (result: Awaited<ReturnType<typeof runAgent>>) => result.turns.map(({ runSource }) => runSource);

describe("an own-loop agent", () => {
  test("with the run header is one run from its first turn on, and its prefix is found again", async () => {
    const world = await startWorld([{}, {}]);
    const result = await agent(world, { runId: "my-run", class: "batch", caller: "me", firstToolChoice: "required" });
    expect(result.turns.length).toBeGreaterThan(1);
    expect(new Set(runsOf(result))).toEqual(new Set(["my-run"]));
    expect(new Set(sourcesOf(result))).toEqual(new Set(["header"]));
    const cached = turnsAt(world).map(({ cachedTokens }) => cachedTokens);
    expect(cached[0]).toBe(0);
    for (const tokens of cached.slice(1)) expect(tokens).toBeGreaterThan(0);
    const used = world.engines.filter((engine) => engine.stats().requests.some(({ body }) => body.length > 0));
    expect(used).toHaveLength(1);
    expect((await world.status()).runCounts.batch.idle).toBe(1);
  });

  test("without the header is recognised by the tool calls that it echoes", async () => {
    const world = await startWorld([{}, {}]);
    const result = await agent(world, { firstToolChoice: "required" });
    expect(result.turns.length).toBeGreaterThan(1);
    expect(new Set(runsOf(result)).size).toBe(1);
    expect(sourcesOf(result)).toEqual(["new", ...result.turns.slice(1).map(() => "tool-calls")]);
    const cached = turnsAt(world).map(({ cachedTokens }) => cachedTokens);
    for (const tokens of cached.slice(1)) expect(tokens).toBeGreaterThan(0);
  });

  test("two at once with the same task stay two runs", async () => {
    const world = await startWorld([{}, {}]);
    const results = await Promise.all([1, 2].map(() => agent(world, { firstToolChoice: "required" })));
    const runs = results.map((result) => new Set(runsOf(result)));
    expect(runs.map((set) => set.size)).toEqual([1, 1]);
    expect([...(runs[0] ?? [])]).not.toEqual([...(runs[1] ?? [])]);
  });

  test("whose engines all give the same ids, again and again, is never taken for another", async () => {
    const world = await startWorld([{ faults: ["duplicate-ids"] }, { faults: ["duplicate-ids"] }]);
    const one = await agent(world, { firstToolChoice: "required", task: "How long is the Rhine?" });
    const two = await agent(world, { firstToolChoice: "required", task: "How long is the Elbe?" });
    for (const run of runsOf(one)) expect(runsOf(two)).not.toContain(run);
  });
});
