import { describe, expect, it } from "vitest";
import { headline, outcome, question, treeText, visible } from "../../src/cli/runtime-calls/run-text.ts";

const approval = {
  id: "a",
  tool: "rm",
  server: "disk",
  reason: "destructive",
  askedAt: "2026-01-01T00:00:00.000Z",
  expiresAt: "2026-01-02T00:00:00.000Z",
};

describe("what a person decides by", () => {
  it("shows what would move, colour or reorder the line, and keeps every other character", () => {
    expect(visible("a\u001b[2Kb\u009bc\u202ed\r")).toBe(String.raw`a\u001b[2Kb\u009bc\u202ed\u000d`);
    expect(visible("naïve – 名前\n\tnext 🙂")).toBe("naïve – 名前\n\tnext 🙂");
  });

  it("is one line, cut where it is long, and says when the call may have happened", () => {
    expect(question({ ...approval, arguments: { path: "/tmp/\u202egnp.x" } })).toBe(
      String.raw`disk/rm {"path":"/tmp/\u202egnp.x"} (destructive)`,
    );
    const long = question({ ...approval, arguments: { text: "x".repeat(1_000) }, reason: "indeterminate" });
    expect(long).toMatch(/^disk\/rm \{"text":"x+… \(indeterminate: it may have happened before a crash\)$/);
    expect(long.length).toBeLessThan(300);
  });
});

describe("a run in words", () => {
  it("has its reason only where the state does not say it", () => {
    const run = { handle: "h", turns: 1, toolCalls: 2, failedToolCalls: 1, seconds: 1.25 };
    expect(headline({ ...run, state: "Completed", reason: "completed" })).toBe(
      "Completed · 1 turn · 2 tool calls (1 failed) · 1.3 s",
    );
    expect(headline({ ...run, state: "Cancelled", reason: "budget" })).toMatch(/^Cancelled \(budget\) · /);
    expect(headline({ ...run, state: "Running", detail: "tools" })).toMatch(/^Running \(tools\) · /);
    expect(headline({ handle: "h", error: "unknown handle" })).toBe("unknown handle");
  });

  it("without an answer has the reason, and the text so far where there is any", () => {
    expect(outcome({ handle: "h", answer: "" })).toBe("");
    expect(outcome({ handle: "h", error: "no", partial: "half" })).toBe("no\nIts text so far:\nhalf");
    expect(outcome({ handle: "h", error: "no", partial: "" })).toBe("no");
  });
});

type Node = Parameters<typeof treeText>[0][number];

describe("the tree", () => {
  it("draws each descendant below its parent", () => {
    const sums = { turns: 1, toolCalls: 0, failedToolCalls: 0, promptTokens: 3, completionTokens: 4 };
    const leaf = (handle: string, children: readonly Node[] = []): Node => ({
      handle,
      state: "Running",
      own: sums,
      subtree: sums,
      pendingApprovals: 0,
      children,
    });
    const text = treeText([leaf("a", [leaf("b", [leaf("c")]), leaf("d")]), leaf("e")]);
    expect(text.split("\n").map((line) => line.split("  Running")[0])).toEqual(["a", "├─ b", "│  └─ c", "└─ d", "e"]);
    expect(text).toContain("a  Running  1 turn, 0 tool calls, 7 tokens   whole tree: ");
    expect(text).not.toContain("c  Running  1 turn, 0 tool calls, 7 tokens   whole tree");
  });
});
