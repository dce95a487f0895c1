import { describe, expect, it } from "vitest";
import { addPiece, takePieces } from "../../src/dataplane/coalesce.ts";

const text = (bytes: Buffer | undefined): string | undefined => bytes?.toString("latin1");

describe("pieces of one read", () => {
  it("come out joined, in order, once", () => {
    const turn = {};
    for (const piece of ["a", "bc", "d"]) expect(addPiece(turn, Buffer.from(piece))).toBeUndefined();
    expect(text(takePieces(turn))).toBe("abcd");
    expect(takePieces(turn)).toBeUndefined();
  });

  it("are not copied when there is only one", () => {
    const turn = {};
    const piece = Buffer.from("only");
    addPiece(turn, piece);
    expect(takePieces(turn)).toBe(piece);
  });

  it("never reach another turn than their own", () => {
    const ended = {};
    addPiece(ended, Buffer.from("left behind"));
    const next = {};
    expect(takePieces(next)).toBeUndefined();
    addPiece(next, Buffer.from("mine"));
    expect(takePieces(ended)).toBeUndefined();
    expect(text(takePieces(next))).toBe("mine");
  });

  it("lose no byte when they are more than there is room for", () => {
    const turn = {};
    let out = "";
    let all = "";
    for (let at = 0; at < 40; at += 1) {
      const piece = String(at % 10).repeat(60_000 + at);
      all += piece;
      out += text(addPiece(turn, Buffer.from(piece))) ?? "";
    }
    out += text(takePieces(turn)) ?? "";
    expect(out.length).toBe(all.length);
    expect(out === all).toBe(true);
  });
});
