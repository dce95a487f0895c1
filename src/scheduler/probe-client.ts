/** One HTTP request of a probe: bounded in time and bytes, never throws. */
import { Agent, request } from "undici";

export type ProbeAnswer =
  | { readonly kind: "answer"; readonly status: number; readonly text: string; readonly server: string }
  | { readonly kind: "failed"; readonly reason: string };

export type ProbeClient = {
  get(url: string, apiKey: string | undefined, signal: AbortSignal): Promise<ProbeAnswer>;
  /** A POST with an empty body. */
  post(url: string, apiKey: string | undefined, signal: AbortSignal): Promise<ProbeAnswer>;
  close(): Promise<void>;
};

/** A metrics page of the largest deployments has some hundred kilobytes; what is longer is broken or hostile. */
const BODY_BYTES_MAX = 4 * 1024 * 1024;

export function createProbeClient(connectTimeoutMs: number): ProbeClient {
  // Connections are kept between probes; a few per engine, since health, metrics and models are asked side by side.
  const agent = new Agent({ connections: 4, keepAliveTimeout: 10_000, connect: { timeout: connectTimeoutMs } });

  const ask = async (
    method: "GET" | "POST",
    url: string,
    apiKey: string | undefined,
    signal: AbortSignal,
  ): Promise<ProbeAnswer> => {
    try {
      const headers = {
        accept: "*/*",
        "user-agent": "luftpause-prober",
        ...(apiKey === undefined ? {} : { authorization: `Bearer ${apiKey}` }),
        ...(method === "POST" ? { "content-type": "application/json" } : {}),
      };
      const answer = await request(url, { method, headers, signal, dispatcher: agent });
      const server = answer.headers["server"];
      const parts: Buffer[] = [];
      let bytes = 0;
      for await (const part of answer.body as AsyncIterable<Buffer>) {
        bytes += part.length;
        if (bytes > BODY_BYTES_MAX) return { kind: "failed", reason: `answer over ${BODY_BYTES_MAX} bytes` };
        parts.push(part);
      }
      return {
        kind: "answer",
        status: answer.statusCode,
        text: Buffer.concat(parts).toString("utf8"),
        server: typeof server === "string" ? server : "",
      };
    } catch (error) {
      return { kind: "failed", reason: signal.aborted ? "timed out" : reasonOf(error) };
    }
  };

  return {
    get: (url, apiKey, signal) => ask("GET", url, apiKey, signal),
    post: (url, apiKey, signal) => ask("POST", url, apiKey, signal),
    // Probes under way are given up: nobody waits for their answer any more.
    close: () => agent.destroy(),
  };
}

function reasonOf(error: unknown): string {
  const { code } = error as { readonly code?: unknown };
  if (code === "ECONNREFUSED") return "connection refused";
  return typeof code === "string" ? `failed (${code})` : "failed";
}
