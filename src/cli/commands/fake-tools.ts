import {
  FAKE_TOOLS_FLAGS,
  serveFakeToolsOnStdio,
  startFakeTools,
  toolFaultsHelp,
  toolsOptionsFromFlags,
} from "../../testbed/index.ts";
import { listenProblem } from "../address.ts";
import { CommandError, EXIT } from "../exit.ts";
import type { Command } from "../flags.ts";
import { drainOnSignals } from "../signals.ts";

export const fakeTools: Command = {
  name: "fake-tools",
  operands: "",
  summary: "Starts simulated tools: an MCP server over HTTP or stdio, in both eras of the protocol.",
  details: `Faults, by --fault:\n${toolFaultsHelp()}`,
  flags: FAKE_TOOLS_FLAGS,
  positionals: { least: 0, most: 0 },
  async run(flags) {
    const outcome = toolsOptionsFromFlags(flags);
    if (outcome.kind === "invalid") throw new CommandError(EXIT.usage, `luftpause fake-tools: ${outcome.message}`);
    const { options, stdio } = outcome;
    if (stdio) {
      await serveFakeToolsOnStdio(options);
      return EXIT.ok;
    }
    const address = { host: options.host ?? "127.0.0.1", port: options.port ?? 0 };
    const server = await startFakeTools(options).catch((error: unknown) => {
      throw listenProblem(error, address, "--port PORT");
    });
    process.stdout.write(`simulated tools on ${server.url}\n`);
    return drainOnSignals(
      () => server.close(),
      (line) => process.stderr.write(`${line}\n`),
    );
  },
};
