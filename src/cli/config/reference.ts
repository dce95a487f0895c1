/** The configuration reference, made from the schema: docs/configuration.md is this text (a test compares them). */
import { environmentName, type ConfigPath } from "./paths.ts";

/** Markdown of every key: type, default, meaning. */
export function configReference(paths: readonly ConfigPath[]): string {
  const rows = paths.map(({ path, type, fallback, about, secret }) => {
    const value = fallback === undefined ? (secret ? "" : "required") : JSON.stringify(fallback);
    const shown = value === "" || value === "required" ? value : `\`${value}\``;
    return `| \`${path}\` | ${type.replaceAll("|", "\\|")} | ${shown} | ${about} |`;
  });
  return [
    "# Configuration",
    "",
    "`luftpause.yaml` in the folder where luftpause starts, or the file that `--config` or `LUFTPAUSE_CONFIG` names.",
    "Precedence: defaults, then the file, then the environment, then flags. Generated from the schema: `luftpause config schema`",
    "prints the same as JSON Schema for editors, `luftpause config check` says what is wrong with line and column, and",
    "`luftpause config show` prints what is in force.",
    "",
    "- Environment: a double underscore is nesting and camelCase becomes upper case with underscores:",
    `  \`limits.drainSeconds\` is \`${environmentName("limits.drainSeconds")}\`. Values are read as YAML, so a list may be given too.`,
    "- One key from the command line: `--set limits.drainSeconds=5`.",
    "- Secrets stand in the file by reference only: `${NAME}` for an environment variable, `${file:/run/secrets/name}` for a file.",
    "- Reserved names that are no keys: `LUFTPAUSE_TOKEN` (the token, also without a line in the file), `LUFTPAUSE_CONFIG` (the file),",
    "  `LUFTPAUSE_INSECURE=1` (as `--insecure`), `LUFTPAUSE_VERSION`, `LUFTPAUSE_REGISTRY`, `LUFTPAUSE_BIND` (for compose files).",
    "- SIGHUP reads the config again: validated whole, applied at once to the pool of engines, the old one kept on an error.",
    "",
    "| key | type | default | meaning |",
    "| --- | --- | --- | --- |",
    ...rows,
    "",
  ].join("\n");
}
