import type { Command } from "../flags.ts";
import { CALLER_DETAILS, CALLER_FLAGS, withRuntime } from "../runtime-calls/caller.ts";
import { waitForRuns } from "../runtime-calls/wait.ts";

export const awaitRuns: Command = {
  name: "await",
  operands: "HANDLE...",
  summary: "Waits for sub-agents and prints their answers; asks for approvals when somebody sits at the terminal.",
  details: [
    "Answers go to stdout, everything else to stderr. Ctrl-C ends the waiting, never a run.",
    "Exit code 0 when all have completed (--any: one of them), else 1.",
    CALLER_DETAILS,
  ].join("\n"),
  flags: {
    any: { kind: "boolean", about: "Until one has ended." },
    "timeout-s": { kind: "integer", value: "S", about: "Longest wait; without it as long as it takes." },
    ...CALLER_FLAGS,
  },
  positionals: { least: 1, most: 1_000 },
  async run(flags) {
    const timeoutS = flags.integer("timeout-s");
    return withRuntime(flags, (runtime) =>
      waitForRuns(runtime, {
        handles: [...new Set(flags.positionals)],
        mode: flags.has("any") ? "any" : "all",
        timeoutMs: timeoutS === undefined ? undefined : timeoutS * 1000,
        json: flags.has("json"),
      }),
    );
  },
};
