/** What the readers of calls written as text have in common. */
import type { JsonObject } from "../types.ts";

/** A call that the model wrote into its answer. */
export type TextCall = {
  readonly name: string;
  readonly arguments: JsonObject;
  /** The model's own id of the call, in formats that have one. */
  readonly id?: string | undefined;
};

/** Calls at one place of a text, and where what belongs to them ends. */
export type Section = { readonly calls: readonly TextCall[]; readonly end: number };

/** The JSON schema of an offered tool; undefined: no such tool is offered. */
export type Offered = (name: string) => JsonObject | undefined;

/** One way of writing calls. */
export type CallFormat = {
  readonly name: string;
  /** Where a call can begin; sticky patterns are made from it. */
  readonly opens: RegExp;
  /**
   * Reads what begins at `at`, where `opens` has matched.
   * @returns undefined when it is no closed call of an offered tool: the text then stays text.
   */
  read(text: string, at: number, offered: Offered): Section | undefined;
};

/** The pattern at exactly this place. */
export function matchAt(pattern: RegExp, text: string, at: number): RegExpExecArray | undefined {
  const sticky = new RegExp(pattern.source, pattern.flags.includes("i") ? "iy" : "y");
  sticky.lastIndex = at;
  return sticky.exec(text) ?? undefined;
}

/** Behind what the pattern matches at this place; the place itself where it does not match. */
export function behind(pattern: RegExp, text: string, at: number): number {
  return at + (matchAt(pattern, text, at)?.[0].length ?? 0);
}

/** The first place at or after `at` that is no white space. */
export function afterSpace(text: string, at: number): number {
  return behind(/\s*/, text, at);
}
