#!/usr/bin/env node
/** The command `luftpause`: finds the command, parses its flags, turns faults into words and an exit code. */
import { enableCompileCache } from "node:module";
import { CommandError, EXIT } from "./exit.ts";
import { helpText, parseFlags, type Command } from "./flags.ts";
import { nearest } from "./config/nearest.ts";
import { version } from "./version.ts";

type Entry = { readonly summary: string; readonly load: () => Promise<Command> };

// Each command is loaded only when it is used: `--help` must stay quick (spec 7).
const COMMANDS: { readonly [name: string]: Entry } = {
  up: {
    summary: "Starts everything in one process on one port; simulated engines where none is named.",
    load: async () => (await import("./commands/up.ts")).up,
  },
  scheduler: {
    summary: "Starts the scheduler as a service of its own.",
    load: async () => (await import("./commands/scheduler.ts")).scheduler,
  },
  dataplane: {
    summary: "Starts a proxy as a service of its own, attached to a scheduler.",
    load: async () => (await import("./commands/dataplane.ts")).dataplane,
  },
  runtime: {
    summary: "Starts the runtime as a service of its own: durable sub-agents over MCP.",
    load: async () => (await import("./commands/runtime.ts")).runtime,
  },
  "fake-engine": {
    summary: "Starts a simulated inference engine.",
    load: async () => (await import("./commands/fake-engine.ts")).fakeEngine,
  },
  "fake-tools": {
    summary: "Starts simulated tools: an MCP server with faults.",
    load: async () => (await import("./commands/fake-tools.ts")).fakeTools,
  },
  demo: {
    summary: "Shows what luftpause does for agents, in a minute, on simulated engines.",
    load: async () => (await import("./commands/demo.ts")).demo,
  },
  sim: {
    summary: "Compares scheduling policies under virtual time, in seconds.",
    load: async () => (await import("./commands/sim.ts")).sim,
  },
  loadgen: {
    summary: "Runs agents against a proxy in a closed loop and says what they saw.",
    load: async () => (await import("./commands/loadgen.ts")).loadgen,
  },
  spawn: {
    summary: "Starts sub-agents and prints their handles, or their answers.",
    load: async () => (await import("./commands/spawn.ts")).spawn,
  },
  await: {
    summary: "Waits for sub-agents and prints their answers.",
    load: async () => (await import("./commands/await.ts")).awaitRuns,
  },
  runs: {
    summary: "Lists sub-agents, shows one or the tree, or cancels one.",
    load: async () => (await import("./commands/runs.ts")).runs,
  },
  approvals: {
    summary: "Lists and answers the tool calls that wait for a person.",
    load: async () => (await import("./commands/approvals.ts")).approvals,
  },
  status: {
    summary: "Shows replicas, held turns and runs of a running luftpause.",
    load: async () => (await import("./commands/status.ts")).status,
  },
  replay: {
    summary: "Runs a decision log through the scheduling core again and compares every effect.",
    load: async () => (await import("./commands/replay.ts")).replay,
  },
  journal: {
    summary: "Checks, shrinks, exports or imports the journal of runs.",
    load: async () => (await import("./commands/journal.ts")).journal,
  },
  config: {
    summary: "Checks the config, shows what is in force, or prints its JSON Schema.",
    load: async () => (await import("./commands/config.ts")).config,
  },
};

function overview(): string {
  const width = Math.max(...Object.keys(COMMANDS).map((name) => name.length));
  return [
    "luftpause: between your agents and your inference engines",
    "",
    "luftpause COMMAND [flags]",
    "",
    ...Object.entries(COMMANDS).map(([name, { summary }]) => `  ${name.padEnd(width)}  ${summary}`),
    "",
    "luftpause COMMAND --help shows the flags of a command; luftpause --version the version.",
  ].join("\n");
}

async function run(args: readonly string[]): Promise<number> {
  const [name, ...rest] = args;
  if (name === undefined || name === "--help" || name === "-h" || (name === "help" && rest.length === 0)) {
    process.stdout.write(`${overview()}\n`);
    return name === undefined ? EXIT.usage : EXIT.ok;
  }
  if (name === "--version" || name === "-v" || name === "version") {
    process.stdout.write(`${version()}\n`);
    return EXIT.ok;
  }
  const wanted = name === "help" ? rest[0] : name;
  const entry = Object.hasOwn(COMMANDS, wanted ?? "") ? COMMANDS[wanted ?? ""] : undefined;
  if (entry === undefined) {
    const near = nearest(wanted ?? "", Object.keys(COMMANDS));
    const hint = near === undefined ? "" : `; did you mean '${near}'?`;
    throw new CommandError(EXIT.usage, `unknown command '${wanted}'${hint}\nSee: luftpause --help`);
  }
  const command = await entry.load();
  const flags = parseFlags(command, name === "help" ? ["--help"] : rest);
  if (flags.has("help")) {
    process.stdout.write(`${helpText(command)}\n`);
    return EXIT.ok;
  }
  return command.run(flags);
}

enableCompileCache();
// A closed pipe (`luftpause status | head`) is the reader's way to say enough, not a fault.
process.stdout.on("error", (error: NodeJS.ErrnoException) => {
  if (error.code === "EPIPE") process.exit(EXIT.ok);
  throw error;
});
try {
  process.exit(await run(process.argv.slice(2)));
} catch (error) {
  if (!(error instanceof CommandError)) throw error;
  process.stderr.write(`${error.message}\n`);
  // Whatever the command had opened before it found the fault must not keep the process.
  process.exit(error.exitCode);
}
