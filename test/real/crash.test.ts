/** A real engine that dies under its turns: its clients see an error, never a clean end. */
import OpenAI from "openai";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { eventually } from "../e2e/processes.ts";
import { startRealEngine, type RealEngine } from "./engine.ts";
import { endless, post, startLuftpause, type Luftpause } from "./world.ts";

const CHAT = "/v1/chat/completions";

describe("a real llama.cpp that is killed mid-answer", () => {
  let engine: RealEngine;
  let proxy: Luftpause;

  beforeEach(async () => {
    engine = await startRealEngine();
    proxy = await startLuftpause(engine.url);
  });
  afterEach(async () => {
    await proxy?.end();
    await engine?.end();
  });

  it("ends its streams with an error event and a broken connection, and its turns are over", async () => {
    const client = new OpenAI({ baseURL: `${proxy.url}/v1`, apiKey: "none", maxRetries: 0 });
    const raw = post(proxy.url + CHAT, endless("Tell me a long story."), { "x-luftpause-run-id": "killed" });
    const request = endless("Tell me another.") as OpenAI.ChatCompletionCreateParamsStreaming;
    const stream = await client.chat.completions.create(request);
    const chunks = (async () => {
      for await (const chunk of stream) void chunk; // Only how it ends counts.
    })();
    const sdk = expect(chunks).rejects.toThrow();
    await raw.events(5);
    await engine.end("SIGKILL");

    const answer = await raw.ended;
    expect(answer).toMatchObject({ status: 200, clean: false });
    expect(answer.text).not.toContain("[DONE]");
    const last = answer.text.trimEnd().split("\n\n").at(-1) ?? "";
    expect(JSON.parse(last.replace(/^data: /, ""))).toMatchObject({
      error: { type: "upstream_error", code: "engine_lost" },
    });
    await sdk;

    // The next turn meets no engine, and is told so with a status.
    const next = await post(proxy.url + CHAT, endless("And now?")).ended;
    expect([502, 503]).toContain(next.status);
    const gone = await eventually("the replica counts as gone", async () => {
      const now = await proxy.status();
      return now.replicas[0]?.healthy === false ? now : undefined;
    });
    expect(gone.turns).toEqual({ held: 0, inFlight: 0 });
  });

  it("breaks off a whole answer that had not come, with a status where none was sent", async () => {
    const turn = post(proxy.url + CHAT, { ...endless("Tell me a long story."), stream: false });
    await eventually("the engine computes", async () => ((await engine.busySlots()) === 1 ? true : undefined), 30_000);
    await engine.end("SIGKILL");
    const answer = await turn.ended;
    expect(answer.status).toBe(502);
    expect(JSON.parse(answer.text)).toMatchObject({ error: { type: "upstream_error" } });
  });
});
