// What every part of the bench shares: options, programs, the temporary folder, the stub.
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import readline from "node:readline";
import type { Options } from "./options.ts";
import { logTail, start, type Running } from "../support/processes.ts";
import { buildPrograms, type Programs } from "./tools.ts";

/** Models of the stub: bench-<chunks>x<gapMs>. JSON turns use the first. Idle streams: an event each 5 s for an hour. */
export const MODELS = {
  fast: "bench-64x5",
  slow: "bench-64x20",
  short: "bench-16x5",
  idle: "bench-720x5000",
} as const;

type StubStats = {
  readonly connectionsOpen: number;
  readonly streamsOpen: number;
  readonly streamsOpenMax: number;
  readonly streamsDone: number;
  readonly jsonDone: number;
  readonly aborted: number;
  readonly requestsBad: number;
};

type Stub = { readonly port: number; readonly process: Running; readonly stats: () => Promise<StubStats> };

export type Bench = {
  readonly options: Options;
  readonly programs: Programs;
  /** Temporary: configurations, logs, state. */
  readonly folder: string;
  readonly stub: Stub;
};

async function startStub(programs: Programs, folder: string, cpu: number | null): Promise<Stub> {
  const running = start("stub", [programs.stub, "0", ...Object.values(MODELS)], folder, { cpu });
  const port = await new Promise<number>((resolve, reject) => {
    readline.createInterface({ input: running.child.stdout! }).once("line", (line) => {
      resolve((JSON.parse(line) as { port: number }).port);
    });
    void running.ended.then((how) => reject(new Error(`the stub: ${how}\n${logTail(running)}`)));
  });
  return {
    port,
    process: running,
    stats: async () => {
      const response = await fetch(`http://127.0.0.1:${port}/stub/stats`, { signal: AbortSignal.timeout(5000) });
      return (await response.json()) as StubStats;
    },
  };
}

export async function openBench(options: Options): Promise<Bench> {
  const programs = await buildPrograms();
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "overhead-"));
  const stub = await startStub(programs, folder, options.cpus?.tools ?? null);
  return { options, programs, folder, stub };
}
