/** Where a model's thinking ends and its answer begins, for engines that leave the thinking in the text. */

export type Split = {
  /** Thinking, without its markers. */
  readonly reasoning: string;
  /** Where the answer begins. */
  readonly from: number;
};

/** Opening and closing markers of thinking, as models write them. */
const PAIRS: readonly { readonly open: RegExp; readonly close: string }[] = [
  { open: /\s*<think>/y, close: "</think>" },
  { open: /\s*\[THINK\]/y, close: "[/THINK]" },
  { open: /\s*<\|channel>thought\n?/y, close: "<channel|>" },
  { open: /\s*<\|open\|>think<\|sep\|>/y, close: "<|close|>think<|sep|>" },
];

/** @param firstCall where the first call's marker stands: a closing marker behind it belongs to the call. */
export function splitReasoning(text: string, firstCall: number): Split {
  for (const { open, close } of PAIRS) {
    open.lastIndex = 0;
    const begun = open.exec(text);
    const from = begun?.[0].length ?? 0;
    const end = text.indexOf(close, from);
    if (begun !== null && end === -1) return { reasoning: text.slice(from).trim(), from: text.length };
    // Templates that open the thinking themselves leave only its end in the answer.
    const isQuoted = begun === null && text[end - 1] === "`";
    if (end !== -1 && !isQuoted && (begun !== null || end < firstCall)) {
      return { reasoning: text.slice(from, end).trim(), from: end + close.length };
    }
  }
  return { reasoning: "", from: 0 };
}
