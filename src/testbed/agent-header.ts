/** Overrides of the scripted agent for one request: header `x-fake-agent: calls=2,tokens=40` or `fake_agent` in the body. */
import type { AgentOverrides } from "../engine/index.ts";

const KEYS = { calls: "calls", parallel: "parallel", tokens: "answerTokens", tool: "tool" } as const;

/** @returns the overrides, or a message that names the wrong part and the known ones. */
export function parseAgentOverrides(text: string): AgentOverrides | string {
  const overrides: Record<string, number | string> = {};
  for (const part of text.split(",").map((one) => one.trim())) {
    if (part === "") continue;
    const [key = "", value = ""] = part.split("=");
    if (!(key in KEYS)) return `x-fake-agent: unknown '${key}'; known: ${Object.keys(KEYS).join(", ")}`;
    const name = KEYS[key as keyof typeof KEYS];
    if (name === "tool") overrides[name] = value;
    else if (/^\d{1,7}$/.test(value) && (name === "calls" || Number(value) > 0)) overrides[name] = Number(value);
    else return `x-fake-agent: '${part}' needs a whole number, as in ${key}=2`;
  }
  return overrides;
}
