import { CommandError, EXIT } from "../exit.ts";
import type { Command, ParsedFlags } from "../flags.ts";
import {
  CALLER_DETAILS,
  CALLER_FLAGS,
  withRuntime,
  type RuntimeCaller,
  type TreeNode,
} from "../runtime-calls/caller.ts";
import { question, type ShownApproval, type ShownRun } from "../runtime-calls/run-text.ts";

type Pending = ShownApproval & { readonly handle: string };
type Decided = {
  readonly handle: string;
  readonly id: string;
  readonly tool: string;
  readonly allow: boolean;
  readonly scope?: string;
  readonly resolution?: string;
  readonly expired?: boolean;
};

/** Flags that only an answer has. */
const ANSWER_FLAGS = ["id", "scope", "resolution", "result"] as const;

export const approvals: Command = {
  name: "approvals",
  operands: "ls|allow HANDLE|deny HANDLE",
  summary: "Lists the tool calls that wait for a person, and answers them.",
  details: CALLER_DETAILS,
  flags: {
    id: { kind: "string", value: "ID", about: "Which one, when the run has several pending." },
    scope: {
      kind: "string",
      value: "SCOPE",
      about: "once (default), run: also equal calls of the run later, or tree: also those of its whole tree.",
    },
    resolution: {
      kind: "string",
      value: "WAY",
      about: "For a call that may have happened before a crash: rerun, result, fail or cancel.",
    },
    result: { kind: "string", value: "TEXT", about: "The outcome that counts, for --resolution result." },
    ...CALLER_FLAGS,
  },
  positionals: { least: 1, most: 2 },
  async run(flags) {
    const [action = "", handle] = flags.positionals;
    if (action === "ls") return list(flags, handle);
    if (action !== "allow" && action !== "deny") {
      throw new CommandError(EXIT.usage, `luftpause approvals: '${action}' is not one of ls, allow, deny`);
    }
    if (handle === undefined) {
      throw new CommandError(EXIT.usage, `luftpause approvals ${action} needs a handle; approvals ls shows them`);
    }
    return answer(flags, handle, action === "allow");
  },
};

async function list(flags: ParsedFlags, handle: string | undefined): Promise<number> {
  if (handle !== undefined) {
    throw new CommandError(EXIT.usage, `luftpause approvals ls takes no handle, got '${handle}'`);
  }
  const stray = ANSWER_FLAGS.find((flag) => flags.has(flag));
  if (stray !== undefined) throw new CommandError(EXIT.usage, `luftpause approvals ls takes no --${stray}`);
  return withRuntime(flags, async (runtime) => {
    const pending = await pendingOf(runtime);
    if (flags.has("json")) process.stdout.write(`${JSON.stringify({ pendingApprovals: pending })}\n`);
    else
      process.stdout.write(`${pending.length === 0 ? "nothing waits for a person" : pending.map(shown).join("\n")}\n`);
    return EXIT.ok;
  });
}

/** Every run that waits lives, so the trees of the status page know them all; what they ask only the runs themselves say. */
async function pendingOf(runtime: RuntimeCaller): Promise<readonly Pending[]> {
  const waiting = (node: TreeNode): string[] => [
    ...(node.pendingApprovals > 0 ? [node.handle] : []),
    ...node.children.flatMap(waiting),
  ];
  const handles = (await runtime.trees()).flatMap(waiting);
  const pending: Pending[] = [];
  for (const handle of handles) {
    const { runs } = await runtime.call<{ readonly runs: readonly ShownRun[] }>("status", { handle });
    for (const run of runs) pending.push(...(run.pendingApprovals ?? []).map((approval) => ({ ...approval, handle })));
  }
  return pending.toSorted((one, other) => one.askedAt.localeCompare(other.askedAt));
}

function shown(approval: Pending): string {
  const { handle, id, askedAt, expiresAt } = approval;
  return [
    `${handle}  ${question(approval)}`,
    `  asked ${askedAt}, expires ${expiresAt}`,
    `  luftpause approvals allow ${handle} --id ${id}   (or: deny)`,
  ].join("\n");
}

async function answer(flags: ParsedFlags, handle: string, allow: boolean): Promise<number> {
  const more = Object.fromEntries(
    ANSWER_FLAGS.flatMap((flag) => {
      const text = flags.text(flag);
      return text === undefined ? [] : [[flag, text]];
    }),
  );
  return withRuntime(flags, async (runtime) => {
    const decided = await runtime.call<Decided>("approve", { handle, allow, ...more });
    if (flags.has("json")) process.stdout.write(`${JSON.stringify(decided)}\n`);
    else process.stdout.write(`${sentence(decided)}\n`);
    if (decided.allow === allow) return EXIT.ok;
    process.stderr.write("The first answer counts: this one came too late.\n");
    return EXIT.fault;
  });
}

function sentence({ handle, id, tool, allow, scope, resolution, expired }: Decided): string {
  if (expired === true) return `${handle}: ${tool} was refused, because nobody answered ${id} in time`;
  const how = [scope, resolution].filter((word) => word !== undefined).join(", ");
  return `${handle}: ${tool} is ${allow ? "allowed" : "denied"} (${how})`;
}
