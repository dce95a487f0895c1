/** Calls in Python's form: `[f(a=1, b='x'), g()]` (Llama 3.2 and 4), or one call without the list. */
import { readJson } from "../json/index.ts";
import { afterSpace, matchAt, type Offered, type Section, type TextCall } from "./types.ts";

/** What begins at `at`, a list or a single call. */
export function readPythonic(text: string, at: number, offered: Offered): Section | undefined {
  const from = afterSpace(text, at);
  if (text[from] !== "[") return readCall(text, from, offered);
  const calls: TextCall[] = [];
  let end = from + 1;
  for (;;) {
    const section = readCall(text, afterSpace(text, end), offered);
    if (section === undefined) return undefined;
    calls.push(...section.calls);
    end = afterSpace(text, section.end);
    if (text[end] === "]") return { calls, end: end + 1 };
    if (text[end] !== ",") return undefined;
    end += 1;
  }
}

function readCall(text: string, at: number, offered: Offered): Section | undefined {
  const open = matchAt(/([A-Za-z_][\w.-]*)\s*\(\s*/, text, at);
  const name = open?.[1] ?? "";
  if (open === undefined || offered(name) === undefined) return undefined;
  const members: [string, unknown][] = [];
  let end = at + open[0].length;
  for (;;) {
    if (text[end] === ")") return { calls: [{ name, arguments: Object.fromEntries(members) }], end: end + 1 };
    const key = matchAt(/([A-Za-z_]\w*)\s*=\s*/, text, end);
    const read = key && readJson(text, end + key[0].length);
    if (key?.[1] === undefined || read === undefined) return undefined;
    members.push([key[1], read.value]);
    end = afterSpace(text, read.end);
    if (text[end] === ",") end = afterSpace(text, end + 1);
    else if (text[end] !== ")") return undefined;
  }
}
