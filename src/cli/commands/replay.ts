import { createReadStream } from "node:fs";
import { createInterface } from "node:readline";
import { replay as replayLog } from "../../scheduling/index.ts";
import { CommandError, EXIT } from "../exit.ts";
import type { Command } from "../flags.ts";
import { version } from "../version.ts";

export const replay: Command = {
  name: "replay",
  operands: "LOG",
  summary: "Runs a decision log through the scheduling core again; every effect must come out bit for bit.",
  details: "The log is written with scheduler.eventLog.path; each of its files replays on its own.",
  flags: {
    force: { kind: "boolean", about: "Tries a log that another version wrote." },
    json: { kind: "boolean", about: "Prints the outcome as JSON." },
  },
  positionals: { least: 1, most: 1 },
  async run(flags) {
    const file = flags.positionals[0] ?? "";
    const lines: string[] = [];
    try {
      const input = createReadStream(file, "utf8");
      // readline swallows the error of its input: it is awaited by itself.
      const failed = new Promise<never>((_, reject) => {
        input.once("error", reject);
      });
      const reading = (async () => {
        for await (const line of createInterface({ input, crlfDelay: Number.POSITIVE_INFINITY })) lines.push(line);
      })();
      await Promise.race([reading, failed]);
    } catch (error) {
      throw new CommandError(EXIT.fault, `${file}: cannot be read (${(error as NodeJS.ErrnoException).code})`);
    }
    const outcome = replayLog(lines, { version: version(), force: flags.has("force") });
    if (flags.has("json")) process.stdout.write(`${JSON.stringify(outcome)}\n`);
    switch (outcome.kind) {
      case "same":
        if (!flags.has("json")) {
          process.stdout.write(`${file}: ${outcome.events} events, ${outcome.effects} effects: all the same\n`);
        }
        return EXIT.ok;
      case "differs":
        throw new CommandError(
          EXIT.fault,
          `${file}:${outcome.line}: the effects differ\n  recorded: ${outcome.recorded}\n  replayed: ${outcome.replayed}`,
        );
      case "refused":
        throw new CommandError(EXIT.fault, `${file}: ${outcome.reason}`);
      case "broken":
        throw new CommandError(EXIT.fault, `${file}:${outcome.line}: ${outcome.reason}`);
    }
  },
};
