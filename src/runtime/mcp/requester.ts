/** Who calls over MCP (spec 4, Whose run it is). */
import { CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, type ServerContext } from "@modelcontextprotocol/server";
import { DEFAULTS } from "../../wire/limits.ts";
import type { Requester } from "../run-service.ts";

/** What a client said of itself when its session began; sessionless requests say it each time. */
export type SessionClient = {
  readonly name: string | undefined;
  readonly capabilities: unknown;
  /** Ends the stream of a request that the client has cancelled: the SDK leaves it open. */
  readonly endStream: (requestId: string | number) => void;
};

export type Client = {
  readonly who: Requester;
  /** Asks a person by a form. */
  readonly elicits: boolean;
  /** Polls MCP Tasks. */
  readonly tasks: boolean;
};

export const TASKS_EXTENSION = "io.modelcontextprotocol/tasks";

/** @param session undefined for a sessionless request. */
export function clientOf(context: ServerContext, session: SessionClient | undefined): Client {
  const envelope = context.mcpReq.envelope as { readonly [key: string]: unknown } | undefined;
  const info = envelope?.[CLIENT_INFO_META_KEY] as { readonly name?: unknown } | undefined;
  const name = session === undefined ? info?.name : session.name;
  const capabilities = member(session === undefined ? envelope?.[CLIENT_CAPABILITIES_META_KEY] : session.capabilities);
  const elicitation = capabilities?.["elicitation"];
  const header = context.http?.req?.headers.get("x-luftpause-caller") ?? undefined;
  const principal = context.http?.authInfo?.clientId ?? "";
  const caller = header ?? context.sessionId ?? (typeof name === "string" ? name : "");
  return {
    who: { principal, caller: bounded(caller), session: context.sessionId },
    elicits: takesForms(elicitation),
    tasks: session === undefined && member(member(capabilities?.["extensions"])?.[TASKS_EXTENSION]) !== undefined,
  };
}

/** A capability without members means forms; one that names only `url` does not. */
function takesForms(elicitation: unknown): boolean {
  const modes = member(elicitation);
  return modes !== undefined && (Object.keys(modes).length === 0 || member(modes["form"]) !== undefined);
}

function member(value: unknown): { readonly [key: string]: unknown } | undefined {
  return typeof value === "object" && value !== null ? (value as { readonly [key: string]: unknown }) : undefined;
}

/** Cut between characters, as a header is when it is too long. */
function bounded(caller: string): string {
  if (Buffer.byteLength(caller, "utf8") <= DEFAULTS.callerBytesMax) return caller;
  let end = DEFAULTS.callerBytesMax;
  const bytes = Buffer.from(caller, "utf8");
  while (((bytes[end] ?? 0) & 0xc0) === 0x80) end -= 1;
  return bytes.toString("utf8", 0, end);
}
