/** The MCP face of a bench's runtime on a real socket, and the clients that speak to it. */
import { Client as ClientV2, StreamableHTTPClientTransport as TransportV2 } from "@modelcontextprotocol/client";
import { Client as ClientV1 } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport as TransportV1 } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";
import { asPrincipalId } from "../../../src/base/ids.ts";
import { createAuth, createFront } from "../../../src/http/index.ts";
import { createMcpFace } from "../../../src/runtime/mcp/face.ts";
import { SILENT_LOG } from "../../../src/telemetry/index.ts";
import { onCleanUp } from "../fake-dataplane.ts";
import type { Bench } from "../host-bench.ts";
import { connectPython, HAS_PYTHON } from "./python.ts";

export type Served = { readonly url: string; stop(): Promise<void> };

const HUMAN_MIN_MS = 1_000;

const BOTH = ["interactive", "batch"] as const;

/** Serves a runtime. Two tokens, of ann and bob. @param port of the process before, after a restart. */
export async function serve(world: Bench, options: { port?: number; allowedHosts?: string[] } = {}): Promise<Served> {
  const { clock, runtime, store } = world;
  const face = await createMcpFace({
    service: runtime.service,
    store,
    clock,
    wallMs: () => 1_700_000_000_000 + clock.nowMs(),
    log: SILENT_LOG,
    metrics: runtime.metrics,
    version: "0.0.0",
    authenticate: createAuth({
      token: undefined,
      serviceToken: undefined,
      principals: [
        { name: asPrincipalId("ann"), token: "token-ann", classes: BOTH },
        { name: asPrincipalId("bob"), token: "token-bob", classes: BOTH },
      ],
    }),
    allowedHosts: options.allowedHosts ?? [],
    requestStateKey: undefined,
    humanMinMs: HUMAN_MIN_MS,
    keepFinishedMs: 7 * 86_400_000,
  });
  const front = createFront({ handler: face.handle });
  const { port } = await front.listen("127.0.0.1", options.port ?? 0);
  let over = false;
  const stop = async (): Promise<void> => {
    if (over) return;
    over = true;
    await face.close();
    await front.close();
  };
  onCleanUp(stop);
  return { url: `http://127.0.0.1:${port}/mcp`, stop };
}

export const portOf = ({ url }: Served): number => Number(new URL(url).port);

/** What a person does with a form; `elicits: false` in the options leaves the capability away. */
export type Person = (form: { readonly message: string }) => Promise<{
  readonly action: "accept" | "decline" | "cancel";
  readonly content?: { readonly [field: string]: string | number | boolean };
}>;

export type ToolResult = {
  readonly structuredContent: { readonly [field: string]: unknown };
  readonly content: readonly { readonly type: string; readonly text: string }[];
  readonly isError: boolean;
};

export type TestClient = {
  call(
    name: string,
    args: object,
    options?: { readonly signal?: AbortSignal; readonly onProgress?: (progress: number, message?: string) => void },
  ): Promise<ToolResult>;
  listTools(): Promise<readonly { readonly name: string }[]>;
  close(): Promise<void>;
};

export type ClientKind = "v1" | "v2-legacy" | "v2-modern" | "python-legacy" | "python-modern";
const PYTHON_KINDS: readonly ClientKind[] = HAS_PYTHON ? ["python-legacy", "python-modern"] : [];
export const CLIENT_KINDS: readonly ClientKind[] = ["v1", "v2-legacy", "v2-modern", ...PYTHON_KINDS];

type ConnectOptions = { readonly person?: Person; readonly token?: string };

export async function connect(kind: ClientKind, served: Served, options: ConnectOptions = {}): Promise<TestClient> {
  const { url } = served;
  const { person, token = "token-ann" } = options;
  if (kind === "python-legacy" || kind === "python-modern") {
    return connectPython(kind === "python-legacy" ? "legacy" : "auto", served, { person, token });
  }
  const address = new URL(url);
  const requestInit = { headers: { authorization: `Bearer ${token}` } };
  const info = { name: "test", version: "1" };
  const capabilities = person === undefined ? {} : { elicitation: { form: {} } };
  if (kind === "v1") {
    const client = new ClientV1(info, { capabilities });
    if (person !== undefined) client.setRequestHandler(ElicitRequestSchema, async ({ params }) => person(params));
    await client.connect(new TransportV1(address, { requestInit }));
    return shaped(client, (name, args, how) => client.callTool({ name, arguments: args }, undefined, how));
  }
  const mode = kind === "v2-legacy" ? ("legacy" as const) : ("auto" as const);
  const client = new ClientV2(info, { capabilities, versionNegotiation: { mode } });
  if (person !== undefined) client.setRequestHandler("elicitation/create", async ({ params }) => person(params));
  await client.connect(new TransportV2(address, { requestInit }));
  return shaped(client, (name, args, how) => client.callTool({ name, arguments: args }, how));
}

type How = {
  readonly timeout: number;
  readonly signal?: AbortSignal;
  readonly onprogress?: (progress: { readonly progress: number; readonly message?: string | undefined }) => void;
};

function shaped(
  client: { close(): Promise<void>; listTools(): Promise<{ readonly tools: readonly { readonly name: string }[] }> },
  callTool: (name: string, args: { [name: string]: unknown }, how: How) => Promise<unknown>,
): TestClient {
  onCleanUp(() => client.close().catch(() => undefined));
  return {
    async call(name, args, { signal, onProgress } = {}) {
      const how: How = {
        timeout: 20_000,
        ...(signal === undefined ? {} : { signal }),
        ...(onProgress === undefined
          ? {}
          : {
              onprogress: ({ progress, message }) => {
                onProgress(progress, message);
              },
            }),
      };
      const result = (await callTool(name, { ...args }, how)) as Partial<ToolResult>;
      return {
        structuredContent: result.structuredContent ?? {},
        content: result.content ?? [],
        isError: result.isError ?? false,
      };
    },
    listTools: async () => (await client.listTools()).tools,
    close: () => client.close(),
  };
}
