/**
 * What a prompt begins with: model, tools, system prompt. Prompts that begin alike share their first blocks in an engine's
 * cache, so the policy counts those once (spec 9, Admit runs, not turns).
 */
import { createHash } from "node:crypto";
import type { RequestScan } from "./inspection.ts";

const OPENING_ROLES: ReadonlySet<string> = new Set(["system", "developer"]);
const DIGEST_CHARS = 22;

/** @returns a digest of the bytes as they were sent; undefined where nothing comes before the conversation itself. */
export function sharedPrefixOf(body: Buffer, scan: RequestScan): string | undefined {
  const { model, tools, messages } = scan;
  const [first] = messages;
  const opening = first !== undefined && OPENING_ROLES.has(first.role) ? first : undefined;
  if (tools === undefined && opening === undefined) return undefined;
  const digest = createHash("sha256").update(`${model.length} ${model}`);
  // Each part is JSON: where one ends and the next begins is plain.
  if (tools !== undefined) digest.update(body.subarray(tools.start, tools.end));
  if (opening !== undefined) digest.update(body.subarray(opening.start, opening.end));
  return digest.digest("base64url").slice(0, DIGEST_CHARS);
}
