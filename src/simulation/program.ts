/** What the runs of a world do, turn by turn, before anybody knows when. */
import type { Random } from "../base/random.ts";
import type { ServiceClass } from "../wire/admission.ts";

/** One turn: what the engine has to compute, and what comes after it. */
export type PlannedTurn = {
  readonly promptTokens: number;
  readonly outputTokens: number;
  /** Longest answer that the client allows. */
  readonly maxTokens: number;
  /** Size of the request's body. */
  readonly promptBytes: number;
  /** Full 16-token blocks of the prompt, and of prompt and answer together; equal numbers are equal prefixes. */
  readonly promptHashes: Float64Array;
  readonly blockHashes: Float64Array;
  /** The tools that the answer calls, and how long they take together; undefined: it was the last turn. */
  readonly tools: { readonly name: string; readonly calls: number; readonly ms: number } | undefined;
};

export type RunProgram = {
  /** The next turn. Not called again after one without tools. */
  next(): PlannedTurn;
};

export type Program = {
  /** What all prompts begin with, as a dataplane would tell it. */
  readonly prefixKey: string;
  /** The harness says when a run is over, as luftpause's own runtime does. */
  readonly tellsEnd: boolean;
  /** A run, drawn from `random` alone. */
  begin(serviceClass: ServiceClass, random: Random): RunProgram;
};
