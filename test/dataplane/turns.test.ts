import { createHash } from "node:crypto";
import { describe, expect, it } from "vitest";
import { answerJson, startWorld, streamAll, until, WHOLE_JSON, WHOLE_STREAM } from "./support.ts";

const sha256 = (bytes: Buffer | string): string => createHash("sha256").update(bytes).digest("hex");

describe("a turn that is admitted at once", () => {
  it.each([true, false])("streams the engine's bytes unchanged (fast lane: %s)", async (lane) => {
    const world = await startWorld({ lane });
    world.engine.onRequest = streamAll;
    const answer = await world.chat({ stream: true }).answer;
    expect(answer.status).toBe(200);
    expect(sha256(answer.body)).toBe(sha256(WHOLE_STREAM));
    expect(answer.clean).toBe(true);
    expect(answer.headers).toMatchObject({
      "content-type": "text/event-stream",
      "x-luftpause-replica": "a",
      "x-luftpause-run-source": "new",
      "x-accel-buffering": "no",
      "cache-control": "no-cache",
    });
    expect(answer.headers["x-luftpause-run-id"]).toMatch(/^run-dp-/);
    expect(answer.headers["content-length"]).toBeUndefined();
    await until("the end is reported", () => world.scheduler.of("finished").length === 1);
    expect(world.scheduler.story()).toEqual(["requested", "started", "finished"]);
    expect(world.scheduler.of("finished")[0]).toMatchObject({
      usage: { promptTokens: 9, completionTokens: 3, cachedTokens: 4 },
      finishReason: "stop",
      paused: false,
    });
  });

  it.each([true, false])("passes a whole JSON answer with its length (fast lane: %s)", async (lane) => {
    const world = await startWorld({ lane });
    world.engine.onRequest = answerJson;
    const answer = await world.chat().answer;
    expect(answer.text).toBe(WHOLE_JSON);
    expect(answer.headers["content-length"]).toBe(String(WHOLE_JSON.length));
    await until("the end is reported", () => world.scheduler.of("finished").length === 1);
    expect(world.scheduler.of("finished")[0]).toMatchObject({ usage: { promptTokens: 9 }, finishReason: "stop" });
  });

  it("reaches the engine with the same body bytes, path and query", async () => {
    const world = await startWorld();
    world.engine.onRequest = answerJson;
    const body = `{ "model":"m",  "messages":[{"role":"user","content":"1.0 \\u00e9"}], "seed": 12345678901234567890, "9":1, "1":2 }`;
    await world.send({ path: "/v1/chat/completions?a=%2F&b=%C3%A9&c", body }).answer;
    expect(world.engine.requests[0]?.path).toBe("/v1/chat/completions?a=%2F&b=%C3%A9&c");
    expect(world.engine.requests[0]?.body.toString("utf8")).toBe(body);
  });
});
