/** Patterns of tool names, in a spawn's arguments and in the config: `*` stands for any characters, everything else for itself. */
export function matchesPattern(pattern: string, name: string): boolean {
  const parts = pattern.split("*").map((part) => part.replaceAll(/[.*+?^${}()|[\]\\]/g, String.raw`\$&`));
  return new RegExp(`^${parts.join(".*")}$`, "s").test(name);
}
