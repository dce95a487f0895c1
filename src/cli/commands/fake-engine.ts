import { FAKE_ENGINE_FLAGS, faultsHelp, optionsFromFlags, startFakeEngine } from "../../testbed/index.ts";
import { listenProblem } from "../address.ts";
import { CommandError, EXIT } from "../exit.ts";
import type { Command } from "../flags.ts";
import { drainOnSignals } from "../signals.ts";

export const fakeEngine: Command = {
  name: "fake-engine",
  operands: "",
  summary: "Starts a simulated inference engine: a model of batching, KV cache and metrics, not a sleep.",
  details: `Fault switches, for the whole engine by --fault, for one request by the header x-fake-fault:\n${faultsHelp()}`,
  flags: FAKE_ENGINE_FLAGS,
  positionals: { least: 0, most: 0 },
  async run(flags) {
    const outcome = optionsFromFlags(flags);
    if (outcome.kind === "invalid") throw new CommandError(EXIT.usage, `luftpause fake-engine: ${outcome.message}`);
    const { options } = outcome;
    const address = { host: options.host ?? "127.0.0.1", port: options.port ?? 0 };
    const engine = await startFakeEngine(options).catch((error: unknown) => {
      throw listenProblem(error, address, "--port PORT");
    });
    process.stdout.write(`simulated engine (${options.dialect ?? "vllm"}) on ${engine.url}\n`);
    return drainOnSignals(
      () => engine.close(),
      (line) => process.stderr.write(`${line}\n`),
    );
  },
};
