/** One streamed chat turn, as an agent makes it: sends the request and reads the events of its answer. */
import type { EngineCall, EngineClient, EngineHandler, EngineHead, EngineTarget } from "../../http/index.ts";

export type ToolCall = { readonly id: string; readonly name: string; readonly arguments: string };

export type ChatAnswer = {
  readonly kind: "answer";
  readonly content: string;
  readonly toolCalls: readonly ToolCall[];
  /** From sending to the first content, in real milliseconds. */
  readonly firstContentMs: number;
  readonly promptTokens: number;
  readonly cachedTokens: number;
  readonly completionTokens: number;
  /** Where it was served, as far as the proxy says so. */
  readonly replica: string | undefined;
};

export type ChatOutcome =
  | ChatAnswer
  /** A status other than 200. */
  | {
      readonly kind: "refused";
      readonly status: number;
      readonly retryAfterSeconds: number | undefined;
      readonly text: string;
    }
  /** No answer, or one that broke off. */
  | { readonly kind: "lost"; readonly reason: string };

export type ChatRequest = {
  readonly target: EngineTarget;
  readonly headers: readonly string[];
  readonly body: object;
};

const ERROR_CHARS_MAX = 500;
/** A stream that sends this much without an event's end is none. */
const EVENT_CHARS_MAX = 1_048_576;

/** Sends the turn; `abort` on the returned call leaves it without an outcome. */
export function callChat(
  client: EngineClient,
  request: ChatRequest,
  done: (outcome: ChatOutcome) => void,
): { abort(): void } {
  const reader = new AnswerReader(performance.now(), done);
  const call = client.call(
    request.target,
    {
      method: "POST",
      path: `${request.target.basePath}/v1/chat/completions`,
      headers: ["content-type", "application/json", ...request.headers],
      body: Buffer.from(JSON.stringify(request.body), "utf8"),
    },
    reader,
  );
  reader.call = call;
  return call;
}

type Delta = {
  readonly content?: string | null;
  readonly tool_calls?: readonly {
    readonly index?: number;
    readonly id?: string;
    readonly function?: { readonly name?: string; readonly arguments?: string };
  }[];
};

type Chunk = {
  readonly choices?: readonly { readonly delta?: Delta; readonly finish_reason?: string | null }[];
  readonly usage?: {
    readonly prompt_tokens?: number;
    readonly completion_tokens?: number;
    readonly prompt_tokens_details?: { readonly cached_tokens?: number } | null;
  } | null;
  readonly error?: { readonly message?: string };
};

class AnswerReader implements EngineHandler {
  call: EngineCall | undefined;
  readonly #sentMs: number;
  readonly #done: (outcome: ChatOutcome) => void;
  #head: EngineHead | undefined;
  #text = "";
  #content = "";
  readonly #calls: { id: string; name: string; arguments: string }[] = [];
  #firstContentMs: number | undefined;
  #usage: Chunk["usage"];
  #finished = false;
  #failed: string | undefined;

  constructor(sentMs: number, done: (outcome: ChatOutcome) => void) {
    this.#sentMs = sentMs;
    this.#done = done;
  }

  onHead(head: EngineHead): void {
    this.#head = head;
  }

  onPayload(buffer: Buffer, start: number, end: number): void {
    this.#text += buffer.toString("utf8", start, end);
    if (this.#head?.status !== 200) {
      this.#text = this.#text.slice(0, ERROR_CHARS_MAX);
      return;
    }
    let from = 0;
    for (let at = this.#text.indexOf("\n\n"); at !== -1; at = this.#text.indexOf("\n\n", from)) {
      this.#event(this.#text.slice(from, at));
      from = at + 2;
    }
    this.#text = this.#text.slice(from);
    if (this.#text.length > EVENT_CHARS_MAX) {
      this.call?.abort();
      this.#done({ kind: "lost", reason: "an event without end" });
    }
  }

  onFrames(): void {
    // Payloads are all that is read here.
  }

  onEnd(): void {
    const { status = 0 } = this.#head ?? {};
    if (status !== 200) {
      const seconds = Number(this.#header("retry-after") ?? Number.NaN);
      const retryAfterSeconds = Number.isFinite(seconds) ? seconds : undefined;
      this.#done({ kind: "refused", status, retryAfterSeconds, text: this.#text });
    } else if (this.#failed !== undefined) {
      this.#done({ kind: "lost", reason: this.#failed });
    } else if (!this.#finished) {
      this.#done({ kind: "lost", reason: "the stream ended before the answer did" });
    } else {
      this.#done({
        kind: "answer",
        content: this.#content,
        toolCalls: this.#calls,
        firstContentMs: this.#firstContentMs ?? performance.now() - this.#sentMs,
        promptTokens: this.#usage?.prompt_tokens ?? 0,
        cachedTokens: this.#usage?.prompt_tokens_details?.cached_tokens ?? 0,
        completionTokens: this.#usage?.completion_tokens ?? 0,
        replica: this.#header("x-luftpause-replica"),
      });
    }
  }

  onFail(failure: { readonly reason: string }): void {
    this.#done({ kind: "lost", reason: this.#failed ?? failure.reason });
  }

  #event(text: string): void {
    for (const line of text.split("\n")) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") continue;
      try {
        this.#chunk(JSON.parse(data) as Chunk);
      } catch {
        this.#failed = `an event that is no JSON: ${data.slice(0, ERROR_CHARS_MAX)}`;
      }
    }
  }

  #chunk({ choices, usage, error }: Chunk): void {
    if (error !== undefined) this.#failed = error.message ?? "the engine failed";
    if (usage !== undefined && usage !== null) this.#usage = usage;
    const choice = choices?.[0];
    if (choice === undefined) return;
    if (choice.finish_reason !== undefined && choice.finish_reason !== null) this.#finished = true;
    const { content, tool_calls: calls = [] } = choice.delta ?? {};
    if ((content ?? "") !== "" || calls.length > 0) this.#firstContentMs ??= performance.now() - this.#sentMs;
    this.#content += content ?? "";
    for (const { index = 0, id, function: called } of calls) {
      const open = (this.#calls[index] ??= { id: "", name: "", arguments: "" });
      if (id !== undefined) open.id = id;
      if (called?.name !== undefined) open.name = called.name;
      open.arguments += called?.arguments ?? "";
    }
  }

  #header(name: string): string | undefined {
    const headers = this.#head?.rawHeaders ?? [];
    const at = headers.findIndex((text, index) => index % 2 === 0 && text.toLowerCase() === name);
    return at === -1 ? undefined : headers[at + 1];
  }
}
