/**
 * What the headers of a turn say, checked where they come in (spec 3, Headers). Our own headers are strict. Names of runs,
 * principals and callers are remembered for half an hour: they are copied out of the head that they came in.
 */
import {
  ANONYMOUS_CALLER,
  asCallerId,
  asPrincipalId,
  parseRunId,
  type CallerId,
  type PrincipalId,
  type RunId,
} from "../base/ids.ts";
import { detached, type Exchange, type Identity } from "../http/index.ts";
import type { ServiceClass } from "../wire/admission.ts";
import type { LuftpauseError } from "../wire/errors.ts";
import { HEADER } from "../wire/headers.ts";

/** Which classes a principal may use, the best first; undefined: all. */
export type ClassesOf = (principal: PrincipalId) => readonly ServiceClass[] | undefined;

/** On whose behalf a request is made. Only our own services may name another principal (spec 1). */
export function principalOf(exchange: Exchange, identity: Identity): PrincipalId {
  if (!identity.service) return identity.principal;
  const named = exchange.header(HEADER.principal);
  return named !== undefined && /^[\x21-\x7e]{1,128}$/.test(named)
    ? asPrincipalId(detached(named))
    : identity.principal;
}

/** The run that the client names; undefined when it names none. */
export function runOf(exchange: Exchange, bytesMax: number): RunId | undefined | LuftpauseError {
  const text = exchange.header(HEADER.runId);
  if (text === undefined) return undefined;
  const once = exchange.headerCount(HEADER.runId) === 1;
  const run = once && text.length <= bytesMax ? parseRunId(detached(text)) : undefined;
  if (run !== undefined) return run;
  const problem = once ? "is not valid" : "was sent more than once";
  return {
    code: "bad_run_id",
    param: HEADER.runId,
    message: `header ${HEADER.runId} ${problem}: send it once, with 1 to ${bytesMax} visible ASCII characters and no comma`,
  };
}

/** The class that the client asks for, and whether it was lowered to one that its principal may use. */
export function classOf(
  exchange: Exchange,
  allowed: readonly ServiceClass[],
): { readonly class: ServiceClass; readonly lowered: boolean } | LuftpauseError {
  const text = exchange.header(HEADER.class);
  if (text !== undefined && ((text !== "interactive" && text !== "batch") || exchange.headerCount(HEADER.class) > 1)) {
    return {
      code: "bad_class",
      param: HEADER.class,
      message: `header ${HEADER.class} must be sent once, as 'interactive' or 'batch'`,
    };
  }
  const wanted: ServiceClass = text ?? "interactive";
  if (allowed.includes(wanted)) return { class: wanted, lowered: false };
  return { class: allowed[0] ?? "batch", lowered: true };
}

/** The caller: the first bytes as received, not cut inside a UTF-8 character. */
export function callerOf(exchange: Exchange, bytesMax: number): CallerId {
  const text = exchange.header(HEADER.caller);
  if (text === undefined || text === "") return ANONYMOUS_CALLER;
  // Header values come as Latin-1: one character is one byte.
  if (/^[\x20-\x7e]*$/.test(text)) return asCallerId(detached(text.slice(0, bytesMax)));
  const bytes = Buffer.from(text, "latin1");
  const cut = bytes.subarray(0, wholeCharacters(bytes, bytesMax));
  const utf8 = cut.toString("utf8");
  // What is no UTF-8 keeps its bytes as they are: two callers must not become one.
  return asCallerId(utf8.includes("\ufffd") ? cut.toString("latin1") : utf8);
}

/** The most bytes up to a bound that end with a whole UTF-8 character; what is no UTF-8 is cut at the bound. */
function wholeCharacters(bytes: Buffer, bytesMax: number): number {
  if (bytes.length <= bytesMax) return bytes.length;
  // A character has at most three bytes behind its first one.
  for (let end = bytesMax; end > 0 && end > bytesMax - 4; end -= 1) {
    if (((bytes[end] ?? 0) & 0xc0) !== 0x80) return end;
  }
  return bytesMax;
}

/** W3C trace context, where it has the form of one. */
export function traceparentOf(exchange: Exchange): string | undefined {
  const text = exchange.header("traceparent");
  return text !== undefined && /^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(?:-.{0,200})?$/.test(text)
    ? text
    : undefined;
}

/** A compressed body cannot be read, and engines would not read it either. */
export function encodingProblem(exchange: Exchange): LuftpauseError | undefined {
  const encoding = exchange.header("content-encoding");
  if (encoding === undefined || encoding === "" || encoding.toLowerCase() === "identity") return undefined;
  return {
    code: "unsupported_encoding",
    param: "content-encoding",
    message: "compressed request bodies are not supported: send the body without content-encoding",
  };
}
