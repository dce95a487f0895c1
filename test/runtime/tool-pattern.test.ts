import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { matchesPattern } from "../../src/runtime/tool-pattern.ts";

describe("patterns of tool names", () => {
  it.each([
    ["lookup", "lookup", true],
    ["lookup", "lookups", false],
    ["*", "", true],
    ["*", "lab/lookup", true],
    ["lab/*", "lab/lookup", true],
    ["lab/*", "lab", false],
    ["*up", "lookup", true],
    ["l*k*p", "lookup", true],
    ["lo*ookup", "lookup", false],
    ["a*a", "a", false],
    ["**", "x", true],
    // Everything else stands for itself.
    ["look.p", "lookup", false],
    ["look.p", "look.p", true],
    ["[a-z]*", "lookup", false],
    ["*(a+)+$", "x(a+)+$", true],
    ["", "", true],
    ["", "x", false],
  ])("%j on %j: %j", (pattern, name, expected) => {
    expect(matchesPattern(pattern, name)).toBe(expected);
  });

  it("means what the regular expression would mean", () => {
    const piece = fc.string({ unit: fc.constantFrom("a", "b", "*", "."), maxLength: 6 });
    fc.assert(
      fc.property(piece, fc.string({ unit: fc.constantFrom("a", "b", "."), maxLength: 8 }), (pattern, name) => {
        const source = pattern.replaceAll(".", String.raw`\.`).replaceAll(/\*+/g, ".*");
        expect(matchesPattern(pattern, name)).toBe(new RegExp(`^${source}$`).test(name));
      }),
      { numRuns: 2_000 },
    );
  });

  it("ends, also where a regular expression would try every way", () => {
    expect(matchesPattern(`${"*a".repeat(200)}!`, "a".repeat(5_000))).toBe(false);
    expect(matchesPattern(`${"*".repeat(100_000)}!`, "simulated-reference/lookup")).toBe(false);
  });
});
