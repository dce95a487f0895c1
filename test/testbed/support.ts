import { connect } from "node:net";
import { afterEach } from "vitest";
import { startFakeEngine } from "../../src/testbed/index.ts";
import type { FakeEngine, FakeEngineOptions } from "../../src/testbed/index.ts";

const started: FakeEngine[] = [];

afterEach(async () => {
  await Promise.all(started.splice(0).map((engine) => engine.close()));
});

/** An engine that is closed after the test. */
export async function engineFor(options: FakeEngineOptions = {}): Promise<FakeEngine> {
  const engine = await startFakeEngine(options);
  started.push(engine);
  return engine;
}

export const LOOKUP = {
  type: "function",
  function: {
    name: "lookup",
    description: "Looks something up.",
    parameters: { type: "object", properties: { query: { type: "string" } }, required: ["query"] },
  },
} as const;

export type Extra = { readonly headers?: Record<string, string>; readonly signal?: AbortSignal };

/** `POST` of a JSON body. */
export function post(engine: FakeEngine, path: string, body: unknown, extra: Extra = {}): Promise<Response> {
  return fetch(engine.url + path, {
    method: "POST",
    body: typeof body === "string" ? body : JSON.stringify(body),
    ...extra,
    headers: { "content-type": "application/json", ...extra.headers },
  });
}

/** A chat turn with one message of the user. */
export function chat(
  engine: FakeEngine,
  fields: Readonly<Record<string, unknown>> = {},
  extra: Extra = {},
): Promise<Response> {
  return post(engine, "/v1/chat/completions", chatBody(fields), extra);
}

export function chatBody(fields: Readonly<Record<string, unknown>> = {}): Readonly<Record<string, unknown>> {
  return { model: "sim-8b", messages: [{ role: "user", content: "What does the river do?" }], ...fields };
}

export type Chunk = {
  readonly choices: readonly {
    readonly delta: {
      readonly content?: string;
      readonly tool_calls?: readonly {
        readonly index: number;
        readonly id?: string;
        readonly function: { readonly name?: string; readonly arguments?: string };
      }[];
    };
    readonly finish_reason: string | null;
    readonly logprobs: unknown;
  }[];
  readonly usage?: Usage;
};

export type Usage = {
  readonly prompt_tokens: number;
  readonly completion_tokens: number;
  readonly total_tokens: number;
  readonly prompt_tokens_details?: { readonly cached_tokens: number } | null;
};

/** Data of each event in a stream's text. */
export function dataOf(text: string): string[] {
  return text
    .split(/\r?\n\r?\n/)
    .filter((event) => event !== "")
    .map((event) => event.replace(/^data: ?/, ""));
}

/** The chunks of a stream's text, without `[DONE]`. */
export function chunksOf(text: string): Chunk[] {
  return dataOf(text)
    .filter((data) => data !== "[DONE]")
    .map((data) => JSON.parse(data) as Chunk);
}

export function contentOf(chunks: readonly Chunk[]): string {
  return chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
}

export type RawAnswer = {
  /** Head and body as they came, as Latin-1. */
  readonly text: string;
  readonly bytes: Buffer;
  /** Reads of the socket, in order. */
  readonly reads: readonly Buffer[];
};

/** Sends a chat turn over a plain socket and collects all bytes until the engine closes the connection. */
export function rawChat(
  engine: FakeEngine,
  fields: Readonly<Record<string, unknown>>,
  headers: Readonly<Record<string, string>> = {},
): Promise<RawAnswer> {
  const body = JSON.stringify(chatBody(fields));
  const lines = [
    "POST /v1/chat/completions HTTP/1.1",
    "host: fake",
    `content-length: ${Buffer.byteLength(body)}`,
    "connection: close",
  ];
  for (const [name, value] of Object.entries(headers)) lines.push(`${name}: ${value}`);
  return rawExchange(engine, `${lines.join("\r\n")}\r\n\r\n${body}`);
}

/** Writes bytes to the engine and collects all that comes until it closes the connection. */
function rawExchange(engine: FakeEngine, request: string): Promise<RawAnswer> {
  return new Promise((resolve, reject) => {
    const socket = connect(engine.port, engine.host);
    const reads: Buffer[] = [];
    const deadline = setTimeout(() => socket.destroy(new Error("the engine neither answers nor closes")), 10_000);
    socket.on("data", (chunk: Buffer) => reads.push(chunk));
    socket.on("error", reject);
    socket.on("close", () => {
      clearTimeout(deadline);
      const bytes = Buffer.concat(reads);
      resolve({ bytes, reads, text: bytes.toString("latin1") });
    });
    socket.write(request);
  });
}

/** Head and body of a raw answer; the body without chunk framing. */
export function splitRaw(bytes: Buffer): { readonly head: string; readonly body: Buffer; readonly whole: boolean } {
  const at = bytes.indexOf("\r\n\r\n");
  const head = bytes.subarray(0, at).toString("latin1");
  let rest = bytes.subarray(at + 4);
  if (!/transfer-encoding: chunked/i.test(head)) return { head, body: rest, whole: true };
  const parts: Buffer[] = [];
  for (;;) {
    const end = rest.indexOf("\r\n");
    if (end === -1) return { head, body: Buffer.concat(parts), whole: false };
    const size = Number.parseInt(rest.subarray(0, end).toString("latin1"), 16);
    if (size === 0) return { head, body: Buffer.concat(parts), whole: true };
    parts.push(rest.subarray(end + 2, end + 2 + size));
    rest = rest.subarray(end + 2 + size + 2);
  }
}
