/** MCP requests byte by byte, as a client of 2026-07-28 sends them. */
import type { Served } from "./face.ts";

export type Answer = {
  readonly status: number;
  readonly headers: Headers;
  readonly body: {
    readonly id?: unknown;
    readonly result?: { readonly [field: string]: unknown };
    readonly error?: { readonly code: number; readonly message: string; readonly data?: unknown };
  };
};

export const PROTOCOL = "2026-07-28";
const TASKS = "io.modelcontextprotocol/tasks";
export const FORMS = { elicitation: { form: {} } };
export const WITH_TASKS = { extensions: { [TASKS]: {} }, ...FORMS };

/** A request without a session. @param capabilities of the client, as each such request names them. */
export function modern(
  method: string,
  params: { readonly [name: string]: unknown },
  capabilities: object = {},
): { readonly headers: { readonly [name: string]: string }; readonly body: object } {
  const name = params["name"] ?? params["taskId"];
  return {
    headers: {
      "mcp-protocol-version": PROTOCOL,
      "mcp-method": method,
      ...(typeof name === "string" ? { "mcp-name": name } : {}),
    },
    body: {
      jsonrpc: "2.0",
      id: 1,
      method,
      params: {
        ...params,
        _meta: {
          "io.modelcontextprotocol/protocolVersion": PROTOCOL,
          "io.modelcontextprotocol/clientCapabilities": capabilities,
          "io.modelcontextprotocol/clientInfo": { name: "raw", version: "1" },
        },
      },
    },
  };
}

export async function post(
  { url }: Served,
  request: { readonly headers?: { readonly [name: string]: string }; readonly body: unknown },
  token = "token-ann",
): Promise<Answer> {
  const response = await fetch(url, {
    method: "POST",
    headers: {
      "content-type": "application/json",
      accept: "application/json, text/event-stream",
      authorization: `Bearer ${token}`,
      ...request.headers,
    },
    body: typeof request.body === "string" ? request.body : JSON.stringify(request.body),
  });
  return { status: response.status, headers: response.headers, body: bodyOf(await response.text()) };
}

/** The last message, whether it came alone or at the end of a stream. */
function bodyOf(text: string): Answer["body"] {
  const lines = text.split("\n").flatMap((line) => (line.startsWith("data: ") ? [line.slice(6)] : []));
  const last = lines.at(-1) ?? text;
  return last === "" ? {} : (JSON.parse(last) as Answer["body"]);
}

/** Calls a tool. */
export function callTool(
  served: Served,
  params: { readonly name: string; readonly [name: string]: unknown },
  options: { readonly capabilities?: object; readonly token?: string } = {},
): Promise<Answer> {
  return post(served, modern("tools/call", params, options.capabilities), options.token);
}
