/**
 * What is done for a run: asking its turn, and calling a tool. Each begins from a durable record, and its result goes back
 * as a record; what is aborted leaves nothing.
 */
import type { Clock } from "../base/clock.ts";
import {
  carriesTools,
  conversation,
  estimateUsage,
  simplifiedSchema,
  type Action,
  type RunState,
  type ToolRef,
} from "../runs/index.ts";
import type { Log } from "../telemetry/index.ts";
import { digestOfCall, readAnswer } from "./read-answer.ts";
import type { HostedTree, RecordBody, Work } from "./hosted-tree.ts";
import type { ModelClient, TurnCall, TurnOutcome, TurnRequest } from "./model-client.ts";
import { toolOf } from "./tool-choice.ts";
import type { OfferedTool, ToolServers } from "./tool-servers/port.ts";

export type WorkDeps = {
  readonly model: ModelClient;
  readonly tools: ToolServers;
  readonly clock: Clock;
  readonly wallMs: () => number;
  readonly log: Log;
};

export function beginWork(deps: WorkDeps, tree: HostedTree, run: RunState, action: Action): Work {
  return action.type === "ask-turn" ? askTurn(deps, tree, run, action) : callTool(deps, tree, action);
}

/** Asks a turn until it is answered or an attempt of it counts; what does not count is asked again. */
class TurnWork implements Work {
  readonly #deps: WorkDeps;
  readonly #tree: HostedTree;
  readonly #run: RunState;
  readonly #action: Extract<Action, { readonly type: "ask-turn" }>;
  #phase: { readonly kind: "pausing"; stop(): void } | { readonly kind: "asking"; readonly call: TurnCall } | undefined;
  #over = false;

  constructor(deps: WorkDeps, tree: HostedTree, run: RunState, action: Extract<Action, { readonly type: "ask-turn" }>) {
    this.#deps = deps;
    this.#tree = tree;
    this.#run = run;
    this.#action = action;
    this.#pause(action.notBeforeMs - deps.wallMs());
  }

  /** What the model has said so far. */
  partial(): string {
    return this.#phase?.kind === "asking" ? this.#phase.call.partial() : "";
  }

  abort(): void {
    this.#over = true;
    if (this.#phase?.kind === "pausing") this.#phase.stop();
    if (this.#phase?.kind === "asking") this.#phase.call.abort();
  }

  #pause(forMs: number): void {
    if (forMs <= 0) {
      this.#ask();
      return;
    }
    this.#phase = { kind: "pausing", stop: this.#deps.clock.after(forMs, () => this.#ask()) };
  }

  #ask(): void {
    const { model } = this.#deps;
    const call = model.ask(turnRequest(this.#run, this.#action, this.#deps.tools.list()), () => {
      if (!this.#over) this.#tree.generating(this.#run.id, true);
    });
    this.#phase = { kind: "asking", call };
    void call.outcome.then((outcome) => this.#ended(outcome)); // `outcome` never rejects.
  }

  #ended(outcome: TurnOutcome): void {
    if (this.#over) return;
    const { id } = this.#run;
    const { turn } = this.#action.turn;
    switch (outcome.kind) {
      case "again":
        this.#tree.generating(id, false);
        this.#deps.log("debug", "turn-asked-again", { run: id, turn, message: outcome.message });
        this.#pause(outcome.afterMs);
        return;
      case "failed": {
        this.#tree.generating(id, false);
        const { failure, message } = outcome;
        this.#deps.log("warn", "turn-failed", { run: id, turn, failure, message });
        this.#give({ type: "turn-failed", turn, failure, message });
        return;
      }
      case "answered":
        this.#give(this.#answered(outcome));
    }
  }

  #answered(outcome: Extract<TurnOutcome, { readonly kind: "answered" }>): RecordBody {
    const { turn, mode } = this.#action.turn;
    const offered = this.#deps.tools.list();
    const { text, calls, recovered, leftAsText } = readAnswer(this.#run, outcome, { offered, mode, turn });
    if (leftAsText) this.#deps.log("warn", "call-left-as-text", { run: this.#run.id, turn, mode });
    const { finish, replica, heldMs, tookMs } = outcome;
    const written = outcome.text + outcome.calls.map((call) => call.name + call.arguments).join("");
    const usage = outcome.usage ?? estimateUsage(this.#run, written);
    return { type: "turn-answered", turn, text, calls, usage, finish, recovered, replica, heldMs, tookMs };
  }

  #give(record: RecordBody): void {
    this.#over = true;
    void this.#tree.take(this.#run.id, record); // What cannot be written is told by the tree.
  }
}

function askTurn(
  deps: WorkDeps,
  tree: HostedTree,
  run: RunState,
  action: Extract<Action, { readonly type: "ask-turn" }>,
): TurnWork {
  return new TurnWork(deps, tree, run, action);
}

/** The text that a run's open turn has given so far. */
export function partialOfWork(work: Work): string | undefined {
  return work instanceof TurnWork ? work.partial() : undefined;
}

function turnRequest(
  run: RunState,
  action: Extract<Action, { readonly type: "ask-turn" }>,
  offered: readonly OfferedTool[],
): TurnRequest {
  const { assignment } = run;
  const { mode, maxTokens } = action.turn;
  return {
    run: run.id,
    principal: run.principal,
    caller: run.caller,
    serviceClass: assignment.serviceClass,
    model: assignment.model,
    messages: conversation(run),
    tools: carriesTools(mode) ? functionsOf(assignment.tools, offered) : [],
    toolChoice: mode === "last-none" ? "none" : "auto",
    parallelToolCalls: assignment.parallelToolCalls,
    maxTokens,
  };
}

/** The tools in the API's form, in the order that the run's spawn fixed. */
export function functionsOf(tools: readonly ToolRef[], offered: readonly OfferedTool[]): readonly unknown[] {
  return tools.flatMap((ref) => {
    const tool = toolOf(ref, offered);
    if (tool === undefined) return [];
    const { description, inputSchema } = tool;
    return [
      { type: "function", function: { name: ref.function, description, parameters: simplifiedSchema(inputSchema) } },
    ];
  });
}

function callTool(deps: WorkDeps, tree: HostedTree, action: Extract<Action, { readonly type: "call-tool" }>): Work {
  const { run, turn, index, attempt, call } = action;
  const controller = new AbortController();
  const beganMs = deps.clock.nowMs();
  const give = (ok: boolean, text: string): void => {
    if (controller.signal.aborted) return;
    const tookMs = Math.round(deps.clock.nowMs() - beganMs);
    void tree.take(run, { type: "call-outcome", turn, index, attempt, ok, text, tookMs }); // As in `#give`.
  };
  // The last look before the effect: exactly what was judged and approved, or nothing.
  if (digestOfCall(call.server, call.tool, call.arguments) !== call.digest) {
    deps.log("error", "call-refused", { run, turn, index, why: "the arguments are not those that were approved" });
    queueMicrotask(() => give(false, "Error: the arguments are not those that were approved"));
  } else {
    const { server, tool, arguments: args } = call;
    deps.tools
      .call({ server, tool, arguments: args, idempotencyKey: action.idempotencyKey, signal: controller.signal })
      .then(
        ({ ok, text }) => give(ok, text),
        (error: unknown) => {
          deps.log("error", "tool-call-fault", { run, server, tool, error: String(error) });
          give(false, "Error: the tool call failed inside luftpause");
        },
      );
  }
  return { abort: () => controller.abort() };
}
