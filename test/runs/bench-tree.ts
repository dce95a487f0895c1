/** One tree of runs on a table: steps it by hand, with a clock of its own. */
import { expect } from "vitest";
import {
  actionsOf,
  advance,
  createTree,
  decide,
  liveRun,
  passTime,
  RECORD_VERSION,
  replayRun,
  resume,
  type Assignment,
  type Decision,
  type Entry,
  type Judgement,
  type MadeCall,
  type RunRecord,
  type RunRules,
  type RunState,
  type Usage,
} from "../../src/runs/index.ts";

const TOOLS = [
  { server: "lab", tool: "look", function: "look" },
  { server: "lab", tool: "write", function: "write" },
];

export const ASSIGNMENT: Assignment = {
  task: "count the boats",
  model: "m",
  serviceClass: "interactive",
  maxToolCalls: 8,
  tools: TOOLS,
  toolsBytes: 300,
  maxTokens: 256,
  parallelToolCalls: false,
  approveTools: [],
  limits: {},
};

export type CallWish = Partial<Extract<Judgement, { kind: "callable" }>> & { readonly n?: number };

/** A call with arguments `{n}`; its digest is of tool and n, as the host's is of tool and arguments. */
export function callable({ n = 1, ...wish }: CallWish = {}): MadeCall {
  const tool = wish.tool ?? "look";
  return {
    id: `id-${tool}-${n}`,
    name: tool,
    rawArguments: `{"n":${n}}`,
    judgement: {
      kind: "callable",
      server: "lab",
      tool,
      arguments: { n },
      digest: `${tool} ${n}`,
      effect: "unsafe",
      onCrash: "ask",
      ...wish,
    },
  };
}

export function refused(text: string): MadeCall {
  return { id: "id-bad", name: "bad", rawArguments: "{}", judgement: { kind: "refused", text } };
}

const USAGE: Usage = { promptTokens: 100, completionTokens: 20, cachedTokens: 0 };

export function createTable(rules: Partial<RunRules> = {}) {
  const tree = createTree("r");
  const entries: Entry[] = [];
  let nowMs = 1_000_000;
  const all: RunRules = { approvalExpireMs: 86_400_000, lastTurnOf: () => "none", ...rules };

  const keep = (more: readonly Entry[]): readonly Entry[] => {
    entries.push(...more);
    return more;
  };
  type Body = RunRecord extends infer Record ? (Record extends RunRecord ? Omit<Record, "v" | "at"> : never) : never;
  const put = (run: string, body: Body): readonly Entry[] =>
    keep(advance(tree, run, { v: RECORD_VERSION, at: nowMs, ...body }, all));

  const table = {
    tree,
    entries,
    put,
    pass(ms: number) {
      nowMs += ms;
      return keep(passTime(tree, { rules: all, nowMs }));
    },
    now: () => nowMs,
    spawn(wish: Partial<Assignment> = {}, place: { readonly id?: string; readonly parent?: string } = {}) {
      const id = place.id ?? "r";
      const depth = place.parent === undefined ? 1 : 2;
      return put(id, {
        type: "spawned",
        id,
        parent: place.parent,
        root: "r",
        depth,
        principal: "p",
        caller: "c",
        assignment: { ...ASSIGNMENT, ...wish },
      });
    },
    answer(calls: readonly MadeCall[], more: { run?: string; text?: string; usage?: Usage } = {}) {
      const run = more.run ?? "r";
      const turn = state(run).turn?.turn ?? 0;
      const { text = "", usage = USAGE } = more;
      return put(run, { type: "turn-answered", turn, text, calls, usage, finish: "stop", heldMs: 5, tookMs: 50 });
    },
    outcome(index: number, text = "result", more: { run?: string; ok?: boolean } = {}) {
      const run = more.run ?? "r";
      const round = state(run).rounds.at(-1);
      const { turn = 0 } = round ?? {};
      const attempt = round?.calls[index]?.attempt ?? 0;
      return put(run, { type: "call-outcome", turn, index, attempt, ok: more.ok ?? true, text, tookMs: 3 });
    },
    fail(failure: "engine-lost" | "engine-error" | "refused", message = "broken", run = "r") {
      return put(run, { type: "turn-failed", turn: state(run).turn?.turn ?? 0, failure, message });
    },
    decide(approval: string, decision: Partial<Decision> = {}, run = "r") {
      const whole: Decision = { allow: true, scope: "once", by: "p", channel: "tool", ...decision };
      return keep(decide(tree, { run, approval, decision: whole }, { rules: all, nowMs }));
    },
    cancel: (run = "r") => put(run, { type: "cancel-requested", by: "p" }),
    restart() {
      return keep(resume(tree, { rules: all, nowMs }));
    },
    state,
    actions: (run = "r") => {
      const live = liveRun(tree, run);
      return live === undefined ? [] : actionsOf(live);
    },
    end: (run = "r") => entries.findLast((entry) => entry.run === run)?.after.end,
    journal: (run = "r") => entries.filter((entry) => entry.run === run).map(({ record }) => record),
    /** Types of a run's records, which is the story that they tell. */
    story: (run = "r") => table.journal(run).map(({ type }) => type),
    /** What the journal alone says, as a restart would read it. */
    replayed(run = "r") {
      const outcome = replayRun(JSON.parse(JSON.stringify(table.journal(run))) as RunRecord[]);
      expect(outcome.kind).toBe("replayed");
      return outcome.run;
    },
  };

  function state(run = "r"): RunState {
    const after = entries.findLast((entry) => entry.run === run)?.after;
    if (after === undefined) throw new Error(`no run ${run}`);
    return after;
  }
  return table;
}
