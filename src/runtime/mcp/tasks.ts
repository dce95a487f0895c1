/**
 * MCP Tasks (`io.modelcontextprotocol/tasks`, 2026-07-28): a client polls a run under the name of a task. A task is a row of
 * its run in the journal, so it goes on after a restart.
 */
import { inputResponse, ProtocolError, type ServerContext } from "@modelcontextprotocol/server";
import type { TaskView } from "../run-service.ts";
import type { FaceDeps } from "./deps.ts";
import { TASKS_EXTENSION, type Client } from "./requester.ts";
import { answered, endedBadly, resultOf, type Structured } from "./results.ts";
import { formOf, verdictOf } from "./waiting.ts";

const INVALID_PARAMS = -32602;
const INTERNAL_ERROR = -32603;
const MISSING_CAPABILITY = -32021;
const POLL_INTERVAL_MS = 1_000;
/** Questions whose first showing is remembered. */
const SHOWN_MAX = 10_000;

export class Tasks {
  readonly #deps: FaceDeps;
  /** When a question was first shown, by approval: an answer sooner after it than a person can give is none. */
  readonly #shownAtMs = new Map<string, number>();

  constructor(deps: FaceDeps) {
    this.#deps = deps;
  }

  /** The answer to a `run` that became a task. */
  created(task: TaskView): Structured {
    return { resultType: "task", ...this.#seedOf(task) };
  }

  async get(client: Client, id: string): Promise<Structured> {
    const task = await this.#find(client, id);
    const { run } = task;
    const seed = { resultType: "complete", ...this.#seedOf(task) };
    if (run.damage !== undefined) {
      // An error of the server's, and not what the sub-agent came to.
      return { ...seed, status: "failed", error: { code: INTERNAL_ERROR, message: run.error ?? run.damage } };
    }
    switch (run.state) {
      case "AwaitingApproval": {
        const inputRequests = Object.fromEntries(
          run.pendingApprovals.map((approval) => {
            this.#noteShown(approval.id);
            return [approval.id, { method: "elicitation/create", params: formOf(approval, run.handle) }];
          }),
        );
        return { ...seed, inputRequests };
      }
      case "Completed":
      case "Failed":
        return { ...seed, result: { resultType: "complete", ...answered(resultOf(run), endedBadly(run)) } };
      default:
        return seed;
    }
  }

  /** Answers to questions; unknown and answered ones are left alone. */
  async update(client: Client, id: string, responses: ServerContext["mcpReq"]["inputResponses"]): Promise<void> {
    const { service, wallMs, humanMinMs } = this.#deps;
    const { run } = await this.#find(client, id);
    for (const approval of run.pendingApprovals) {
      const tookMs = wallMs() - (this.#shownAtMs.get(approval.id) ?? Date.parse(approval.askedAt));
      const answer = inputResponse(responses, approval.id);
      if (answer.kind === "missing") continue;
      // A question that nobody saw is asked once more, and its time begins again.
      this.#shownAtMs.delete(approval.id);
      const allow = verdictOf(answer, tookMs, humanMinMs);
      if (allow === undefined) continue;
      await service.approve(client.who, { handle: run.handle, id: approval.id, allow, channel: "task" });
    }
  }

  async cancel(client: Client, id: string): Promise<void> {
    const { run } = await this.#find(client, id);
    await this.#deps.service.cancel(client.who, run.handle);
  }

  async #find(client: Client, id: string): Promise<TaskView> {
    if (!client.tasks) {
      throw new ProtocolError(MISSING_CAPABILITY, `this needs the client capability ${TASKS_EXTENSION}`, {
        requiredCapabilities: { extensions: { [TASKS_EXTENSION]: {} } },
      });
    }
    const task = await this.#deps.service.task(client.who, id);
    if (task === undefined) throw new ProtocolError(INVALID_PARAMS, `unknown task ${id}, or its run was deleted`);
    return task;
  }

  #seedOf({ id, createdAtMs, updatedAtMs, run }: TaskView): Structured {
    return {
      taskId: id,
      status: STATUS[run.state],
      statusMessage: run.error ?? `run ${run.handle}: ${run.detail ?? run.reason ?? run.state}`,
      createdAt: new Date(createdAtMs).toISOString(),
      lastUpdatedAt: new Date(updatedAtMs).toISOString(),
      ttlMs: this.#deps.keepFinishedMs,
      pollIntervalMs: POLL_INTERVAL_MS,
    };
  }

  #noteShown(approval: string): void {
    if (this.#shownAtMs.has(approval)) return;
    this.#shownAtMs.set(approval, this.#deps.wallMs());
    if (this.#shownAtMs.size <= SHOWN_MAX) return;
    for (const oldest of this.#shownAtMs.keys()) {
      this.#shownAtMs.delete(oldest);
      break;
    }
  }
}

const STATUS: { readonly [State in TaskView["run"]["state"]]: string } = {
  Running: "working",
  AwaitingApproval: "input_required",
  Completed: "completed",
  Failed: "completed",
  Cancelled: "cancelled",
};
