/** Waiting for runs from the shell: what has ended is told at once, and whoever sits there is asked for approvals. */
import { createInterface } from "node:readline/promises";
import { CommandError, EXIT } from "../exit.ts";
import type { RuntimeCaller } from "./caller.ts";
import {
  counted,
  headline,
  isOver,
  outcome,
  question,
  visible,
  type ShownApproval,
  type ShownRun,
} from "./run-text.ts";

export type Waiting = {
  readonly handles: readonly string[];
  readonly mode: "all" | "any";
  /** Undefined: as long as it takes. */
  readonly timeoutMs: number | undefined;
  readonly json: boolean;
};

/** One call waits this long: pending approvals are seen as often. */
const LOOK_EVERY_S = 2;
const AGAIN_MS = 2_000;

/**
 * Waits, prints, and gives the exit code: 0 when every run has completed (with `any`: one of them), else 1.
 * Answers go to stdout, everything about them to stderr: `$(luftpause await HANDLE)` is the answer alone.
 */
export async function waitForRuns(runtime: RuntimeCaller, waiting: Waiting): Promise<number> {
  const { handles, mode, timeoutMs, json } = waiting;
  const untilMs = timeoutMs === undefined ? Number.POSITIVE_INFINITY : performance.now() + timeoutMs;
  const asked = new Set<string>();
  const told = new Set<string>();
  for (;;) {
    const leftS = Math.max(0, (untilMs - performance.now()) / 1000);
    const answer = await look(runtime, { handles, mode, timeoutSeconds: Math.min(LOOK_EVERY_S, leftS) }, leftS > 0);
    if (answer === "away") continue;
    const { done, results } = answer;
    if (!json) for (const run of results.filter(isOver)) tell(run, told, handles.length > 1);
    if (done || leftS === 0) {
      if (json) process.stdout.write(`${JSON.stringify({ done, results })}\n`);
      if (!done) process.stderr.write(stillRunning(results));
      return exitCodeOf(results, mode, done);
    }
    for (const run of results) {
      for (const approval of run.pendingApprovals ?? []) {
        if (asked.has(approval.id)) continue;
        asked.add(approval.id);
        await ask(runtime, run.handle, approval);
      }
    }
  }
}

type Looked = { readonly done: boolean; readonly results: readonly ShownRun[] };

/** Runs outlive the process that has them: the waiting outlives a restart, too. */
async function look(
  runtime: RuntimeCaller,
  given: { readonly handles: readonly string[]; readonly mode: string; readonly timeoutSeconds: number },
  mayTryAgain: boolean,
): Promise<Looked | "away"> {
  try {
    return await runtime.call<Looked>("await", given, given.timeoutSeconds * 1000);
  } catch (error) {
    if (!mayTryAgain || !(error instanceof CommandError) || error.exitCode !== EXIT.unhealthy) throw error;
    process.stderr.write("luftpause is away; asking again (Ctrl-C ends the waiting, never a run)\n");
    await new Promise((resolve) => {
      setTimeout(resolve, AGAIN_MS);
    });
    return "away";
  }
}

function tell(run: ShownRun, told: Set<string>, isOneOfMany: boolean): void {
  if (told.has(run.handle)) return;
  told.add(run.handle);
  process.stderr.write(`${run.handle}  ${headline(run)}\n`);
  const text = outcome(run);
  if (run.state === undefined || text === "") return;
  const isAnswer = run.answer !== undefined;
  const words = process.stdout.isTTY ? visible(text) : text;
  // Which answer is whose must be plain where only stdout is kept.
  const head = isOneOfMany && isAnswer ? `== ${run.handle}\n` : "";
  (isAnswer ? process.stdout : process.stderr).write(`${head}${words}\n`);
}

function stillRunning(results: readonly ShownRun[]): string {
  const going = results.filter((run) => !isOver(run)).map(({ handle }) => handle);
  return `still running: ${counted(going.length, "run")}; nothing is lost: luftpause await ${going.join(" ")}\n`;
}

function exitCodeOf(results: readonly ShownRun[], mode: "all" | "any", done: boolean): number {
  const completed = results.filter(({ state }) => state === "Completed").length;
  const isWell = mode === "any" ? completed > 0 : completed === results.length;
  return done && isWell ? EXIT.ok : EXIT.fault;
}

/** At a terminal the person is asked; elsewhere the commands that answer are named. */
async function ask(runtime: RuntimeCaller, handle: string, approval: ShownApproval): Promise<void> {
  const { id } = approval;
  const later = `luftpause approvals allow ${handle} --id ${id}   (or: deny)\n`;
  process.stderr.write(`${handle} waits for a person: ${question(approval)}\n`);
  if (!process.stdin.isTTY || !process.stderr.isTTY) {
    process.stderr.write(`  ${later}`);
    return;
  }
  const allow = await yesOrNo();
  if (allow === undefined) {
    process.stderr.write(`  later: ${later}`);
    return;
  }
  try {
    const decided = await runtime.call<{ readonly allow: boolean }>("approve", { handle, id, allow });
    if (decided.allow !== allow) process.stderr.write("  somebody else had answered before\n");
  } catch (error) {
    // It may have ended meanwhile: the waiting goes on and shows how.
    if (!(error instanceof CommandError)) throw error;
    process.stderr.write(`  ${error.message}\n`);
  }
}

/** Anything but a plain yes or no is no answer. */
async function yesOrNo(): Promise<boolean | undefined> {
  const terminal = createInterface({ input: process.stdin, output: process.stderr });
  // Ctrl-C at the question ends the command, as it does elsewhere; the runs go on.
  terminal.on("SIGINT", () => process.kill(process.pid, "SIGINT"));
  try {
    const words = (await terminal.question("  allow it? [y]es, [n]o, anything else: later  ")).trim().toLowerCase();
    if (words === "y" || words === "yes") return true;
    if (words === "n" || words === "no") return false;
    return undefined;
  } finally {
    terminal.close();
  }
}
