/** Turns through luftpause to a real llama.cpp: what comes back is what the engine said, and the engine is let go. */
import { setTimeout as pause } from "node:timers/promises";
import OpenAI, { BadRequestError, NotFoundError } from "openai";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { eventually } from "../e2e/processes.ts";
import { MODEL, SLOTS, startRealEngine, type RealEngine } from "./engine.ts";
import { endless, lasting, post, repeatable, startLuftpause, type Luftpause } from "./world.ts";

const CHAT = "/v1/chat/completions";
const TASK = "Name three colours.";

describe("turns through luftpause to a real llama.cpp", () => {
  let engine: RealEngine;
  let proxy: Luftpause;
  let client: OpenAI;

  beforeAll(async () => {
    engine = await startRealEngine();
    proxy = await startLuftpause(engine.url);
    client = new OpenAI({ baseURL: `${proxy.url}/v1`, apiKey: "none", maxRetries: 0 });
  });
  afterAll(async () => {
    await proxy?.end();
    await engine?.end();
  });

  /** Waits until the engine computes nothing, looking this often. */
  const idle = async (everyMs = 20): Promise<void> => {
    const deadlineMs = performance.now() + 30_000;
    while ((await engine.busySlots()) > 0) {
      if (performance.now() > deadlineMs) throw new Error(`the engine still computes:\n${engine.log().slice(-2_000)}`);
      await pause(everyMs);
    }
  };

  it("finds out the engine's kind, model and load by itself", async () => {
    const [replica] = (await proxy.status()).replicas;
    expect(replica).toMatchObject({ engine: "llama.cpp", models: [MODEL], reportsLoad: true, healthy: true });
    expect((await client.models.list()).data.map((model) => model.id)).toEqual([MODEL]);
  });

  it("gives a whole answer as the engine gives it", async () => {
    const [direct, proxied] = await oneByOne(repeatable(TASK));
    expect(direct.text).toContain('"finish_reason"');
    expect(lasting(proxied.text)).toBe(lasting(direct.text));
    expect(proxied).toMatchObject({ status: 200, clean: true });
    expect(proxied.headers["content-type"]).toBe(direct.headers["content-type"]);
  });

  it("gives a stream as the engine gives it, byte for byte", async () => {
    const [direct, proxied] = await oneByOne(
      repeatable(TASK, { stream: true, stream_options: { include_usage: true } }),
    );
    expect(direct.text.match(/^data: /gm)?.length).toBeGreaterThan(10);
    expect(lasting(proxied.text)).toBe(lasting(direct.text));
    expect(proxied.text.endsWith("data: [DONE]\n\n")).toBe(true);
    expect(proxied).toMatchObject({ status: 200, clean: true });
  });

  it("cuts out again the usage that it asked for and the client did not", async () => {
    const [direct, proxied] = await oneByOne(repeatable(TASK, { stream: true }));
    expect(proxied.headers["x-luftpause-spliced"]).toBe("stream_options.include_usage");
    expect(direct.text).not.toContain('"usage"');
    // llama.cpp puts its timings into the last chunk, which is the usage chunk where there is one.
    const untimed = (text: string): string => text.replaceAll(/,"timings":\{[^}]*\}/g, "");
    expect(lasting(untimed(proxied.text))).toBe(lasting(untimed(direct.text)));
  });

  it("gives the SDK the same answer streamed and whole", async () => {
    const request = repeatable("Why is the sky blue?") as OpenAI.ChatCompletionCreateParamsNonStreaming;
    const whole = await client.chat.completions.create(request);
    let text = "";
    for await (const chunk of await client.chat.completions.create({ ...request, stream: true })) {
      text += chunk.choices[0]?.delta.content ?? "";
    }
    expect(text).not.toBe("");
    expect(text).toBe(whole.choices[0]?.message.content);
  });

  it("serves completions as well", async () => {
    const body = { model: MODEL, prompt: "The Rhine is", temperature: 0, max_tokens: 8, cache_prompt: false };
    const direct = await post(`${engine.url}/v1/completions`, body).ended;
    const proxied = await post(`${proxy.url}/v1/completions`, body).ended;
    expect(direct.status).toBe(200);
    expect(lasting(proxied.text)).toBe(lasting(direct.text));
  });

  it("passes the engine's own refusal on, and refuses an unknown model itself", async () => {
    const [direct, proxied] = await oneByOne(repeatable("river ".repeat(4_000)));
    expect(direct.status).toBe(400);
    expect(proxied).toMatchObject({ status: 400, text: direct.text, clean: true });
    const ask = client.chat.completions.create(repeatable("river ".repeat(4_000)) as never);
    await expect(ask).rejects.toBeInstanceOf(BadRequestError);
    const unknown = client.chat.completions.create({ model: "nope", messages: [{ role: "user", content: "x" }] });
    await expect(unknown).rejects.toThrow(NotFoundError);
    await expect(unknown).rejects.toThrow("no Generative replica serves model 'nope'");
  });

  it.each([true, false])("frees the slot when the client leaves mid-answer (stream: %s)", async (stream) => {
    await idle();
    const before = await engine.metric("tokens_predicted_total");
    const turn = post(proxy.url + CHAT, { ...endless("Tell me a long story."), stream });
    if (stream) await turn.events(5);
    else
      await eventually(
        "the engine computes",
        async () => ((await engine.busySlots()) === 1 ? true : undefined),
        30_000,
      );
    expect(await engine.busySlots()).toBe(1);
    turn.leave();
    // llama.cpp notices that a client of a whole answer has gone only after a second in which nobody got a result,
    // and each look at its slots is one: docs/real-engines.md.
    if (stream) await idle();
    else await idle(1_500);
    // Had the engine gone on to its end, it would have made 1,900 tokens.
    expect((await engine.metric("tokens_predicted_total")) - before).toBeLessThan(1_500);
    await eventually("no turn in flight", async () => ((await proxy.status()).turns.inFlight === 0 ? true : undefined));
  });

  it("sees the engine's load, also what did not come through it", async () => {
    await idle();
    const turns = Array.from({ length: SLOTS }, (_, at) => post(engine.url + CHAT, endless(`Story ${at}`)));
    await Promise.all(turns.map((turn) => turn.events(2)));
    const seen = async (running: number): Promise<true | undefined> =>
      (await proxy.status()).replicas[0]?.engineRunning === running ? true : undefined;
    await eventually("the load is seen", () => seen(SLOTS), 20_000);
    for (const turn of turns) turn.leave();
    await idle();
    await eventually("the load has gone", () => seen(0), 20_000);
  });

  it("holds further turns itself once the engine says that it holds some back", async () => {
    await idle();
    const turns = Array.from({ length: SLOTS + 1 }, (_, at) => post(proxy.url + CHAT, endless(`Story ${at}`)));
    const capped = await eventually(
      "the engine's own queue is seen and its cap set",
      async () => {
        const [replica] = (await proxy.status()).replicas;
        return replica?.engineWaiting === 1 && replica.cap !== null ? replica : undefined;
      },
      20_000,
    );
    expect(capped).toMatchObject({ engineRunning: SLOTS, cap: SLOTS });
    const next = post(proxy.url + CHAT, endless("One more."));
    const { held } = await eventually("the next one is held", async () => {
      const now = await proxy.status();
      return now.turns.held === 1 ? now : undefined;
    });
    expect(held[0]?.why).not.toBe("");
    // Not in the engine: what it holds back is still the one that came before the cap.
    expect(await engine.metric("requests_deferred")).toBe(1);
    for (const turn of [next, ...turns]) turn.leave();
    await idle();
    await eventually("no turn in flight", async () => ((await proxy.status()).turns.inFlight === 0 ? true : undefined));
  });

  /** The same request at the engine and through luftpause, one after the other: a batch of two rounds differently. */
  async function oneByOne(body: object) {
    await idle();
    const direct = await post(engine.url + CHAT, body).ended;
    const proxied = await post(proxy.url + CHAT, body).ended;
    return [direct, proxied] as const;
  }
});
