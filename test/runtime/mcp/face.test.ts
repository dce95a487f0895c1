/** The MCP face request by request: what it refuses, what it says to it, and what a wait that goes through a client may do. */
import http from "node:http";
import { describe, expect, test } from "vitest";
import { createMemoryStore } from "../../../src/runtime/store/memory.ts";
import { answerCalls, answerText, until } from "../fake-dataplane.ts";
import { bench, type Bench } from "../host-bench.ts";
import { portOf, serve, type Served } from "./face.ts";
import { callTool, FORMS, modern, post, type Answer } from "./raw.ts";

const INITIALIZE = {
  jsonrpc: "2.0",
  id: 1,
  method: "initialize",
  params: { protocolVersion: "2025-06-18", capabilities: {}, clientInfo: { name: "raw", version: "1" } },
};

async function begin(served: Served, token?: string): Promise<string> {
  const answer = await post(served, { body: INITIALIZE }, token);
  return answer.headers.get("mcp-session-id") ?? "";
}

/** node:http: fetch sets Host and Origin itself. */
function statusWith(served: Served, headers: { readonly [name: string]: string }, path = "/mcp", method = "POST") {
  return new Promise<{ status: number; text: string; headers: http.IncomingHttpHeaders }>((resolve, reject) => {
    const { body } = modern("tools/list", {});
    const all = {
      "content-type": "application/json",
      accept: "application/json, text/event-stream",
      authorization: "Bearer token-ann",
      ...modern("tools/list", {}).headers,
      ...headers,
    };
    const request = http.request(
      { port: portOf(served), host: "127.0.0.1", path, method, headers: all },
      (response) => {
        let text = "";
        response.on("data", (bytes: Buffer) => (text += bytes.toString("utf8")));
        response.on("end", () => resolve({ status: response.statusCode ?? 0, text, headers: response.headers }));
      },
    );
    request.on("error", reject);
    request.end(method === "POST" ? JSON.stringify(body) : undefined);
  });
}

describe("who may call", () => {
  test("a wrong token is a 401 that says which scheme, and nothing begins an OAuth flow", async () => {
    const served = await serve(await bench());
    const { status, headers, text } = await statusWith(served, { authorization: "Bearer wrong" });
    expect([status, headers["www-authenticate"]]).toEqual([401, "Bearer"]);
    expect(text).toContain("Authorization: Bearer");
    for (const path of ["/.well-known/oauth-protected-resource", "/.well-known/oauth-authorization-server/mcp"]) {
      const found = await statusWith(served, { authorization: "" }, path, "GET");
      expect([found.status, found.headers["content-type"]]).toEqual([404, "application/json"]);
    }
  });

  test.each<[string, { readonly [name: string]: string }, number]>([
    ["a name of this machine", { host: "localhost:1" }, 200],
    ["an address", { host: "192.0.2.7:7000" }, 200],
    ["an address of IPv6", { host: "[::1]:7000" }, 200],
    ["a name that the config has", { host: "Runtime:7000" }, 200],
    ["another name", { host: "evil.example:7000" }, 403],
    ["what is no name", { host: "%zz" }, 403],
    ["an origin of this machine", { host: "localhost", origin: "http://localhost:3000" }, 200],
    ["the same origin", { host: "192.0.2.7", origin: "http://192.0.2.7:8080" }, 200],
    ["another origin", { host: "localhost", origin: "https://evil.example" }, 403],
    ["an origin that is another address", { host: "localhost", origin: "http://192.0.2.7" }, 403],
    ["an origin of nobody", { host: "localhost", origin: "null" }, 403],
  ])("%s", async (_name, headers, expected) => {
    const served = await serve(await bench(), { allowedHosts: ["runtime"] });
    const { status, text } = await statusWith(served, headers);
    expect(status).toBe(expected);
    if (expected === 403) expect(text).toContain("runtime.allowedHosts");
  });

  test("all hosts may be allowed", async () => {
    const served = await serve(await bench(), { allowedHosts: ["*"] });
    expect((await statusWith(served, { host: "any.example", origin: "https://any.example" })).status).toBe(200);
  });
});

describe("what cannot be a request", () => {
  test.each<[string, { readonly headers?: { readonly [name: string]: string }; readonly body: unknown }, number]>([
    ["text that is no JSON", { body: "{" }, 400],
    ["another content type", { body: "{}", headers: { "content-type": "text/plain" } }, 415],
    ["more than 4 MiB", { body: " ".repeat(4 * 1024 * 1024 + 1) }, 413],
    [
      "a request without a session that is no initialize",
      { body: { jsonrpc: "2.0", id: 1, method: "tools/list" } },
      400,
    ],
  ])("%s", async (_name, request, status) => {
    const served = await serve(await bench());
    const answer = await post(served, request);
    expect([answer.status, answer.body.error]).toEqual([
      status,
      expect.objectContaining({ message: expect.any(String) }),
    ]);
    // And the next one is served.
    expect((await post(served, modern("tools/list", {}))).status).toBe(200);
  });

  test("other methods are named", async () => {
    const served = await serve(await bench());
    const { status, headers } = await statusWith(served, {}, "/mcp", "PUT");
    expect([status, headers["allow"]]).toEqual([405, "POST, GET, DELETE"]);
  });

  test("an unknown tool is an error of the protocol that lists those there are", async () => {
    const served = await serve(await bench());
    const { body } = await callTool(served, { name: "fly", arguments: {} });
    expect(body.error).toMatchObject({ code: -32602, message: expect.stringContaining("spawn") });
  });
});

describe("a session", () => {
  test("that is not there is a 404, so that the client begins a new one; a stale id does not hinder that", async () => {
    const served = await serve(await bench());
    const stale = { "mcp-session-id": "gone" };
    const lost = await post(served, { headers: stale, body: { jsonrpc: "2.0", id: 1, method: "tools/list" } });
    expect([lost.status, lost.body.error?.code]).toEqual([404, -32001]);
    const begun = await post(served, { headers: stale, body: INITIALIZE });
    expect([begun.status, begun.headers.get("mcp-session-id")]).toEqual([200, expect.stringMatching(/.{20,}/)]);
  });

  test("of one principal is unknown to another", async () => {
    const served = await serve(await bench());
    const id = await begin(served);
    const request = { headers: { "mcp-session-id": id }, body: { jsonrpc: "2.0", id: 2, method: "tools/list" } };
    expect((await post(served, request, "token-bob")).status).toBe(404);
    expect((await post(served, request)).status).toBe(200);
  });

  test("ends by DELETE", async () => {
    const served = await serve(await bench());
    const headers = { "mcp-session-id": await begin(served), authorization: "Bearer token-ann" };
    expect((await fetch(served.url, { method: "DELETE", headers })).status).toBe(200);
    const after = await post(served, { headers, body: { jsonrpc: "2.0", id: 2, method: "tools/list" } });
    expect(after.status).toBe(404);
  });

  test("takes a second GET stream in place of one that was cut unseen", async () => {
    const served = await serve(await bench());
    const headers = {
      "mcp-session-id": await begin(served),
      authorization: "Bearer token-ann",
      accept: "text/event-stream",
    };
    const first = await fetch(served.url, { headers });
    const second = await fetch(served.url, { headers });
    expect([first.status, second.status]).toEqual([200, 200]);
    expect(await first.text()).toBe("");
    await second.body?.cancel();
  });

  test("idle for a day is ended; one in use is not", async () => {
    const world = await bench();
    const served = await serve(world);
    const [idle, used] = [await begin(served), await begin(served)];
    const list = (id: string): Promise<Answer> =>
      post(served, { headers: { "mcp-session-id": id }, body: { jsonrpc: "2.0", id: 2, method: "tools/list" } });
    for (let hour = 0; hour < 25; hour += 1) {
      world.clock.advance(3_600_000);
      expect((await list(used)).status).toBe(200);
    }
    expect((await list(idle)).status).toBe(404);
  });

  test("that cancels a call by a notification has its stream ended", async () => {
    const world = await bench();
    const served = await serve(world);
    const session = { "mcp-session-id": await begin(served) };
    const params = { name: "run", arguments: { task: "t" } };
    const call = post(served, { headers: session, body: { jsonrpc: "2.0", id: 7, method: "tools/call", params } });
    const turn = await world.dataplane.nextTurn();
    const cancelled = { jsonrpc: "2.0", method: "notifications/cancelled", params: { requestId: 7 } };
    expect((await post(served, { headers: session, body: cancelled })).status).toBe(202);
    expect((await call).body).toEqual({});
    expect(turn.gone).toBe(false);
  });
});

describe("a wait that goes through the client", () => {
  type Asked = { readonly requestState: string; readonly questions: readonly string[] };

  async function asked(world: Bench, served: Served, more: object = {}): Promise<Asked> {
    const call = callTool(served, { name: "run", arguments: { task: "t", ...more } }, { capabilities: FORMS });
    answerCalls(await world.dataplane.nextTurn(), [{ name: "erase", args: { n: 1 } }]);
    return askedIn(await call);
  }

  function askedIn({ body }: Answer): Asked {
    expect(body.result).toMatchObject({ resultType: "input_required" });
    const { requestState, inputRequests } = body.result as { readonly requestState: string; inputRequests: object };
    return { requestState, questions: Object.keys(inputRequests) };
  }

  const goOn = (
    served: Served,
    { requestState, questions }: Asked,
    options: { token?: string; answer?: object } = {},
  ) => {
    const { answer = { action: "accept", content: { allow: true } }, token } = options;
    const inputResponses = Object.fromEntries(questions.map((id) => [id, answer]));
    const params = { name: "run", arguments: { task: "t" }, requestState, inputResponses };
    return callTool(served, params, { capabilities: FORMS, ...(token === undefined ? {} : { token }) });
  };

  test("is gone on with after a restart, and never spawns again", async () => {
    const world = await bench({ store: createMemoryStore() });
    const served = await serve(world);
    const state = await asked(world, served);
    await served.stop();
    const next = await world.restart();
    const again = await serve(next, { port: portOf(served) });
    const call = goOn(again, state);
    (await next.tools.next()).answer({ ok: true, text: "erased" });
    answerText(await next.dataplane.nextTurn(), "done");
    expect((await call).body.result).toMatchObject({ structuredContent: { answer: "done" } });
    // The same answer once more: no second run, no second call of the tool.
    expect((await goOn(again, state)).body.result).toMatchObject({ structuredContent: { answer: "done" } });
    expect([world.dataplane.turns.length, world.tools.calls.length]).toEqual([2, 1]);
    expect((await next.service.list({ principal: "ann", caller: "" }, { mine: false, limit: 9 })).runs).toHaveLength(1);
  });

  test("counts for its principal only, and not when it was changed", async () => {
    const world = await bench();
    const served = await serve(world);
    const state = await asked(world, served);
    const stolen = await goOn(served, state, { token: "token-bob" });
    expect(stolen.body.error).toMatchObject({ code: -32602 });
    const [head = "", body = "", mac = ""] = state.requestState.split(".");
    const changed = await goOn(served, { ...state, requestState: [head, `${body}A`, mac].join(".") });
    expect(changed.body.error).toMatchObject({ code: -32602 });
    expect(world.tools.calls).toEqual([]);
  });

  test("asks at most eight times, then says how to go on", async () => {
    const world = await bench();
    const served = await serve(world);
    let state = await asked(world, served, { maxToolCalls: 20 });
    for (let round = 2; round <= 9; round += 1) {
      const call = goOn(served, state);
      (await world.tools.next()).answer({ ok: true, text: "erased" });
      answerCalls(await world.dataplane.nextTurn(), [{ name: "erase", args: { n: round } }]);
      if (round <= 8) {
        state = askedIn(await call);
        continue;
      }
      // The ninth question is not put.
      const { structuredContent } = (await call).body.result as { structuredContent: { [name: string]: unknown } };
      expect(structuredContent).toMatchObject({ state: "AwaitingApproval" });
      expect(structuredContent["next"]).toContain("approve");
    }
  });

  test("with an answer that nobody gave ends at once with words on approve", async () => {
    const world = await bench();
    const served = await serve(world);
    const state = await asked(world, served);
    const { body } = await goOn(served, state, { answer: { action: "decline" } });
    expect(body.result).toMatchObject({
      resultType: "complete",
      structuredContent: { state: "AwaitingApproval", next: expect.stringContaining("approve") as string },
    });
  });
});

describe("a form in a session without a stream of its own", () => {
  /** A session that can show forms, and an `await` of which the events are read one by one. */
  async function awaiting(world: Bench, served: Served, wait: object) {
    const params = { ...INITIALIZE.params, capabilities: { elicitation: {} } };
    const begun = await post(served, { body: { ...INITIALIZE, params } });
    const session = { "mcp-session-id": begun.headers.get("mcp-session-id") ?? "" };
    const { clock } = world;
    const timersBefore = clock.timersSet;
    const response = await fetch(served.url, {
      method: "POST",
      headers: {
        "content-type": "application/json",
        accept: "application/json, text/event-stream",
        authorization: "Bearer token-ann",
        ...session,
      },
      body: JSON.stringify({ jsonrpc: "2.0", id: 7, method: "tools/call", params: { name: "await", arguments: wait } }),
    });
    const reader = (response.body ?? new ReadableStream()).pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    type Event = {
      readonly id?: number;
      readonly method?: string;
      readonly result?: { readonly structuredContent: { readonly done: boolean; readonly next?: string } };
    };
    const next = async (): Promise<Event> => {
      for (;;) {
        const line = /^data: (\{.*\})\n/m.exec(rest);
        if (line !== null) {
          rest = rest.slice(line.index + line[0].length);
          return JSON.parse(line[1] ?? "") as Event;
        }
        const { value, done } = await reader.read();
        if (done) throw new Error(`the stream ended: ${rest}`);
        rest += value;
      }
    };
    const waits = () => until("the call waits", () => clock.timersSet > timersBefore);
    const answer = (id: number | undefined, result: object) =>
      post(served, { headers: session, body: { jsonrpc: "2.0", id, result } });
    return { next, answer, waits };
  }

  async function twoRuns(world: Bench): Promise<{ readonly asking: string; readonly other: string }> {
    const who = { principal: "ann", caller: "" };
    const spawn = async (task: string): Promise<string> => {
      const outcome = await world.service.spawn(who, [{ task }]);
      return outcome.kind === "spawned" ? (outcome.handles[0] ?? "") : outcome.message;
    };
    const asking = await spawn("asks");
    answerCalls(await world.dataplane.nextTurn(), [{ name: "erase", args: { n: 1 } }]);
    await until("it asks", async () => ((await world.service.view(who, asking))?.pendingApprovals.length ?? 0) > 0);
    return { asking, other: await spawn("answers") };
  }

  test("comes on the call's own stream, and its answer counts", async () => {
    const world = await bench();
    const { asking } = await twoRuns(world);
    const { next, answer } = await awaiting(world, await serve(world), { handles: [asking] });
    const form = await next();
    expect(form.method).toBe("elicitation/create");
    await answer(form.id, { action: "accept", content: { allow: true } });
    (await world.tools.next()).answer({ ok: true, text: "erased" });
    await world.dataplane.nextTurn();
    answerText(await world.dataplane.nextTurn(), "done");
    expect((await next()).result?.structuredContent).toMatchObject({ done: true });
  });

  test("does not keep a call that waits for any of several runs", async () => {
    const world = await bench();
    const { asking, other } = await twoRuns(world);
    const { next } = await awaiting(world, await serve(world), { handles: [asking, other], mode: "any" });
    expect((await next()).method).toBe("elicitation/create");
    answerText(await world.dataplane.nextTurn(), "done");
    // The form is taken back, then the call is answered.
    expect((await next()).method).toBe("notifications/cancelled");
    expect((await next()).result?.structuredContent).toMatchObject({ done: true });
  });

  test("lasts no longer than the time that the client has named; without one a person is not hurried", async () => {
    const world = await bench();
    const { asking } = await twoRuns(world);
    const served = await serve(world);
    const bounded = await awaiting(world, served, { handles: [asking], timeoutSeconds: 3 });
    expect((await bounded.next()).method).toBe("elicitation/create");
    await bounded.waits();
    world.clock.advance(3_000);
    expect((await bounded.next()).method).toBe("notifications/cancelled");
    const { structuredContent } = (await bounded.next()).result ?? {};
    expect(structuredContent).toMatchObject({ done: false, next: expect.stringContaining("approve") as string });

    const patient = await awaiting(world, served, { handles: [asking] });
    const form = await patient.next();
    world.clock.advance(120_000);
    await patient.answer(form.id, { action: "accept", content: { allow: true } });
    (await world.tools.next()).answer({ ok: true, text: "erased" });
  });

  test("is not put where the call has no time", async () => {
    const world = await bench();
    const { asking } = await twoRuns(world);
    const { next } = await awaiting(world, await serve(world), { handles: [asking], timeoutSeconds: 0 });
    expect((await next()).result?.structuredContent).toMatchObject({ done: false });
  });
});

describe("long calls", () => {
  test.each(["a session", "a request without one"])(
    "%s: headers come at once, then a comment each 10 s",
    async (era) => {
      const world = await bench();
      const served = await serve(world);
      const params = { name: "run", arguments: { task: "t" } };
      const request =
        era === "a session"
          ? {
              headers: { "mcp-session-id": await begin(served) },
              body: { jsonrpc: "2.0", id: 7, method: "tools/call", params },
            }
          : modern("tools/call", params);
      const response = await fetch(served.url, {
        method: "POST",
        headers: {
          "content-type": "application/json",
          accept: "application/json, text/event-stream",
          authorization: "Bearer token-ann",
          ...request.headers,
        },
        body: JSON.stringify(request.body),
      });
      // The run has not even been answered by an engine.
      expect(response.headers.get("content-type")).toContain("text/event-stream");
      answerText(await world.dataplane.nextTurn(), "x");
      expect(await response.text()).toContain('"answer');
    },
  );

  test("are bounded in number", async () => {
    const world = await bench();
    const served = await serve(world);
    const { body } = await callTool(served, { name: "await", arguments: { handles: Array(1_001).fill("run-x") } });
    expect(body.result).toMatchObject({ isError: true });
  });
});

test("a cursor that is from no page is an error that says so, not the first page", async () => {
  const served = await serve(await bench());
  const { body } = await callTool(served, { name: "status", arguments: { cursor: "garbage" } });
  expect(body.result).toMatchObject({
    isError: true,
    content: [{ text: expect.stringContaining("cursor: this cursor is not from an earlier page") as string }],
  });
});
