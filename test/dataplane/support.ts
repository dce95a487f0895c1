/**
 * A dataplane on real sockets with everything around it in the test's hands: a scheduler whose answers the test gives,
 * engines whose bytes the test writes, a clock that the test moves.
 */
import http from "node:http";
import net from "node:net";
import { afterEach, expect } from "vitest";
import type { Clock } from "../../src/base/clock.ts";
import { asDataplaneId, asReplicaId, type TurnId } from "../../src/base/ids.ts";
import {
  createDataplane,
  type Dataplane,
  type DataplaneLimits,
  type DataplaneOptions,
} from "../../src/dataplane/index.ts";
import { createAuth, createEngineClient, createFront, type AuthOptions } from "../../src/http/index.ts";
import { SILENT_LOG } from "../../src/telemetry/index.ts";
import type {
  AdmissionPort,
  AdmissionReceiver,
  DataplaneMessage,
  ReplicaView,
  SchedulerMessage,
  TurnRequest,
} from "../../src/wire/admission.ts";
import type { EndpointConfig } from "../../src/wire/endpoint.ts";
import { DEFAULTS } from "../../src/wire/limits.ts";

const cleanUps: (() => Promise<void> | void)[] = [];
export function onCleanUp(action: () => Promise<void> | void): void {
  cleanUps.push(action);
}
afterEach(async () => {
  for (const action of cleanUps.splice(0).reverse()) await action();
});

/** Waits until a condition holds, looking again after every turn of the event loop. */
export async function until(what: string, holds: () => boolean, withinMs = 5_000): Promise<void> {
  const deadline = performance.now() + withinMs;
  while (!holds()) {
    if (performance.now() > deadline) throw new Error(`not within ${withinMs} ms: ${what}`);
    await new Promise((resolve) => {
      setTimeout(resolve, 2);
    });
  }
}

/** Time that stands still until the test moves it. */
class TestClock implements Clock {
  #nowMs = 1_000;
  readonly #timers = new Set<{ readonly atMs: number; readonly action: () => void }>();

  nowMs(): number {
    return this.#nowMs;
  }

  after(delayMs: number, action: () => void): () => void {
    const timer = { atMs: this.#nowMs + delayMs, action };
    this.#timers.add(timer);
    return () => this.#timers.delete(timer);
  }

  get timerCount(): number {
    return this.#timers.size;
  }

  /** Moves time, running every timer that comes due at its own moment. */
  advance(ms: number): void {
    const end = this.#nowMs + ms;
    for (;;) {
      const due = [...this.#timers].filter((timer) => timer.atMs <= end).sort((a, b) => a.atMs - b.atMs)[0];
      if (due === undefined) break;
      this.#timers.delete(due);
      this.#nowMs = Math.max(this.#nowMs, due.atMs);
      due.action();
    }
    this.#nowMs = end;
  }
}

type Requested = TurnRequest;
type MessageOf<Type extends DataplaneMessage["type"]> = Extract<DataplaneMessage, { readonly type: Type }>;

/** The scheduler's side of the link, answered by the test. */
class TestScheduler implements AdmissionPort {
  linked = true;
  readonly messages: DataplaneMessage[] = [];
  /** Answers each request at once; undefined: says nothing. */
  onRequest: (request: Requested) => SchedulerMessage | undefined = () => undefined;
  onMessage: (message: DataplaneMessage) => void = () => undefined;
  #receiver: AdmissionReceiver | undefined;

  attach(receiver: AdmissionReceiver): void {
    this.#receiver = receiver;
  }

  send(message: DataplaneMessage): void {
    if (!this.linked) return;
    this.messages.push(message);
    if (message.type === "hello") this.say({ type: "welcome", protocol: 1 });
    if (message.type === "requested") {
      const answer = this.onRequest(message);
      if (answer !== undefined) this.say(answer);
    }
    this.onMessage(message);
  }

  say(message: SchedulerMessage): void {
    this.#receiver?.onMessage(message);
  }

  lose(): void {
    this.linked = false;
    this.#receiver?.onLost();
  }

  link(): void {
    this.linked = true;
    this.#receiver?.onLinked();
  }

  of<Type extends DataplaneMessage["type"]>(type: Type): MessageOf<Type>[] {
    return this.messages.filter((message): message is MessageOf<Type> => message.type === type);
  }

  /** Types of all messages about turns, in order. */
  story(): string[] {
    return this.messages.map((message) => message.type).filter((type) => type !== "hello" && type !== "open-turns");
  }

  /** Admits every turn to one replica at once. */
  admitAll(replica = "a"): void {
    this.onRequest = (request) => admission(request, replica);
  }

  /** Holds every turn. */
  holdAll(): void {
    this.onRequest = (request) => ({
      type: "held",
      turn: request.turn,
      run: request.run ?? request.freshRun,
      source: request.run === undefined ? "new" : "header",
    });
  }

  /** The id of the turn that was asked for last. */
  get lastTurn(): TurnId {
    const last = this.of("requested").at(-1);
    if (last === undefined) throw new Error("no turn was asked for");
    return last.turn;
  }

  admit(turn: TurnId = this.lastTurn, replica = "a"): void {
    const request = this.of("requested").find((one) => one.turn === turn);
    if (request === undefined) throw new Error(`turn ${turn} was not asked for`);
    this.say(admission(request, replica));
  }
}

function admission(request: Requested, replica: string): SchedulerMessage {
  const { turn, run, freshRun } = request;
  const source = run === undefined ? "new" : "header";
  return { type: "admitted", turn, replica: asReplicaId(replica), run: run ?? freshRun, source };
}

export type EngineRequest = {
  readonly method: string;
  readonly path: string;
  /** Lower-case names; several values of one name are joined with ` | `. */
  readonly headers: { readonly [name: string]: string };
  readonly body: Buffer;
};

export type Reply = {
  /** Raw bytes on the socket. */
  raw(text: string | Buffer): void;
  /** Status, headers and a body of known length. */
  whole(status: number, headers: { readonly [name: string]: string }, body: string | Buffer): void;
  /** The head of a chunked stream. */
  stream(headers?: { readonly [name: string]: string }, status?: number): void;
  chunk(text: string | Buffer): void;
  /** The last chunk. */
  end(): void;
  destroy(): void;
  /** The connection was closed by the other side, or ended. */
  readonly closed: boolean;
  /** The socket takes no more at the moment. */
  readonly full: boolean;
};

export type TestEngine = {
  readonly port: number;
  readonly url: string;
  /** Whole requests, in the order of their coming. */
  readonly requests: EngineRequest[];
  readonly replies: Reply[];
  readonly openConnections: number;
  onRequest: (request: EngineRequest, reply: Reply) => void;
  close(): Promise<void>;
};

/** An engine whose bytes the test writes. */
export async function startEngine(onRequest: TestEngine["onRequest"] = () => undefined): Promise<TestEngine> {
  const sockets = new Set<net.Socket>();
  const requests: EngineRequest[] = [];
  const replies: Reply[] = [];
  const server = net.createServer((socket) => {
    sockets.add(socket);
    socket.on("close", () => sockets.delete(socket));
    socket.on("error", () => socket.destroy());
    let bytes = Buffer.alloc(0);
    socket.on("data", (part) => {
      bytes = Buffer.concat([bytes, part]);
      for (;;) {
        const end = bytes.indexOf("\r\n\r\n");
        if (end === -1) return;
        const [line = "", ...lines] = bytes.toString("latin1", 0, end).split("\r\n");
        const headers: { [name: string]: string } = {};
        for (const one of lines) {
          const colon = one.indexOf(":");
          const name = one.slice(0, colon).toLowerCase();
          const value = one.slice(colon + 1).trim();
          headers[name] = headers[name] === undefined ? value : `${headers[name]} | ${value}`;
        }
        const length = Number(headers["content-length"] ?? 0);
        if (bytes.length < end + 4 + length) return;
        const [method = "", path = ""] = line.split(" ");
        const request = { method, path, headers, body: Buffer.from(bytes.subarray(end + 4, end + 4 + length)) };
        bytes = bytes.subarray(end + 4 + length);
        const reply = replyOn(socket);
        requests.push(request);
        replies.push(reply);
        engine.onRequest(request, reply);
      }
    });
  });
  await new Promise<void>((resolve) => {
    server.listen(0, "127.0.0.1", resolve);
  });
  const { port } = server.address() as net.AddressInfo;
  const close = (): Promise<void> =>
    new Promise((resolve) => {
      server.close(() => resolve());
      for (const socket of sockets) socket.destroy();
    });
  const engine: TestEngine = {
    port,
    url: `http://127.0.0.1:${port}`,
    requests,
    replies,
    get openConnections() {
      return sockets.size;
    },
    onRequest,
    close,
  };
  onCleanUp(close);
  return engine;
}

function replyOn(socket: net.Socket): Reply {
  const head = (status: number, headers: { readonly [name: string]: string }): string =>
    `HTTP/1.1 ${status} ${http.STATUS_CODES[status] ?? ""}\r\n${Object.entries(headers)
      .map(([name, value]) => `${name}: ${value}\r\n`)
      .join("")}`;
  const reply: Reply = {
    raw: (text) => void socket.write(typeof text === "string" ? Buffer.from(text, "utf8") : text),
    whole(status, headers, body) {
      const bytes = Buffer.from(body);
      reply.raw(Buffer.concat([Buffer.from(`${head(status, headers)}content-length: ${bytes.length}\r\n\r\n`), bytes]));
    },
    stream(headers = { "content-type": "text/event-stream" }, status = 200) {
      reply.raw(`${head(status, headers)}transfer-encoding: chunked\r\n\r\n`);
    },
    chunk(text) {
      const bytes = Buffer.from(text);
      reply.raw(Buffer.concat([Buffer.from(`${bytes.length.toString(16)}\r\n`), bytes, Buffer.from("\r\n")]));
    },
    end: () => reply.raw("0\r\n\r\n"),
    destroy: () => socket.destroy(),
    get closed() {
      return socket.destroyed;
    },
    get full() {
      return socket.writableNeedDrain;
    },
  };
  return reply;
}

export type Answer = {
  readonly status: number;
  readonly headers: http.IncomingHttpHeaders;
  readonly rawHeaders: readonly string[];
  readonly body: Buffer;
  readonly text: string;
  readonly json: { readonly error?: { readonly [field: string]: unknown } } & { readonly [field: string]: unknown };
  /** Whether the body came to its proper end. */
  readonly clean: boolean;
};

export type Pending = {
  /** The whole answer, once it ended in whatever way. */
  readonly answer: Promise<Answer>;
  /** Bytes of the body so far. */
  text(): string;
  status(): number | undefined;
  headers(): http.IncomingHttpHeaders | undefined;
  /** Leaves. */
  leave(): void;
  /** Stops and restarts taking the body. */
  pause(): void;
  resume(): void;
};

export type Ask = {
  readonly method?: string;
  readonly path?: string;
  readonly headers?: { readonly [name: string]: string | readonly string[] };
  readonly body?: string | Buffer | object;
};

/** Sends a request on a connection of its own. */
export function send(port: number, ask: Ask = {}): Pending {
  const { method = "POST", path = "/v1/chat/completions", headers = {}, body } = ask;
  const text = body === undefined || typeof body === "string" || Buffer.isBuffer(body) ? body : JSON.stringify(body);
  // As bytes: with a string node sends the headers in the body's encoding.
  const bytes = text === undefined ? undefined : Buffer.from(text as string);
  const chunks: Buffer[] = [];
  let response: http.IncomingMessage | undefined;
  const request = http.request({
    host: "127.0.0.1",
    port,
    method,
    path,
    agent: false,
    headers: {
      ...(bytes === undefined ? {} : { "content-type": "application/json" }),
      ...(bytes === undefined || "transfer-encoding" in headers ? {} : { "content-length": bytes.length }),
      ...(headers as http.OutgoingHttpHeaders),
    },
  });
  const answer = new Promise<Answer>((resolve, reject) => {
    request.on("error", (error) => (response === undefined ? reject(error) : undefined));
    request.on("response", (incoming) => {
      response = incoming;
      incoming.on("data", (chunk: Buffer) => chunks.push(chunk));
      incoming.on("error", () => undefined);
      incoming.on("close", () => {
        const whole = Buffer.concat(chunks);
        const text = whole.toString("utf8");
        resolve({
          status: incoming.statusCode ?? 0,
          headers: incoming.headers,
          rawHeaders: incoming.rawHeaders,
          body: whole,
          text,
          get json() {
            return JSON.parse(text) as Answer["json"];
          },
          clean: incoming.complete,
        });
      });
    });
  });
  // A test that leaves does not look at the answer.
  answer.catch(() => undefined);
  request.end(bytes);
  return {
    answer,
    text: () => Buffer.concat(chunks).toString("utf8"),
    status: () => response?.statusCode,
    headers: () => response?.headers,
    leave: () => request.destroy(),
    pause: () => response?.pause(),
    resume: () => response?.resume(),
  };
}

export type World = {
  readonly port: number;
  readonly clock: TestClock;
  readonly scheduler: TestScheduler;
  readonly engine: TestEngine;
  readonly dataplane: Dataplane;
  readonly options: DataplaneOptions;
  /** Sends a chat turn; `fields` are added to its body. */
  chat(fields?: object, headers?: Ask["headers"]): Pending;
  send(ask?: Ask): Pending;
  /** The scheduler's view of the pool. */
  pool(views: readonly Partial<ReplicaView>[]): void;
  metric(name: string): Promise<string>;
};

export type WorldOptions = {
  readonly limits?: Partial<DataplaneLimits>;
  readonly endpoint?: Partial<EndpointConfig>;
  readonly endpoints?: readonly EndpointConfig[];
  readonly auth?: Partial<AuthOptions>;
  readonly lane?: boolean;
  readonly options?: Partial<DataplaneOptions>;
};

export const CHAT = { model: "m", messages: [{ role: "user", content: "What does the river do?" }] } as const;

export const LIMITS: DataplaneLimits = { ...DEFAULTS, holdMaxSeconds: "auto" };

export function endpointOf(name: string, url: string, fields: Partial<EndpointConfig> = {}): EndpointConfig {
  return {
    name: asReplicaId(name),
    url,
    kind: "generative",
    engine: "vllm",
    models: [],
    apiKey: undefined,
    healthPath: "/health",
    loadFrom: [],
    maxInFlight: undefined,
    speaks: "auto",
    backpressure: "auto",
    priority: "auto",
    splice: false,
    classifyPath: undefined,
    labels: [],
    forwardHeaders: [],
    ...fields,
  };
}

function viewOf(fields: Partial<ReplicaView> = {}): ReplicaView {
  return {
    replica: asReplicaId("a"),
    kind: "generative",
    engine: "vllm",
    healthy: true,
    probed: true,
    models: ["m"],
    speaks: ["chat", "completions", "embeddings"],
    reportsLoad: true,
    ...fields,
  };
}

/** A dataplane with one engine `a` that is healthy and serves `m`; the scheduler admits everything to it at once. */
export async function startWorld(given: WorldOptions = {}): Promise<World> {
  const engine = await startEngine();
  const clock = new TestClock();
  const scheduler = new TestScheduler();
  scheduler.admitAll();
  const limits = { ...LIMITS, ...given.limits };
  const engineClient = createEngineClient(limits);
  const options: DataplaneOptions = {
    dataplane: asDataplaneId("dp"),
    hop: "hop-dp",
    endpoints: given.endpoints ?? [endpointOf("a", engine.url, given.endpoint)],
    limits,
    port: scheduler,
    clock,
    authenticate: createAuth({ token: undefined, serviceToken: undefined, principals: [], ...given.auth }),
    engineClient,
    log: SILENT_LOG,
    metricsPublic: false,
    ...given.options,
  };
  const dataplane = createDataplane(options);
  const front = createFront({ handler: (exchange) => dataplane.handle(exchange), lane: given.lane ?? true });
  const { port } = await front.listen("127.0.0.1", 0);
  const pool: World["pool"] = (views) => scheduler.say({ type: "pool", replicas: views.map(viewOf) });
  pool([{}]);
  onCleanUp(async () => {
    dataplane.close();
    engineClient.close();
    await front.close();
  });
  return {
    port,
    clock,
    scheduler,
    engine,
    dataplane,
    options,
    chat: (fields = {}, headers = {}) => send(port, { body: { ...CHAT, ...fields }, headers }),
    send: (ask = {}) => send(port, ask),
    pool,
    async metric(name) {
      const page = await dataplane.metrics.metrics();
      return page
        .split("\n")
        .filter((line) => line.startsWith(`luftpause_dataplane_${name}`))
        .join("\n");
    },
  };
}

/** A stream of chat completion chunks as an engine sends it, each event apart. */
export const EVENTS = [
  `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n`,
  `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"It flows"},"finish_reason":null}]}\n\n`,
  `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":" on."},"finish_reason":null}]}\n\n`,
  `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n`,
  `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12,"prompt_tokens_details":{"cached_tokens":4}}}\n\n`,
  `data: [DONE]\n\n`,
] as const;
export const WHOLE_STREAM = EVENTS.join("");

/** Answers with the whole stream at once. */
export function streamAll(_request: EngineRequest, reply: Reply): void {
  reply.stream();
  for (const event of EVENTS) reply.chunk(event);
  reply.end();
}

export const WHOLE_JSON = JSON.stringify({
  id: "chatcmpl-2",
  object: "chat.completion",
  choices: [{ index: 0, message: { role: "assistant", content: "It flows on." }, finish_reason: "stop" }],
  usage: { prompt_tokens: 9, completion_tokens: 3, total_tokens: 12 },
});

export function answerJson(_request: EngineRequest, reply: Reply): void {
  reply.whole(200, { "content-type": "application/json" }, WHOLE_JSON);
}

/** Checks the JSON of an error of ours in OpenAI's shape. */
export function expectError(
  answer: Answer,
  expected: {
    readonly status: number;
    readonly code: string;
    readonly type: string;
    readonly message?: string | RegExp;
  },
): void {
  expect({ status: answer.status, ...answer.json.error }).toMatchObject({
    status: expected.status,
    code: expected.code,
    type: expected.type,
  });
  expect(Object.keys(answer.json.error ?? {}).sort()).toEqual(["code", "message", "param", "type"]);
  expect(answer.headers["content-type"]).toBe("application/json");
  if (typeof expected.message === "string") expect(answer.json.error?.["message"]).toBe(expected.message);
  if (expected.message instanceof RegExp) expect(answer.json.error?.["message"]).toMatch(expected.message);
}
