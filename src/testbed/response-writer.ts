/**
 * Writes one answer, whole or as a stream of events, and spoils it as the fault switches say. Events of one step are
 * gathered and leave in one write.
 *
 * W1: after the answer was ended or cut nothing more is written.
 */
import type { ServerResponse } from "node:http";
import { createGzip, constants as zlib } from "node:zlib";
import { faultNumber } from "./faults.ts";
import type { FaultSet } from "./faults.ts";

export type ResponseWriter = {
  /** Sends status and headers with the first bytes, or at once when `flush`. */
  begin(status: number, headers: Readonly<Record<string, string>>, flush: boolean): void;
  readonly begun: boolean;
  /** True once the answer has ended or was cut: nothing more is needed. */
  readonly over: boolean;
  /** Adds one server-sent event with this data. */
  event(data: string): void;
  /** Writes the events gathered so far. */
  flush(): void;
  /** Ends a stream cleanly. */
  end(): void;
  /** Begins, writes a whole body and ends. */
  whole(status: number, headers: Readonly<Record<string, string>>, body: string): void;
};

type Phase = "idle" | "open" | "ending" | "over";

export function createResponseWriter(response: ServerResponse, faults: FaultSet): ResponseWriter {
  const lineEnd = faults.has("crlf") ? "\r\n" : "\n";
  const field = faults.has("no-space") ? "data:" : "data: ";
  const cutAfter = faultNumber(faults, "cut-event") ?? Infinity;
  const endAfter = faultNumber(faults, "end-after-events") ?? Infinity;
  const errorAfter = faultNumber(faults, "error-event") ?? Infinity;
  const sink = createSink(response, faults);
  let phase: Phase = "idle";
  let gathered = "";
  let events = 0;

  const flush = (): void => {
    if (gathered === "") return;
    const text = gathered;
    gathered = "";
    sink.write(Buffer.from(text, "utf8"));
  };
  const end = (): void => {
    if (phase === "over" || phase === "ending") return;
    flush();
    phase = "over";
    sink.end();
  };
  const frame = (data: string): string => `${field}${data}${lineEnd}${lineEnd}`;
  const begin: ResponseWriter["begin"] = (status, headers, atOnce) => {
    if (phase !== "idle") return;
    phase = "open";
    sink.head(status, headers, atOnce);
  };
  return {
    begin,
    get begun() {
      return phase !== "idle";
    },
    get over() {
      return phase === "over" || sink.dead();
    },
    event(data) {
      if (phase !== "open" || sink.dead()) return; // W1
      if (events >= cutAfter) {
        const half = frame(data);
        gathered += half.slice(0, Math.max(1, Math.floor(half.length / 2)));
        flush();
        phase = "over";
        sink.cut();
        return;
      }
      if (events >= errorAfter) {
        const message = "the simulated engine failed (fault error-event)";
        gathered += frame(JSON.stringify({ error: { message, type: "InternalServerError", param: null, code: 500 } }));
        end();
        return;
      }
      if (events >= endAfter) {
        end();
        return;
      }
      events += 1;
      gathered += frame(data);
    },
    flush,
    end,
    whole(status, headers, body) {
      if (phase !== "idle") return;
      const bytes = Buffer.from(body, "utf8");
      const length: Record<string, string> = faults.has("gzip") ? {} : { "content-length": String(bytes.length) };
      begin(status, { ...headers, ...length }, false);
      sink.write(bytes);
      phase = "over";
      sink.end();
    },
  };
}

/** Takes bytes to the socket, past the faults that act on bytes. */
type Sink = {
  head(status: number, headers: Readonly<Record<string, string>>, atOnce: boolean): void;
  write(bytes: Buffer): void;
  end(): void;
  /** Breaks the connection off once everything written has left. */
  cut(): void;
  dead(): boolean;
};

function createSink(response: ServerResponse, faults: FaultSet): Sink {
  const wrongLength = faultNumber(faults, "wrong-length");
  const slowMs = faultNumber(faults, "slow-headers") ?? 0;
  let bytesLeft = faultNumber(faults, "die-after-bytes") ?? Infinity;
  let cutting = false;
  // Actions wait here while headers are slow, and between the writes of split characters.
  const later: (() => void)[] = [];
  let waiting = slowMs > 0;
  const pump = (): void => {
    for (;;) {
      const action = waiting ? undefined : later.shift();
      if (action === undefined) return;
      action();
    }
  };
  const schedule = (action: () => void): void => {
    later.push(action);
    pump();
  };
  const pause = (resume: (go: () => void) => void): void => {
    waiting = true;
    resume(() => {
      waiting = false;
      pump();
    });
  };
  if (slowMs > 0) pause((go) => setTimeout(go, slowMs).unref());

  const destroy = (): void => {
    response.socket?.destroy();
  };
  const cut = (): void => {
    cutting = true;
    // The write's callback comes when the bytes are with the kernel; destroying before that would lose them.
    schedule(() => {
      response.flushHeaders();
      const { socket } = response;
      if (socket === null || socket.destroyed) return;
      socket.write("", () => setImmediate(destroy));
    });
  };
  const put = (bytes: Buffer): void => {
    if (response.destroyed || cutting) return;
    if (bytes.length < bytesLeft) {
      bytesLeft -= bytes.length;
      schedule(() => void response.write(bytes)); // a slow client is buffered: an answer is bounded by its tokens
      return;
    }
    const last = bytes.subarray(0, bytesLeft);
    if (last.length > 0) schedule(() => void response.write(last)); // as above
    cut();
  };
  const gzip = faults.has("gzip") ? createGzip({ flush: zlib.Z_SYNC_FLUSH }) : undefined;
  gzip?.on("data", put);
  gzip?.on("end", () => finish());
  const finish = (): void => {
    if (!cutting) schedule(() => void response.end()); // ends after what was written before
  };
  return {
    head(status, headers, atOnce) {
      const all: Record<string, string> = { ...headers };
      if (gzip !== undefined) all["content-encoding"] = "gzip";
      if (wrongLength !== undefined) all["content-length"] = String(wrongLength);
      schedule(() => {
        if (response.destroyed) return;
        response.writeHead(status, all);
        if (atOnce) response.flushHeaders();
      });
    },
    write(bytes) {
      if (gzip !== undefined) gzip.write(bytes);
      else if (faults.has("split-utf8")) {
        for (const piece of splitInsideCharacters(bytes)) {
          put(piece);
          schedule(() => pause((go) => setImmediate(go)));
        }
      } else put(bytes);
    },
    end() {
      if (gzip !== undefined) gzip.end();
      else finish();
    },
    cut,
    dead: () => cutting || response.destroyed,
  };
}

/** Pieces that each end inside a multi-byte character, after its first byte. */
function splitInsideCharacters(bytes: Buffer): Buffer[] {
  const pieces: Buffer[] = [];
  let start = 0;
  for (let at = 0; at < bytes.length; at += 1) {
    if ((bytes[at] ?? 0) < 0xc0) continue;
    pieces.push(bytes.subarray(start, at + 1));
    start = at + 1;
  }
  pieces.push(bytes.subarray(start));
  return pieces;
}
