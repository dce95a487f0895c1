/** The official OpenAI SDK for TypeScript as a client of a real luftpause process. */
import OpenAI, { APIUserAbortError, AuthenticationError, BadRequestError, NotFoundError } from "openai";
import type { ChatCompletionTool } from "openai/resources/chat/completions";
import { describe, expect, test } from "vitest";
import { eventually } from "./processes.ts";
import { SLOW, startWorld, TOKEN, turnsAt, type World } from "./world.ts";

const messages = [{ role: "user" as const, content: "Why do agents wait?" }];
const model = "sim-8b";
const tools: ChatCompletionTool[] = [
  {
    type: "function",
    function: {
      name: "lookup",
      description: "Looks something up.",
      parameters: { type: "object", properties: { name: { type: "string" } }, required: ["name"] },
    },
  },
];

const clientOf = (world: World, options: ConstructorParameters<typeof OpenAI>[0] = {}): OpenAI =>
  new OpenAI({ baseURL: world.baseURL, apiKey: "none", maxRetries: 0, ...options });

describe("a client", () => {
  test("gets a whole answer, a stream, and usage on a stream only when it asks", async () => {
    const client = clientOf(await startWorld([{}]));
    const whole = await client.chat.completions.create({ model, messages });
    expect(whole.choices[0]?.message.content).toContain("Placeholder text");
    expect(whole.usage?.completion_tokens).toBeGreaterThan(0);

    const read = async (stream_options?: { include_usage: boolean }) => {
      let text = "";
      const usages: unknown[] = [];
      const stream = await client.chat.completions.create({
        model,
        messages,
        stream: true,
        ...(stream_options === undefined ? {} : { stream_options }),
      });
      for await (const chunk of stream) {
        text += chunk.choices[0]?.delta.content ?? "";
        if (chunk.usage !== undefined && chunk.usage !== null) usages.push(chunk.usage);
      }
      return { text, usages: usages.length };
    };
    const content = whole.choices[0]?.message.content;
    expect(await read()).toEqual({ text: content, usages: 0 });
    expect(await read({ include_usage: false })).toEqual({ text: content, usages: 0 });
    expect(await read({ include_usage: true })).toEqual({ text: content, usages: 1 });
  });

  test("gets tool calls, whole and streamed", async () => {
    const client = clientOf(await startWorld([{}]));
    const whole = await client.chat.completions.create({ model, messages, tools, tool_choice: "required" });
    expect(whole.choices[0]?.finish_reason).toBe("tool_calls");
    const stream = client.chat.completions.stream({ model, messages, tools, tool_choice: "required" });
    const { choices } = await stream.finalChatCompletion();
    expect(choices[0]?.message.tool_calls?.map((call) => call.type === "function" && call.function)).toEqual(
      whole.choices[0]?.message.tool_calls?.map(
        (call) => call.type === "function" && expect.objectContaining(call.function),
      ),
    );
  });

  test("is told in its own classes of error what is wrong", async () => {
    const world = await startWorld([{}], { token: true });
    const wrong = clientOf(world, { apiKey: "wrong" });
    await expect(wrong.chat.completions.create({ model, messages })).rejects.toThrow(AuthenticationError);
    const client = clientOf(world, { apiKey: TOKEN });
    const unknown = client.chat.completions.create({ model: "other", messages });
    await expect(unknown).rejects.toThrow(NotFoundError);
    await expect(unknown).rejects.toMatchObject({
      status: 404,
      code: "model_not_found",
      type: "not_found_error",
      message: "404 no Generative replica serves model 'other'",
    });
    const bad = client.chat.completions.create({ model, messages }, { headers: { "x-luftpause-class": "urgent" } });
    await expect(bad).rejects.toThrow(BadRequestError);
    await expect(bad).rejects.toMatchObject({ code: "bad_class", param: "x-luftpause-class" });
    expect(turnsAt(world)).toEqual([]);
  });

  test("whose engine says 429 waits as told and succeeds by itself", async () => {
    const world = await startWorld([{ endpoint: "backpressure: pass" }]);
    world.engines[0]?.setFault("refuse-first", 1);
    world.engines[0]?.setFault("retry-after", 1);
    world.engines[0]?.setFault("refuse", 429);
    const answer = await clientOf(world, { maxRetries: 2 }).chat.completions.create({ model, messages });
    expect(answer.choices[0]?.finish_reason).toBe("stop");
    expect(turnsAt(world).map(({ status }) => status)).toEqual([429, 200]);
  });
});

describe("a client that aborts", () => {
  test("while its turn is held never reaches an engine", async () => {
    const world = await startWorld([{ ...SLOW, endpoint: "maxInFlight: 1" }]);
    const client = clientOf(world);
    const first = await client.chat.completions.create({ model, messages, stream: true });
    const controller = new AbortController();
    const second = client.chat.completions.create({ model, messages, stream: true }, { signal: controller.signal });
    await eventually("the second is held", async () => ((await world.status()).turns.held === 1 ? true : undefined));
    controller.abort();
    await expect(second).rejects.toThrow(APIUserAbortError);
    await eventually("it is held no more", async () => ((await world.status()).turns.held === 0 ? true : undefined));
    expect(turnsAt(world)).toHaveLength(1);
    first.controller.abort();
  });

  test("mid-stream stops the engine and frees the slot", async () => {
    const world = await startWorld([SLOW]);
    const stream = await clientOf(world).chat.completions.create({ model, messages, stream: true });
    let chunks = 0;
    for await (const _chunk of stream) {
      chunks += 1;
      if (chunks === 3) break;
    }
    await world.engines[0]?.until(({ aborted }) => aborted === 1);
    await eventually("its slot is free", async () => ((await world.status()).turns.inFlight === 0 ? true : undefined));
  });

  test("a whole answer stops the engine too", async () => {
    const world = await startWorld([SLOW]);
    const controller = new AbortController();
    const answer = clientOf(world).chat.completions.create({ model, messages }, { signal: controller.signal });
    await world.engines[0]?.until(({ running }) => running === 1);
    controller.abort();
    await expect(answer).rejects.toThrow(APIUserAbortError);
    await world.engines[0]?.until(({ aborted }) => aborted === 1);
  });
});

test("a held stream gets signs of life that the SDK does not see, and then its answer", async () => {
  const world = await startWorld([{ ...SLOW, endpoint: "maxInFlight: 1" }], {
    set: ["limits.holdSignAfterMs=100", "limits.holdSignEveryMs=100"],
  });
  const client = clientOf(world);
  const first = client.chat.completions.create({ model, messages, stream: true });
  const drain = async (stream: AsyncIterable<{ choices: { delta: { content?: string | null } }[] }>) => {
    let text = "";
    for await (const chunk of stream) text += chunk.choices[0]?.delta.content ?? "";
    return text;
  };
  const firstText = first.then(drain);
  const second = await client.chat.completions.create({ model, messages, stream: true });
  expect(await drain(second)).toBe(await firstText);
});

test("an engine that dies mid-stream is an error, never a clean end", async () => {
  const world = await startWorld([SLOW]);
  const stream = await clientOf(world).chat.completions.create({ model, messages, stream: true });
  const read = async (): Promise<void> => {
    let chunks = 0;
    for await (const _chunk of stream) {
      chunks += 1;
      if (chunks === 3) world.engines[0]?.dropConnections();
    }
  };
  await expect(read()).rejects.toMatchObject({ code: "engine_lost", type: "upstream_error" });
});
