/**
 * Vocabulary of the runs core: the records of a run's journal, the state that they fold to, and what the host has to do.
 *
 * Records are deltas. Everything in `RunState` comes from records, so a journal read again gives the same state; nothing
 * here has a clock, IO or randomness. Times are wall-clock milliseconds, because they must mean the same after a restart.
 */

export type JsonObject = { readonly [key: string]: unknown };

export const RECORD_VERSION = 1;

export type ServiceClass = "interactive" | "batch";
export type RunStateName = "Running" | "AwaitingApproval" | "Completed" | "Failed" | "Cancelled";
export type EndReason = "completed" | "max_tool_calls" | "failed" | "engine_unavailable" | "cancelled" | "budget";

/** What a second execution of a tool would do. An unknown effect is `unsafe`. */
export type Effect = "read-only" | "idempotent" | "unsafe";
/** What happens to an unsafe call without an outcome after a crash. */
export type OnCrash = "ask" | "rerun";

/** A tool that this run may call; the name under which the model knows it is fixed at the spawn, so the prefix stays. */
export type ToolRef = { readonly server: string; readonly tool: string; readonly function: string };

/** Bounds of a run's whole subtree; undefined: none. */
export type Limits = {
  readonly tokens?: number | undefined;
  readonly toolCalls?: number | undefined;
  readonly seconds?: number | undefined;
};

/** What a sub-agent is told and may do. */
export type Assignment = {
  readonly task: string;
  readonly system?: string | undefined;
  readonly model: string;
  readonly serviceClass: ServiceClass;
  readonly maxToolCalls: number;
  readonly tools: readonly ToolRef[];
  /** Bytes of the tools' schemas in a request; for estimates only. */
  readonly toolsBytes: number;
  /** Longest answer of one turn; 0: the engine's own. */
  readonly maxTokens: number;
  readonly parallelToolCalls: boolean;
  /** Names and patterns of tools that ask a person, besides those that the server's policy names. */
  readonly approveTools: readonly string[];
  readonly limits: Limits;
};

export type Usage = {
  readonly promptTokens: number;
  readonly completionTokens: number;
  readonly cachedTokens: number;
  /** The engine reported nothing: these are estimates. */
  readonly estimated?: boolean | undefined;
};

export type AskReason = "destructive" | "listed" | "policy" | "indeterminate";

/** What was found about a call before anything happens with it. */
export type Judgement =
  /** Never passed on; `text` is what the model sees. */
  | { readonly kind: "refused"; readonly text: string }
  | {
      readonly kind: "callable";
      readonly server: string;
      readonly tool: string;
      /** Coerced and validated: exactly what the tool gets. */
      readonly arguments: JsonObject;
      /** Of server, tool and these exact arguments. */
      readonly digest: string;
      readonly effect: Effect;
      readonly onCrash: OnCrash;
      /** Set: a person is asked first. */
      readonly asks?: Exclude<AskReason, "indeterminate"> | undefined;
    };

/** A call as the model made it, with the host's judgement. */
export type MadeCall = {
  /** The model's id of the call, as it has to come back in the tool result. */
  readonly id: string;
  readonly name: string;
  /** As it goes back to the engine: the model's own text where that is JSON. */
  readonly rawArguments: string;
  readonly judgement: Judgement;
};

/**
 * How a turn is asked.
 * - `tools`: with tools. `toolless`: the run has none.
 * - `last-none`, `last-auto`: no calls are left; told by `tool_choice`, or by a sentence in the last tool result.
 * - `extra`: once, after a call on the last turn; the tools are dropped.
 */
export type TurnMode = "tools" | "toolless" | "last-none" | "last-auto" | "extra";

export type TurnFailure =
  /** The engine broke off, or answered with a 5xx. */
  | "engine-lost"
  /** It answered with another error, or its attempt took too long. */
  | "engine-error"
  /** An error of luftpause's own that no repeat can mend. */
  | "refused";

export type ApprovalScope = "once" | "run" | "tree";
export type Resolution = "rerun" | "result" | "fail" | "cancel";

/** A person's answer, or one that follows from it. */
export type Decision = {
  readonly allow: boolean;
  readonly scope: ApprovalScope;
  readonly resolution?: Resolution | undefined;
  /** For the resolution `result`: what counts as the call's outcome. */
  readonly result?: string | undefined;
  /** Who answered, and through which channel. */
  readonly by: string;
  readonly channel: "elicitation" | "tool" | "http" | "task";
  /** The approval whose answer this one repeats: an equal pending call, or a scope that covers it. */
  readonly from?: string | undefined;
};

export type BudgetName = "tokens" | "toolCalls" | "seconds";
export type Exceeded = {
  /** The run whose budget it is. */
  readonly run: string;
  readonly name: BudgetName;
  readonly amount: number;
  readonly limit: number;
};

type RecordBody =
  | {
      readonly type: "spawned";
      readonly id: string;
      readonly parent?: string | undefined;
      readonly root: string;
      /** 1 at the top of a tree. */
      readonly depth: number;
      readonly principal: string;
      readonly caller: string;
      readonly session?: string | undefined;
      readonly assignment: Assignment;
    }
  | {
      readonly type: "turn-requested";
      /** From 1. */
      readonly turn: number;
      readonly mode: TurnMode;
      /** 0: the engine's own. */
      readonly maxTokens: number;
      /** Tokens that are set aside in every budget above; 0 where there is none. */
      readonly reserved: number;
      /** Sentences at the end of the last tool result. */
      readonly notes: readonly string[];
      /** Budgets of which these sentences tell that they run out: `<run> <name>`. */
      readonly warned: readonly string[];
    }
  | {
      readonly type: "turn-answered";
      readonly turn: number;
      readonly text: string;
      readonly calls: readonly MadeCall[];
      readonly usage: Usage;
      readonly finish: string;
      /** How calls were written that the engine gave as text. */
      readonly recovered?: string | undefined;
      readonly replica?: string | undefined;
      /** From the request to the engine's first byte, and to the end. */
      readonly heldMs: number;
      readonly tookMs: number;
    }
  /** One attempt that reached an engine and failed, or that no repeat can mend. */
  | { readonly type: "turn-failed"; readonly turn: number; readonly failure: TurnFailure; readonly message: string }
  | {
      readonly type: "call-intent";
      readonly turn: number;
      readonly index: number;
      /** From 1. */
      readonly attempt: number;
      readonly key: string;
      readonly digest: string;
      /** The approval that it consumes. */
      readonly approval?: string | undefined;
    }
  | {
      readonly type: "call-outcome";
      readonly turn: number;
      readonly index: number;
      readonly attempt: number;
      readonly ok: boolean;
      /** What the model sees. */
      readonly text: string;
      readonly tookMs: number;
    }
  | {
      readonly type: "approval-asked";
      readonly approval: string;
      readonly turn: number;
      readonly index: number;
      readonly reason: AskReason;
      readonly digest: string;
      readonly expiresAt: number;
    }
  | {
      readonly type: "approval-decided";
      readonly approval: string;
      readonly turn: number;
      readonly index: number;
      readonly digest: string;
      readonly decision: Decision;
    }
  | { readonly type: "approval-expired"; readonly approval: string }
  | { readonly type: "cancel-requested"; readonly by: string }
  /** Another process owns the run from here: calls that were under way have no outcome. */
  | { readonly type: "resumed" }
  | {
      readonly type: "ended";
      readonly state: "Completed" | "Failed" | "Cancelled";
      readonly reason: EndReason;
      readonly answer?: string | undefined;
      readonly partial?: string | undefined;
      readonly error?: string | undefined;
      readonly exceeded?: Exceeded | undefined;
    };

export type RunRecord = { readonly v: typeof RECORD_VERSION; readonly at: number } & RecordBody;
export type RecordOf<Type extends RunRecord["type"]> = Extract<RunRecord, { readonly type: Type }>;

export type Approval = {
  readonly id: string;
  readonly reason: AskReason;
  readonly digest: string;
  readonly askedAt: number;
  readonly expiresAt: number;
};

/** What is the matter with a call. */
export type CallPhase =
  /** It may start, or must ask first. `approval`: the answer that allows it. */
  | { readonly kind: "ready"; readonly approval?: string | undefined; readonly allowed: boolean }
  | { readonly kind: "asking"; readonly approval: Approval }
  | { readonly kind: "running"; readonly sinceMs: number }
  /** It had begun when the process died. */
  | { readonly kind: "indeterminate" }
  | { readonly kind: "done"; readonly ok: boolean; readonly text: string };

export type CallState = MadeCall & {
  readonly index: number;
  /** Attempts that were begun. */
  readonly attempt: number;
  readonly phase: CallPhase;
};

/** An answered turn and its calls. */
export type Round = {
  readonly turn: number;
  readonly mode: TurnMode;
  readonly text: string;
  readonly calls: readonly CallState[];
  readonly usage: Usage;
  /** Sentences at the end of the round's last tool result, set by the next turn. */
  readonly notes: readonly string[];
};

export type OpenTurn = {
  readonly turn: number;
  readonly mode: TurnMode;
  readonly maxTokens: number;
  readonly reserved: number;
  readonly requestedAtMs: number;
  /** Attempts that reached an engine and failed. */
  readonly failures: readonly { readonly failure: TurnFailure; readonly message: string; readonly atMs: number }[];
};

/** Figures of one run, or of a subtree. */
export type Sums = {
  readonly turns: number;
  readonly toolCalls: number;
  readonly failedToolCalls: number;
  /** Calls that were begun, each once: what `budgetToolCalls` counts. */
  readonly callsStarted: number;
  readonly promptTokens: number;
  readonly completionTokens: number;
  readonly cachedTokens: number;
  readonly turnMs: number;
  readonly toolMs: number;
};

/** An answer that covers later equal calls too. */
export type Grant = {
  readonly approval: string;
  readonly digest: string;
  readonly scope: "run" | "tree";
  readonly allow: boolean;
  readonly by: string;
  readonly channel: Decision["channel"];
  readonly expiresAt: number;
};

export type SettledApproval = Approval & {
  readonly tool: string;
  readonly decision: Decision | "expired";
  readonly decidedAt: number;
};

export type End = Omit<RecordOf<"ended">, "v" | "type">;

export type RunState = {
  readonly id: string;
  readonly parent: string | undefined;
  readonly root: string;
  readonly depth: number;
  readonly principal: string;
  readonly caller: string;
  readonly session: string | undefined;
  readonly assignment: Assignment;
  readonly spawnedAtMs: number;
  readonly rounds: readonly Round[];
  readonly turn: OpenTurn | undefined;
  readonly sums: Sums;
  /** Replica of the last answer: decides how the last turn is told. */
  readonly replica: string | undefined;
  readonly grants: readonly Grant[];
  readonly settled: readonly SettledApproval[];
  readonly cancelRequested: boolean;
  /** Budgets of which the model was told that they run out: `<run> <name>`. */
  readonly warned: readonly string[];
  readonly end: End | undefined;
};

/** What the host does for a run, as long as it is wanted; equal keys are one action. */
export type Action =
  | {
      readonly type: "ask-turn";
      readonly key: string;
      readonly run: string;
      readonly turn: OpenTurn;
      /** Not sooner: a growing pause after attempts that failed. */
      readonly notBeforeMs: number;
    }
  | {
      readonly type: "call-tool";
      readonly key: string;
      readonly run: string;
      readonly turn: number;
      readonly index: number;
      readonly attempt: number;
      readonly idempotencyKey: string;
      readonly call: Extract<Judgement, { readonly kind: "callable" }>;
    };

/** Numbers and knowledge that are not in the journal; what they decide is recorded. */
export type RunRules = {
  readonly approvalExpireMs: number;
  /** How the replica wants the last turn to be told. */
  readonly lastTurnOf: (replica: string | undefined) => "none" | "auto";
  /** What the model has said of an answer that is not whole yet. */
  readonly partialOf?: ((run: string) => string | undefined) | undefined;
};
