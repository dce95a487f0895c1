import { describe, expect, it } from "vitest";
import type { RequestScan } from "../../src/dataplane/inspection.ts";
import { scanRequest } from "../../src/dataplane/request-scan.ts";
import { sharedPrefixOf } from "../../src/dataplane/shared-prefix.ts";

const TOOLS = [{ type: "function", function: { name: "lookup" } }];
const SYSTEM = { role: "system", content: "You know rivers." };
const user = (content: string): object => ({ role: "user", content });

function prefixOf(fields: object): string | undefined {
  const body = Buffer.from(JSON.stringify({ model: "m", ...fields }));
  return sharedPrefixOf(body, scanRequest(body, "chat") as RequestScan);
}

describe("what a prompt begins with", () => {
  it("is the same for conversations with the same model, tools and system prompt, wherever they go on", () => {
    const one = prefixOf({ tools: TOOLS, messages: [SYSTEM, user("a")] });
    expect(one).toMatch(/^[\w-]{22}$/);
    expect(prefixOf({ messages: [SYSTEM, user("b"), user("c")], stream: true, tools: TOOLS })).toBe(one);
  });

  it("is another one where one of the three is", () => {
    const all = [
      { tools: TOOLS, messages: [SYSTEM, user("a")] },
      { tools: TOOLS, messages: [user("a")] },
      { messages: [SYSTEM, user("a")] },
      { messages: [{ ...SYSTEM, role: "developer" }, user("a")] },
      { tools: [], messages: [SYSTEM, user("a")] },
      { tools: TOOLS, messages: [{ ...SYSTEM, content: "You know lakes." }, user("a")] },
      { model: "n", tools: TOOLS, messages: [SYSTEM, user("a")] },
    ].map(prefixOf);
    expect(new Set(all).size).toBe(all.length);
  });

  it("is nothing where a conversation begins with the conversation itself", () => {
    expect(prefixOf({ messages: [user("a")] })).toBeUndefined();
    expect(prefixOf({})).toBeUndefined();
  });
});
