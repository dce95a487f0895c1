/** What the parts of the MCP face share. */
import type { Clock } from "../../base/clock.ts";
import type { ServerContext } from "@modelcontextprotocol/server";
import type { RunService, SpawnSpec } from "../run-service.ts";
import type { Client } from "./requester.ts";
import type { Wait } from "./waiting.ts";

export type FaceDeps = {
  readonly service: RunService;
  readonly clock: Clock;
  readonly wallMs: () => number;
  /** A decline that comes sooner is nobody's answer. */
  readonly humanMinMs: number;
  readonly keepFinishedMs: number;
  /** Tools beside our own: those that a conformance suite asks for. */
  readonly extraTools?: ExtraTools | undefined;
};

export type ExtraTools = {
  /** As they are listed. */
  readonly list: readonly { readonly name: string; readonly [field: string]: unknown }[];
  /** @returns a run to go on with as the tool `run` does, or the result. */
  call(call: ExtraCall): Promise<{ readonly run: SpawnSpec } | { readonly result: object }>;
};

export type ExtraCall = {
  readonly name: string;
  readonly arguments: { readonly [name: string]: unknown };
  readonly context: ServerContext;
  readonly client: Client;
  /** Seals a wait as `requestState`; undefined in a session. */
  readonly mint: ((wait: Wait) => Promise<string>) | undefined;
};
