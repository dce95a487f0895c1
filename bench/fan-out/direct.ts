// The loops without luftpause: each asks its engine, calls the tool over MCP, asks again, until the model answers.
import type { Client } from "@modelcontextprotocol/client";

export type LoopFigures = { readonly turns: number; readonly toolCalls: number; readonly tokens: number };

export type LoopOptions = {
  readonly engine: string;
  readonly model: string;
  readonly task: string;
  readonly maxTokens: number;
  readonly tools: readonly object[];
  readonly client: Client;
};

type Call = { id: string; type: "function"; function: { name: string; arguments: string } };
type Usage = { readonly prompt_tokens: number; readonly completion_tokens: number };
type Chunk = {
  readonly choices?: readonly {
    readonly delta?: {
      readonly content?: string | null;
      readonly tool_calls?: readonly {
        readonly index: number;
        readonly id?: string;
        readonly function?: { readonly name?: string; readonly arguments?: string };
      }[];
    };
  }[];
  readonly usage?: Usage | null;
};

const TURNS_MAX = 20;

/** @throws Error when the engine or a tool does not answer as it should. */
export async function runLoop(options: LoopOptions): Promise<LoopFigures> {
  const { engine, model, task, maxTokens, tools, client } = options;
  const messages: object[] = [{ role: "user", content: task }];
  let [toolCalls, tokens] = [0, 0];
  for (let turns = 1; turns <= TURNS_MAX; turns += 1) {
    const body = {
      model,
      messages,
      stream: true,
      stream_options: { include_usage: true },
      max_tokens: maxTokens,
      tools,
      parallel_tool_calls: false,
    };
    const { content, calls, usage } = await turn(`${engine}/v1/chat/completions`, body);
    tokens += usage.prompt_tokens + usage.completion_tokens;
    if (calls.length === 0) return { turns, toolCalls, tokens };
    messages.push({ role: "assistant", content: content === "" ? null : content, tool_calls: calls });
    for (const { id, function: called } of calls) {
      toolCalls += 1;
      const result = await client.callTool({
        name: called.name,
        arguments: JSON.parse(called.arguments) as { [name: string]: unknown },
      });
      const text = result.content.map((part) => (part.type === "text" ? part.text : "")).join("\n");
      messages.push({ role: "tool", tool_call_id: id, content: text });
    }
  }
  throw new Error(`a loop was not done after ${TURNS_MAX} turns`);
}

async function turn(url: string, body: object): Promise<{ content: string; calls: Call[]; usage: Usage }> {
  const answer = await fetch(url, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  if (!answer.ok || answer.body === null) throw new Error(`${url} answered ${answer.status}: ${await answer.text()}`);
  let content = "";
  let usage: Usage | undefined;
  const calls: Call[] = [];
  let rest = "";
  for await (const text of answer.body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + text).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) {
      if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
      const chunk = JSON.parse(line.slice(6)) as Chunk;
      usage = chunk.usage ?? usage;
      const delta = chunk.choices?.[0]?.delta;
      content += delta?.content ?? "";
      for (const part of delta?.tool_calls ?? []) {
        const call = (calls[part.index] ??= { id: "", type: "function", function: { name: "", arguments: "" } });
        call.id += part.id ?? "";
        call.function.name += part.function?.name ?? "";
        call.function.arguments += part.function?.arguments ?? "";
      }
    }
  }
  if (usage === undefined) throw new Error(`${url}: the stream ended without usage`);
  return { content, calls, usage };
}
