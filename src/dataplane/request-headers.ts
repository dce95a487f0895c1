/**
 * The headers of one attempt at an engine, rebuilt from what the client sent (spec 3, Forwarding). A list per attempt:
 * what one engine got never reaches the next.
 */
import { HEADER } from "../wire/headers.ts";

/** What happens to a header: never passed, passed to our own engines only, or passed to hosted ones too. */
const VERDICT = { drop: 0, own: 1, always: 2 } as const;
type Verdict = (typeof VERDICT)[keyof typeof VERDICT];

const DROPPED = new Set([
  // Hop by hop (RFC 9110, 7.6.1).
  "connection",
  "keep-alive",
  "te",
  "trailer",
  "transfer-encoding",
  "upgrade",
  // Ours to set.
  "host",
  "content-length",
  "expect",
  "accept-encoding",
  // Credentials of the client: the engine gets its own key.
  "authorization",
  "x-api-key",
  "api-key",
  "x-goog-api-key",
  "cookie",
  // Where the client is.
  "forwarded",
  "x-real-ip",
]);
const DROPPED_PREFIX = ["proxy-", "x-forwarded-", "x-luftpause-"];
const HOSTED = new Set(["accept", "content-type", "user-agent"]);
const HOSTED_PREFIX = ["anthropic-", "openai-"];

/** Verdicts by the name as it was sent: clients send the same few spellings for ever. */
const verdicts = new Map<string, Verdict>();
const VERDICTS_MAX = 1_024;

export type AttemptHeaders = {
  readonly rawHeaders: readonly string[];
  /** A hosted API gets only what it needs. */
  readonly hosted: boolean;
  /** Lower-case names that a hosted endpoint gets besides. */
  readonly forwardHeaders: readonly string[];
  /** The engine's own key. */
  readonly apiKey: string | undefined;
  /** Our id, for the loop guard. */
  readonly hop: string;
};

/** Names and values alternating, without host, content-length and connection, which the engine client sets. */
export function attemptHeaders(from: AttemptHeaders): string[] {
  const { rawHeaders, hosted, forwardHeaders } = from;
  const headers: string[] = [];
  const named = namedInConnection(rawHeaders);
  let hops = "";
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const name = rawHeaders[at] ?? "";
    const value = rawHeaders[at + 1] ?? "";
    const verdict = verdictOf(name);
    if (verdict === VERDICT.drop) {
      if (name.length === HEADER.hop.length && name.toLowerCase() === HEADER.hop) hops += `${value}, `;
      continue;
    }
    if (hosted && verdict === VERDICT.own && !forwardHeaders.includes(name.toLowerCase())) continue;
    if (named !== undefined && named.includes(name.toLowerCase())) continue;
    headers.push(name, value);
  }
  // The body must stay readable for the tap.
  headers.push("accept-encoding", "identity", HEADER.hop, hops + from.hop);
  if (from.apiKey !== undefined) headers.push("authorization", `Bearer ${from.apiKey}`);
  return headers;
}

/** Further proxies of ours on the way; more than this is a loop that our own id did not show. */
const HOPS_MAX = 16;

/** Whether a request has passed us already. */
export function isLoop(hopHeader: string | undefined, hop: string): boolean {
  if (hopHeader === undefined) return false;
  const hops = hopHeader.split(",");
  return hops.length > HOPS_MAX || hops.some((one) => one.trim() === hop);
}

/** Lower-case names that `connection` lists; undefined when it lists none besides the usual ones. */
export function namedInConnection(rawHeaders: readonly string[]): string[] | undefined {
  let named: string[] | undefined;
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const name = rawHeaders[at] ?? "";
    if (name.length !== 10 || name.toLowerCase() !== "connection") continue;
    const value = (rawHeaders[at + 1] ?? "").toLowerCase();
    if (value === "keep-alive" || value === "close") continue;
    named = [...(named ?? []), ...value.split(",").map((one) => one.trim())];
  }
  return named;
}

function verdictOf(name: string): Verdict {
  let verdict = verdicts.get(name);
  if (verdict === undefined) {
    verdict = judge(name.toLowerCase());
    // Names are the client's: the table is bounded.
    if (verdicts.size < VERDICTS_MAX) verdicts.set(name, verdict);
  }
  return verdict;
}

function judge(name: string): Verdict {
  if (DROPPED.has(name) || DROPPED_PREFIX.some((prefix) => name.startsWith(prefix))) return VERDICT.drop;
  if (HOSTED.has(name) || HOSTED_PREFIX.some((prefix) => name.startsWith(prefix))) return VERDICT.always;
  return VERDICT.own;
}
