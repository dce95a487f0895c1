/** A dataplane whose every byte is in the test's hands, and a clock that the test moves. */
import http from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach } from "vitest";
import type { Clock } from "../../src/base/clock.ts";

const cleanUps: (() => Promise<void> | void)[] = [];
export function onCleanUp(action: () => Promise<void> | void): void {
  cleanUps.push(action);
}
afterEach(async () => {
  for (const action of cleanUps.splice(0).reverse()) await action();
});

export async function until(what: string, holds: () => boolean | Promise<boolean>, withinMs = 5_000): Promise<void> {
  const deadline = performance.now() + withinMs;
  while (!(await holds())) {
    if (performance.now() > deadline) throw new Error(`not within ${withinMs} ms: ${what}`);
    await new Promise((resolve) => {
      setTimeout(resolve, 2);
    });
  }
}

/** Time that stands still until the test moves it. */
export class TestClock implements Clock {
  #nowMs = 1_000;
  readonly #timers = new Set<{ readonly atMs: number; readonly action: () => void }>();

  nowMs(): number {
    return this.#nowMs;
  }

  after(delayMs: number, action: () => void): () => void {
    this.timersSet += 1;
    const timer = { atMs: this.#nowMs + delayMs, action };
    this.#timers.add(timer);
    return () => this.#timers.delete(timer);
  }

  advance(ms: number): void {
    this.#nowMs += ms;
    const due = [...this.#timers].filter(({ atMs }) => atMs <= this.#nowMs).sort((one, other) => one.atMs - other.atMs);
    for (const timer of due) if (this.#timers.delete(timer)) timer.action();
  }

  /** Timers that were ever set: a way to see that something has happened. */
  timersSet = 0;
}

export type SeenTurn = {
  readonly headers: http.IncomingHttpHeaders;
  readonly body: { readonly [key: string]: unknown };
  readonly response: http.ServerResponse;
  /** The client has withdrawn it. */
  gone: boolean;
};

export type FakeDataplane = {
  readonly url: string;
  /** Turns in the order in which they came. */
  readonly turns: SeenTurn[];
  /** Runs that were told to have ended. */
  readonly ended: string[];
  nextTurn(): Promise<SeenTurn>;
  /** Answers every turn from now on. */
  onTurn: ((turn: SeenTurn) => void) | undefined;
};

export async function fakeDataplane(): Promise<FakeDataplane> {
  let taken = 0;
  const fake: FakeDataplane & { url: string } = {
    url: "",
    turns: [],
    ended: [],
    onTurn: undefined,
    async nextTurn() {
      const at = taken;
      taken += 1;
      await until(`turn ${at + 1} reaches the dataplane`, () => fake.turns.length > at);
      return fake.turns[at] as SeenTurn;
    },
  };
  const server = http.createServer((request, response) => {
    const parts: Buffer[] = [];
    request.on("data", (part: Buffer) => parts.push(part));
    request.on("end", () => {
      const path = request.url ?? "";
      if (request.method === "DELETE") {
        fake.ended.push(decodeURIComponent(path.slice("/v1/runs/".length)));
        response.writeHead(204).end();
        return;
      }
      if (path === "/v1/models") {
        response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify({ data: [{ id: "m" }] }));
        return;
      }
      const body = JSON.parse(Buffer.concat(parts).toString("utf8")) as SeenTurn["body"];
      const turn: SeenTurn = { headers: request.headers, body, response, gone: false };
      response.on("close", () => {
        if (!response.writableEnded) turn.gone = true;
      });
      fake.turns.push(turn);
      fake.onTurn?.(turn);
    });
  });
  await new Promise<void>((resolve) => {
    server.listen(0, "127.0.0.1", resolve);
  });
  fake.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  onCleanUp(async () => {
    server.closeAllConnections();
    await new Promise((resolve) => {
      server.close(resolve);
    });
  });
  return fake;
}

export const SSE = { "content-type": "text/event-stream" };
export const FROM_ENGINE = { ...SSE, "x-luftpause-replica": "engine-a" };

export function chunk(delta: unknown, finish: string | null = null, more: object = {}): string {
  return `data: ${JSON.stringify({ choices: [{ index: 0, delta, finish_reason: finish }], ...more })}\n\n`;
}

export const USAGE = {
  usage: { prompt_tokens: 50, completion_tokens: 7, prompt_tokens_details: { cached_tokens: 20 } },
};

/** Answers a turn with a text, as an engine would. */
export function answerText({ response }: SeenTurn, text: string): void {
  response.writeHead(200, FROM_ENGINE);
  response.end(`${chunk({ content: text })}${chunk({}, "stop", USAGE)}data: [DONE]\n\n`);
}

/** Answers every turn that is open, and every one to come. */
export function answerAll(dataplane: FakeDataplane, text: string): void {
  dataplane.onTurn = (turn) => answerText(turn, text);
  for (const turn of dataplane.turns) if (!turn.gone && !turn.response.headersSent) answerText(turn, text);
}

/** Answers a turn with tool calls. */
export function answerCalls(
  { response }: SeenTurn,
  calls: readonly { readonly name: string; readonly args: unknown; readonly id?: string }[],
): void {
  response.writeHead(200, FROM_ENGINE);
  const parts = calls.map(({ name, args, id }, index) => ({
    index,
    id: id ?? `call_${index}`,
    type: "function",
    function: { name, arguments: JSON.stringify(args) },
  }));
  response.end(`${chunk({ tool_calls: parts })}${chunk({}, "tool_calls", USAGE)}data: [DONE]\n\n`);
}
