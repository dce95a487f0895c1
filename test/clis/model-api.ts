/** The scripted model behind the three APIs that the agents speak: Anthropic messages, OpenAI responses, Gemini. */
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { nextStep, type Conversation, type Result, type Step } from "./model.ts";

export type ModelApi = {
  readonly url: string;
  /** Method, path, and number of offered tools of each request, for a look at what an agent did. */
  readonly requests: readonly string[];
  close(): Promise<void>;
};

type Body = { readonly [name: string]: unknown };
type Api = {
  conversationOf(body: Body): Conversation;
  answer(response: ServerResponse, step: Step, body: Body): void;
};

export async function startModelApi(): Promise<ModelApi> {
  const requests: string[] = [];
  const server = createServer((request, response) => {
    void serve(request, response, requests);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    requests,
    async close() {
      server.closeAllConnections();
      server.close();
      await once(server, "close");
    },
  };
}

async function serve(request: IncomingMessage, response: ServerResponse, requests: string[]): Promise<void> {
  const parts: Buffer[] = [];
  for await (const part of request) parts.push(part as Buffer);
  const { pathname } = new URL(request.url ?? "/", "http://localhost");
  const api = Object.entries(APIS).find(([suffix]) => pathname.endsWith(suffix))?.[1];
  const body = parse(Buffer.concat(parts).toString("utf8"));
  if (request.method !== "POST" || api === undefined) {
    requests.push(`${request.method} ${pathname}: 404`);
    response.writeHead(404, { "content-type": "application/json" }).end('{"error":{"message":"not found"}}');
    return;
  }
  const conversation = api.conversationOf(body);
  // Titles, topics and the like: asked without tools.
  const step: Step = conversation.tools.length === 0 ? { kind: "text", text: "fine" } : nextStep(conversation);
  const what = step.kind === "call" ? `calls ${step.tool}` : step.text;
  requests.push(
    `POST ${pathname}: ${conversation.tools.length} tools, ${conversation.results.length} results: ${what}`,
  );
  api.answer(response, step, body);
}

function parse(text: string): Body {
  try {
    return JSON.parse(text) as Body;
  } catch {
    return {};
  }
}

function sse(response: ServerResponse, events: readonly object[], named: boolean): void {
  response.writeHead(200, { "content-type": "text/event-stream" });
  for (const event of events) {
    const name = named && "type" in event ? `event: ${String(event.type)}\n` : "";
    response.write(`${name}data: ${JSON.stringify(event)}\n\n`);
  }
  response.end();
}

let calls = 0;
const newId = (prefix: string): string => `${prefix}_${(calls += 1)}`;

const USAGE = { input_tokens: 10, output_tokens: 5 };

type AnthropicBlock = {
  readonly type: string;
  readonly id?: string;
  readonly name?: string;
  readonly tool_use_id?: string;
  readonly content?: unknown;
  readonly text?: string;
};

const anthropic: Api = {
  conversationOf(body) {
    const names = new Map<string, string>();
    const results: Result[] = [];
    for (const { content } of list<{ content: unknown }>(body["messages"])) {
      for (const block of list<AnthropicBlock>(content)) {
        if (block.type === "tool_use") names.set(block.id ?? "", block.name ?? "");
        if (block.type === "tool_result") {
          results.push({ tool: names.get(block.tool_use_id ?? "") ?? "", text: textOf(block.content) });
        }
      }
    }
    return { tools: list<{ name?: string }>(body["tools"]).flatMap(({ name }) => name ?? []), results };
  },
  answer(response, step, body) {
    const block =
      step.kind === "text"
        ? { type: "text", text: "" }
        : { type: "tool_use", id: newId("toolu"), name: step.tool, input: {} };
    const delta =
      step.kind === "text"
        ? { type: "text_delta", text: step.text }
        : { type: "input_json_delta", partial_json: JSON.stringify(step.input) };
    const stop = step.kind === "text" ? "end_turn" : "tool_use";
    const message = { id: newId("msg"), type: "message", role: "assistant", model: body["model"], usage: USAGE };
    if (body["stream"] !== true) {
      const whole = step.kind === "text" ? { type: "text", text: step.text } : { ...block, input: step.input };
      response.writeHead(200, { "content-type": "application/json" });
      response.end(JSON.stringify({ ...message, content: [whole], stop_reason: stop, stop_sequence: null }));
      return;
    }
    const events = [
      { type: "message_start", message: { ...message, content: [], stop_reason: null, stop_sequence: null } },
      { type: "content_block_start", index: 0, content_block: block },
      { type: "content_block_delta", index: 0, delta },
      { type: "content_block_stop", index: 0 },
      { type: "message_delta", delta: { stop_reason: stop, stop_sequence: null }, usage: { output_tokens: 5 } },
      { type: "message_stop" },
    ];
    sse(response, events, true);
  },
};

type ResponsesItem = {
  readonly type?: string;
  readonly call_id?: string;
  readonly name?: string;
  readonly namespace?: string;
  readonly output?: unknown;
};
type ResponsesTool = {
  readonly type: string;
  readonly name?: string;
  readonly tools?: readonly { readonly name: string }[];
};

/** Between a namespace and its tool; no name has it. */
const IN = "/";

const responses: Api = {
  conversationOf(body) {
    const names = new Map<string, string>();
    const results: Result[] = [];
    for (const item of list<ResponsesItem>(body["input"])) {
      if (item.type === "function_call") names.set(item.call_id ?? "", item.name ?? "");
      if (item.type === "function_call_output") {
        results.push({ tool: names.get(item.call_id ?? "") ?? "", text: textOf(item.output) });
      }
    }
    const tools = list<ResponsesTool>(body["tools"]).flatMap((tool) =>
      tool.type === "namespace" ? (tool.tools ?? []).map(({ name }) => `${tool.name}${IN}_${name}`) : (tool.name ?? []),
    );
    return { tools, results };
  },
  answer(response, step, body) {
    const id = newId("resp");
    const item = step.kind === "text" ? messageItem(step.text) : callItem(step);
    const whole = { id, object: "response", model: body["model"], status: "completed", output: [item] };
    const usage = { ...USAGE, total_tokens: 15, input_tokens_details: { cached_tokens: 0 } };
    const events = [
      { type: "response.created", response: { ...whole, status: "in_progress", output: [] } },
      { type: "response.output_item.added", output_index: 0, item },
      { type: "response.output_item.done", output_index: 0, item },
      { type: "response.completed", response: { ...whole, usage } },
    ];
    sse(response, events, true);
  },
};

function messageItem(text: string): object {
  const content = [{ type: "output_text", text, annotations: [] }];
  return { type: "message", id: newId("msg"), role: "assistant", status: "completed", content };
}

function callItem(step: Step & { readonly kind: "call" }): object {
  const [namespace, name] = step.tool.includes(`${IN}_`) ? step.tool.split(`${IN}_`) : [undefined, step.tool];
  const [id, call] = [newId("fc"), newId("call")];
  return { type: "function_call", id, call_id: call, name, namespace, arguments: JSON.stringify(step.input) };
}

type GeminiPart = { readonly functionResponse?: { readonly name: string; readonly response: unknown } };

const gemini: Api = {
  conversationOf(body) {
    const results = list<{ parts?: unknown }>(body["contents"]).flatMap(({ parts }) =>
      list<GeminiPart>(parts).flatMap(({ functionResponse }) =>
        functionResponse === undefined
          ? []
          : [{ tool: functionResponse.name, text: geminiText(functionResponse.response) }],
      ),
    );
    const tools = list<{ functionDeclarations?: unknown }>(body["tools"]).flatMap(({ functionDeclarations }) =>
      list<{ name: string }>(functionDeclarations).map(({ name }) => name),
    );
    return { tools, results };
  },
  answer(response, step) {
    const part =
      step.kind === "text"
        ? { text: step.text }
        : { functionCall: { id: newId("call"), name: step.tool, args: step.input } };
    const candidates = [{ index: 0, content: { role: "model", parts: [part] }, finishReason: "STOP" }];
    const usageMetadata = { promptTokenCount: 10, candidatesTokenCount: 5, totalTokenCount: 15 };
    sse(response, [{ candidates, usageMetadata, modelVersion: "scripted" }], false);
  },
};

/** What a tool said, out of whatever the agent wraps it in. */
function geminiText(response: unknown): string {
  const { output, error } = (response ?? {}) as { readonly output?: unknown; readonly error?: unknown };
  return textOf(output ?? error ?? response);
}

const APIS: { readonly [suffix: string]: Api } = {
  "/messages": anthropic,
  "/responses": responses,
  ":streamGenerateContent": gemini,
};

function list<Item>(value: unknown): readonly Item[] {
  return Array.isArray(value) ? (value as Item[]) : [];
}

function textOf(content: unknown): string {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return JSON.stringify(content ?? "");
  return content.map((part: { readonly text?: string }) => part.text ?? "").join("\n");
}
