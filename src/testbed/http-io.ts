/** Small helpers over node:http for the simulated engine. */
import type { IncomingMessage, ServerResponse } from "node:http";

/** Larger than any body that luftpause lets through (64 MiB by default). */
const BODY_BYTES_MAX = 128 * 1_024 * 1_024;

/** The whole body; `too-large` when it is over the bound, `gone` when the client left before its end. */
export function readBody(request: IncomingMessage): Promise<Buffer | "too-large" | "gone"> {
  return new Promise((resolve) => {
    const chunks: Buffer[] = [];
    let bytes = 0;
    request.on("data", (chunk: Buffer) => {
      bytes += chunk.length;
      if (bytes <= BODY_BYTES_MAX) chunks.push(chunk);
      else resolve("too-large");
    });
    request.on("end", () => resolve(Buffer.concat(chunks)));
    request.on("error", () => resolve("gone"));
    request.on("close", () => resolve("gone"));
  });
}

/** Answers with JSON (or other) text. */
export function sendText(
  response: ServerResponse,
  status: number,
  body: string,
  contentType = "application/json",
): void {
  if (response.headersSent || response.destroyed) return;
  response.writeHead(status, { "content-type": contentType, "content-length": String(Buffer.byteLength(body)) });
  response.end(body);
}

/** JSON of an object, else undefined: for bodies that should be one. */
export function parseObject(bytes: Buffer): Readonly<Record<string, unknown>> | undefined {
  try {
    const value: unknown = JSON.parse(bytes.toString("utf8"));
    return typeof value === "object" && value !== null && !Array.isArray(value)
      ? (value as Readonly<Record<string, unknown>>)
      : undefined;
  } catch {
    return undefined; // not JSON: the caller answers 400
  }
}
