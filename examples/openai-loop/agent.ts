/**
 * An agent with a loop of its own, written with the official OpenAI SDK: ask, call tools, ask again, until an answer.
 * Nothing here knows luftpause but three optional headers; without them the run is recognised by what the loop sends.
 *
 * I1: a turn that failed leaves the conversation as it was, and is asked again as the same run (bounded).
 * I2: the loop ends: after `maxTurns` turns the model gets no more tools.
 */
import { setTimeout as pause } from "node:timers/promises";
import { parseArgs } from "node:util";
import OpenAI, { APIConnectionError, APIError, APIUserAbortError } from "openai";
import type { ChatCompletionMessageParam } from "openai/resources/chat/completions";
import { LOCAL_TOOLS, type Tool } from "./tools.ts";
import { CutStreamError, streamTurn, type Turn } from "./turn.ts";

export type AgentOptions = {
  /** Of luftpause or of an engine itself, `/v1` included. */
  readonly baseURL: string;
  readonly model: string;
  readonly task: string;
  readonly runId?: string;
  readonly class?: "interactive" | "batch";
  readonly caller?: string;
  readonly apiKey?: string;
  readonly tools?: readonly Tool[];
  /** For the first turn only; later turns are `auto`. */
  readonly firstToolChoice?: "auto" | "required";
  /** Turns with tools, at most; one more without them follows. Default 8. */
  readonly maxTurns?: number;
  /** Longest answer of one turn, tokens. Default 256. */
  readonly maxTokens?: number;
  readonly temperature?: number;
  readonly seed?: number;
  /** Further headers of every request. */
  readonly headers?: { readonly [name: string]: string };
  readonly signal?: AbortSignal;
  readonly onEvent?: (event: AgentEvent) => void;
};

export type AgentEvent =
  | { readonly kind: "text"; readonly text: string }
  | { readonly kind: "turn"; readonly number: number; readonly turn: Turn }
  | { readonly kind: "tool"; readonly name: string; readonly arguments: string; readonly result: string }
  | { readonly kind: "retry"; readonly attempt: number; readonly reason: string };

export type AgentResult = {
  readonly answer: string;
  readonly turns: readonly Turn[];
  readonly toolResults: readonly { readonly name: string; readonly result: string }[];
};

const SYSTEM = "You answer questions with the help of functions.";
const ATTEMPTS = 4;
const FIRST_PAUSE_MS = 500;

/**
 * Runs the agent to its answer.
 * @throws the SDK's errors where asking again is of no use (4xx, abort) or did not help.
 */
export async function runAgent(options: AgentOptions): Promise<AgentResult> {
  const { model, tools = LOCAL_TOOLS, maxTurns = 8, onEvent = () => undefined } = options;
  const client = new OpenAI({
    baseURL: options.baseURL,
    apiKey: options.apiKey ?? "none",
    // 429 and 5xx are repeated by the SDK itself, after Retry-After where it was sent.
    maxRetries: 5,
    defaultHeaders: {
      ...(options.runId === undefined ? {} : { "x-luftpause-run-id": options.runId }),
      ...(options.class === undefined ? {} : { "x-luftpause-class": options.class }),
      ...(options.caller === undefined ? {} : { "x-luftpause-caller": options.caller }),
      ...options.headers,
    },
  });
  const messages: ChatCompletionMessageParam[] = [
    { role: "system", content: SYSTEM },
    { role: "user", content: options.task },
  ];
  const turns: Turn[] = [];
  const toolResults: { name: string; result: string }[] = [];
  for (;;) {
    const mayCall = turns.length < maxTurns && tools.length > 0;
    const turn = await withRetries(options, () =>
      streamTurn(
        client,
        {
          model,
          messages,
          max_tokens: options.maxTokens ?? 256,
          ...(options.temperature === undefined ? {} : { temperature: options.temperature }),
          ...(options.seed === undefined ? {} : { seed: options.seed }),
          // The list stays the same in every turn: it is part of the prefix that the engine has cached.
          ...(tools.length === 0 ? {} : { tools: tools.map((tool) => tool.schema), tool_choice: choice() }),
        },
        { signal: options.signal, onText: (text) => onEvent({ kind: "text", text }) },
      ),
    );
    function choice(): "auto" | "required" | "none" {
      if (!mayCall) return "none";
      return turns.length === 0 ? (options.firstToolChoice ?? "auto") : "auto";
    }
    turns.push(turn);
    onEvent({ kind: "turn", number: turns.length, turn });
    if (turn.toolCalls.length === 0 || !mayCall) return { answer: turn.text, turns, toolResults };
    messages.push({ role: "assistant", content: turn.text === "" ? null : turn.text, tool_calls: [...turn.toolCalls] });
    for (const { id, function: called } of turn.toolCalls) {
      const result = await callTool(tools, called.name, called.arguments, options.signal);
      toolResults.push({ name: called.name, result });
      onEvent({ kind: "tool", name: called.name, arguments: called.arguments, result });
      messages.push({ role: "tool", tool_call_id: id, content: result });
    }
  }
}

/** A tool that fails is an answer for the model, not the end of the run. */
async function callTool(
  tools: readonly Tool[],
  name: string,
  argumentsText: string,
  signal: AbortSignal | undefined,
): Promise<string> {
  const tool = tools.find(({ schema }) => schema.function.name === name);
  if (tool === undefined) return `error: no function '${name}'`;
  try {
    return await tool.call(argumentsText, signal);
  } catch (error) {
    if (signal?.aborted === true) throw error;
    return `error: ${error instanceof Error ? error.message : String(error)}`;
  }
}

/** Asks a turn again when it broke after its answer had begun, where the SDK cannot. */
async function withRetries(options: AgentOptions, ask: () => Promise<Turn>): Promise<Turn> {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await ask();
    } catch (error) {
      if (attempt === ATTEMPTS || options.signal?.aborted === true || !worthRetrying(error)) throw error;
      options.onEvent?.({ kind: "retry", attempt, reason: error instanceof Error ? error.message : String(error) });
      await pause(FIRST_PAUSE_MS * 2 ** (attempt - 1), undefined, {
        ...(options.signal && { signal: options.signal }),
      });
    }
  }
}

/** An error with a status was an answer, and the SDK has repeated what deserves it. What has none broke on the way. */
function worthRetrying(error: unknown): boolean {
  if (error instanceof APIUserAbortError) return false;
  if (error instanceof CutStreamError || error instanceof APIConnectionError) return true;
  if (error instanceof APIError) return error.status === undefined;
  return error instanceof TypeError; // what fetch throws when the connection breaks under a stream
}

const USAGE = `node examples/openai-loop/agent.ts [flags] TASK

  --base-url URL     luftpause or an engine (http://127.0.0.1:7700/v1)
  --model NAME       model to ask; without it the first that is served
  --run-id ID        names the run; without it luftpause recognises it
  --class CLASS      interactive or batch
  --caller NAME      on whose behalf
  --first-call       makes the model call a function in its first turn (tool_choice: required)
  --max-turns N      turns with functions, at most (8)

LUFTPAUSE_TOKEN is sent as the API key where it is set.`;

async function main(): Promise<number> {
  let parsed;
  try {
    parsed = parseArgs({
      allowPositionals: true,
      options: {
        "base-url": { type: "string", default: "http://127.0.0.1:7700/v1" },
        model: { type: "string" },
        "run-id": { type: "string" },
        class: { type: "string" },
        caller: { type: "string" },
        "first-call": { type: "boolean" },
        "max-turns": { type: "string", default: "8" },
        help: { type: "boolean" },
      },
    });
  } catch (error) {
    return usage(error instanceof Error ? error.message : String(error));
  }
  const { values, positionals } = parsed;
  if (values.help === true) {
    console.log(USAGE);
    return 0;
  }
  const task = positionals.join(" ");
  if (task === "") return usage("the task is missing, such as 'How long is the Rhine?'");
  if (values.class !== undefined && values.class !== "interactive" && values.class !== "batch") {
    return usage(`--class must be interactive or batch, got '${values.class}'`);
  }
  const maxTurns = Number(values["max-turns"]);
  if (!Number.isInteger(maxTurns) || maxTurns < 1 || maxTurns > 100) return usage("--max-turns must be 1 to 100");
  const apiKey = process.env["LUFTPAUSE_TOKEN"] ?? "none";
  const baseURL = values["base-url"];
  const stop = new AbortController();
  process.once("SIGINT", () => stop.abort());
  try {
    const model = values.model ?? (await firstModel(baseURL, apiKey));
    await runAgent({
      baseURL,
      model,
      task,
      apiKey,
      maxTurns,
      signal: stop.signal,
      firstToolChoice: values["first-call"] === true ? "required" : "auto",
      onEvent: print,
      ...(values["run-id"] !== undefined && { runId: values["run-id"] }),
      ...(values.class !== undefined && { class: values.class }),
      ...(values.caller !== undefined && { caller: values.caller }),
    });
    return 0;
  } catch (error) {
    console.error(`\n${error instanceof Error ? error.message : String(error)}`);
    return stop.signal.aborted ? 130 : 1;
  }
}

function usage(problem: string): number {
  console.error(`${problem}\n\n${USAGE}`);
  return 2;
}

async function firstModel(baseURL: string, apiKey: string): Promise<string> {
  const models = await new OpenAI({ baseURL, apiKey }).models.list();
  const first = models.data[0]?.id;
  if (first === undefined) throw new Error(`${baseURL}/models lists no model: name one with --model`);
  return first;
}

function print(event: AgentEvent): void {
  switch (event.kind) {
    case "text":
      process.stdout.write(event.text);
      return;
    case "tool":
      console.log(`  ${event.name}(${event.arguments.replaceAll(/\s+/g, " ")}) -> ${event.result}`);
      return;
    case "retry":
      console.log(`\n  turn failed (${event.reason}), asking again`);
      return;
    case "turn": {
      const { turn, number } = event;
      const cached =
        turn.cachedTokens === undefined ? "" : `, ${turn.cachedTokens} of ${turn.promptTokens} tokens cached`;
      const run = turn.runId === undefined ? "" : `, run ${turn.runId} (${turn.runSource}) on ${turn.replica}`;
      console.log(`${turn.text === "" ? "" : "\n"}[turn ${number}: ${turn.finishReason}${cached}${run}]`);
    }
  }
}

if (import.meta.main) process.exitCode = await main();
