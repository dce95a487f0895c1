/**
 * What the faces of the runtime (MCP, status page, command line) call. Every call is of one principal, and reaches its own
 * runs only: another one's handle is unknown. Arguments are typed here; a face coerces and checks what clients send.
 */
import type { ApprovalScope, Resolution, Sums } from "../runs/index.ts";
import type { ApprovalView, RunView } from "./run-view.ts";
import type { OfferedTool } from "./tool-servers/port.ts";

export type { ApprovalView, BudgetView, RunDetail, RunView } from "./run-view.ts";

/** Who calls. */
export type Requester = {
  readonly principal: string;
  /** The unit of fairness inside the principal; the empty string is the anonymous one. */
  readonly caller: string;
  /** MCP session, where there is one. */
  readonly session?: string | undefined;
};

/** One sub-agent to spawn; what is left out has the default of spec 4. */
export type SpawnSpec = {
  readonly task: string;
  readonly model?: string | undefined;
  readonly serviceClass?: "interactive" | "batch" | undefined;
  readonly system?: string | undefined;
  readonly maxToolCalls?: number | undefined;
  readonly tools?: readonly string[] | undefined;
  readonly maxTokens?: number | undefined;
  readonly parallelToolCalls?: boolean | undefined;
  readonly parent?: string | undefined;
  readonly budgetTokens?: number | undefined;
  readonly budgetToolCalls?: number | undefined;
  readonly budgetSeconds?: number | undefined;
  readonly approveTools?: readonly string[] | undefined;
  readonly idempotencyKey?: string | undefined;
};

/** Something that the caller has to change, or wait for: the text says which. */
export type ServiceRefusal = { readonly kind: "refused"; readonly message: string };

export type Spawned = {
  readonly kind: "spawned";
  /** In the order of the specs. */
  readonly handles: readonly string[];
  /** Of each handle. */
  readonly models: readonly string[];
};

/** What `await` shows of one handle. */
export type AwaitEntry = RunView | { readonly handle: string; readonly error: "unknown handle" };

/** A run in a list: what is known without its journal. */
export type RunSummary = Omit<RunView, "task" | "answer" | "partial" | "error" | "serviceClass">;

export type Awaited = { readonly done: boolean; readonly results: readonly AwaitEntry[] };

export type Decided = {
  readonly kind: "decided";
  readonly handle: string;
  readonly id: string;
  /** `server/tool`. */
  readonly tool: string;
  readonly allow: boolean;
  readonly scope: ApprovalScope;
  readonly resolution?: Resolution | undefined;
  /** The time was over before the answer: the call was refused. */
  readonly expired?: boolean | undefined;
};

export type ApprovalAnswer = {
  readonly handle: string;
  readonly allow: boolean;
  /** Without it, the only pending approval. */
  readonly id?: string | undefined;
  readonly scope?: ApprovalScope | undefined;
  readonly resolution?: Resolution | undefined;
  readonly result?: string | undefined;
  readonly channel: "elicitation" | "tool" | "http" | "task";
};

export type DecideQuestion = {
  readonly input: string;
  readonly labels?: readonly string[] | undefined;
  readonly model?: string | undefined;
  readonly calibrate?: boolean | undefined;
};

export type DecideAnswer = {
  readonly kind: "answered";
  readonly label: string;
  readonly probabilities: { readonly [label: string]: number };
  readonly unscored: readonly string[];
};

/** The handle under which a client polls a run (MCP Tasks). */
export type TaskView = {
  readonly id: string;
  readonly createdAtMs: number;
  /** Of the run's last record, wall-clock milliseconds. */
  readonly updatedAtMs: number;
  readonly run: RunView;
};

/** A run in the tree of the status page. */
export type StatusNode = {
  readonly handle: string;
  readonly parent?: string | undefined;
  readonly state: string;
  readonly detail?: string | undefined;
  readonly reason?: string | undefined;
  readonly principal: string;
  readonly caller: string;
  readonly own: Sums;
  readonly subtree: Sums;
  readonly pendingApprovals: number;
  readonly children: readonly StatusNode[];
};

export type RunService = {
  /** All of the list are durable before the answer, or none is there. */
  spawn(who: Requester, specs: readonly SpawnSpec[]): Promise<Spawned | ServiceRefusal>;
  /**
   * As `spawn` of one, but an equal call of the same principal within 10 s gives the same run (lost answers). The caller
   * then waits by `awaitRuns`.
   */
  run(who: Requester, spec: SpawnSpec): Promise<Spawned | ServiceRefusal>;
  /** Waits until all, or any, have ended, the time is over, or the signal fires; the runs go on either way. */
  awaitRuns(
    who: Requester,
    wait: {
      readonly handles: readonly string[];
      readonly mode: "all" | "any";
      readonly timeoutMs: number;
      readonly signal?: AbortSignal | undefined;
      /** Ends the waiting too when one of the runs waits for a person. */
      readonly untilPending?: boolean | undefined;
    },
  ): Promise<Awaited>;
  /** One run; undefined when it is not the principal's. */
  view(who: Requester, handle: string): Promise<RunView | undefined>;
  /** The principal's runs, newest first. */
  list(
    who: Requester,
    page: { readonly mine: boolean; readonly limit: number; readonly cursor?: string | undefined },
  ): Promise<{ readonly runs: readonly RunSummary[]; readonly cursor?: string | undefined }>;
  /** @returns how many runs it cancelled; 0 when the run had ended. */
  cancel(who: Requester, handle: string): Promise<{ readonly cancelled: number } | ServiceRefusal>;
  /** The decision that counts: the first one. */
  approve(who: Requester, answer: ApprovalAnswer): Promise<Decided | ServiceRefusal>;
  /** Open approvals of the principal, oldest first. */
  approvals(who: Requester): Promise<readonly (ApprovalView & { readonly handle: string })[]>;
  tools(): readonly OfferedTool[];
  /** The task of a run, durable before the answer; the one that it has, where it has one. */
  createTask(who: Requester, handle: string): Promise<TaskView | ServiceRefusal>;
  /** A task of the principal; undefined when there is none, or its run was deleted. */
  task(who: Requester, id: string): Promise<TaskView | undefined>;
  decide(who: Requester, question: DecideQuestion, signal?: AbortSignal): Promise<DecideAnswer | ServiceRefusal>;
  /** Calls `listener` when one of the runs has changed; the returned function ends that. */
  subscribe(handles: readonly string[], listener: (handle: string) => void): () => void;
  /** The trees that live in this process. @param principal undefined: of all. */
  tree(principal: string | undefined): readonly StatusNode[];
};
