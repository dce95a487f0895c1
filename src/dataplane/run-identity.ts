/**
 * By what a run is recognised without our header: the keys of a request (to look up) and of an answer (to remember), as
 * hashes that are scoped to the principal (spec 8, Which run is this?). Which run a key belongs to is the scheduler's.
 */
import { createHash, hash } from "node:crypto";
import type { PrincipalId } from "../base/ids.ts";
import type { IdentityKey } from "../wire/admission.ts";
import { canonicalJson } from "./canonical-json.ts";
import type { EchoedToolCall, IdentityKeys, RequestScan, TapFindings } from "./inspection.ts";

/** Whose conversation, with which model: equal values of two principals or models never meet. */
type Scope = { readonly principal: PrincipalId; readonly model: string };

export type RequestIdentity = {
  /** In the order of the rules; the first hit counts. */
  readonly keys: IdentityKeys;
  /** Digest of all messages, remembered with the answer: the next request begins with them. */
  readonly prefix: string | undefined;
};

/** Keys of a request: the tool calls that it echoes (rule 7), and the conversation before its last answer (rule 9). */
export function requestIdentity(scope: Scope, body: Buffer, scan: RequestScan): RequestIdentity {
  const keys = scan.lastToolCalls.length === 0 ? [] : toolCallKeys(scope, scan.lastToolCalls);
  const { before, whole } = prefixes(scope, body, scan);
  if (before !== undefined) keys.push({ source: "prefix", hash: before, weak: true });
  return { keys, prefix: whole };
}

/** Keys of an answer: its tool calls, and the messages of its request. */
export function answerKeys(
  scope: Scope & { readonly prefix: string | undefined },
  findings: TapFindings,
): IdentityKeys {
  const keys = findings.toolCalls.length === 0 ? [] : toolCallKeys(scope, findings.toolCalls);
  if (scope.prefix !== undefined) keys.push({ source: "prefix", hash: scope.prefix, weak: true });
  return keys;
}

/** The exact key, and behind it ids and names alone, for clients that change the arguments. */
function toolCallKeys(scope: Scope, calls: readonly EchoedToolCall[]): IdentityKey[] {
  const exact = calls.map(({ id, name, arguments: text }) => JSON.stringify([id, name, canonicalJson(text)])).sort();
  const names = calls.map(({ id, name }) => JSON.stringify([id, name])).sort();
  return [
    { source: "tool-calls", hash: keyOf("calls", scope, exact.join("\n")) },
    { source: "tool-calls", hash: keyOf("names", scope, names.join("\n")) },
  ];
}

function keyOf(rule: string, { principal, model }: Scope, text: string): string {
  return short(hash("sha256", `${rule}\n${principal}\n${model}\n${text}`, "base64url"));
}

/** 132 bits: enough that two keys never meet, and small in the scheduler's table. */
function short(digest: string): string {
  return digest.slice(0, 22);
}

/**
 * Digests over the bytes of the messages, from the first one: up to the one before the last answer, and over all. The
 * bytes as they were sent, since a client writes its earlier messages in the same way again; a client that does not is
 * not recognised by this rule, which only gives a preference anyway.
 */
function prefixes(
  { principal, model }: Scope,
  body: Buffer,
  scan: RequestScan,
): { readonly before: string | undefined; readonly whole: string | undefined } {
  const { messages } = scan;
  const first = messages[0];
  const last = messages.at(-1);
  if (first === undefined || last === undefined) return { before: undefined, whole: undefined };
  const digest = createHash("sha256").update(`prefix\n${principal}\n${model}\n`);
  const answerAt = messages.findLastIndex(({ role }) => role === "assistant");
  const known = answerAt > 0 ? messages[answerAt - 1] : undefined;
  if (known === undefined) {
    const whole = digest.update(body.subarray(first.start, last.end)).digest("base64url");
    return { before: undefined, whole: short(whole) };
  }
  digest.update(body.subarray(first.start, known.end));
  const before = digest.copy().digest("base64url");
  const whole = digest.update(body.subarray(known.end, last.end)).digest("base64url");
  return { before: short(before), whole: short(whole) };
}
