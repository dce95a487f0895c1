/** Port to the tool servers (spec 4, Tool servers: effects and trust). */
import type { Effect, JsonObject, OnCrash } from "../../runs/index.ts";

/** A tool that sub-agents may use. */
export type OfferedTool = {
  readonly server: string;
  readonly name: string;
  readonly description: string;
  readonly inputSchema: JsonObject;
  /** Hints that count, as `tools` shows them. */
  readonly readOnly?: boolean | undefined;
  readonly destructive?: boolean | undefined;
  readonly idempotent?: boolean | undefined;
  /** By config, else by hints that count, else unsafe. */
  readonly effect: Effect;
  readonly onCrash: OnCrash;
  /** Why the server's policy asks a person before a call; undefined: it does not ask. */
  readonly asks: "destructive" | "policy" | undefined;
  /** Of its server. */
  readonly state: "ok" | "down";
};

export type ToolCall = {
  readonly server: string;
  readonly tool: string;
  readonly arguments: JsonObject;
  /** Goes to the server in `_meta`; the same over retries and restarts. */
  readonly idempotencyKey: string;
  readonly signal: AbortSignal;
};

/** What the model sees; an error begins with `Error:`. */
export type ToolOutcome = { readonly ok: boolean; readonly text: string };

export type ToolServers = {
  /** In the order of the config. Tools of a server that is down stay listed, so that a prompt keeps its prefix. */
  list(): readonly OfferedTool[];
  /** Never rejects: a server that is away or too slow is an outcome. */
  call(call: ToolCall): Promise<ToolOutcome>;
  close(): Promise<void>;
};
