/** One run of an own-loop agent: turns and tool calls until the model answers. */
import type { Random } from "../../base/random.ts";
import type { EngineClient, EngineTarget } from "../../http/index.ts";
import type { ServiceClass } from "../../wire/admission.ts";
import { callChat, type ChatAnswer, type ChatOutcome } from "./chat-call.ts";
import {
  LOOKUP_TOOL,
  question,
  systemPrompt,
  toolResult,
  toolTimeMs,
  type LoadWorld,
  type RunSample,
  type TurnSample,
} from "../../workload/index.ts";

export type AgentOptions = {
  readonly client: EngineClient;
  readonly target: EngineTarget;
  readonly model: string;
  readonly world: LoadWorld;
  readonly class: ServiceClass;
  /** Headers of every turn, names and values alternating. */
  readonly headers: readonly string[];
  /** Further members of every turn's body. */
  readonly members: object;
  /** The engine's own `priority` field; undefined: none is sent. */
  readonly priority: number | undefined;
  /** Real milliseconds per simulated one. */
  readonly timeScale: number;
  /** Draws of this run alone. */
  readonly random: Random;
  readonly onTurn: (sample: TurnSample) => void;
  readonly signal: AbortSignal;
};

/** More turns than any scripted agent makes: a model that never ends is a failed run. */
const TURNS_MAX = 50;
/** Without Retry-After an agent asks again after a second, as SDKs do. */
const RETRY_MS = 1_000;
const REFUSALS_MAX = 1_000;

/** Runs one agent to its end; never throws. An aborted one counts as failed with "aborted". */
export async function runAgent(options: AgentOptions): Promise<RunSample> {
  const startedMs = performance.now();
  const counts = { turns: 0, toolCalls: 0 };
  const failure = await loop(options, counts);
  const endedMs = performance.now();
  return { class: options.class, endedMs, ms: endedMs - startedMs, ...counts, failure };
}

async function loop(options: AgentOptions, counts: { turns: number; toolCalls: number }): Promise<string | undefined> {
  const { world, random, timeScale, signal } = options;
  const messages: object[] = [
    { role: "system", content: systemPrompt(world) },
    { role: "user", content: question(world, random) },
  ];
  while (counts.turns < TURNS_MAX) {
    const outcome = await turn(options, messages);
    if (typeof outcome === "string") return outcome;
    counts.turns += 1;
    if (outcome.toolCalls.length === 0) return undefined;
    messages.push({
      role: "assistant",
      content: outcome.content === "" ? null : outcome.content,
      tool_calls: outcome.toolCalls.map(({ id, name, arguments: text }) => ({
        id,
        type: "function",
        function: { name, arguments: text },
      })),
    });
    // Calls of one answer run side by side, as agents do: the slowest counts.
    let waitMs = 0;
    for (const { id } of outcome.toolCalls) {
      counts.toolCalls += 1;
      const tool = random.split(`tool ${counts.toolCalls}`);
      waitMs = Math.max(waitMs, toolTimeMs(world, tool));
      messages.push({ role: "tool", tool_call_id: id, content: toolResult(world, tool) });
    }
    if (!(await sleep(waitMs * timeScale, signal))) return "aborted";
  }
  return `no answer after ${TURNS_MAX} turns`;
}

/** One turn, asked again while it is refused for want of capacity; a text says why there is no answer. */
async function turn(options: AgentOptions, messages: readonly object[]): Promise<ChatAnswer | string> {
  const { timeScale, signal } = options;
  const askedMs = performance.now();
  for (let refusals = 0; refusals < REFUSALS_MAX; refusals += 1) {
    const sentMs = performance.now();
    const outcome = await ask(options, messages);
    if (outcome === undefined) return "aborted";
    switch (outcome.kind) {
      case "answer": {
        const { promptTokens, cachedTokens, completionTokens, replica } = outcome;
        // From the first time that it was asked: a refusal is waiting too.
        const firstContentMs = outcome.firstContentMs + (sentMs - askedMs);
        const atMs = performance.now();
        options.onTurn({
          class: options.class,
          atMs,
          firstContentMs,
          promptTokens,
          cachedTokens,
          completionTokens,
          replica,
        });
        return outcome;
      }
      case "lost":
        return outcome.reason;
      case "refused": {
        const { status, retryAfterSeconds, text } = outcome;
        if (status !== 429 && status !== 503) return `status ${status}: ${text.slice(0, 200)}`;
        const waitMs = retryAfterSeconds === undefined ? RETRY_MS : retryAfterSeconds * 1_000;
        if (!(await sleep(waitMs * timeScale, signal))) return "aborted";
      }
    }
  }
  return `refused ${REFUSALS_MAX} times`;
}

/** Undefined when the load is over. */
function ask(options: AgentOptions, messages: readonly object[]): Promise<ChatOutcome | undefined> {
  const { client, target, model, world, headers, members, priority, signal } = options;
  return new Promise((resolve) => {
    if (signal.aborted) {
      resolve(undefined);
      return;
    }
    const body = {
      model,
      messages,
      tools: [LOOKUP_TOOL],
      max_tokens: world.maxTokens,
      stream: true,
      stream_options: { include_usage: true },
      ...(priority === undefined ? undefined : { priority }),
      ...members,
    };
    const onAbort = (): void => {
      call.abort();
      resolve(undefined);
    };
    const call = callChat(client, { target, headers, body }, (outcome) => {
      signal.removeEventListener("abort", onAbort);
      resolve(outcome);
    });
    signal.addEventListener("abort", onAbort, { once: true });
  });
}

/** @returns false when the load was over first. */
function sleep(ms: number, signal: AbortSignal): Promise<boolean> {
  return new Promise((resolve) => {
    if (signal.aborted) {
      resolve(false);
      return;
    }
    const end = (whole: boolean): void => {
      clearTimeout(timer);
      signal.removeEventListener("abort", onAbort);
      resolve(whole);
    };
    const onAbort = (): void => end(false);
    const timer = setTimeout(() => end(true), ms);
    signal.addEventListener("abort", onAbort, { once: true });
  });
}
