/** One tool server of the config (spec 7, Tool servers). */
import type { Effect, OnCrash } from "../../runs/index.ts";

export type ToolServerTransport =
  | { readonly kind: "http"; readonly url: string; readonly headers: { readonly [name: string]: string } }
  | {
      readonly kind: "stdio";
      readonly command: string;
      readonly args: readonly string[];
      readonly env: { readonly [name: string]: string };
    };

export type ApprovePolicy = "explicit" | "spec" | "all" | "none";

export type ToolServerConfig = {
  /** The `server` in `server/tool`. */
  readonly name: string;
  readonly transport: ToolServerTransport;
  /** Patterns with `*`; `deny` wins. */
  readonly allow: readonly string[];
  readonly deny: readonly string[];
  /** Whether hints that lower what is asked count. */
  readonly trust: boolean;
  readonly approve: ApprovePolicy;
  /** By tool; overrides the hints. */
  readonly effects: { readonly [tool: string]: Effect };
  readonly onCrash: OnCrash;
  /** Bound of one call, waiting for a server that is away included. */
  readonly timeoutMs: number;
  readonly resultBytesMax: number;
};
