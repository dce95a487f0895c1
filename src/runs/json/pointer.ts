/** The names on the way that a JSON pointer in a fragment goes (`#/a/b~1c`), unescaped. */
export function pointerPath(fragment: string): readonly string[] {
  return fragment
    .split("/")
    .slice(1)
    .map((part) => decoded(part).replaceAll("~1", "/").replaceAll("~0", "~"));
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
