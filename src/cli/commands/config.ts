import { stringify } from "yaml";
import { CONFIG_FLAGS, configFromFlags } from "../config/from-flags.ts";
import { withoutSecrets } from "../config/load.ts";
import { configJsonSchema } from "../config/schema.ts";
import { CommandError, EXIT } from "../exit.ts";
import type { Command } from "../flags.ts";

export const config: Command = {
  name: "config",
  operands: "check|show|schema",
  summary: "Checks the config, shows what is in force, or prints its JSON Schema.",
  details: [
    "check   reads file, environment and flags, and says what is wrong with line and column",
    "show    prints the config in force with every default; secrets are struck out",
    "schema  prints the JSON Schema of luftpause.yaml for editors",
  ].join("\n"),
  flags: CONFIG_FLAGS,
  positionals: { least: 1, most: 1 },
  run(flags) {
    const action = flags.positionals[0];
    switch (action) {
      case "schema":
        print(JSON.stringify(configJsonSchema(), undefined, 2));
        break;
      case "check": {
        const { config: checked, file } = configFromFlags(flags);
        const { endpoints, tools } = checked;
        const counts = [counted(endpoints.length, "endpoint"), counted(tools.length, "tool server")];
        print(`${file ?? "no config file"}: ok, ${counts.join(", ")}`);
        break;
      }
      case "show":
        print(stringify(withoutSecrets(configFromFlags(flags).config)).trimEnd());
        break;
      default:
        throw new CommandError(EXIT.usage, `luftpause config: '${action}' is not one of check, show, schema`);
    }
    return Promise.resolve(EXIT.ok);
  },
};

function counted(count: number, what: string): string {
  return `${count} ${what}${count === 1 ? "" : "s"}`;
}

function print(text: string): void {
  process.stdout.write(`${text}\n`);
}
