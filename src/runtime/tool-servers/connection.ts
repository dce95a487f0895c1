/**
 * One connection to a tool server, in whichever era of MCP it speaks. It answers or rejects, always within the caller's
 * bounds; it does not connect again: that is `tool-server.ts`.
 *
 * N1: we declare no capability, so a server can ask nothing of us: one that tries gets an error, and nobody waits.
 * N2: lists are read entry by entry: the SDK gives up the whole list for one odd entry, so it is shown an empty one, and the
 *     entries travel beside it.
 */
import {
  Client,
  ProtocolError,
  SdkError,
  SdkErrorCode,
  SdkHttpError,
  StreamableHTTPClientTransport,
  type Transport,
} from "@modelcontextprotocol/client";
import { z } from "zod";
import { createPatientFetch } from "../../http/index.ts";
import type { JsonObject } from "../../runs/index.ts";
import type { ToolServerTransport } from "./server-config.ts";
import { StdioTransport } from "./stdio-transport.ts";

/** Why a connection could not answer. */
export type CallFault =
  /** The server's own error, or one about the call. */
  | { readonly kind: "answered"; readonly message: string }
  /** The server has not begun the call: it may be sent again. */
  | { readonly kind: "not-sent"; readonly message: string }
  /** Nobody knows whether the call was carried out. */
  | { readonly kind: "lost"; readonly message: string }
  | { readonly kind: "timed-out" }
  | { readonly kind: "cancelled" };

export class ConnectionFault extends Error {
  readonly fault: CallFault;

  constructor(fault: CallFault) {
    super("message" in fault ? fault.message : fault.kind);
    this.fault = fault;
  }
}

export type Connection = {
  /** @throws ConnectionFault */
  list(): Promise<readonly unknown[]>;
  /** @throws ConnectionFault */
  call(call: ConnectionCall): Promise<unknown>;
  /** Asks for a sign of life. @returns false when the server that we spoke to is certainly gone. */
  isThere(): Promise<boolean>;
  close(): Promise<void>;
};

export type ConnectionCall = {
  readonly tool: string;
  readonly arguments: JsonObject;
  readonly idempotencyKey: string;
  readonly signal: AbortSignal;
  readonly timeoutMs: number;
};

export type ConnectOptions = {
  readonly transport: ToolServerTransport;
  readonly version: string;
  readonly timeoutMs: number;
  /** The server says that its list has changed. */
  readonly onChanged: () => void;
  /** The connection is over, by whichever side. */
  readonly onClosed: (why: string) => void;
};

/** Opens a connection to a server. @throws Error that says why there is none */
export type Connect = (options: ConnectOptions) => Promise<Connection>;

const CONNECT_TIMEOUT_MS = 5_000;
const PING_TIMEOUT_MS = 10_000;
const PAGES_MAX = 50;
const TOOLS_MAX = 2_000;
const IDEMPOTENCY_KEY_META = "io.luftpause/idempotency-key";
const NOT_FOUND = 404;

const LISTED_META = "io.luftpause/listed";
const LIST_PAGE = z.looseObject({
  _meta: z.looseObject({ [LISTED_META]: z.array(z.unknown()) }),
  nextCursor: z.string().optional(),
});
const CALL_RESULT = z.looseObject({});

/** Connects over HTTP or to a process; finds out which era of MCP the server speaks. */
export const connectToServer: Connect = async (options) => {
  try {
    return await connectOnce(options, "auto");
  } catch (error) {
    // Some old servers end on a request before `initialize`, which is how the era is found out.
    if (options.transport.kind !== "stdio" || !isNegotiationFault(error)) throw error;
    return connectOnce(options, "legacy");
  }
};

async function connectOnce(options: ConnectOptions, mode: "auto" | "legacy"): Promise<Connection> {
  const { transport: target, version, timeoutMs, onChanged, onClosed } = options;
  const client = new Client(
    { name: "luftpause", version },
    {
      capabilities: {}, // N1
      versionNegotiation: { mode },
      listChanged: { tools: { autoRefresh: false, onChanged: () => onChanged() } },
    },
  );
  const patient = target.kind === "http" ? createPatientFetch(CONNECT_TIMEOUT_MS) : undefined;
  const stdio = target.kind === "stdio" ? new StdioTransport(target) : undefined;
  const transport =
    stdio ??
    new StreamableHTTPClientTransport(new URL(target.kind === "http" ? target.url : ""), {
      requestInit: { headers: target.kind === "http" ? { ...target.headers } : {} },
      ...(patient === undefined ? {} : { fetch: patient.fetch }),
    });
  let open = false;
  client.onclose = () => {
    if (open) onClosed(closedWords(stdio));
    open = false;
  };
  // Noise on a stream and late answers: what matters comes as a rejected call or as the end.
  client.onerror = () => undefined;
  const shut = async (): Promise<void> => {
    open = false;
    await client.close().catch(() => undefined);
    await transport.close().catch(() => undefined);
    await patient?.close();
  };
  try {
    await client.connect(transport, { timeout: timeoutMs });
  } catch (error) {
    await shut();
    throw new Error(wordsOf(error, stdio), { cause: error });
  }
  open = true;
  setListsAside(transport);
  const isModern = client.getProtocolEra() === "modern";

  return {
    async list() {
      const tools: unknown[] = [];
      let cursor: string | undefined;
      for (let page = 0; page < PAGES_MAX && tools.length < TOOLS_MAX; page += 1) {
        const params = cursor === undefined ? {} : { cursor };
        const answer = await client
          .request({ method: "tools/list", params }, LIST_PAGE, { timeout: timeoutMs })
          .catch((error: unknown) => {
            throw new ConnectionFault(faultOf(error, undefined, stdio));
          });
        tools.push(...(answer._meta[LISTED_META] as readonly unknown[])); // N2
        cursor = answer.nextCursor;
        if (cursor === undefined) break;
      }
      return tools.slice(0, TOOLS_MAX);
    },

    async call({ tool, arguments: given, idempotencyKey, signal, timeoutMs: boundMs }) {
      const params = { name: tool, arguments: given, _meta: { [IDEMPOTENCY_KEY_META]: idempotencyKey } };
      try {
        return await client.request({ method: "tools/call", params }, CALL_RESULT, { signal, timeout: boundMs });
      } catch (error) {
        throw new ConnectionFault(faultOf(error, signal, stdio));
      }
    },

    async isThere() {
      // A process tells its end by itself, and a request without a session fails by itself.
      if (stdio !== undefined || isModern) return open;
      try {
        await client.ping({ timeout: PING_TIMEOUT_MS });
        return true;
      } catch (error) {
        // A server that works on something may be too busy to answer.
        const { kind } = faultOf(error, undefined, stdio);
        return kind === "timed-out" || kind === "answered";
      }
    },

    close: shut,
  };
}

/** N2. From now on a list in an answer is moved out of the SDK's sight. */
function setListsAside(transport: Transport): void {
  const take = transport.onmessage;
  transport.onmessage = (message, extra) => {
    const result = "result" in message ? message.result : undefined;
    const listed: unknown = result?.["tools"];
    if (!Array.isArray(listed)) {
      take?.(message, extra);
      return;
    }
    const aside = { ...result, tools: [], _meta: { ...result?._meta, [LISTED_META]: listed } };
    take?.({ ...message, result: aside }, extra);
  };
}

function isNegotiationFault(error: unknown): boolean {
  const cause = error instanceof Error ? error.cause : undefined;
  return cause instanceof SdkError && cause.code === SdkErrorCode.EraNegotiationFailed;
}

function faultOf(error: unknown, signal: AbortSignal | undefined, stdio: StdioTransport | undefined): CallFault {
  if (signal?.aborted === true) return { kind: "cancelled" };
  if (error instanceof ProtocolError) return { kind: "answered", message: error.message };
  const message = wordsOf(error, stdio);
  // The server does not know our session: it was started again, and has not begun anything.
  if (error instanceof SdkHttpError) {
    return { kind: error.status === NOT_FOUND ? "not-sent" : "answered", message };
  }
  if (error instanceof SdkError) {
    if (error.code === SdkErrorCode.RequestTimeout) return { kind: "timed-out" };
    if (error.code === SdkErrorCode.NotConnected) return { kind: "not-sent", message };
    if (error.code === SdkErrorCode.ConnectionClosed) return { kind: "lost", message };
    return { kind: "answered", message };
  }
  return { kind: isRefused(error) ? "not-sent" : "lost", message };
}

function isRefused(error: unknown): boolean {
  return codesOf(error).some((code) => code === "ECONNREFUSED" || code === "UND_ERR_CONNECT_TIMEOUT");
}

/** An error's code, and those of its causes. */
function codesOf(error: unknown): readonly string[] {
  const codes: string[] = [];
  for (let one: unknown = error; one instanceof Error && codes.length < 8; one = one.cause) {
    codes.push((one as NodeJS.ErrnoException).code ?? "");
    if (one instanceof AggregateError) codes.push(...one.errors.flatMap(codesOf));
  }
  return codes;
}

function wordsOf(error: unknown, stdio: StdioTransport | undefined): string {
  const said = stdio?.stderr ?? "";
  const last = said.split("\n").at(-1)?.slice(-300) ?? "";
  const code = codesOf(error).find((one) => /^E[A-Z]+$/.test(one));
  const message = error instanceof Error ? error.message.split("\n")[0]?.slice(0, 300) : String(error);
  const words = code === "ECONNREFUSED" ? "connection refused" : (message ?? "unknown error");
  return last === "" ? words : `${words}; it wrote: ${last}`;
}

function closedWords(stdio: StdioTransport | undefined): string {
  return stdio === undefined ? "the connection was closed" : wordsOf(new Error("its process has ended"), stdio);
}
