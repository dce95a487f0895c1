/** What one step of the core writes to the store: records, the row, approvals and sums of every run that it touched. */
import {
  difference,
  NO_SUMS,
  pendingApprovals,
  REPORTED_SUMS,
  upwards,
  type Entry,
  type Exceeded,
  type RunState,
  type Sums,
  type TreeState,
} from "../runs/index.ts";
import type { ApprovalRow, CounterChange, JournalRecord, RunChange, RunRow } from "./store/port.ts";

/** What the host adds to a run's row at its spawn. */
export type RowExtras = { readonly idempotencyKey?: string | undefined; readonly argumentsDigest?: string | undefined };

/** Small figures of a run that a listing shows without reading its journal. */
export type RowDetail = {
  readonly model: string;
  readonly depth: number;
  readonly limits: RunState["assignment"]["limits"];
  readonly sums: Sums;
  /** Answers that cover later calls of the tree. */
  readonly grants: RunState["grants"];
};

/**
 * @param seqs number of each run's last record; moved on here.
 */
export function changesOf(
  tree: TreeState,
  entries: readonly Entry[],
  seqs: Map<string, number>,
  extrasOf: (run: string) => RowExtras,
): readonly RunChange[] {
  const byRun = Map.groupBy(entries, ({ run }) => run);
  const told = new Set<Exceeded>();
  return [...byRun].map(([run, steps]): RunChange => {
    const expectedSeq = seqs.get(run) ?? 0;
    seqs.set(run, expectedSeq + steps.length);
    const first = steps[0]?.before;
    const last = steps.at(-1);
    const at = last?.record.at ?? 0;
    return {
      runId: run,
      expectedSeq,
      records: steps.map(({ record }) => record as JournalRecord),
      ...(last === undefined ? {} : { row: rowOf(last.after, at, extrasOf(run)) }),
      approvals: approvalsOf(steps),
      counters: last === undefined ? [] : countersOf(tree, { before: first, after: last.after, told }),
    };
  });
}

export function stateName(run: RunState): RunRow["state"] {
  if (run.end !== undefined) return run.end.state;
  return pendingApprovals(run).length > 0 ? "AwaitingApproval" : "Running";
}

function rowOf(run: RunState, updatedAtMs: number, extras: RowExtras): RunRow {
  const { idempotencyKey, argumentsDigest } = extras;
  const { end, assignment } = run;
  const detail: RowDetail = {
    model: assignment.model,
    depth: run.depth,
    limits: assignment.limits,
    sums: run.sums,
    grants: run.grants.filter(({ scope }) => scope === "tree"),
  };
  return {
    id: run.id,
    ...(run.parent === undefined ? {} : { parent: run.parent }),
    root: run.root,
    principal: run.principal,
    caller: run.caller,
    ...(run.session === undefined ? {} : { session: run.session }),
    state: stateName(run),
    ...(end === undefined ? {} : { reason: end.reason, endedAtMs: end.at }),
    createdAtMs: run.spawnedAtMs,
    updatedAtMs,
    ...(idempotencyKey === undefined ? {} : { idempotencyKey }),
    ...(argumentsDigest === undefined ? {} : { argumentsDigest }),
    detail,
  };
}

function approvalsOf(steps: readonly Entry[]): readonly ApprovalRow[] {
  const rows = new Map<string, ApprovalRow>();
  for (const { run, record, before, after } of steps) {
    const row = (id: string, state: ApprovalRow["state"], times: { askedAt: number; expiresAt: number }): void => {
      const { root, principal } = after;
      rows.set(id, {
        id,
        runId: run,
        root,
        principal,
        state,
        askedAtMs: times.askedAt,
        expiresAtMs: times.expiresAt,
      });
    };
    switch (record.type) {
      case "approval-asked":
        row(record.approval, "open", { askedAt: record.at, expiresAt: record.expiresAt });
        break;
      case "approval-decided":
      case "approval-expired": {
        const settled = after.settled.at(-1);
        if (settled !== undefined) row(settled.id, record.type === "approval-decided" ? "decided" : "expired", settled);
        break;
      }
      case "ended":
        // A run that ends takes its open questions with it.
        if (before !== undefined) for (const open of pendingApprovals(before)) row(open.id, "expired", open);
        break;
      default:
    }
  }
  return [...rows.values()];
}

function countersOf(
  tree: TreeState,
  step: { readonly before: RunState | undefined; readonly after: RunState; readonly told: Set<Exceeded> },
): readonly CounterChange[] {
  const { before, after, told } = step;
  const used = difference(after.sums, before?.sums ?? NO_SUMS);
  const names = REPORTED_SUMS.filter((name) => used[name] !== 0);
  const sums = upwards(tree, after.id).flatMap(({ id }) =>
    names.map((name): CounterChange => ({ runId: id, name, add: used[name] })),
  );
  const exceeded = before?.end === undefined ? after.end?.exceeded : undefined;
  // A whole subtree ends of one budget, whose owner remembers it once.
  if (exceeded === undefined || told.has(exceeded) || tree.nodes.get(exceeded.run)?.exceeded !== exceeded) return sums;
  told.add(exceeded);
  return [...sums, { runId: exceeded.run, name: exceededCounter(exceeded.name), add: exceeded.amount }];
}

const exceededCounter = (name: string): string => `exceeded ${name}`;

/** The sums and the exceeded budget of a node, as the store's counters have them. */
export function fromCounters(
  counters: ReadonlyMap<string, number> | undefined,
  run: { readonly id: string; readonly limits: RunState["assignment"]["limits"] },
): { readonly used: Sums; readonly exceeded: Exceeded | undefined } {
  const used = Object.fromEntries(REPORTED_SUMS.map((name) => [name, counters?.get(name) ?? 0])) as Sums;
  for (const name of ["tokens", "toolCalls", "seconds"] as const) {
    const amount = counters?.get(exceededCounter(name));
    if (amount !== undefined) return { used, exceeded: { run: run.id, name, amount, limit: run.limits[name] ?? 0 } };
  }
  return { used, exceeded: undefined };
}
