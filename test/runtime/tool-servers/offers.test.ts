import { describe, expect, test } from "vitest";
import { offersOf } from "../../../src/runtime/tool-servers/offers.ts";
import type { ToolServerConfig } from "../../../src/runtime/tool-servers/server-config.ts";

const CONFIG: ToolServerConfig = {
  name: "lab",
  transport: { kind: "http", url: "http://127.0.0.1:1/mcp", headers: {} },
  allow: ["*"],
  deny: [],
  trust: true,
  approve: "explicit",
  effects: {},
  onCrash: "ask",
  timeoutMs: 1_000,
  resultBytesMax: 1_000,
};
const SCHEMA = { type: "object", properties: {} };

function offer(annotations: object | undefined, config: Partial<ToolServerConfig> = {}) {
  const listed = { name: "t", inputSchema: SCHEMA, ...(annotations === undefined ? {} : { annotations }) };
  return offersOf({ ...CONFIG, ...config }, [listed]).tools[0];
}

describe("what a call does", () => {
  test.each([
    [undefined, "unsafe"],
    [{}, "unsafe"],
    [{ readOnlyHint: true }, "read-only"],
    [{ idempotentHint: true }, "idempotent"],
    [{ readOnlyHint: "yes" }, "unsafe"],
  ])("by the hints %j it is %s", (hints, effect) => {
    expect(offer(hints)?.effect).toBe(effect);
  });

  test("the config counts before the hints", () => {
    expect(offer({ readOnlyHint: true }, { effects: { t: "unsafe" } })?.effect).toBe("unsafe");
    expect(offer(undefined, { effects: { t: "read-only" } })?.effect).toBe("read-only");
  });

  test("hints of a server that is not trusted lower nothing", () => {
    const untrusted = { trust: false };
    expect(offer({ readOnlyHint: true, idempotentHint: true }, untrusted)).toMatchObject({ effect: "unsafe" });
    expect(offer({ readOnlyHint: true, destructiveHint: true }, untrusted)).toMatchObject({ asks: "destructive" });
    expect(offer({ destructiveHint: false }, { trust: false, approve: "spec" })).toMatchObject({ asks: "policy" });
  });
});

describe("who is asked", () => {
  const HINTS = {
    nothing: undefined,
    destructive: { destructiveHint: true },
    "destructive and read-only": { destructiveHint: true, readOnlyHint: true },
    harmless: { destructiveHint: false },
    "read-only": { readOnlyHint: true },
  } as const;

  test.each([
    ["explicit", [undefined, "destructive", undefined, undefined, undefined]],
    ["spec", ["policy", "destructive", undefined, undefined, undefined]],
    ["all", ["policy", "destructive", "policy", "policy", "policy"]],
    ["none", [undefined, undefined, undefined, undefined, undefined]],
  ] as const)("by approve: %s", (approve, expected) => {
    expect(Object.values(HINTS).map((hints) => offer(hints, { approve })?.asks)).toEqual(expected);
  });
});

describe("a list", () => {
  test("loses an odd entry, and keeps the others", () => {
    const { tools, left } = offersOf(CONFIG, [
      { name: "good", inputSchema: SCHEMA },
      { name: "broken", inputSchema: "none" },
      { name: "array", inputSchema: { type: "array" } },
      { inputSchema: SCHEMA },
      undefined,
      { name: "good", inputSchema: SCHEMA },
      { name: "as-task", inputSchema: SCHEMA, execution: { taskSupport: "required" } },
      { name: "last", inputSchema: SCHEMA },
    ]);
    expect(tools.map(({ name }) => name)).toEqual(["good", "last"]);
    expect(left).toEqual([
      { tool: "broken", problem: "its inputSchema is no object" },
      { tool: "array", problem: "its inputSchema is not of type object" },
      { tool: "(without a name)", problem: "it has no name" },
      { tool: "(without a name)", problem: "it has no name" },
      { tool: "good", problem: "its name is listed twice" },
      { tool: "as-task", problem: "it can only be called as an MCP task" },
    ]);
  });

  test("is cut by allow and deny, and deny wins", () => {
    const listed = ["read_a", "read_b", "write_a"].map((name) => ({ name, inputSchema: SCHEMA }));
    const names = (config: Partial<ToolServerConfig>) =>
      offersOf({ ...CONFIG, ...config }, listed).tools.map(({ name }) => name);
    expect(names({ allow: ["read_*"] })).toEqual(["read_a", "read_b"]);
    expect(names({ deny: ["*_a"] })).toEqual(["read_b"]);
    expect(names({ allow: ["read_a"], deny: ["read_a"] })).toEqual([]);
  });
});
