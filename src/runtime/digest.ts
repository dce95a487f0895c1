/** Digests of JSON values that do not depend on the order of keys: what an approval or an idempotency key is bound to. */
import { createHash } from "node:crypto";

/** SHA-256, hex, of the value with its keys sorted. Members that are undefined do not count, as in JSON. */
export function digestOfJson(value: unknown): string {
  return createHash("sha256").update(canonicalJson(value), "utf8").digest("hex");
}

function canonicalJson(value: unknown): string {
  return JSON.stringify(value, (_key, inner: unknown) => {
    if (typeof inner !== "object" || inner === null || Array.isArray(inner)) return inner;
    const members = Object.entries(inner).sort(([left], [right]) => (left < right ? -1 : 1));
    // Without a prototype: a key `__proto__` is a key like any other.
    return Object.assign(Object.create(null) as object, Object.fromEntries(members)) as unknown;
  });
}
