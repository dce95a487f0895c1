/** The documents say what the code does, both ways. */
import { readFileSync } from "node:fs";
import path from "node:path";
import { describe, expect, it } from "vitest";
import { ERRORS, type ErrorCode } from "../../src/wire/errors.ts";
import { FAILURE_ROWS } from "./failure-rows.ts";

const read = (name: string): string => readFileSync(path.resolve(import.meta.dirname, "../../docs", name), "utf8");

/** Cells of the rows of the table under a heading line that starts with a given cell. */
function table(text: string, firstCell: string): string[][] {
  const lines = text.split("\n");
  const head = lines.findIndex((line) => line.startsWith(`| ${firstCell} |`));
  const rows: string[][] = [];
  for (const line of lines.slice(head + 2)) {
    if (!line.startsWith("|")) break;
    rows.push(
      line
        .slice(1, -1)
        .split(" | ")
        .map((cell) => cell.trim()),
    );
  }
  return rows;
}

describe("docs/errors.md", () => {
  const rows = table(read("errors.md"), "code");

  it("has a row for every code of the table, and for no other", () => {
    expect(rows.map(([code = ""]) => code.replaceAll("`", "")).sort()).toEqual(Object.keys(ERRORS).sort());
  });

  it.each(rows)("says of %s what the table says", (...cells) => {
    const [code = "", status, openaiType, anthropicType, retryAfter, did, should] = cells.map((cell) =>
      cell.replace(/^`(.*)`$/, "$1"),
    );
    const kind = ERRORS[code as ErrorCode];
    expect({ status, openaiType, anthropicType, retryAfter }).toEqual({
      status: String(kind.status),
      openaiType: kind.openaiType,
      anthropicType: kind.anthropicType,
      retryAfter: kind.retryAfterSeconds === undefined ? "–" : String(kind.retryAfterSeconds),
    });
    expect(did?.length).toBeGreaterThan(10);
    expect(should?.length).toBeGreaterThan(5);
  });
});

describe("docs/failure-table.md", () => {
  const text = read("failure-table.md");

  it("has the rows that are tested, in their order, and no other", () => {
    expect(table(text, "case").map(([name]) => name)).toEqual(Object.values(FAILURE_ROWS));
  });

  it("has a test file whose blocks are these rows", () => {
    const source = readFileSync(path.join(import.meta.dirname, "failure-table.test.ts"), "utf8");
    for (const row of Object.keys(FAILURE_ROWS)) expect(source).toContain(`describe(FAILURE_ROWS.${row}, `);
  });

  it("names only codes that exist, with their status, and every code that a turn can meet by a failure", () => {
    const named = [...text.matchAll(/`(\d{3})` `([a-z_]+)`/g)];
    expect(named.length).toBeGreaterThanOrEqual(8);
    for (const [, status, code] of named)
      expect([code, ERRORS[code as ErrorCode]?.status]).toEqual([code, Number(status)]);
    const elsewhere: readonly ErrorCode[] = [
      "run_unknown",
      "route_unknown",
      "method_not_allowed",
      "body_too_large",
      "unsupported_encoding",
      "loop",
      "internal",
    ];
    for (const code of Object.keys(ERRORS)) {
      if (!elsewhere.includes(code as ErrorCode)) expect(text).toContain(`\`${code}\``);
    }
  });
});
