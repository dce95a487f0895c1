/**
 * Patterns of tool names, in a spawn's arguments and in the config: `*` stands for any characters, everything else for itself.
 * A model writes them, so the time is bounded by the product of both lengths, whatever the pattern: no regular expression.
 */
export function matchesPattern(pattern: string, name: string): boolean {
  const [first = "", ...rest] = pattern.split("*");
  const last = rest.pop();
  if (last === undefined) return name === pattern;
  if (!name.startsWith(first)) return false;
  // The leftmost place of each part leaves most room for those behind it.
  let from = first.length;
  for (const part of rest) {
    const at = name.indexOf(part, from);
    if (at < 0) return false;
    from = at + part.length;
  }
  return name.length - last.length >= from && name.endsWith(last);
}
