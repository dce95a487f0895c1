// Runs the load generator (load.c) and reads what it prints.
import readline from "node:readline";
import { start, stop, logTail, type Running } from "../support/processes.ts";
import type { Bench } from "./bench.ts";

type Quantiles = { readonly count: number; readonly p50: number; readonly p99: number; readonly p999: number };

/** The generator's last line; see load.c. Times in microseconds. */
export type LoadResult = {
  readonly seconds: number;
  readonly served: number;
  readonly failed: number;
  readonly aborted: number;
  /** Streams still open when the generator left (--hold), and the fewest events that one of them had got. */
  readonly held: number;
  readonly heldEventsMin: number;
  readonly events: number;
  readonly bytes: number;
  readonly comments: number;
  readonly connects: number;
  readonly staleRetries: number;
  readonly cpuSeconds: number;
  readonly totalUs: Quantiles;
  readonly firstByteUs: Quantiles;
  readonly eventDelayUs: Quantiles;
  readonly failures: Record<string, number>;
  readonly firstFailure: string;
  readonly kinds: Record<"new" | "echo" | "run" | "runNext", number>;
  /** Run ids in the answers, against the answer before: what a continuation and a new run were taken for. */
  readonly runIds: Record<"same" | "other" | "fresh" | "joined" | "unnamed", number>;
  /** Values of x-luftpause-run-source. */
  readonly sources: Record<string, number>;
};

/** A load: flags of load.c. `chunks` set: streamed turns of that many events. */
export type Load = {
  readonly model: string;
  readonly conns: number;
  readonly seconds: number;
  readonly chunks?: number;
  readonly rate?: number;
  readonly ramp?: number;
  readonly turns?: number;
  readonly runs?: number;
  readonly script?: string;
  readonly abortPercent?: number;
  readonly reopenPercent?: number;
  readonly recordAfterMs?: number;
};

const DRAIN_SECONDS = 10;
const START_SECONDS = 5;

/** Where a load goes: a port, and headers that the proxy there wants. */
export type Target = { readonly port: number; readonly headers: readonly string[] };

let loadsStarted = 0;

function flags(load: Load, target: Target, hold: boolean): string[] {
  const pairs: [string, string | number | undefined][] = [
    ["port", target.port],
    ["model", load.model],
    ["conns", load.conns],
    ["seconds", load.seconds],
    ["chunks", load.chunks],
    ["rate", load.rate],
    ["ramp", load.ramp],
    ["turns", load.turns],
    ["runs", load.runs],
    ["script", load.script],
    ["abort-percent", load.abortPercent],
    ["reopen-percent", load.reopenPercent],
    ["record-after-ms", load.recordAfterMs],
    ["drain-seconds", DRAIN_SECONDS],
    // Run ids and conversations of two loads of one bench must not meet.
    ["seed", (loadsStarted++ % 255) + 1],
    ...target.headers.map((line) => ["header", line] as [string, string]),
  ];
  const list = pairs.flatMap(([name, value]) => (value === undefined ? [] : [`--${name}`, String(value)]));
  return [...list, ...(load.chunks === undefined ? [] : ["--stream"]), ...(hold ? ["--hold"] : [])];
}

type Lines = { readonly opened: Promise<number>; readonly result: Promise<LoadResult> };

function readLines(entry: Running, timeoutMs: number): Lines {
  let open: (streams: number) => void = () => undefined;
  const opened = new Promise<number>((resolve) => (open = resolve));
  const result = new Promise<LoadResult>((resolve, reject) => {
    let end: LoadResult | null = null;
    const late = setTimeout(() => {
      reject(new Error(`the load generator did not end within ${timeoutMs / 1000} s`));
      void stop(entry); // bounded by itself; its end needs no one to wait for it here
    }, timeoutMs);
    readline.createInterface({ input: entry.child.stdout! }).on("line", (line) => {
      const event = JSON.parse(line) as { event: string; streams?: number };
      if (event.event === "open") open(event.streams ?? 0);
      if (event.event === "end") end = event as unknown as LoadResult;
    });
    void entry.ended.then((how) => {
      clearTimeout(late);
      // The last line may still be in the pipe when the process has ended.
      setImmediate(() =>
        end === null ? reject(new Error(`load generator: ${how}\n${logTail(entry)}`)) : resolve(end),
      );
    });
  });
  result.catch(() => undefined); // whoever waits gets the error; nobody waiting is no crash
  return { opened, result };
}

function startLoad(bench: Bench, load: Load, target: Target, hold: boolean): { entry: Running; lines: Lines } {
  const command = [bench.programs.load, ...flags(load, target, hold)];
  const entry = start("load", command, bench.folder, { cpu: bench.options.cpus?.tools ?? null });
  return { entry, lines: readLines(entry, (load.seconds + DRAIN_SECONDS + START_SECONDS) * 1000) };
}

/** Runs a load to its end. Bounded: the load's seconds, 10 s to drain, 5 s to start. */
export async function runLoad(bench: Bench, load: Load, target: Target): Promise<LoadResult> {
  return await startLoad(bench, load, target, false).lines.result;
}

export type HeldStreams = {
  /** Settles with the number of streams once each has got its first event; rejects when the generator ends before. */
  readonly opened: Promise<number>;
  /** Leaves all streams, as a client that goes away does, and returns what was seen. */
  readonly leave: () => Promise<LoadResult>;
};

/** Opens `load.conns` streams and keeps them until `leave`, or at most `load.seconds`. */
export function holdStreams(bench: Bench, load: Load, target: Target): HeldStreams {
  const { entry, lines } = startLoad(bench, load, target, true);
  const early = lines.result.then((r) => {
    throw new Error(`only ${load.conns - r.failed} of ${load.conns} streams opened: ${r.firstFailure || "time is up"}`);
  });
  early.catch(() => undefined);
  return {
    opened: Promise.race([lines.opened, early]),
    leave: async () => {
      entry.child.stdin?.end();
      return await lines.result;
    },
  };
}
