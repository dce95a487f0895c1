/** Each row of the error table (spec 3, Errors that luftpause makes) as a client meets it, before and after headers. */
import { describe, expect, it } from "vitest";
import { ERRORS, type ErrorCode } from "../../src/wire/errors.ts";
import { CHAT, EVENTS, expectError, LIMITS, startWorld, until, type Answer } from "./support.ts";

type Row = {
  readonly status: number;
  readonly type: string;
  readonly retryAfter: string | undefined;
  /** `yes`: the answer names the run; `no`: it must not. */
  readonly run: "yes" | "no";
  readonly provoke: () => Promise<Answer>;
};

const chat = async (headers: Record<string, string> = {}): Promise<Answer> =>
  (await startWorld()).chat({}, headers).answer;
const body = async (text: string, headers: Record<string, string> = {}): Promise<Answer> =>
  (await startWorld()).send({ body: text, headers }).answer;

// Literals, not the table itself: a change of the table must be meant.
const ROWS: { readonly [Code in ErrorCode]: Row } = {
  invalid_json: {
    status: 400,
    type: "invalid_request_error",
    retryAfter: undefined,
    run: "yes",
    provoke: () => body("{"),
  },
  missing_model: {
    status: 400,
    type: "invalid_request_error",
    retryAfter: undefined,
    run: "yes",
    provoke: () => body("{}"),
  },
  bad_class: {
    status: 400,
    type: "invalid_request_error",
    retryAfter: undefined,
    run: "yes",
    provoke: () => chat({ "x-luftpause-class": "Batch" }),
  },
  bad_run_id: {
    status: 400,
    type: "invalid_request_error",
    retryAfter: undefined,
    run: "yes",
    provoke: () => chat({ "x-luftpause-run-id": "" }),
  },
  invalid_token: {
    status: 401,
    type: "authentication_error",
    retryAfter: undefined,
    run: "no",
    provoke: async () => (await startWorld({ auth: { token: "t" } })).chat({}, { "x-luftpause-run-id": "r" }).answer,
  },
  run_unknown: {
    status: 404,
    type: "not_found_error",
    retryAfter: undefined,
    run: "no",
    async provoke() {
      const world = await startWorld();
      world.scheduler.onMessage = (message) => {
        if (message.type !== "run-query") return;
        world.scheduler.say({ type: "run-known", query: message.query, view: undefined });
      };
      return world.send({ method: "GET", path: "/v1/runs/r" }).answer;
    },
  },
  model_not_found: {
    status: 404,
    type: "not_found_error",
    retryAfter: undefined,
    run: "yes",
    async provoke() {
      const world = await startWorld();
      world.scheduler.onRequest = ({ turn, freshRun }) => ({
        type: "rejected",
        turn,
        run: freshRun,
        source: "new",
        code: "model_not_found",
        message: "no Generative replica serves model 'm'",
      });
      return world.chat().answer;
    },
  },
  route_unknown: {
    status: 404,
    type: "not_found_error",
    retryAfter: undefined,
    run: "no",
    provoke: async () => (await startWorld()).send({ path: "/v1/flush_cache", body: "{}" }).answer,
  },
  method_not_allowed: {
    status: 405,
    type: "invalid_request_error",
    retryAfter: undefined,
    run: "no",
    provoke: async () => (await startWorld()).send({ method: "GET" }).answer,
  },
  body_too_large: {
    status: 413,
    type: "invalid_request_error",
    retryAfter: undefined,
    run: "no",
    provoke: async () =>
      (await startWorld({ limits: { bodyBytesMax: 10 } })).chat({}, { "x-luftpause-run-id": "r" }).answer,
  },
  unsupported_encoding: {
    status: 415,
    type: "invalid_request_error",
    retryAfter: undefined,
    run: "yes",
    provoke: () => chat({ "content-encoding": "gzip" }),
  },
  hold_deadline: {
    status: 429,
    type: "rate_limit_error",
    retryAfter: "1",
    run: "yes",
    async provoke() {
      const world = await startWorld();
      world.scheduler.holdAll();
      const turn = world.chat();
      await until("it is held", () => world.scheduler.of("requested").length === 1);
      world.clock.advance(600_000);
      return turn.answer;
    },
  },
  engine_unreachable: {
    status: 502,
    type: "upstream_error",
    retryAfter: undefined,
    run: "yes",
    async provoke() {
      const world = await startWorld();
      await world.engine.close();
      return world.chat().answer;
    },
  },
  engine_lost: {
    status: 502,
    type: "upstream_error",
    retryAfter: undefined,
    run: "yes",
    async provoke() {
      const world = await startWorld();
      world.engine.onRequest = (_request, reply) => reply.destroy();
      return world.chat().answer;
    },
  },
  no_healthy_replica: {
    status: 503,
    type: "overloaded_error",
    retryAfter: "2",
    run: "yes",
    async provoke() {
      const world = await startWorld();
      world.pool([{ healthy: false }]);
      world.scheduler.holdAll();
      const turn = world.chat();
      await until("it is held", () => world.scheduler.of("requested").length === 1);
      world.clock.advance(600_000);
      return turn.answer;
    },
  },
  overloaded: {
    status: 503,
    type: "overloaded_error",
    retryAfter: "5",
    run: "yes",
    async provoke() {
      const bytes = JSON.stringify(CHAT).length;
      const world = await startWorld({ limits: { heldBodyBytesMax: 2 * bytes - 1 } });
      world.scheduler.holdAll();
      const first = world.chat();
      await until("it is held", () => world.scheduler.of("requested").length === 1);
      const answer = await world.chat().answer;
      // Refused before it was held.
      expect(world.scheduler.of("requested")).toHaveLength(1);
      first.leave();
      await until("its bytes are free again", () => world.scheduler.of("abandoned").length === 1);
      const third = world.chat();
      await until("the next is held", () => world.scheduler.of("requested").length === 2);
      third.leave();
      return answer;
    },
  },
  draining: {
    status: 503,
    type: "overloaded_error",
    retryAfter: "2",
    run: "yes",
    async provoke() {
      const world = await startWorld();
      await world.dataplane.drain();
      return world.chat().answer;
    },
  },
  loop: {
    status: 508,
    type: "invalid_request_error",
    retryAfter: undefined,
    run: "no",
    provoke: () => chat({ "x-luftpause-hop": "other, hop-dp", "x-luftpause-run-id": "r" }),
  },
  internal: {
    status: 500,
    type: "api_error",
    retryAfter: undefined,
    run: "yes",
    async provoke() {
      const world = await startWorld({
        options: {
          engineClient: {
            call: () => fault(),
            stats: () => ({ open: 0, idle: 0, retriedOnFresh: 0 }),
            close: () => undefined,
          },
        },
      });
      return world.chat().answer;
    },
  },
};

function fault(): never {
  throw new Error("secret detail of a bug");
}

describe.each(Object.entries(ROWS))("error %s", (code, row) => {
  it("has its status, type, code and Retry-After, in OpenAI's shape", async () => {
    const answer = await row.provoke();
    expectError(answer, { status: row.status, code, type: row.type });
    expect(answer.headers["retry-after"]).toBe(row.retryAfter);
    expect(answer.headers["x-luftpause-run-id"] !== undefined).toBe(row.run === "yes");
    expect(answer.headers["www-authenticate"]).toBe(code === "invalid_token" ? "Bearer" : undefined);
    expect(answer.text).not.toContain("secret detail");
    expect(answer.clean).toBe(true);
  });
});

it("has a row for every code, and every row is as the table says", () => {
  expect(Object.keys(ROWS).sort()).toEqual(Object.keys(ERRORS).sort());
  for (const [code, row] of Object.entries(ROWS)) {
    const kind = ERRORS[code as ErrorCode];
    expect([code, kind.status, kind.openaiType]).toEqual([code, row.status, row.type]);
  }
});

describe("errors of our own", () => {
  it("name the run that the client named, or that was recognised, on 4xx too", async () => {
    const world = await startWorld();
    const named = await world.send({ body: "{", headers: { "x-luftpause-run-id": "mine" } }).answer;
    expect(named.headers["x-luftpause-run-id"]).toBe("mine");
    world.scheduler.onRequest = ({ turn }) => ({
      type: "rejected",
      turn,
      run: "recognised" as never,
      source: "tool-calls",
      code: "model_not_found",
      message: "no Generative replica serves model 'm'",
    });
    const recognised = await world.chat().answer;
    expect(recognised.headers).toMatchObject({
      "x-luftpause-run-id": "recognised",
      "x-luftpause-run-source": "tool-calls",
    });
  });

  it("are valid JSON whatever the client put into them", async () => {
    const world = await startWorld();
    const model = `"\\\n\r\u2028</script>\u0000é`;
    world.scheduler.onRequest = (request) => ({
      type: "rejected",
      turn: request.turn,
      run: request.freshRun,
      source: "new",
      code: "model_not_found",
      message: `no Generative replica serves model '${request.model}'`,
    });
    const answer = await world.chat({ model }).answer;
    expect(answer.json.error?.["message"]).toBe(`no Generative replica serves model '${model}'`);
  });

  it("have Anthropic's and Gemini's shape outside of turns where their clients ask", async () => {
    const world = await startWorld();
    const anthropic = await world.send({ path: "/v1/x", headers: { "anthropic-version": "2023-06-01" } }).answer;
    expect(anthropic.json).toEqual({
      type: "error",
      error: { type: "not_found_error", message: "no route POST /v1/x" },
      request_id: "",
    });
    const gemini = await world.send({ path: "/v1beta/x", headers: { "x-goog-api-key": "k" } }).answer;
    expect(gemini.json).toEqual({ error: { code: 404, message: "no route POST /v1beta/x", status: "NOT_FOUND" } });
  });

  it("send Retry-After within the bounds of the config", async () => {
    const world = await startWorld({ limits: { retryAfterSentMinSeconds: 3, retryAfterSentMaxSeconds: 4 } });
    await world.dataplane.drain();
    expect((await world.chat().answer).headers["retry-after"]).toBe("3");
    expect([LIMITS.retryAfterSentMinSeconds, LIMITS.retryAfterSentMaxSeconds]).toEqual([1, 30]);
  });

  it("say when the scheduler admits to an endpoint that is not configured here", async () => {
    const world = await startWorld();
    world.scheduler.admitAll("elsewhere");
    const answer = await world.chat().answer;
    expectError(answer, {
      status: 502,
      code: "engine_unreachable",
      type: "upstream_error",
      message: /^engine elsewhere: /,
    });
    expect(world.scheduler.story()).toEqual(["requested", "failed"]);
  });

  it("end a turn whose answer had begun when luftpause made the mistake, without a clean end", async () => {
    const world = await startWorld();
    let calls = 0;
    world.scheduler.onMessage = (message) => {
      if (message.type === "started") {
        calls += 1;
        throw new Error("secret detail of a bug");
      }
    };
    world.engine.onRequest = (_request, reply) => {
      reply.stream();
      reply.chunk(EVENTS[0] + EVENTS[1]);
    };
    const answer = await world.chat({ stream: true }).answer;
    expect(calls).toBe(1);
    expect(answer.clean).toBe(false);
    expect(answer.text).not.toContain("secret detail");
    // The process lives, and the next turn goes through.
    world.scheduler.onMessage = () => undefined;
    world.engine.onRequest = (_request, reply) => reply.whole(200, {}, "{}");
    expect((await world.chat().answer).status).toBe(200);
  });
});
