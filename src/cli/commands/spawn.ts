import { CommandError, EXIT } from "../exit.ts";
import type { Command, FlagTable, ParsedFlags } from "../flags.ts";
import { CALLER_DETAILS, CALLER_FLAGS, withRuntime } from "../runtime-calls/caller.ts";
import { waitForRuns } from "../runtime-calls/wait.ts";

/** Arguments of `spawn` (spec 4); the defaults are the runtime's. */
const SPAWN_FLAGS: FlagTable = {
  model: { kind: "string", value: "MODEL", about: "Model of the sub-agents." },
  class: { kind: "string", value: "CLASS", about: "interactive (default) or batch." },
  system: { kind: "string", value: "TEXT", about: "System prompt." },
  tools: { kind: "string", value: "A,B", about: "Tools that they may use: name, server/name, or a pattern with *." },
  "no-tools": { kind: "boolean", about: "They may use no tools." },
  "max-tool-calls": { kind: "integer", value: "N", about: "Tool calls that each may make (8)." },
  "max-tokens": { kind: "integer", value: "N", about: "Longest answer of one turn; 0 leaves it to the engine (256)." },
  "parallel-tool-calls": { kind: "boolean", about: "Several calls of one answer run side by side." },
  parent: { kind: "string", value: "HANDLE", about: "Run that they are children of." },
  "budget-tokens": { kind: "integer", value: "N", least: 1, about: "Bound of the tokens of each and its descendants." },
  "budget-tool-calls": { kind: "integer", value: "N", least: 1, about: "Bound of their tool calls." },
  "budget-seconds": { kind: "integer", value: "S", least: 1, about: "Bound of their time." },
  "approve-tools": { kind: "string", value: "A,B", about: "Tools for which a person is asked first." },
  "idempotency-key": { kind: "string", value: "KEY", about: "Again with the same key: the same run, no second one." },
};

export const spawn: Command = {
  name: "spawn",
  operands: "TASK...",
  summary: "Starts one sub-agent per task and prints their handles; with --await their answers.",
  details: `A task of - is read from stdin. ${CALLER_DETAILS}`,
  flags: {
    ...SPAWN_FLAGS,
    await: { kind: "boolean", about: "Waits for the answers." },
    ...CALLER_FLAGS,
  },
  positionals: { least: 1, most: 1_000 },
  async run(flags) {
    const given = argumentsOf(flags);
    const tasks = await Promise.all(flags.positionals.map(taskOf));
    return withRuntime(flags, async (runtime) => {
      const spawned = await runtime.call<{ readonly handles: readonly string[] }>("spawn", { ...given, tasks });
      const { handles } = spawned;
      const json = flags.has("json");
      if (flags.has("await")) {
        process.stderr.write(`started ${handles.join(" ")}; they go on also when this command ends\n`);
        return waitForRuns(runtime, { handles, mode: "all", timeoutMs: undefined, json });
      }
      process.stdout.write(json ? `${JSON.stringify(spawned)}\n` : `${handles.join("\n")}\n`);
      if (process.stderr.isTTY) process.stderr.write(`luftpause await ${handles.join(" ")}\n`);
      return EXIT.ok;
    });
  },
};

function argumentsOf(flags: ParsedFlags): { readonly [name: string]: unknown } {
  const serviceClass = flags.text("class");
  if (serviceClass !== undefined && serviceClass !== "interactive" && serviceClass !== "batch") {
    throw new CommandError(EXIT.usage, `luftpause spawn: --class '${serviceClass}' is not interactive or batch`);
  }
  if (flags.has("tools") && flags.has("no-tools")) {
    throw new CommandError(EXIT.usage, "luftpause spawn: --tools and --no-tools cannot both be meant");
  }
  const all = {
    model: flags.text("model"),
    serviceClass,
    system: flags.text("system"),
    tools: flags.has("no-tools") ? [] : listed(flags.text("tools")),
    maxToolCalls: flags.integer("max-tool-calls"),
    maxTokens: flags.integer("max-tokens"),
    parallelToolCalls: flags.has("parallel-tool-calls") ? true : undefined,
    parent: flags.text("parent"),
    budgetTokens: flags.integer("budget-tokens"),
    budgetToolCalls: flags.integer("budget-tool-calls"),
    budgetSeconds: flags.integer("budget-seconds"),
    approveTools: listed(flags.text("approve-tools")),
    idempotencyKey: flags.text("idempotency-key"),
  };
  return Object.fromEntries(Object.entries(all).filter(([, value]) => value !== undefined));
}

function listed(text: string | undefined): readonly string[] | undefined {
  return text
    ?.split(",")
    .map((name) => name.trim())
    .filter((name) => name !== "");
}

async function taskOf(operand: string): Promise<string> {
  if (operand !== "-") return operand;
  const parts: Buffer[] = [];
  for await (const part of process.stdin) parts.push(part as Buffer);
  const text = Buffer.concat(parts).toString("utf8").trim();
  if (text === "") throw new CommandError(EXIT.usage, "luftpause spawn: the task on stdin is empty");
  return text;
}
