/** The runtime as a service: what its faces call (`RunService`), its start, drain and end. */
import { randomUUID } from "node:crypto";
import type { Clock } from "../base/clock.ts";
import {
  pendingApprovals,
  settledApproval,
  type Decision,
  type RunRules,
  type RunState,
  type Sums,
} from "../runs/index.ts";
import type { Log, Registry } from "../telemetry/index.ts";
import { classify, type ClassifyOptions } from "./classify.ts";
import { fromCounters, type RowDetail } from "./commit.ts";
import type { HostedTree } from "./hosted-tree.ts";
import { runtimeMetrics } from "./metrics.ts";
import type { ModelClient } from "./model-client.ts";
import { RunHost, type Found } from "./run-host.ts";
import type {
  ApprovalAnswer,
  ApprovalView,
  Awaited,
  AwaitEntry,
  Decided,
  Requester,
  RunService,
  RunSummary,
  ServiceRefusal,
  StatusNode,
  TaskView,
} from "./run-service.ts";
import { budgetView, type RunView } from "./run-view.ts";
import { refused, Spawner } from "./spawning.ts";
import type { RunEntry, RunStore } from "./store/port.ts";
import { keepTidy } from "./store/retention.ts";
import type { ToolServers } from "./tool-servers/port.ts";

export type RuntimeOptions = {
  readonly store: RunStore;
  readonly model: ModelClient;
  readonly tools: ToolServers;
  readonly clock: Clock;
  readonly wallMs: () => number;
  readonly log: Log;
  readonly defaultModel: string | undefined;
  /** Generative models in the order of the config, as far as they are known. */
  readonly modelOrder: () => readonly string[];
  readonly lastTurnOf: RunRules["lastTurnOf"];
  /** Tool calls and longest answer of a run that names none. */
  readonly maxToolCalls: number;
  readonly maxTokens: number;
  readonly maxDepth: number;
  readonly maxChildren: number;
  readonly approvalExpireMs: number;
  readonly keepFinishedMs: number;
} & Pick<ClassifyOptions, "classifierModel" | "labelsOf">;

export type Runtime = {
  readonly service: RunService;
  readonly metrics: Registry;
  /** Takes over what has not ended. Until then nothing may be served. */
  start(): Promise<void>;
  /** Whether it can take work, and why not. */
  ready(): { readonly ready: boolean; readonly reason: string };
  /** Takes no new work; resolves when running tool calls have their outcomes in the journal. */
  drain(): Promise<void>;
  /** Stops at once: turns are withdrawn, and asked again after the next start. The store is the caller's to close. */
  close(): void;
};

const TREE_RUNS_MAX = 5_000;
const INBOX_MAX = 500;
const TASK_COMMITS_MAX = 50;

export function createRuntime(options: RuntimeOptions): Runtime {
  const { store, model, tools, clock, wallMs, log, maxDepth, maxChildren, approvalExpireMs, lastTurnOf } = options;
  const rules = { approvalExpireMs, lastTurnOf };
  const metrics = runtimeMetrics({ store, trees: () => host.trees() });
  const { count } = metrics;
  const host = new RunHost({ store, model, tools, clock, wallMs, log, rules, maxDepth, maxChildren, count });
  const defaultModel = (): ReturnType<typeof chooseModel> => chooseModel(options);
  const { maxToolCalls, maxTokens } = options;
  const spawner = new Spawner({ host, store, tools, wallMs, maxToolCalls, maxTokens, defaultModel });
  let phase: "starting" | "open" | "draining" | "closed" = "starting";
  let stopRetention: () => void = () => undefined;

  return {
    metrics: metrics.registry,
    service: new Service(options, host, spawner, defaultModel),
    async start() {
      const { live, damaged } = await host.start();
      phase = "open";
      log("info", "runs-taken-over", { live, damaged });
      stopRetention = keepTidy({
        store,
        clock,
        wallMs,
        keepFinishedMs: options.keepFinishedMs,
        onFault: (error) => log("error", "retention-failed", { error: String(error) }),
        onSwept: (runs) => log("info", "ended-runs-deleted", { runs }),
      });
    },
    ready() {
      if (phase !== "open") return { ready: false, reason: phase };
      const health = store.health();
      return health.state === "ok"
        ? { ready: true, reason: "ready" }
        : { ready: false, reason: `journal: ${health.message}` };
    },
    async drain() {
      phase = "draining";
      stopRetention();
      await host.drain();
    },
    close() {
      phase = "closed";
      stopRetention();
      host.close();
      model.close();
    },
  };
}

/** The configured one, else the only one, else the first generative one in the order of the config. */
async function chooseModel(
  options: Pick<RuntimeOptions, "defaultModel" | "modelOrder" | "model">,
): Promise<{ readonly model: string } | { readonly problem: string }> {
  if (options.defaultModel !== undefined) return { model: options.defaultModel };
  const [first] = options.modelOrder();
  if (first !== undefined) return { model: first };
  const served = await options.model.models();
  if (served === undefined)
    return { problem: "model: the dataplane does not answer, so no model can be chosen; name one" };
  const [only] = served;
  if (only === undefined)
    return { problem: "model: no healthy engine serves a model at the moment; name one, or try again" };
  return { model: only };
}

class Service implements RunService {
  readonly #options: RuntimeOptions;
  readonly #host: RunHost;
  readonly #spawner: Spawner;
  readonly #defaultModel: () => ReturnType<typeof chooseModel>;

  constructor(
    options: RuntimeOptions,
    host: RunHost,
    spawner: Spawner,
    defaultModel: () => ReturnType<typeof chooseModel>,
  ) {
    this.#options = options;
    this.#host = host;
    this.#spawner = spawner;
    this.#defaultModel = defaultModel;
  }

  spawn: RunService["spawn"] = (who, specs) => this.#spawner.spawn(who, specs);

  run: RunService["run"] = (who, spec) => this.#spawner.run(who, spec, this.#options.clock.nowMs());

  async awaitRuns(who: Requester, wait: Parameters<RunService["awaitRuns"]>[1]): Promise<Awaited> {
    const { handles, mode, timeoutMs, signal, untilPending = false } = wait;
    const found = new Map<string, Found | undefined>();
    const changed = new Set(handles);
    let wake: () => void = () => undefined;
    // From before the first look: nothing between look and wait is missed.
    const stop = this.subscribe(handles, (handle) => {
      changed.add(handle);
      wake();
    });
    const deadlineMs = this.#options.clock.nowMs() + timeoutMs;
    try {
      for (;;) {
        for (const handle of changed) {
          changed.delete(handle);
          found.set(handle, await this.#find(who, handle));
        }
        const leftMs = deadlineMs - this.#options.clock.nowMs();
        const done = isDone(found, mode);
        const asks = untilPending && [...found.values()].some((one) => one?.tree !== undefined && isAsking(one.run));
        if (done || asks || leftMs <= 0 || signal?.aborted === true)
          return { done, results: await this.#results(handles, found) };
        if (changed.size === 0) await this.#wait(leftMs, signal, (woken) => (wake = woken));
      }
    } finally {
      stop();
    }
  }

  #wait(ms: number, signal: AbortSignal | undefined, onWake: (wake: () => void) => void): Promise<void> {
    return new Promise((resolve) => {
      const end = (): void => {
        stop();
        signal?.removeEventListener("abort", end);
        resolve();
      };
      const stop = this.#options.clock.after(ms, end);
      signal?.addEventListener("abort", end);
      onWake(end);
    });
  }

  async #results(handles: readonly string[], found: ReadonlyMap<string, Found | undefined>): Promise<AwaitEntry[]> {
    return Promise.all(
      handles.map(async (handle): Promise<AwaitEntry> => {
        const run = found.get(handle);
        return run === undefined ? { handle, error: "unknown handle" } : this.#host.view(run);
      }),
    );
  }

  /** A run of the principal. */
  async #find(who: Requester, handle: string): Promise<Found | undefined> {
    const found = await this.#host.find(handle);
    return found?.run.principal === who.principal ? found : undefined;
  }

  async view(who: Requester, handle: string): Promise<RunView | undefined> {
    const found = await this.#find(who, handle);
    return found === undefined ? undefined : this.#host.view(found);
  }

  async list(who: Requester, page: Parameters<RunService["list"]>[1]): ReturnType<RunService["list"]> {
    const { store } = this.#options;
    const { limit, cursor, mine } = page;
    // Without a session of its own nothing is "mine".
    if (mine && who.session === undefined) return { runs: [] };
    const found = await store.list({
      principal: who.principal,
      limit,
      ...(mine ? { session: who.session } : {}),
      ...(cursor === undefined ? {} : { cursor }),
    } as Parameters<RunStore["list"]>[0]);
    const counters = await store.counters(found.items.map(({ row }) => row.id));
    const runs = await Promise.all(
      found.items.map(async (entry): Promise<RunSummary> => {
        const known = this.#host.findNow(entry.row.id);
        if (known?.tree !== undefined) return summaryOf(await this.#host.view(known));
        const children = await store.children(entry.row.id);
        return rowSummary(entry, { counters: counters.get(entry.row.id), children, nowMs: this.#options.wallMs() });
      }),
    );
    return { runs, cursor: found.cursor };
  }

  async cancel(who: Requester, handle: string): Promise<{ readonly cancelled: number } | ServiceRefusal> {
    const found = await this.#find(who, handle);
    if (found === undefined) return refused(`unknown handle ${handle}`);
    if (found.tree === undefined || found.run.end !== undefined) return { cancelled: 0 };
    const entries = await found.tree.take(handle, { type: "cancel-requested", by: who.principal });
    return { cancelled: entries.filter(({ record }) => record.type === "ended").length };
  }

  async approve(who: Requester, answer: ApprovalAnswer): Promise<Decided | ServiceRefusal> {
    const { handle } = answer;
    const found = await this.#find(who, handle);
    if (found === undefined) return refused(`unknown handle ${handle}`);
    const pending = pendingApprovals(found.run);
    const id = answer.id ?? (pending.length === 1 ? pending[0]?.id : undefined);
    if (id === undefined) {
      if (pending.length === 0) return refused(`${handle} waits for no approval`);
      const list = pending.map((row) => `${row.id} (${row.server}/${row.tool} ${JSON.stringify(row.arguments)})`);
      return refused(`${handle} waits for ${pending.length} approvals, name one by id: ${list.join("; ")}`);
    }
    const open = pending.find((row) => row.id === id);
    if (open !== undefined && found.tree !== undefined) {
      const wrong = problemOfAnswer(answer, open.reason);
      if (wrong !== undefined) return refused(wrong);
      await found.tree.decide(handle, id, decisionOf(who, answer));
      // Another answer may have come first: what is journalled counts.
      await found.tree.written();
    }
    const after = await this.#find(who, handle);
    const settled = after === undefined ? undefined : settledApproval(after.run, id);
    if (settled === undefined) {
      return open === undefined
        ? refused(`${handle} has no approval ${id}`)
        : refused(`the answer to ${id} could not be written, or the run has ended: see status`);
    }
    const { tool, decision } = settled;
    if (decision === "expired")
      return { kind: "decided", handle, id, tool, allow: false, scope: "once", expired: true };
    const { allow, scope, resolution } = decision;
    return { kind: "decided", handle, id, tool, allow, scope, resolution };
  }

  async approvals(who: Requester): ReturnType<RunService["approvals"]> {
    const open = await this.#options.store.openApprovals({ principal: who.principal, limit: INBOX_MAX });
    const handles = [...new Set(open.items.map(({ runId }) => runId))];
    const views = await Promise.all(handles.map((handle) => this.view(who, handle)));
    return views.flatMap((view): (ApprovalView & { readonly handle: string })[] =>
      (view?.pendingApprovals ?? []).map((approval) => ({ ...approval, handle: view?.handle ?? "" })),
    );
  }

  tools: RunService["tools"] = () => this.#options.tools.list();

  async createTask(who: Requester, handle: string): Promise<TaskView | ServiceRefusal> {
    const { store, wallMs } = this.#options;
    const [known] = await store.tasksOf(handle);
    if (known !== undefined) return (await this.task(who, known.id)) ?? refused(`unknown handle ${handle}`);
    const id = `task-${randomUUID()}`;
    let problem = "";
    // The run goes on meanwhile: the number of its last record may be another one by the time of the commit.
    for (let attempt = 0; attempt < TASK_COMMITS_MAX; attempt += 1) {
      const entry = await store.entry(handle);
      if (entry?.row.principal !== who.principal) return refused(`unknown handle ${handle}`);
      const row = { id, runId: handle, principal: who.principal, createdAtMs: wallMs() };
      const change = { runId: handle, expectedSeq: entry.lastSeq, epoch: entry.epoch, records: [], tasks: [row] };
      const outcome = await store.append([change], { whenFull: "refuse" });
      if (outcome.kind === "durable") {
        const made = await this.task(who, id);
        if (made !== undefined) return made;
        break;
      }
      problem = outcome.message;
      if (outcome.kind !== "conflict" || outcome.on !== "sequence") break;
    }
    return refused(`no task could be kept for ${handle} (${problem}); the run goes on: call await with its handle`);
  }

  async task(who: Requester, id: string): Promise<TaskView | undefined> {
    const { store } = this.#options;
    const row = await store.task(id);
    if (row?.principal !== who.principal) return undefined;
    const [run, entry] = await Promise.all([this.view(who, row.runId), store.entry(row.runId)]);
    if (run === undefined) return undefined;
    return { id, createdAtMs: row.createdAtMs, updatedAtMs: entry?.row.updatedAtMs ?? row.createdAtMs, run };
  }

  decide: RunService["decide"] = (who, question, signal) => {
    const { model, classifierModel, labelsOf } = this.#options;
    return classify({ model, classifierModel, labelsOf, defaultModel: this.#defaultModel }, who, question, signal);
  };

  subscribe(handles: readonly string[], listener: (handle: string) => void): () => void {
    const wanted = new Set(handles);
    return this.#host.onChange((run) => {
      if (wanted.has(run)) listener(run);
    });
  }

  tree(principal: string | undefined): readonly StatusNode[] {
    const nodes: StatusNode[] = [];
    let left = TREE_RUNS_MAX;
    for (const hosted of this.#host.trees()) {
      if (left <= 0) break;
      const root = statusNode(hosted, hosted.tree.root);
      if (root === undefined || (principal !== undefined && root.principal !== principal)) continue;
      left -= hosted.tree.nodes.size;
      nodes.push(root);
    }
    return nodes;
  }
}

function isAsking(run: RunState): boolean {
  return run.end === undefined && pendingApprovals(run).length > 0;
}

function isDone(found: ReadonlyMap<string, Found | undefined>, mode: "all" | "any"): boolean {
  const rows = [...found.values()];
  // What is unknown will never end.
  const isOver = (row: Found): boolean => row.run.end !== undefined || row.damage !== undefined;
  const over = rows.filter((row) => row === undefined || isOver(row));
  const ended = rows.some((row) => row !== undefined && isOver(row));
  return over.length === rows.length || (mode === "any" && ended);
}

function problemOfAnswer(answer: ApprovalAnswer, reason: string): string | undefined {
  if (answer.resolution !== undefined && reason !== "indeterminate") {
    return "resolution: only for a call whose outcome is not known (reason indeterminate); leave it out";
  }
  if (answer.resolution === "result" && answer.result === undefined) {
    return "result: give the text that counts as the outcome of the call";
  }
  return undefined;
}

function decisionOf({ principal, caller }: Requester, answer: ApprovalAnswer): Decision {
  const { allow, scope = "once", resolution, result, channel } = answer;
  return { allow, scope, resolution, result, channel, by: caller === "" ? principal : `${principal}/${caller}` };
}

function summaryOf(view: RunView): RunSummary {
  const { task: _task, answer: _answer, partial: _partial, error: _error, serviceClass: _class, ...summary } = view;
  return summary;
}

/** A run that is not in this process: ended, or damaged. */
function rowSummary(
  { row }: RunEntry,
  around: {
    readonly counters: ReadonlyMap<string, number> | undefined;
    readonly children: readonly RunEntry[];
    readonly nowMs: number;
  },
): RunSummary {
  const { model, limits, sums } = row.detail as RowDetail;
  const { used, exceeded } = fromCounters(around.counters, { id: row.id, limits });
  const untilMs = row.endedAtMs ?? around.nowMs;
  const node = { limits, subtree: used, exceeded, spawnedAtMs: row.createdAtMs };
  const { turns, toolCalls, failedToolCalls, promptTokens, completionTokens, cachedTokens } = sums;
  return {
    handle: row.id,
    principal: row.principal,
    caller: row.caller,
    session: row.session,
    state: row.state,
    reason: row.reason,
    model,
    turns,
    toolCalls,
    failedToolCalls,
    usage: { promptTokens, completionTokens, cachedTokens },
    seconds: Math.max(0, untilMs - row.createdAtMs) / 1000,
    parent: row.parent,
    children: around.children.map((child) => child.row.id),
    budget: budgetView(node, untilMs),
    pendingApprovals: [],
  };
}

function statusNode(hosted: HostedTree, run: string): StatusNode | undefined {
  const node = hosted.tree.nodes.get(run);
  if (node === undefined) return undefined;
  const state = hosted.durable(run);
  return {
    handle: run,
    parent: node.parent,
    ...stateOf(hosted, run, state),
    principal: node.principal,
    caller: state?.caller ?? "",
    own: ownSums(hosted, run, state),
    subtree: node.subtree,
    pendingApprovals: state === undefined ? 0 : pendingApprovals(state).length,
    children: node.children.flatMap((child) => statusNode(hosted, child) ?? []),
  };
}

function stateOf(
  hosted: HostedTree,
  run: string,
  state: RunState | undefined,
): Pick<StatusNode, "state" | "detail" | "reason"> {
  const end = state?.end ?? hosted.tree.nodes.get(run)?.end;
  if (end !== undefined) return { state: end.state, reason: end.reason };
  if (state !== undefined && pendingApprovals(state).length > 0) return { state: "AwaitingApproval" };
  return { state: "Running", detail: hosted.detailOf(run) };
}

/** Of a run that ended before this process: its subtree without its children's. */
function ownSums(hosted: HostedTree, run: string, state: RunState | undefined): Sums {
  if (state !== undefined) return state.sums;
  const node = hosted.tree.nodes.get(run);
  const children = (node?.children ?? []).flatMap((child) => hosted.tree.nodes.get(child) ?? []);
  const names = Object.keys(node?.subtree ?? {}) as (keyof Sums)[];
  return Object.fromEntries(
    names.map((name) => [name, children.reduce((left, child) => left - child.subtree[name], node?.subtree[name] ?? 0)]),
  ) as Sums;
}
