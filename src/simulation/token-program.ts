/** Runs made of numbers: how many tokens each turn has and how long its tools take, as recordings of real agents say it. */
import { hashText } from "../base/random.ts";
import { BLOCK_TOKENS } from "../engine/index.ts";
import type { PlannedTurn } from "./program.ts";

export type TokenTurn = {
  /** The whole prompt. */
  readonly promptTokens: number;
  readonly outputTokens: number;
  /** Undefined: the last turn. */
  readonly tool: { readonly name: string; readonly ms: number } | undefined;
};

/** Bytes that a token takes in a request's body. */
const TOKEN_BYTES = 4;
/** More blocks than any context has. */
const BLOCKS_MAX = 1_048_576;

/**
 * Gives the turns of one run their prefixes: a turn's prompt begins with the prompt and answer of the turn before, unless it
 * is shorter than those (the harness has compacted the conversation); all prompts begin with what the world shares.
 */
export class TokenPrefixes {
  readonly #shared: { readonly base: number; readonly tokens: number };
  readonly #run: string;
  #base: number;
  #epoch = 0;
  #knownTokens = 0;

  constructor(shared: { readonly name: string; readonly tokens: number }, run: string) {
    this.#shared = { base: baseOf(shared.name), tokens: shared.tokens };
    this.#run = run;
    this.#base = baseOf(`${run} 0`);
  }

  plan(turn: TokenTurn, maxTokens: number): PlannedTurn {
    const { promptTokens, outputTokens, tool } = turn;
    if (promptTokens < this.#knownTokens) {
      this.#epoch += 1;
      this.#base = baseOf(`${this.#run} ${this.#epoch}`);
    }
    this.#knownTokens = promptTokens + outputTokens;
    const blockHashes = this.#blocks(promptTokens + outputTokens);
    return {
      promptTokens,
      outputTokens,
      maxTokens,
      promptBytes: promptTokens * TOKEN_BYTES,
      promptHashes: blockHashes.subarray(0, Math.floor(promptTokens / BLOCK_TOKENS)),
      blockHashes,
      tools: tool === undefined ? undefined : { name: tool.name, calls: 1, ms: tool.ms },
    };
  }

  #blocks(tokens: number): Float64Array {
    const shared = Math.floor(this.#shared.tokens / BLOCK_TOKENS);
    const hashes = new Float64Array(Math.floor(tokens / BLOCK_TOKENS));
    for (let at = 0; at < hashes.length; at += 1) hashes[at] = (at < shared ? this.#shared.base : this.#base) + at;
    return hashes;
  }
}

/** Room for the numbers of a conversation's blocks, apart from those of every other. */
function baseOf(name: string): number {
  return (hashText(name, 0) >>> 1) * BLOCKS_MAX + 1;
}
