/** The runtime as the shell's commands see it: the tools of its MCP face, and its status page. */
import { CONFIG_FLAGS, configFromFlags } from "../config/from-flags.ts";
import { parseAddress, reachable } from "../address.ts";
import { CommandError, EXIT } from "../exit.ts";
import type { FlagTable, ParsedFlags } from "../flags.ts";
import { version } from "../version.ts";

/** The flags that every command with a runtime shares. */
export const CALLER_FLAGS: FlagTable = {
  ...CONFIG_FLAGS,
  url: {
    kind: "string",
    value: "URL",
    about: "Where luftpause (or its runtime) runs; without it the config's listen address.",
  },
  caller: { kind: "string", value: "NAME", about: "Who asks, for fairness among callers (luftpause-shell)." },
  json: { kind: "boolean", about: "Prints the outcome as JSON." },
};

export const CALLER_DETAILS = "The token is taken from LUFTPAUSE_TOKEN or from the config.";

export type RuntimeCaller = {
  /**
   * Calls a tool of the face.
   * @param waitMs how long the call may wait for something to happen.
   * @throws CommandError with the face's own words when it refuses; unhealthy when nobody answers.
   */
  call<Answer>(tool: string, given: { readonly [name: string]: unknown }, waitMs?: number): Promise<Answer>;
  /** The trees of runs that live. @throws CommandError */
  trees(): Promise<readonly TreeNode[]>;
  close(): Promise<void>;
};

/** A run on the status page. */
export type TreeNode = {
  readonly handle: string;
  readonly state: string;
  readonly detail?: string;
  readonly reason?: string;
  readonly own: TreeSums;
  readonly subtree: TreeSums;
  readonly pendingApprovals: number;
  readonly children: readonly TreeNode[];
};

type TreeSums = {
  readonly turns: number;
  readonly toolCalls: number;
  readonly failedToolCalls: number;
  readonly promptTokens: number;
  readonly completionTokens: number;
};

const CALLER = "luftpause-shell";
/** Beyond what a call itself waits for. A client whose stream broke off is told nothing: this bound finds it out. */
const CALL_TIMEOUT_MS = 10_000;
const CONNECT_TIMEOUT_MS = 5_000;
const UNAUTHORIZED = 401;

/** Does something with the runtime that the flags name, and leaves no connection behind. */
export async function withRuntime<Outcome>(
  flags: ParsedFlags,
  act: (runtime: RuntimeCaller) => Promise<Outcome>,
): Promise<Outcome> {
  const runtime = await openRuntime(flags);
  try {
    return await act(runtime);
  } finally {
    await runtime.close();
  }
}

async function openRuntime(flags: ParsedFlags): Promise<RuntimeCaller> {
  const { config } = configFromFlags(flags);
  const base = baseUrl(flags.text("url") ?? reachable(parseAddress(config.listen)));
  // Where the config names principals, its reader still is one of them: only the environment says which.
  const token = process.env["LUFTPAUSE_TOKEN"] ?? config.token;
  const headers = {
    "x-luftpause-caller": flags.text("caller") ?? CALLER,
    ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
  };
  // Only here: a command's help must not wait for the client to load.
  const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
  const client = new Client(
    { name: CALLER, version: version() },
    { capabilities: {}, versionNegotiation: { mode: "auto" } },
  );
  // What matters comes as a rejected call.
  client.onerror = () => undefined;
  const transport = new StreamableHTTPClientTransport(new URL(`${base}/mcp`), { requestInit: { headers } });
  try {
    await client.connect(transport, { timeout: CONNECT_TIMEOUT_MS });
  } catch (error) {
    await client.close().catch(() => undefined);
    throw problemOf(error, base);
  }
  return {
    async call<Answer>(tool: string, given: { readonly [name: string]: unknown }, waitMs = 0): Promise<Answer> {
      const answer = await client
        .callTool({ name: tool, arguments: { ...given } }, { timeout: CALL_TIMEOUT_MS + waitMs })
        .catch((error: unknown) => {
          throw problemOf(error, base);
        });
      if (answer.isError === true) throw new CommandError(EXIT.fault, textOf(answer.content));
      return answer.structuredContent as Answer;
    },
    async trees() {
      const answer = await fetch(`${base}/status`, { headers, signal: AbortSignal.timeout(CONNECT_TIMEOUT_MS) }).catch(
        (error: unknown) => {
          throw problemOf(error, base);
        },
      );
      if (answer.status !== 200) throw new CommandError(EXIT.fault, `${base}/status: answered ${answer.status}`);
      const { runs } = (await answer.json()) as { readonly runs?: readonly TreeNode[] };
      if (runs === undefined) throw new CommandError(EXIT.fault, `${base}/status: no runtime runs there`);
      return runs;
    },
    close: () => client.close().catch(() => undefined),
  };
}

/** The address without a slash at its end and without `/mcp`, which people copy along. */
function baseUrl(text: string): string {
  if (!/^https?:\/\/./.test(text) || !URL.canParse(text)) {
    throw new CommandError(EXIT.usage, `--url '${text}' is no http or https address`);
  }
  return text.replace(/\/+$/, "").replace(/\/mcp$/, "");
}

function problemOf(error: unknown, base: string): CommandError {
  if (error instanceof CommandError) return error;
  if (statusOf(error) === UNAUTHORIZED) {
    return new CommandError(EXIT.fault, `${base}: the token is missing or wrong; set LUFTPAUSE_TOKEN`);
  }
  if (isUnreachable(error)) {
    return new CommandError(EXIT.unhealthy, `${base}: no answer; is luftpause running? Name another with --url`);
  }
  return new CommandError(EXIT.fault, `${base}/mcp: ${error instanceof Error ? error.message : String(error)}`);
}

function statusOf(error: unknown): unknown {
  for (let at = error; at instanceof Error; at = at.cause) {
    if ("status" in at) return at.status;
  }
  return undefined;
}

const GONE: ReadonlySet<unknown> = new Set(["TimeoutError", "REQUEST_TIMEOUT", "CONNECTION_CLOSED", "NOT_CONNECTED"]);

/** Nobody is there, or went away meanwhile. `fetch` says why only in the causes of its error. */
function isUnreachable(error: unknown): boolean {
  for (let at = error; at instanceof Error; at = at.cause) {
    const { code, name, message } = at as NodeJS.ErrnoException;
    if (GONE.has(name) || GONE.has(code) || message === "fetch failed") return true;
  }
  return false;
}

function textOf(content: readonly { readonly type: string }[]): string {
  return content.map((part) => ("text" in part ? String(part.text) : "")).join("\n");
}
