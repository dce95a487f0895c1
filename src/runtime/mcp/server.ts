/** One MCP server for a session, or for one request without a session: lists the tools, and gives calls to them. */
import {
  ProtocolError,
  Server,
  type CallToolResult,
  type RequestStateCodec,
  type ServerContext,
} from "@modelcontextprotocol/server";
import * as z from "zod/v4";
import { readArguments, type Arguments } from "./arguments.ts";
import type { FaceDeps } from "./deps.ts";
import { awaitRuns, run, spawnedHandle, type LongCall } from "./long-calls.ts";
import { clientOf, TASKS_EXTENSION, type Client, type SessionClient } from "./requester.ts";
import { failed, type Structured } from "./results.ts";
import { approve, cancel, decide, spawn, status, tools, type ShortCall } from "./short-calls.ts";
import type { Tasks } from "./tasks.ts";
import { FACE_TOOLS, faceTool, type ToolName } from "./tool-list.ts";
import type { Wait } from "./waiting.ts";
import type { WaitingCalls } from "./waiting-calls.ts";

export type ServerDeps = FaceDeps & {
  readonly version: string;
  readonly tasks: Tasks;
  readonly waiting: WaitingCalls;
  readonly requestState: RequestStateCodec<Wait>;
};

/** Tools whose calls may take long: their answers begin at once, as a stream. */
export const LONG_TOOLS: ReadonlySet<string> = new Set<ToolName>(["await", "run", "decide"]);

const INVALID_PARAMS = -32602;
const LIST_TTL_MS = 300_000;

const INSTRUCTIONS =
  "luftpause runs sub-agents that survive restarts. For several tasks: `spawn` once with `tasks`, then `await` once with all handles; repeat `await` while it says done: false. For one task: `run`. `status` without a handle finds your runs again.";

/** @param session what the client said when its session began; undefined for one request without a session. */
export function buildServer(deps: ServerDeps, session: (() => SessionClient) | undefined): Server {
  const modern = session === undefined;
  const { requestState } = deps;
  const server = new Server(
    { name: "luftpause", title: "luftpause", version: deps.version },
    {
      capabilities: { tools: {}, ...(modern ? { extensions: { [TASKS_EXTENSION]: {} } } : {}) },
      instructions: INSTRUCTIONS,
      cacheHints: {
        "tools/list": { ttlMs: LIST_TTL_MS, cacheScope: "public" },
        "server/discover": { ttlMs: LIST_TTL_MS, cacheScope: "public" },
      },
      requestState: { verify: (state, context) => requestState.verify(state, context) },
      // Questions in a session are put by the calls themselves: they know when one was answered elsewhere.
      inputRequired: { legacyShim: false },
    },
  );
  server.setRequestHandler("tools/list", () => ({
    tools: [...FACE_TOOLS, ...(deps.extraTools?.list ?? [])] as never,
  }));
  server.setRequestHandler("tools/call", async (request, context) => {
    const said = session?.();
    const { id, signal } = context.mcpReq;
    signal.addEventListener("abort", () => said?.endStream(id), { once: true });
    const client = clientOf(context, said);
    return (await callTool(deps, request.params, context, client, modern)) as CallToolResult;
  });
  if (modern) handleTasks(server, deps.tasks);
  return server;
}

async function callTool(
  deps: ServerDeps,
  params: { readonly name: string; readonly arguments?: unknown },
  context: ServerContext,
  client: Client,
  modern: boolean,
): Promise<unknown> {
  const { name } = params;
  const { extraTools } = deps;
  if (extraTools?.list.some((tool) => tool.name === name) === true) {
    const given = (params.arguments ?? {}) as Arguments;
    const { mint } = longCall(deps, given, context, client, modern);
    const extra = await extraTools.call({ name, arguments: given, context, client, mint });
    return "run" in extra ? answerRun(deps, longCall(deps, extra.run, context, client, modern)) : extra.result;
  }
  const tool = faceTool(name);
  if (tool === undefined) {
    const known = FACE_TOOLS.map((one) => one.name).join(", ");
    throw new ProtocolError(INVALID_PARAMS, `unknown tool ${name.slice(0, 100)}; there are ${known}`);
  }
  const read = readArguments(tool, params.arguments);
  if (!read.ok) return failed(read.message);
  const given: Arguments = read.value;
  const long = longCall(deps, given, context, client, modern);
  const short: ShortCall = { deps, client, given, signal: long.signal };
  switch (tool.name) {
    case "spawn":
      return spawn(short);
    case "status":
      return status(short);
    case "cancel":
      return cancel(short);
    case "approve":
      return approve(short);
    case "tools":
      return tools(short);
    case "decide":
      return deps.waiting.count(() => decide(short));
    case "await":
      return deps.waiting.count(() => awaitRuns(long));
    case "run":
      return answerRun(deps, long);
  }
}

function longCall(
  deps: ServerDeps,
  given: Arguments,
  context: ServerContext,
  client: Client,
  modern: boolean,
): LongCall {
  // A client that is gone ends the waiting in either era; the SDK tells it by the call's own signal in the new one only.
  const gone = context.http?.req?.signal;
  const { signal: cancelled } = context.mcpReq;
  const signal = gone === undefined ? cancelled : AbortSignal.any([cancelled, gone]);
  const mint = modern ? (wait: Wait) => deps.requestState.mint(wait, context) : undefined;
  return { deps, client, given, context, signal, mint };
}

function answerRun(deps: ServerDeps, call: LongCall): Promise<unknown> {
  const again = call.context.mcpReq.requestState() !== undefined;
  return call.client.tasks && !again ? runAsTask(deps, call) : deps.waiting.count(() => run(call));
}

async function runAsTask(deps: ServerDeps, call: LongCall): Promise<Structured | CallToolResult> {
  const handle = await spawnedHandle(call);
  if (typeof handle !== "string") return handle;
  const task = await deps.service.createTask(call.client.who, handle);
  return "kind" in task ? failed(task.message) : deps.tasks.created(task);
}

function handleTasks(server: Server, tasks: Tasks): void {
  const shapes = { params: z.looseObject({ taskId: z.string() }), result: z.looseObject({}) };
  server.setRequestHandler("tasks/get", shapes, async ({ taskId }, context) => {
    return { ...(await tasks.get(clientOf(context, undefined), taskId)) };
  });
  server.setRequestHandler("tasks/update", shapes, async ({ taskId }, context) => {
    await tasks.update(clientOf(context, undefined), taskId, context.mcpReq.inputResponses);
    return {};
  });
  server.setRequestHandler("tasks/cancel", shapes, async ({ taskId }, context) => {
    await tasks.cancel(clientOf(context, undefined), taskId);
    return {};
  });
}
