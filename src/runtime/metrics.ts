/** What the runtime shows on the metrics page. Labels are states, reasons and outcomes only: never an id or a name. */
import { pendingApprovals, type RunRecord } from "../runs/index.ts";
import { Gauge, Registry, Tally } from "../telemetry/index.ts";
import { stateName } from "./commit.ts";
import type { HostedTree } from "./hosted-tree.ts";
import type { RunStore } from "./store/port.ts";

export type RuntimeMetrics = {
  readonly registry: Registry;
  /** Counts a record that is durable. */
  readonly count: (record: RunRecord) => void;
};

export function runtimeMetrics(options: {
  readonly store: RunStore;
  readonly trees: () => Iterable<HostedTree>;
}): RuntimeMetrics {
  const registry = new Registry();
  const registers = [registry];
  const tally = (name: string, help: string, labels: readonly string[] = []): Tally => {
    const made = new Tally({ name: `luftpause_runtime_${name}`, help, labels });
    registry.registerMetric(made.metric);
    return made;
  };
  const gauge = (name: string, help: string, labelNames: readonly string[] = []) =>
    new Gauge({ name: `luftpause_runtime_${name}`, help, labelNames: [...labelNames], registers });
  const spawned = tally("runs_spawned_total", "Runs that were spawned.");
  const ended = tally("runs_ended_total", "Runs that have ended.", ["reason"]);
  const turns = tally("turns_total", "Attempts of turns that an engine has answered, or failed.", ["outcome"]);
  const calls = tally("tool_calls_total", "Tool calls with an outcome, or refused before they were made.", ["outcome"]);
  const recovered = tally("answers_recovered_total", "Answers whose calls came as text, by the way of writing.", [
    "format",
  ]);
  const decided = tally("approvals_total", "Approvals that were answered, or expired.", ["outcome"]);
  const live = gauge("runs_live", "Runs in this process that have not ended.", ["state"]);
  const pending = gauge("approvals_pending", "Approvals that wait for a person.");
  const queued = gauge("journal_commits_queued", "Commits that wait for the disk.");
  const commits = gauge("journal_commits", "Commits since the start.");
  const ok = gauge("journal_ok", "1 while the journal takes commits.");

  const read = registry.metrics.bind(registry);
  registry.metrics = () => {
    live.reset();
    let asked = 0;
    const states = { Running: 0, AwaitingApproval: 0 };
    for (const tree of options.trees()) {
      for (const id of tree.tree.nodes.keys()) {
        const run = tree.durable(id);
        if (run === undefined || run.end !== undefined) continue;
        states[stateName(run) === "AwaitingApproval" ? "AwaitingApproval" : "Running"] += 1;
        asked += pendingApprovals(run).length;
      }
    }
    for (const [state, count] of Object.entries(states)) live.set({ state }, count);
    pending.set(asked);
    const stats = options.store.stats();
    queued.set(stats.queuedCommits);
    commits.set(stats.commits);
    ok.set(options.store.health().state === "ok" ? 1 : 0);
    return read();
  };

  return {
    registry,
    count(record) {
      switch (record.type) {
        case "spawned":
          spawned.add(1);
          break;
        case "ended":
          ended.add(1, record.reason);
          break;
        case "turn-answered":
          turns.add(1, "answered");
          if (record.recovered !== undefined) recovered.add(1, record.recovered);
          calls.add(record.calls.filter(({ judgement }) => judgement.kind === "refused").length, "refused");
          break;
        case "turn-failed":
          turns.add(1, record.failure);
          break;
        case "call-outcome":
          calls.add(1, record.ok ? "ok" : "error");
          break;
        case "approval-decided":
          decided.add(1, record.decision.allow ? "allowed" : "refused");
          break;
        case "approval-expired":
          decided.add(1, "expired");
          break;
        default:
      }
    },
  };
}
