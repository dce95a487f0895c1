import OpenAI, { AuthenticationError, BadRequestError, InternalServerError, NotFoundError } from "openai";
import { describe, expect, it } from "vitest";
import { engineFor, LOOKUP } from "./support.ts";
import type { FakeEngine, FakeEngineOptions } from "../../src/testbed/index.ts";

async function clientFor(
  options: FakeEngineOptions = {},
  retries = 0,
): Promise<{ readonly engine: FakeEngine; readonly client: OpenAI }> {
  const engine = await engineFor({ apiKey: "key", ...options });
  return { engine, client: new OpenAI({ baseURL: `${engine.url}/v1`, apiKey: "key", maxRetries: retries }) };
}

const messages = [{ role: "user" as const, content: "What does the river do?" }];

describe.each(["vllm", "sglang"] as const)("the official OpenAI SDK at a simulated %s", (dialect) => {
  it("reads whole and streamed answers alike", async () => {
    const { client } = await clientFor({ dialect });
    const whole = await client.chat.completions.create({ model: "sim-8b", messages });
    const stream = await client.chat.completions.create({
      model: "sim-8b",
      messages,
      stream: true,
      stream_options: { include_usage: true },
    });
    let text = "";
    let completion = 0;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta.content ?? "";
      completion = chunk.usage?.completion_tokens ?? completion;
    }
    expect(text).toBe(whole.choices[0]?.message.content);
    expect(completion).toBe(whole.usage?.completion_tokens);
  });

  it("runs an agent's loop with tools to its answer, streamed", async () => {
    const { client, engine } = await clientFor({ dialect });
    const runner = client.chat.completions.runTools(
      {
        model: "sim-8b",
        stream: true,
        messages,
        tools: [
          {
            type: "function",
            function: {
              ...LOOKUP.function,
              parameters: structuredClone(LOOKUP.function.parameters) as never,
              function: () => "it flows",
            },
          },
        ],
      },
      { headers: { "x-fake-agent": "calls=3,parallel=2" } },
    );
    expect(await runner.finalContent()).toMatch(/^Placeholder text after 3 tool results\./);
    const { requests, finished } = engine.stats();
    expect(finished).toBe(3);
    // Each turn finds the turn before it in the cache, but for the last incomplete block.
    for (const at of [1, 2]) {
      expect(requests[at]?.cachedTokens).toBeGreaterThan(
        requests[at - 1]!.promptTokens + requests[at - 1]!.generatedTokens - 24,
      );
    }
  });

  it("sees errors as its own classes", async () => {
    const { client } = await clientFor({ dialect });
    await expect(client.chat.completions.create({ model: "nope", messages })).rejects.toBeInstanceOf(NotFoundError);
    await expect(client.chat.completions.create({ model: "sim-8b", messages: [] })).rejects.toBeInstanceOf(
      BadRequestError,
    );
    await expect(client.withOptions({ apiKey: "other" }).models.list()).rejects.toBeInstanceOf(AuthenticationError);
    expect((await client.models.list()).data.map((model) => model.id)).toEqual(["sim-8b"]);
  });

  it("retries a refusal and gets its answer", async () => {
    const { client, engine } = await clientFor(
      { dialect, faults: ["refuse=429", "refuse-first=1", "retry-after=0"] },
      2,
    );
    const answer = await client.chat.completions.create({ model: "sim-8b", messages });
    expect(answer.choices[0]?.finish_reason).toBe("stop");
    expect(engine.stats()).toMatchObject({ refused: 1, finished: 1 });
  });

  it("stops the engine when it aborts a stream", async () => {
    const { client, engine } = await clientFor({ dialect, latency: { decodeBaseMs: 5 } });
    const headers = { "x-fake-agent": "tokens=4000" };
    const stream = await client.chat.completions.create({ model: "sim-8b", messages, stream: true }, { headers });
    for await (const chunk of stream) if (chunk.choices[0]?.delta.content !== undefined) break;
    expect(await engine.until((stats) => stats.running === 0)).toMatchObject({ aborted: 1, finished: 0 });
  });

  it("fails on an engine that dies in the middle of a stream", async () => {
    const { client } = await clientFor({ dialect, faults: ["die-after-bytes=900"] });
    const stream = await client.chat.completions.create({ model: "sim-8b", messages, stream: true });
    const readAll = async (): Promise<void> => {
      for await (const chunk of stream) expect(chunk).toHaveProperty("choices");
    };
    await expect(readAll()).rejects.toThrow();
  });

  it("names faults in the body, where it cannot set headers", async () => {
    const { client } = await clientFor({ dialect });
    const body = { model: "sim-8b", messages, fake_fault: "refuse=500", fake_agent: "tokens=3" };
    await expect(client.chat.completions.create(body)).rejects.toBeInstanceOf(InternalServerError);
  });
});
