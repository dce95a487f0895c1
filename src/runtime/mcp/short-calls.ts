/** The tools that answer at once, and `decide`, which waits for one turn. */
import type { CallToolResult } from "@modelcontextprotocol/server";
import type { ApprovalAnswer, RunService, SpawnSpec } from "../run-service.ts";
import type { Arguments } from "./arguments.ts";
import { StoreError } from "../store/port.ts";
import type { FaceDeps } from "./deps.ts";
import type { Client } from "./requester.ts";
import { answered, failed, statusOf } from "./results.ts";

export type ShortCall = {
  readonly deps: FaceDeps;
  readonly client: Client;
  readonly given: Arguments;
  readonly signal: AbortSignal;
};

const RUNS_ON_A_PAGE = 50;

export async function spawn({ deps, client, given }: ShortCall): Promise<CallToolResult> {
  const specs = specsOf(given);
  if (typeof specs === "string") return failed(specs);
  const spawned = await deps.service.spawn(client.who, specs);
  if (spawned.kind === "refused") return failed(spawned.message);
  const { handles, models } = spawned;
  return answered({
    handles,
    handle: handles.length === 1 ? handles[0] : undefined,
    model: [...new Set(models)].join(", "),
    next: "await with these handles",
  });
}

/** One spec per task; an entry's own arguments override the common ones. A text says what is wrong. */
function specsOf(given: Arguments): readonly SpawnSpec[] | string {
  const { task, tasks, ...common } = given as Arguments & {
    readonly task?: string;
    readonly tasks?: readonly (string | SpawnSpec)[];
  };
  if ((task === undefined) === (tasks === undefined)) {
    return "spawn takes exactly one of `task` (a text) and `tasks` (a list of texts or objects with their own `task`)";
  }
  if (tasks === undefined) return [given as SpawnSpec];
  return tasks.map((entry) => ({ ...common, ...(typeof entry === "string" ? { task: entry } : entry) }));
}

export async function status({ deps, client, given }: ShortCall): Promise<CallToolResult> {
  const { handle, mine, limit, cursor } = given as {
    readonly handle?: string;
    readonly mine?: boolean;
    readonly limit?: number;
    readonly cursor?: string;
  };
  const { service } = deps;
  if (handle !== undefined) {
    const run = await service.view(client.who, handle);
    if (run === undefined) return failed(`unknown handle ${handle}; status without a handle lists your runs`);
    return answered({ runs: [statusOf(run)] });
  }
  const page = { mine: mine ?? false, limit: limit ?? RUNS_ON_A_PAGE, cursor };
  const found = await service.list(client.who, page).catch((error: unknown) => {
    if (error instanceof StoreError && error.code === "bad-cursor") return error;
    throw error;
  });
  if (found instanceof StoreError) return failed(`cursor: ${found.message}`);
  return answered({ runs: found.runs.map(statusOf), cursor: found.cursor });
}

export async function cancel({ deps, client, given }: ShortCall): Promise<CallToolResult> {
  const outcome = await deps.service.cancel(client.who, given["handle"] as string);
  return "kind" in outcome ? failed(outcome.message) : answered(outcome);
}

export async function approve({ deps, client, given }: ShortCall): Promise<CallToolResult> {
  const answer = { ...(given as Omit<ApprovalAnswer, "channel">), channel: "tool" as const };
  const decided = await deps.service.approve(client.who, answer);
  if (decided.kind === "refused") return failed(decided.message);
  const { kind: _kind, ...shown } = decided;
  return answered(shown);
}

export function tools({ deps }: ShortCall): CallToolResult {
  return answered({
    tools: deps.service.tools().map(({ inputSchema: _schema, effect: _effect, onCrash: _onCrash, asks, ...shown }) => {
      return { ...shown, asks: asks !== undefined };
    }),
  });
}

export async function decide({ deps, client, given, signal }: ShortCall): Promise<CallToolResult> {
  const question = given as Parameters<RunService["decide"]>[1];
  const answer = await deps.service.decide(client.who, question, signal);
  if (answer.kind === "refused") return failed(answer.message);
  const { kind: _kind, ...shown } = answer;
  return answered(shown);
}
