import { describe, expect, it } from "vitest";
import { asPrincipalId } from "../../src/base/ids.ts";
import {
  callerOf,
  classOf,
  encodingProblem,
  principalOf,
  runOf,
  traceparentOf,
} from "../../src/dataplane/turn-intake.ts";
import type { Exchange, Identity } from "../../src/http/index.ts";

/** A request with these headers, values as bytes read as Latin-1. */
function withHeaders(...headers: readonly (readonly [string, string])[]): Exchange {
  const values = (name: string): string[] => headers.filter(([named]) => named === name).map(([, value]) => value);
  return {
    header: (name: string) => values(name)[0],
    headerCount: (name: string) => values(name).length,
  } as unknown as Exchange;
}
const latin1 = (text: string): string => Buffer.from(text, "utf8").toString("latin1");

describe("the run id header", () => {
  const run = (...values: readonly string[]): unknown =>
    runOf(withHeaders(...values.map((value) => ["x-luftpause-run-id", value] as const)), 256);

  it.each(["a", "!", "~", "agent/7:é".replace("é", "e"), "x".repeat(256)])("%j is a run", (id) => {
    expect(run(id)).toBe(id);
  });

  it("that is absent names no run", () => {
    expect(run()).toBeUndefined();
  });

  it.each(["", "a b", "a,b", "x".repeat(257), latin1("é"), "a\u007f"])("%j is refused by its name", (id) => {
    expect(run(id)).toEqual({
      code: "bad_run_id",
      param: "x-luftpause-run-id",
      message:
        "header x-luftpause-run-id is not valid: send it once, with 1 to 256 visible ASCII characters and no comma",
    });
  });

  it("that was sent twice is refused, also when both are the same", () => {
    expect(run("a", "a")).toMatchObject({
      code: "bad_run_id",
      message: expect.stringContaining("was sent more than once") as unknown,
    });
  });
});

describe("the class header", () => {
  const wanted = (allowed: readonly ("interactive" | "batch")[], ...values: readonly string[]): unknown =>
    classOf(withHeaders(...values.map((value) => ["x-luftpause-class", value] as const)), allowed);
  const ALL = ["interactive", "batch"] as const;

  it("is interactive where it is absent", () => {
    expect(wanted(ALL)).toEqual({ class: "interactive", lowered: false });
  });

  it("is lowered to what the principal may use, never refused for that", () => {
    expect(wanted(["batch"], "interactive")).toEqual({ class: "batch", lowered: true });
    expect(wanted(["batch"], "batch")).toEqual({ class: "batch", lowered: false });
  });

  it.each([["urgent"], ["Interactive"], [""], ["batch", "batch"]])("%j %j is refused by its name", (...values) => {
    expect(wanted(ALL, ...values)).toMatchObject({ code: "bad_class", param: "x-luftpause-class" });
  });
});

describe("the caller header", () => {
  const caller = (value: string): string => callerOf(withHeaders(["x-luftpause-caller", value]), 128);

  it("is one anonymous caller where it is absent or empty", () => {
    expect(callerOf(withHeaders(), 128)).toBe("");
    expect(caller("")).toBe("");
  });

  it("is its first 128 bytes", () => {
    expect(caller("x".repeat(200))).toBe("x".repeat(128));
    expect(caller(latin1("équipe 漢字 😀"))).toBe("équipe 漢字 😀");
  });

  it.each(["é", "漢", "😀"])("is not cut inside %s, wherever the bound falls", (character) => {
    const size = Buffer.byteLength(character);
    for (let before = 120; before <= 128; before += 1) {
      const kept = Math.floor((128 - before) / size);
      expect(caller(latin1("x".repeat(before) + character.repeat(10)))).toBe(
        "x".repeat(before) + character.repeat(kept),
      );
    }
  });

  it("keeps its bytes where they are no UTF-8: two callers never become one", () => {
    expect(caller("\u00e9quipe")).toBe("\u00e9quipe");
    expect(caller("\u00e9quipe")).not.toBe(caller("\u00e8quipe"));
    expect(caller("\u00b0".repeat(200))).toBe("\u00b0".repeat(128));
  });
});

describe("on whose behalf", () => {
  const identity = (service: boolean): Identity => ({ principal: asPrincipalId("alice"), service }) as Identity;
  const named = withHeaders(["x-luftpause-principal", "bob"]);

  it("a request is made says the token, and only our own services may say otherwise", () => {
    expect(principalOf(named, identity(false))).toBe("alice");
    expect(principalOf(named, identity(true))).toBe("bob");
    expect(principalOf(withHeaders(), identity(true))).toBe("alice");
    expect(principalOf(withHeaders(["x-luftpause-principal", "b ob"]), identity(true))).toBe("alice");
  });
});

describe("other headers", () => {
  it("trace context passes in its own form only", () => {
    const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    expect(traceparentOf(withHeaders(["traceparent", good]))).toBe(good);
    for (const bad of ["", "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", `${good}\nx`, `${good}x`]) {
      expect(traceparentOf(withHeaders(["traceparent", bad]))).toBeUndefined();
    }
  });

  it("a compressed body is refused by its name", () => {
    for (const encoding of ["gzip", "zstd", "identity, gzip"]) {
      expect(encodingProblem(withHeaders(["content-encoding", encoding]))).toMatchObject({
        code: "unsupported_encoding",
        param: "content-encoding",
      });
    }
    expect(encodingProblem(withHeaders())).toBeUndefined();
    expect(encodingProblem(withHeaders(["content-encoding", "Identity"]))).toBeUndefined();
  });
});
