import { CommandError, EXIT } from "../exit.ts";
import type { Command, ParsedFlags } from "../flags.ts";
import {
  CALLER_DETAILS,
  CALLER_FLAGS,
  withRuntime,
  type RuntimeCaller,
  type TreeNode,
} from "../runtime-calls/caller.ts";
import { counted, details, runTable, treeText, type ShownRun } from "../runtime-calls/run-text.ts";

const PAGE_MAX = 500;

export const runs: Command = {
  name: "runs",
  operands: "ls|show HANDLE|tree [HANDLE]|cancel HANDLE",
  summary: "Lists sub-agents, shows one or the tree of those that live, or cancels one with its descendants.",
  details: CALLER_DETAILS,
  flags: {
    limit: {
      kind: "integer",
      value: "N",
      least: 1,
      most: 100_000,
      about: "ls: at most so many, the newest first (50).",
    },
    ...CALLER_FLAGS,
  },
  positionals: { least: 1, most: 2 },
  async run(flags) {
    const [action = "", handle] = flags.positionals;
    const act = ACTIONS[action];
    if (act === undefined) {
      const known = Object.keys(ACTIONS).join(", ");
      throw new CommandError(EXIT.usage, `luftpause runs: '${action}' is not one of ${known}`);
    }
    if (act.handle === "needed" && handle === undefined) {
      throw new CommandError(EXIT.usage, `luftpause runs ${action} needs a handle; runs ls shows them`);
    }
    if (act.handle === "none" && handle !== undefined) {
      throw new CommandError(EXIT.usage, `luftpause runs ${action} takes no handle, got '${handle}'`);
    }
    return withRuntime(flags, (runtime) => act.run(runtime, flags, handle));
  },
};

type Action = {
  readonly handle: "needed" | "may-be" | "none";
  run(runtime: RuntimeCaller, flags: ParsedFlags, handle: string | undefined): Promise<number>;
};

const ACTIONS: { readonly [name: string]: Action } = {
  ls: {
    handle: "none",
    async run(runtime, flags) {
      const { found, more } = await listRuns(runtime, flags.integer("limit") ?? 50);
      const width = process.stdout.isTTY ? process.stdout.columns : undefined;
      print(flags, { runs: found }, found.length === 0 ? "no runs" : runTable(found, width));
      if (more && !flags.has("json")) process.stderr.write(`there are older ones: --limit ${found.length * 2}\n`);
      return EXIT.ok;
    },
  },
  show: {
    handle: "needed",
    async run(runtime, flags, handle) {
      const { runs: found } = await runtime.call<{ readonly runs: readonly ShownRun[] }>("status", { handle });
      print(flags, { runs: found }, found.map(details).join("\n"));
      return EXIT.ok;
    },
  },
  tree: {
    handle: "may-be",
    async run(runtime, flags, handle) {
      const all = await runtime.trees();
      const found = handle === undefined ? all : all.flatMap((root) => treeWith(root, handle));
      if (handle !== undefined && found.length === 0) {
        throw new CommandError(
          EXIT.fault,
          `${handle}: its tree does not live here any more; runs show ${handle} may know it`,
        );
      }
      print(flags, { runs: found }, found.length === 0 ? "no runs live" : treeText(found));
      return EXIT.ok;
    },
  },
  cancel: {
    handle: "needed",
    async run(runtime, flags, handle) {
      const answer = await runtime.call<{ readonly cancelled: number }>("cancel", { handle });
      const none = answer.cancelled === 0;
      print(flags, answer, none ? "it had ended already" : `cancelled ${counted(answer.cancelled, "run")}`);
      return EXIT.ok;
    },
  },
};

async function listRuns(runtime: RuntimeCaller, limit: number): Promise<{ found: readonly ShownRun[]; more: boolean }> {
  const found: ShownRun[] = [];
  let cursor: string | undefined;
  do {
    const page = await runtime.call<{ readonly runs: readonly ShownRun[]; readonly cursor?: string }>("status", {
      limit: Math.min(PAGE_MAX, limit - found.length),
      ...(cursor === undefined ? {} : { cursor }),
    });
    found.push(...page.runs);
    cursor = page.cursor;
  } while (cursor !== undefined && found.length < limit);
  return { found, more: cursor !== undefined };
}

/** The whole tree that the run is in. */
function treeWith(root: TreeNode, handle: string): readonly TreeNode[] {
  const holds = (node: TreeNode): boolean => node.handle === handle || node.children.some(holds);
  return holds(root) ? [root] : [];
}

function print(flags: ParsedFlags, outcome: object, text: string): void {
  process.stdout.write(`${flags.has("json") ? JSON.stringify(outcome) : text}\n`);
}
