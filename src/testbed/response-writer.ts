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
  /** Adds one server-sent event with this data. */
  event(data: string): void;
  /** Writes the events gathered so far. */
  flush(): void;
  /** Ends a stream cleanly. */
  end(): void;
  /** Begins, writes a whole body and ends. */
  whole(status: number, headers: Readonly<Record<string, string>>, body: string): void;
};

type Phase = "idle" | "open" | "over";

export function createResponseWriter(response: ServerResponse, faults: FaultSet): ResponseWriter {
  const lineEnd = faults.has("crlf") ? "\r\n" : "\n";
  const field = faults.has("no-space") ? "data:" : "data: ";
  const frame = (data: string): string => `${field}${data}${lineEnd}${lineEnd}`;
  const fate = fateOfEvents(faults);
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
    if (phase === "over") return;
    flush();
    phase = "over";
    sink.end();
  };
  const cutInside = (text: string): void => {
    gathered += text.slice(0, Math.max(1, Math.floor(text.length / 2)));
    flush();
    phase = "over";
    sink.cut();
  };
  const begin: ResponseWriter["begin"] = (status, headers, atOnce) => {
    if (phase !== "idle") return;
    phase = "open";
    sink.head(status, headers, atOnce);
  };
  return {
    begin,
    event(data) {
      if (phase !== "open" || sink.dead()) return; // W1
      const next = fate(events);
      if (next === "cut") return cutInside(frame(data));
      if (next === "error") gathered += frame(ERROR_EVENT);
      if (next !== "pass") return end();
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

const ERROR_EVENT = JSON.stringify({
  error: {
    message: "the simulated engine failed (fault error-event)",
    type: "InternalServerError",
    param: null,
    code: 500,
  },
});

/** What happens to the event that follows `before` whole ones. */
function fateOfEvents(faults: FaultSet): (before: number) => "pass" | "cut" | "error" | "end" {
  const cutAfter = faultNumber(faults, "cut-event") ?? Infinity;
  const errorAfter = faultNumber(faults, "error-event") ?? Infinity;
  const endAfter = faultNumber(faults, "end-after-events") ?? Infinity;
  return (before) => {
    if (before >= cutAfter) return "cut";
    if (before >= errorAfter) return "error";
    return before >= endAfter ? "end" : "pass";
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

/** Actions in order, with pauses between them: while headers are slow, and between the writes of split characters. */
type ActionQueue = {
  add(action: () => void): void;
  /** Stops the queue behind what was added until `resume` calls back. */
  pause(resume: (go: () => void) => void): void;
};

function createActionQueue(): ActionQueue {
  const later: (() => void)[] = [];
  let paused = false;
  const pump = (): void => {
    for (;;) {
      const action = paused ? undefined : later.shift();
      if (action === undefined) return;
      action();
    }
  };
  const add = (action: () => void): void => {
    later.push(action);
    pump();
  };
  return {
    add,
    pause(resume) {
      add(() => {
        paused = true;
        resume(() => {
          paused = false;
          pump();
        });
      });
    },
  };
}

function createSink(response: ServerResponse, faults: FaultSet): Sink {
  const wrongLength = faultNumber(faults, "wrong-length");
  const slowMs = faultNumber(faults, "slow-headers") ?? 0;
  let bytesLeft = faultNumber(faults, "die-after-bytes") ?? Infinity;
  let cutting = false;
  const queue = createActionQueue();
  if (slowMs > 0) queue.pause((go) => setTimeout(go, slowMs).unref());

  const cut = (): void => {
    cutting = true;
    queue.add(() => {
      response.flushHeaders();
      const { socket } = response;
      if (socket === null || socket.destroyed) return;
      // The write's callback comes when the bytes are with the kernel; destroying before that would lose them.
      socket.write("", () => setImmediate(() => socket.destroy()));
    });
  };
  const put = (bytes: Buffer): void => {
    if (response.destroyed || cutting) return;
    const dies = bytes.length >= bytesLeft;
    const part = dies ? bytes.subarray(0, bytesLeft) : bytes;
    bytesLeft -= part.length;
    // A slow client is buffered for: an answer is bounded by its tokens.
    if (part.length > 0) queue.add(() => void response.write(part));
    if (dies) cut();
  };
  const finish = (): void => {
    if (!cutting) queue.add(() => void response.end()); // in its turn, after what was written before
  };
  const gzip = faults.has("gzip") ? createGzip({ flush: zlib.Z_SYNC_FLUSH }) : undefined;
  gzip?.on("data", put);
  gzip?.on("end", finish);
  return {
    head(status, headers, atOnce) {
      const all: Record<string, string> = { ...headers };
      if (gzip !== undefined) all["content-encoding"] = "gzip";
      if (wrongLength !== undefined) all["content-length"] = String(wrongLength);
      queue.add(() => {
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
          queue.pause((go) => setImmediate(go));
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
