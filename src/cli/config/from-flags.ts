/** The flags that every command with a config shares, and the config that they lead to. */
import { CommandError, EXIT } from "../exit.ts";
import type { FlagTable, ParsedFlags } from "../flags.ts";
import { loadConfig } from "./load.ts";
import type { Config } from "./schema.ts";

export const CONFIG_FLAGS: FlagTable = {
  config: {
    kind: "string",
    value: "FILE",
    about: "Config file; without it ./luftpause.yaml, where there is one.",
  },
  set: {
    kind: "string",
    value: "KEY=VALUE",
    many: true,
    about: "Sets one key of the config, such as --set limits.drainSeconds=5.",
  },
};

/** Flags that are short for a key: `--listen` for `listen`, or for the listen key of a service. */
export type KeyFlags = { readonly [flag: string]: string };

/**
 * Loads the config for a command.
 * @param keys short flags and the config key that each sets.
 * @throws CommandError (config) listing every problem with its place.
 */
export function configFromFlags(
  flags: ParsedFlags,
  keys: KeyFlags = {},
): { readonly config: Config; readonly file: string | undefined } {
  const overrides: (readonly [string, string])[] = [];
  for (const text of flags.texts("set")) {
    const at = text.indexOf("=");
    if (at < 1) throw new CommandError(EXIT.usage, `--set needs KEY=VALUE, got '${text}'`);
    overrides.push([text.slice(0, at), text.slice(at + 1)]);
  }
  for (const [flag, key] of Object.entries(keys)) {
    const text = flags.text(flag);
    if (text !== undefined) overrides.push([key, text]);
  }
  const outcome = loadConfig({ file: flags.text("config"), environment: process.env, overrides });
  if (outcome.kind === "invalid") {
    throw new CommandError(EXIT.config, ["The config is not valid:", ...outcome.problems].join("\n  "));
  }
  return outcome;
}
