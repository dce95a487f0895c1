/** The MCP server of the simulated tools, for a session of the old eras or for requests of the new one. */
import { randomUUID } from "node:crypto";
import {
  CLIENT_CAPABILITIES_META_KEY,
  inputRequired,
  inputResponse,
  ProtocolError,
  Server,
  type CallToolResult,
  type ServerContext,
} from "@modelcontextprotocol/server";
import * as z from "zod/v4";
import { strikes } from "./faults.ts";
import { Ledger } from "./ledger.ts";
import type { ResolvedToolsOptions } from "./options.ts";
import { FAKE_TOOLS, listedTools, type FakeTool, type ToolResult } from "./tools.ts";

type Arguments = { readonly [name: string]: unknown };

const TASKS = "io.modelcontextprotocol/tasks";
const IDEMPOTENCY_KEY_META = "io.luftpause/idempotency-key";
const INVALID_PARAMS = -32_602;
const INTERNAL_ERROR = -32_603;
const TASK_TTL_MS = 600_000;
const TASKS_MAX = 1_000;
const CHATTER_BYTES = 1_000_000;

type FakeTask = {
  readonly seed: { readonly [field: string]: unknown };
  status: "working" | "completed" | "cancelled";
  result: object | undefined;
  readonly cancel: () => void;
};

/** What all servers of a process share. */
export class FakeToolsHost {
  readonly options: ResolvedToolsOptions;
  readonly #ledger: Ledger;
  readonly #tasks = new Map<string, FakeTask>();
  /** `slow-start`, `mute`: nothing is answered before this. */
  readonly awake: Promise<void>;

  constructor(options: ResolvedToolsOptions) {
    this.options = options;
    this.#ledger = new Ledger(options.ledger);
    const { faults } = options;
    const slowMs = faults.get("slow-start");
    this.awake = new Promise((resolve) => {
      if (faults.has("mute")) return;
      if (typeof slowMs === "number") setTimeout(resolve, slowMs);
      else resolve();
    });
  }

  build(era: "legacy" | "modern"): Server {
    const server = new Server(
      { name: "luftpause-fake-tools", version: "1" },
      { capabilities: { tools: {}, ...(era === "modern" ? { extensions: { [TASKS]: {} } } : {}) } },
    );
    server.setRequestHandler("tools/list", () => ({ tools: listedTools(this.options) as never }));
    server.setRequestHandler("tools/call", async (request, context) => {
      const { name } = request.params;
      const given = request.params.arguments ?? {};
      const tool = Object.hasOwn(FAKE_TOOLS, name) ? FAKE_TOOLS[name] : undefined;
      if (tool === undefined) throw new ProtocolError(INVALID_PARAMS, `unknown tool ${name}`);
      if (tool.manner === "ask" && !isAllowed(context)) return askFirst(given);
      this.#note(name, given, context);
      if (era === "modern" && tool.manner === "task" && takesTasks(context)) {
        return this.#beginTask(tool, given) as CallToolResult;
      }
      return (await this.#call(name, tool, given, context)) as CallToolResult;
    });
    if (era === "modern") this.#serveTasks(server);
    return server;
  }

  #note(tool: string, given: Arguments, { mcpReq }: ServerContext): void {
    const key: unknown = mcpReq._meta?.[IDEMPOTENCY_KEY_META];
    const known = typeof key === "string" ? key : undefined;
    const { faults } = this.options;
    const crashes = strikes(faults, "crash", tool);
    const crashesFirst = strikes(faults, "crash-first", tool) && !this.#ledger.has(known);
    this.#ledger.add({ tool, arguments: given, key: known });
    if (crashes || crashesFirst) process.kill(process.pid, "SIGKILL");
  }

  async #call(name: string, tool: FakeTool, given: Arguments, { mcpReq }: ServerContext): Promise<ToolResult> {
    const { options } = this;
    if (strikes(options.faults, "hang", name)) await new Promise<never>(() => undefined);
    const result = await tool.run({ arguments: given, options, signal: mcpReq.signal });
    if (options.faults.has("chatter")) process.stderr.write(`${"chatter ".repeat(CHATTER_BYTES / 8)}\n`);
    return result;
  }

  #beginTask(tool: FakeTool, given: Arguments): object {
    if (this.#tasks.size >= TASKS_MAX) throw new ProtocolError(INTERNAL_ERROR, `${TASKS_MAX} tasks are kept already`);
    const id = randomUUID();
    const now = new Date().toISOString();
    const stop = new AbortController();
    const seed = { taskId: id, createdAt: now, lastUpdatedAt: now, ttlMs: TASK_TTL_MS, pollIntervalMs: 200 };
    const task: FakeTask = { seed, status: "working", result: undefined, cancel: () => stop.abort() };
    this.#tasks.set(id, task);
    setTimeout(() => this.#tasks.delete(id), TASK_TTL_MS).unref();
    const end = (result: ToolResult): void => {
      task.status = stop.signal.aborted ? "cancelled" : "completed";
      if (task.status === "completed") task.result = { resultType: "complete", ...result };
    };
    Promise.resolve(tool.run({ arguments: given, options: this.options, signal: stop.signal })).then(
      end,
      (error: unknown) => end({ content: [{ type: "text", text: String(error) }], isError: true }),
    );
    return { resultType: "task", status: "working", ...seed };
  }

  #serveTasks(server: Server): void {
    const schema = { params: z.looseObject({ taskId: z.string() }), result: z.looseObject({}) };
    const find = (id: string): FakeTask => {
      const task = this.#tasks.get(id);
      if (task === undefined) throw new ProtocolError(INVALID_PARAMS, `unknown task ${id}`);
      return task;
    };
    server.setRequestHandler("tasks/get", schema, ({ taskId }) => {
      const { seed, status, result } = find(taskId);
      return { resultType: "complete", ...seed, status, ...(result === undefined ? {} : { result }) };
    });
    server.setRequestHandler("tasks/cancel", schema, ({ taskId }) => {
      find(taskId).cancel();
      return { resultType: "complete" };
    });
  }
}

function takesTasks({ mcpReq }: ServerContext): boolean {
  const envelope = mcpReq.envelope as { readonly [key: string]: unknown } | undefined;
  const capabilities = envelope?.[CLIENT_CAPABILITIES_META_KEY] as
    | { readonly extensions?: { readonly [name: string]: unknown } }
    | undefined;
  return capabilities?.extensions?.[TASKS] !== undefined;
}

function isAllowed({ mcpReq }: ServerContext): boolean {
  const answer = inputResponse(mcpReq.inputResponses, "allow");
  return answer.kind === "elicit" && answer.action === "accept" && answer.content?.["allow"] === true;
}

/** Works in both eras: in a session the SDK puts the question and calls again. */
function askFirst({ question }: Arguments) {
  const message = typeof question === "string" ? question : "Go on?";
  const requestedSchema = { type: "object" as const, properties: { allow: { type: "boolean" as const } } };
  return inputRequired({ inputRequests: { allow: inputRequired.elicit({ message, requestedSchema }) } });
}
