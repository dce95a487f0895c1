/** An error outside of any JSON-RPC request. */
export function rpcError(
  status: number,
  code: number,
  message: string,
  headers: { readonly [name: string]: string } = {},
): Response {
  return Response.json({ jsonrpc: "2.0", error: { code, message }, id: null }, { status, headers });
}
