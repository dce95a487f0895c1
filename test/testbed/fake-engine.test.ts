import { connect } from "node:net";
import { describe, expect, it } from "vitest";
import { chat, chatBody, chunksOf, contentOf, dataOf, engineFor, LOOKUP, post, rawChat, splitRaw } from "./support.ts";
import type { Usage } from "./support.ts";
import { startFakeEngine } from "../../src/testbed/index.ts";
import type { Dialect } from "../../src/testbed/index.ts";

type Completion = {
  readonly id: string;
  readonly choices: readonly {
    readonly message: {
      readonly content: string | null;
      readonly tool_calls?: readonly {
        readonly id: string;
        readonly function: { readonly name: string; readonly arguments: string };
      }[];
    };
    readonly text?: string;
    readonly finish_reason: string;
    readonly logprobs: {
      readonly content: readonly {
        readonly token: string;
        readonly logprob: number;
        readonly top_logprobs: readonly unknown[];
      }[];
    } | null;
  }[];
  readonly usage: Usage;
};

async function json<Body = Completion>(response: Response | Promise<Response>): Promise<Body> {
  return (await (await response).json()) as Body;
}

const GENERATIVE: readonly Dialect[] = ["vllm", "sglang", "slots", "ollama"];

describe.each(GENERATIVE)("the %s dialect", (dialect) => {
  it("answers a chat turn with readable text and its usage", async () => {
    const engine = await engineFor({ dialect });
    const answer = await json(chat(engine));
    expect(answer.choices[0]?.message.content).toMatch(/^Placeholder text from the simulated engine\. [A-Z]/);
    expect(answer.choices[0]?.finish_reason).toBe("stop");
    const { prompt_tokens: prompt, completion_tokens: completion, total_tokens: total } = answer.usage;
    expect(total).toBe(prompt + completion);
    expect(engine.stats()).toMatchObject({ started: 1, open: 0, finished: 1, running: 0 });
  });

  it("streams the same answer token by token, and usage only when asked", async () => {
    const engine = await engineFor({ dialect });
    const whole = await json(chat(engine));
    const plain = await (await chat(engine, { stream: true })).text();
    const chunks = chunksOf(plain);
    expect(contentOf(chunks)).toBe(whole.choices[0]?.message.content);
    expect(chunks.filter((chunk) => (chunk.choices[0]?.delta.content ?? "") !== "").length).toBe(
      whole.usage.completion_tokens - 1,
    );
    expect(dataOf(plain).at(-1)).toBe("[DONE]");
    expect(chunks.every((chunk) => chunk.usage === undefined)).toBe(true);
    expect(chunks.at(-1)?.choices[0]?.finish_reason).toBe("stop");
    const asked = chunksOf(
      await (await chat(engine, { stream: true, stream_options: { include_usage: true } })).text(),
    );
    expect(asked.at(-1)?.choices).toEqual([]);
    expect(asked.at(-1)?.usage?.completion_tokens).toBe(whole.usage.completion_tokens);
  });

  it("calls tools and answers once their results are there", async () => {
    const engine = await engineFor({ dialect });
    const headers = { "x-fake-agent": "calls=2,parallel=2" };
    const first = await json(chat(engine, { tools: [LOOKUP] }, { headers }));
    expect(first.choices[0]?.finish_reason).toBe("tool_calls");
    const calls = first.choices[0]?.message.tool_calls ?? [];
    expect(calls.map((call) => call.function.name)).toEqual(["lookup", "lookup"]);
    expect(new Set(calls.map((call) => call.id)).size).toBe(2);
    for (const call of calls) expect(JSON.parse(call.function.arguments)).toHaveProperty("query");
    const messages = [
      ...(chatBody()["messages"] as unknown[]),
      first.choices[0]?.message,
      ...calls.map((call) => ({ role: "tool", tool_call_id: call.id, content: "found" })),
    ];
    const second = await json(chat(engine, { messages, tools: [LOOKUP] }, { headers }));
    expect(second.choices[0]?.message.content).toMatch(/^Placeholder text after 2 tool results\./);
    // The whole first turn, prompt and answer, was in the cache, but for its last incomplete block.
    const before = first.usage.total_tokens;
    expect(second.usage.prompt_tokens_details?.cached_tokens ?? 0).toBeGreaterThan(before - 24);
  });

  it("names its models and says that it is healthy", async () => {
    const engine = await engineFor({ dialect, models: ["one", "two"] });
    const models = await json<{ readonly data: readonly { readonly id: string }[] }>(fetch(`${engine.url}/v1/models`));
    expect(models.data.map((model) => model.id)).toEqual(["one", "two"]);
    expect((await fetch(`${engine.url}/health`)).status).toBe(200);
  });

  it("frees the engine when the client of a stream leaves", async () => {
    const engine = await engineFor({ dialect, latency: { decodeBaseMs: 5 } });
    const controller = new AbortController();
    const extra = { signal: controller.signal, headers: { "x-fake-agent": "tokens=3000" } };
    const response = await chat(engine, { stream: true }, extra);
    await response.body!.getReader().read();
    expect(engine.stats().running).toBe(1);
    controller.abort();
    const stats = await engine.until((now) => now.running === 0);
    expect(stats).toMatchObject({ aborted: 1, open: 0, finished: 0 });
    expect(stats.requests[0]?.generatedTokens).toBeLessThan(3_000);
  });
});

describe("a simulated engine", () => {
  it("reports no cached tokens when that is switched off", async () => {
    const vllm = await engineFor({ cachedTokens: false });
    expect((await json(chat(vllm))).usage.prompt_tokens_details).toBeNull();
    const sglang = await engineFor({ dialect: "sglang", cachedTokens: false });
    expect((await json(chat(sglang))).usage).not.toHaveProperty("prompt_tokens_details");
  });

  it("keeps the prefix under tool_choice none as vLLM, and loses it as SGLang", async () => {
    const text = "Tell me about rivers. ".repeat(60);
    const cachedOnNone = async (dialect: Dialect, excludeToolsWhenNone = false): Promise<number> => {
      const engine = await engineFor({ dialect, excludeToolsWhenNone });
      const fields = { tools: [LOOKUP], messages: [{ role: "user", content: text }] };
      await chat(engine, fields);
      const answer = await json(chat(engine, { ...fields, tool_choice: "none" }));
      expect(answer.choices[0]?.message.tool_calls ?? []).toEqual([]);
      return answer.usage.prompt_tokens_details?.cached_tokens ?? -1;
    };
    expect(await cachedOnNone("vllm")).toBeGreaterThan(300);
    expect(await cachedOnNone("vllm", true)).toBe(0);
    expect(await cachedOnNone("sglang")).toBe(0);
    expect(await cachedOnNone("llama.cpp")).toBeGreaterThan(300);
  });

  it("ignores tool_choice as Ollama does", async () => {
    const engine = await engineFor({ dialect: "ollama" });
    const answer = await json(
      chat(engine, { tools: [LOOKUP], tool_choice: "none" }, { headers: { "x-fake-agent": "calls=1" } }),
    );
    expect(answer.choices[0]?.finish_reason).toBe("tool_calls");
  });

  it("stops at max_tokens and at a stop word", async () => {
    const engine = await engineFor();
    const cut = await json(chat(engine, { max_tokens: 5 }));
    expect([cut.usage.completion_tokens, cut.choices[0]?.finish_reason]).toEqual([5, "length"]);
    const stopped = await json(chat(engine, { stop: [" engine"] }));
    expect(stopped.choices[0]?.message.content).toBe("Placeholder text from the simulated");
  });

  it("answers by a schema when the response format has one", async () => {
    const engine = await engineFor();
    const schema = { type: "object", required: ["colour"], properties: { colour: { enum: ["red", "blue"] } } };
    const answer = await json(
      chat(engine, { response_format: { type: "json_schema", json_schema: { name: "c", schema } } }),
    );
    expect(["red", "blue"]).toContain(
      (JSON.parse(answer.choices[0]?.message.content ?? "") as { colour: string }).colour,
    );
  });

  it("gives log-probabilities with the wanted alternatives, and refuses more than 20", async () => {
    const engine = await engineFor();
    const answer = await json(chat(engine, { logprobs: true, top_logprobs: 20, max_tokens: 6 }));
    const tokens = answer.choices[0]?.logprobs?.content ?? [];
    expect(tokens.map((token) => token.token).join("")).toBe(answer.choices[0]?.message.content);
    for (const token of tokens) {
      expect(token.top_logprobs.length).toBe(20);
      expect(token.logprob).toBeLessThan(0);
    }
    expect((await chat(engine, { logprobs: true, top_logprobs: 21 })).status).toBe(400);
    const streamed = chunksOf(await (await chat(engine, { stream: true, logprobs: true, max_tokens: 3 })).text());
    expect(streamed[1]?.choices[0]?.logprobs).toMatchObject({ content: [{ token: "Plac" }] });
  });

  it("completes a raw prompt, whole and as a stream", async () => {
    const engine = await engineFor();
    const body = { model: "sim-8b", prompt: "Once upon a time", max_tokens: 20 };
    const whole = await json(post(engine, "/v1/completions", { ...body, logprobs: 2 }));
    const stream = await (await post(engine, "/v1/completions", { ...body, stream: true })).text();
    const texts = dataOf(stream)
      .slice(0, -1)
      .map((data) => (JSON.parse(data) as Completion).choices[0]?.text ?? "");
    expect(texts.join("")).toBe(whole.choices[0]?.text);
    expect(whole.choices[0]?.logprobs).toMatchObject({
      tokens: expect.any(Array) as unknown,
      text_offset: expect.any(Array) as unknown,
    });
  });

  it("answers alike on every replica with one seed, byte for byte with one id seed", async () => {
    const [one, two] = [await engineFor({ seed: 7, idSeed: 3 }), await engineFor({ seed: 7, idSeed: 3 })];
    const fields = { stream: true, tools: [LOOKUP] };
    const extra = { headers: { "x-fake-agent": "calls=1,parallel=2" } };
    const text = async (engine: typeof one): Promise<string> =>
      (await (await chat(engine, fields, extra)).text()).replaceAll(/"created":\d+/g, '"created":0');
    expect(await text(one)).toBe(await text(two));
    const other = await engineFor({ seed: 8 });
    expect((await json(chat(other))).choices[0]?.message.content).not.toBe(
      (await json(chat(one))).choices[0]?.message.content,
    );
  });

  it("gives every answer and tool call its own id where no id seed is set", async () => {
    const ids = new Set<string>();
    for (let at = 0; at < 2; at += 1) {
      const engine = await engineFor();
      const answer = await json(chat(engine, { tools: [LOOKUP], tool_choice: "required" }));
      ids.add(answer.id).add(answer.choices[0]?.message.tool_calls?.[0]?.id ?? "");
    }
    expect(ids.size).toBe(4);
  });

  it("sends the head of a stream at once as vLLM, and with the first token as SGLang", async () => {
    const headBeforeToken = async (dialect: Dialect): Promise<boolean> => {
      const engine = await engineFor({ dialect, faults: ["stall=0"] });
      const controller = new AbortController();
      let answered = false;
      const answer = chat(engine, { stream: true }, { signal: controller.signal }).then(
        () => (answered = true),
        () => false,
      );
      await engine.until((stats) => stats.running === 1);
      if (dialect === "vllm") await answer;
      // A later exchange that is over shows that the first one had its chance.
      await (await fetch(`${engine.url}/health`)).text();
      const before = answered;
      controller.abort();
      return before;
    };
    expect(await headBeforeToken("vllm")).toBe(true);
    expect(await headBeforeToken("sglang")).toBe(false);
  });

  it("holds what it has no slot for, admits in order, and refuses beyond its queue with 503", async () => {
    const engine = await engineFor({ slots: 1, queueMax: 2 });
    const stuck = new AbortController();
    const first = chat(engine, { stream: true, fake_fault: "stall" }, { signal: stuck.signal });
    await first;
    await engine.until((stats) => stats.running === 1);
    const waiting = [chat(engine), chat(engine)];
    await engine.until((stats) => stats.waiting === 2);
    const refused = await chat(engine);
    expect(refused.status).toBe(503);
    expect(await refused.text()).toContain("queue is full");
    stuck.abort();
    for (const response of await Promise.all(waiting)) expect(response.status).toBe(200);
    const { requests } = engine.stats();
    expect(requests.map((request) => [request.order, request.admission, request.outcome])).toEqual([
      [0, 0, "aborted"],
      [1, 1, "finished"],
      [2, 2, "finished"],
      [3, undefined, "refused"],
    ]);
  });

  it("stops a request by SGLang's abort_request, by answer id and by the client's rid", async () => {
    const engine = await engineFor({ dialect: "sglang", latency: { decodeBaseMs: 5 } });
    const extra = { headers: { "x-fake-agent": "tokens=4000" } };
    const response = await chat(engine, { stream: true, rid: "mine" }, extra);
    expect((await post(engine, "/abort_request", { rid: "mine" })).status).toBe(200);
    const chunks = chunksOf(await response.text());
    expect(chunks.at(-1)?.choices[0]?.finish_reason).toBe("abort");
    // Also while a token of the step in flight comes between the abort and its effect.
    for (let at = 0; at < 3; at += 1) {
      const busy = await chat(engine, { stream: true, rid: `busy ${at}` }, extra);
      await engine.until((stats) => (stats.requests.at(-1)?.generatedTokens ?? 0) > at);
      const until = performance.now() + 12;
      while (performance.now() < until); // the engine's timers are late by two steps
      await post(engine, "/abort_request", { rid: `busy ${at}` });
      expect(chunksOf(await busy.text()).at(-1)?.choices[0]?.finish_reason).toBe("abort");
    }
    const other = chat(engine, {}, extra);
    await engine.until((stats) => stats.running === 1);
    await post(engine, "/abort_request", { rid: engine.stats().requests.at(-1)?.id });
    expect((await json(other)).choices[0]?.finish_reason).toBe("abort");
    expect((await post(engine, "/abort_request", { rid: "unknown" })).status).toBe(200);
  });

  it("refuses a priority while priority scheduling is off as vLLM, and takes it when it is on", async () => {
    const off = await engineFor();
    const refused = await chat(off, { priority: 3 });
    expect([refused.status, await refused.text()]).toEqual([
      400,
      expect.stringContaining("Priority scheduling is not enabled") as unknown,
    ]);
    expect((await chat(off, { priority: 0 })).status).toBe(200);
    const on = await engineFor({ priority: true });
    expect((await chat(on, { priority: 3 })).status).toBe(200);
    expect(on.stats().requests[0]?.priority).toBe(3);
  });

  it("asks for its key on its API, not on health and metrics", async () => {
    const engine = await engineFor({ apiKey: "secret" });
    expect((await chat(engine)).status).toBe(401);
    expect((await fetch(`${engine.url}/v1/models`)).status).toBe(401);
    expect((await chat(engine, {}, { headers: { authorization: "Bearer secret" } })).status).toBe(200);
    expect((await fetch(`${engine.url}/health`)).status).toBe(200);
    expect((await fetch(`${engine.url}/metrics`)).status).toBe(200);
  });

  it.each([
    [
      "vllm",
      { error: { message: "The model `nope` does not exist.", type: "NotFoundError", param: "model", code: 404 } },
    ],
    [
      "sglang",
      {
        object: "error",
        message: "The model `nope` does not exist.",
        type: "NotFoundError",
        param: "model",
        code: 404,
      },
    ],
    ["llama.cpp", { error: { code: 404, message: "The model `nope` does not exist.", type: "not_found_error" } }],
  ] as const)("answers an unknown model in the shape of %s", async (dialect, body) => {
    const engine = await engineFor({ dialect });
    const response = await chat(engine, { model: "nope" });
    expect([response.status, await response.json()]).toEqual([404, body]);
  });

  it("answers bad JSON, an empty body, missing fields and too long a prompt as the real engines do", async () => {
    const engine = await engineFor({ contextTokens: 200 });
    const statusOf = async (body: unknown, path = "/v1/chat/completions"): Promise<number> =>
      (await post(engine, path, body)).status;
    expect(await statusOf("{nonsense")).toBe(400);
    expect(await statusOf("")).toBe(400);
    expect(await statusOf("[]")).toBe(400);
    expect(await statusOf({ model: "sim-8b" })).toBe(400);
    expect(await statusOf({ messages: [{}] })).toBe(400);
    expect(await statusOf({ model: "sim-8b" }, "/v1/completions")).toBe(400);
    const long = await chat(engine, { messages: [{ role: "user", content: "x".repeat(2_000) }], max_tokens: 10 });
    expect(long.status).toBe(400);
    expect(await long.text()).toMatch(/maximum context length is 200 tokens\. However, you requested \d+ tokens/);
    const llama = await engineFor({ dialect: "llama.cpp" });
    expect((await post(llama, "/v1/chat/completions", "")).status).toBe(500);
  });

  it("does not serve routes of other kinds, so that a probe for capabilities finds none", async () => {
    const engine = await engineFor();
    for (const path of ["/v1/messages", "/v1/responses", "/v1/embeddings", "/classify", "/abort_request"]) {
      expect((await post(engine, path, "")).status).toBe(404);
    }
    expect((await fetch(`${engine.url}/v1/chat/completions`)).status).toBe(405);
  });

  it("keeps raw headers and body bytes of the last requests, and no more than told", async () => {
    const engine = await engineFor({ recordLast: 2 });
    const body = '{"model":"sim-8b",  "messages":[{"role":"user","content":"1.0"}], "x":1.0}';
    for (const mark of ["a", "b", "c"])
      await post(engine, "/v1/chat/completions", body, { headers: { "X-Mark": mark } });
    const { requests, started } = engine.stats();
    expect([started, requests.length]).toEqual([3, 2]);
    expect(requests.map((request) => request.order)).toEqual([1, 2]);
    expect(requests[1]?.body.toString("utf8")).toBe(body);
    const at = requests[1]?.rawHeaders.findIndex((name) => name.toLowerCase() === "x-mark") ?? -1;
    expect(requests[1]?.rawHeaders[at + 1]).toBe("c");
  });

  it("announces no keep-alive time, as uvicorn does not", async () => {
    const engine = await engineFor();
    const { headers } = await chat(engine);
    expect([headers.get("keep-alive"), headers.get("connection"), headers.get("server")]).toEqual([
      null,
      null,
      "uvicorn",
    ]);
  });

  it("writes all tokens of a step at once: with no time between steps, an answer is one write", async () => {
    const engine = await engineFor();
    const { bytes } = await rawChat(engine, { stream: true });
    const { body, head } = splitRaw(bytes);
    expect(head).toMatch(/^HTTP\/1.1 200/);
    const frames = bytes.toString("latin1").match(/\r\n[0-9a-f]+\r\n/g) ?? [];
    expect(frames.length).toBeLessThanOrEqual(3);
    expect(contentOf(chunksOf(body.toString("utf8"))).length).toBeGreaterThan(100);
  });

  it("refuses wrong options with a message that names them", async () => {
    const messageOf = (options: object): Promise<string> =>
      startFakeEngine(options).then(
        () => "started",
        (reason: unknown) => String(reason),
      );
    expect(await messageOf({ dialect: "vlm" })).toContain(
      "dialect 'vlm' is not one of vllm, sglang, slots, llama.cpp, ollama, single-pass",
    );
    expect(await messageOf({ profile: "h100" })).toContain("profile 'h100' is not one of instant, laptop-1b-x2");
    expect(await messageOf({ slots: 0 })).toContain("slots 0 is not a whole number from 1");
    expect(await messageOf({ timeScale: 0 })).toContain("timeScale 0 is not above 0");
    expect(await messageOf({ models: [] })).toContain("name at least one model");
    expect(await messageOf({ faults: ["stal"] })).toContain("unknown fault 'stal'; known: die-at-once");
  });

  it("says why it cannot have a port that is taken", async () => {
    const engine = await engineFor();
    await expect(startFakeEngine({ port: engine.port })).rejects.toMatchObject({ code: "EADDRINUSE" });
  });

  it("closes its sockets at once, also those with an open turn, and may be closed twice", async () => {
    const engine = await startFakeEngine({ faults: ["stall"] });
    const response = await chat(engine, { stream: true });
    await Promise.all([engine.close(), expect(response.text()).rejects.toThrow()]);
    await engine.close();
    await expect(fetch(`${engine.url}/health`)).rejects.toThrow();
  });

  it("drops its connections when told to, and goes on listening", async () => {
    const engine = await engineFor({ faults: ["stall"] });
    const response = await chat(engine, { stream: true });
    await engine.until((stats) => stats.running === 1);
    engine.dropConnections();
    await expect(response.text()).rejects.toThrow();
    expect(await engine.until((stats) => stats.running === 0)).toMatchObject({ aborted: 1 });
    expect((await fetch(`${engine.url}/health`)).status).toBe(200);
  });

  it("tells people what it is and what it saw", async () => {
    const engine = await engineFor({ name: "north" });
    await chat(engine);
    expect(await (await fetch(engine.url)).text()).toContain("simulated engine 'north': dialect vllm, profile instant");
    expect(await (await fetch(`${engine.url}/fake/stats`)).json()).toMatchObject({
      counts: { started: 1, finished: 1 },
      load: { running: 0 },
      requests: [{ order: 0, outcome: "finished", status: 200, path: "/v1/chat/completions" }],
    });
  });

  it("says what it has when a wait for its state is in vain", async () => {
    const engine = await engineFor({ name: "north" });
    const wait = engine.until((stats) => stats.started > 0, 30);
    await expect(wait).rejects.toThrow(/fake engine 'north': not within 30 ms; it has \{"started":0/);
  });

  it("survives clients that leave at any moment", async () => {
    const engine = await engineFor({ latency: { decodeBaseMs: 2 } });
    const body = JSON.stringify(chatBody({ stream: true }));
    const head = `POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: ${body.length}\r\n\r\n`;
    const cuts = [10, head.length, head.length + 5, head.length + body.length];
    await Promise.all(
      cuts.map(
        (cut) =>
          new Promise<void>((resolve) => {
            const socket = connect(engine.port, engine.host, () => {
              socket.write((head + body).slice(0, cut), () => socket.resetAndDestroy());
            });
            socket.on("error", () => undefined);
            socket.on("close", () => resolve());
          }),
      ),
    );
    await engine.until((stats) => stats.open === 0 && stats.running === 0 && stats.connections === 0);
    expect((await chat(engine)).status).toBe(200);
  });
});

describe("a single-pass engine", () => {
  type Classified = {
    readonly data: readonly {
      readonly index: number;
      readonly label: string;
      readonly probs: readonly number[];
      readonly num_classes: number;
    }[];
    readonly usage: { readonly prompt_tokens: number };
  };

  it.each(["/classify", "/v1/classify"])("classifies at %s and names the winner only", async (path) => {
    const engine = await engineFor({ dialect: "single-pass", models: ["judge"], labels: ["no", "maybe", "yes"] });
    const answer = await json<Classified>(post(engine, path, { model: "judge", input: ["a river", "a stone"] }));
    expect(answer.data.length).toBe(2);
    for (const [index, row] of answer.data.entries()) {
      expect(row.index).toBe(index);
      expect(row.num_classes).toBe(3);
      expect(row.probs.reduce((sum, one) => sum + one, 0)).toBeCloseTo(1, 10);
      expect(row.label).toBe(["no", "maybe", "yes"][row.probs.indexOf(Math.max(...row.probs))]);
      expect(Object.keys(row).toSorted()).toEqual(["index", "label", "num_classes", "probs"]);
    }
    expect(answer.usage.prompt_tokens).toBeGreaterThan(0);
  });

  it("serves no turns, and refuses an unknown model and a missing input", async () => {
    const engine = await engineFor({ dialect: "single-pass", models: ["judge"] });
    expect((await chat(engine)).status).toBe(404);
    expect((await post(engine, "/classify", { model: "other", input: "x" })).status).toBe(404);
    expect((await post(engine, "/classify", { model: "judge" })).status).toBe(400);
    expect((await post(engine, "/classify", { input: "x" })).status).toBe(400);
  });

  it("forgets a request whose client leaves", async () => {
    const engine = await engineFor({ dialect: "single-pass", models: ["judge"] });
    const controller = new AbortController();
    const extra = { signal: controller.signal, headers: { "x-fake-fault": "stall" } };
    const answer = post(engine, "/classify", { model: "judge", input: "x" }, extra);
    await engine.until((stats) => stats.running === 1);
    controller.abort();
    await expect(answer).rejects.toThrow();
    expect(await engine.until((stats) => stats.running === 0)).toMatchObject({ aborted: 1, open: 0 });
  });
});
