/** Between the HTTP exchange of the fronts and the Web `Request` and `Response` of the MCP SDK. */
import type { Exchange } from "../../http/index.ts";

/** @param signal fires when the client is gone. */
export function requestOf(exchange: Exchange, body: Buffer | undefined, signal: AbortSignal): Request {
  const headers = new Headers();
  const { rawHeaders } = exchange;
  for (let at = 0; at + 1 < rawHeaders.length; at += 2) headers.append(rawHeaders[at] ?? "", rawHeaders[at + 1] ?? "");
  const host = exchange.header("host");
  const base = host !== undefined && URL.canParse(`http://${host}`) ? `http://${host}` : "http://localhost";
  const init = body === undefined || body.length === 0 ? {} : { body: new Uint8Array(body) };
  return new Request(new URL(`${exchange.path}${exchange.query}`, base), {
    method: exchange.method,
    headers,
    signal,
    ...init,
  });
}

/** Headers that the exchange sets itself. */
const OWN: ReadonlySet<string> = new Set(["content-length", "transfer-encoding", "connection", "date", "keep-alive"]);

/** Sends a response; waits for a slow client, and ends a stream whose client is gone. */
export async function send(exchange: Exchange, response: Response, gone: AbortSignal): Promise<void> {
  const { body, status } = response;
  const headers = [...response.headers].flatMap(([name, value]) => (OWN.has(name) ? [] : [name, value]));
  const streams = response.headers.get("content-type")?.startsWith("text/event-stream") === true;
  if (exchange.over) {
    await body?.cancel();
    return;
  }
  if (body === null || !streams) {
    const bytes = new Uint8Array(await response.arrayBuffer());
    if (exchange.over) return;
    exchange.begin(status, headers, status === 204 ? { kind: "none" } : { kind: "length", bytes: bytes.length });
    if (bytes.length > 0) exchange.write(bytes);
    exchange.end();
    return;
  }
  exchange.begin(status, headers, { kind: "stream" });
  const reader = body.getReader();
  const cancel = (): void => {
    // The transport learns by it that nobody reads any more.
    reader.cancel().catch(() => undefined);
  };
  if (gone.aborted) cancel();
  else gone.addEventListener("abort", cancel, { once: true });
  try {
    for (;;) {
      const { done, value } = (await reader.read()) as { done: boolean; value?: Uint8Array };
      if (done || exchange.over) break;
      if (value !== undefined && !exchange.write(value)) await drained(exchange, gone);
    }
    if (!exchange.over) exchange.end();
  } catch {
    if (!exchange.over) exchange.breakOff();
  } finally {
    gone.removeEventListener("abort", cancel);
  }
}

function drained(exchange: Exchange, gone: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const end = (): void => {
      exchange.onDrain = undefined;
      gone.removeEventListener("abort", end);
      resolve();
    };
    if (gone.aborted) {
      resolve();
      return;
    }
    exchange.onDrain = end;
    gone.addEventListener("abort", end, { once: true });
  });
}
