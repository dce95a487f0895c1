/**
 * By what a run is recognised without our header: the keys of a request (to look up) and of an answer (to remember), as
 * hashes that are scoped to the principal and the model (spec 8, Which run is this?). To which run a key belongs is the
 * scheduler's to know; so is rule 1, which needs no key. The decisions behind the forms are in docs/run-identity.md.
 *
 * K1: a key that an answer leaves and a key that the next request shows are made by the same function, from the same parts.
 * K2: no part of a key can be read as another part: each is delimited.
 */
import { createHash, hash } from "node:crypto";
import type { PrincipalId } from "../base/ids.ts";
import type { IdentityKey } from "../wire/admission.ts";
import { canonicalJson } from "./canonical-json.ts";
import type { AnsweredToolCall, EchoedToolCall, IdentityKeys, RequestScan, TapFindings } from "./inspection.ts";

/** Whose conversation, with which model: equal values of two principals or models never meet. */
type Scope = { readonly principal: PrincipalId; readonly model: string };

export type RequestIdentity = {
  /** In the order of the rules; the first hit counts. */
  readonly keys: IdentityKeys;
  /** Digest of all messages, remembered with the answer: the next request begins with them. */
  readonly prefix: string | undefined;
};

/**
 * So many answers back a request is looked for by its prefix. One is the rule; a client that splits an answer into two
 * messages, or puts words into the model's mouth, needs the next.
 */
const PREFIXES_MAX = 3;

/**
 * Calls with more arguments than this together have no exact key: to canonicalise a body of them would stop every other
 * turn for seconds, and of an answer no more are kept (chat-chunk.ts).
 */
const ARGUMENT_CHARS_MAX = 1_048_576;

/**
 * Keys of a request: the tool calls that it echoes (rule 7), then the conversation before its last answers (rule 9),
 * longest first.
 */
export function requestIdentity(scope: Scope, body: Buffer, scan: RequestScan): RequestIdentity {
  const keys = scan.lastToolCalls.length === 0 ? [] : toolCallKeys(scope, scan.lastToolCalls);
  const { known, whole } = prefixes(scope, body, scan);
  for (const prefix of known) keys.push(prefixKey(prefix));
  return { keys, prefix: whole };
}

/**
 * Keys of an answer: its tool calls, of each choice by itself since a client goes on with one, and the prefix that its
 * request left.
 */
export function answerKeys(
  scope: Scope & { readonly prefix: string | undefined },
  findings: Pick<TapFindings, "toolCalls">,
): IdentityKeys {
  const keys: IdentityKey[] = [];
  for (const calls of byChoice(findings.toolCalls)) keys.push(...toolCallKeys(scope, calls));
  if (scope.prefix !== undefined) keys.push(prefixKey(scope.prefix));
  return keys;
}

function byChoice(calls: readonly AnsweredToolCall[]): Iterable<readonly AnsweredToolCall[]> {
  const first = calls[0]?.choice;
  if (first === undefined) return [];
  if (calls.every(({ choice }) => choice === first)) return [calls];
  return Map.groupBy(calls, ({ choice }) => choice).values();
}

/**
 * The exact key, and behind it ids and names alone, for clients that change the arguments. Where every id is one of a
 * kind, ids and names say all that the exact key would say.
 */
function toolCallKeys(scope: Scope, calls: readonly EchoedToolCall[]): IdentityKey[] {
  const byNames = callsKey("names", scope, calls, idAndName);
  if (calls.every(({ id }) => isOneOfAKind(id))) return [byNames];
  let chars = 0;
  for (const call of calls) chars += call.arguments.length;
  if (chars > ARGUMENT_CHARS_MAX) return [byNames];
  return [callsKey("calls", scope, calls, ({ id, name, arguments: text }) => [id, name, canonicalJson(text)]), byNames];
}

function idAndName({ id, name }: EchoedToolCall): readonly string[] {
  return [id, name];
}

/** The random part of an id is its end. Hexadecimal or base 62, a dozen characters hold 48 bits and more. */
const RANDOM_CHARS_MIN = 12;
/** Words have no digits, counters and versions have few: `functions.search_v2:0` is no id of one call. */
const RANDOM_DIGITS_MIN = 3;

/**
 * Whether an id was drawn at random, by its looks: `call_` or `chatcmpl-tool-` and 24 hex digits, `toolu_01…`. One that
 * only looks so costs no more than what ids and names cost where arguments were changed: two runs that left the same
 * key are not told apart by it.
 */
function isOneOfAKind(id: string): boolean {
  let digits = 0;
  let at = id.length - 1;
  for (; at >= 0; at -= 1) {
    const code = id.charCodeAt(at);
    if (code >= 0x30 && code <= 0x39) digits += 1;
    else if (!((code | 0x20) >= 0x61 && (code | 0x20) <= 0x7a)) break;
  }
  return id.length - 1 - at >= RANDOM_CHARS_MIN && digits >= RANDOM_DIGITS_MIN;
}

/** The order of parallel calls does not count. */
function callsKey(
  rule: string,
  scope: Scope,
  calls: readonly EchoedToolCall[],
  parts: (call: EchoedToolCall) => readonly string[],
): IdentityKey {
  const text = calls.map((call) => JSON.stringify(parts(call))).sort();
  return { source: "tool-calls", hash: short(hash("sha256", seed(rule, scope) + text.join("\n"), "base64url")) };
}

function prefixKey(digest: string): IdentityKey {
  return { source: "prefix", hash: digest, weak: true };
}

/** What every key begins with. A model's name is the client's: JSON keeps it from running into what follows. */
function seed(rule: string, { principal, model }: Scope): string {
  return `${rule}\n${JSON.stringify([principal, model])}\n`;
}

/** 132 bits: enough that two keys never meet, and small in the scheduler's table. */
function short(digest: string): string {
  return digest.slice(0, 22);
}

/**
 * Digests over the bytes of the messages, from the first one: up to the ones before the last answers, and over all.
 * The bytes as they were sent, since a client writes its earlier messages in the same way again; one that does not is
 * not recognised by this rule, which is the last one anyway.
 */
function prefixes(
  scope: Scope,
  body: Buffer,
  { messages }: RequestScan,
): { readonly known: readonly string[]; readonly whole: string | undefined } {
  const first = messages[0];
  const last = messages.at(-1);
  if (first === undefined || last === undefined) return { known: [], whole: undefined };
  const ends: number[] = [];
  for (let at = messages.length - 1; at > 0 && ends.length < PREFIXES_MAX; at -= 1) {
    if (messages[at]?.role === "assistant") ends.push(messages[at - 1]?.end ?? first.end);
  }
  const digest = createHash("sha256").update(seed("prefix", scope));
  const known: string[] = [];
  let from = first.start;
  for (const end of ends.reverse()) {
    digest.update(body.subarray(from, end));
    known.push(short(digest.copy().digest("base64url")));
    from = end;
  }
  const whole = short(digest.update(body.subarray(from, last.end)).digest("base64url"));
  return { known: known.reverse(), whole };
}
