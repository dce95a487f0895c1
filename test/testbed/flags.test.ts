import { describe, expect, it } from "vitest";
import { DIALECTS, FAKE_ENGINE_FLAGS, optionsFromFlags, startFakeEngine } from "../../src/testbed/index.ts";
import type { FlagsOutcome } from "../../src/testbed/index.ts";

function outcome(given: Readonly<Record<string, string | readonly string[]>>): FlagsOutcome {
  const texts = (flag: string): readonly string[] => [given[flag] ?? []].flat();
  return optionsFromFlags({
    has: (flag) => flag in given,
    text: (flag) => texts(flag).at(-1),
    texts,
    integer: (flag) => (flag in given ? Number(texts(flag).at(-1)) : undefined),
  });
}

describe("the flags of fake-engine", () => {
  it("become the options that start an engine", async () => {
    const parsed = outcome({
      dialect: "sglang",
      model: ["a", "b"],
      slots: "3",
      "time-scale": "0.5",
      priority: "",
      fault: ["stall=9"],
    });
    expect(parsed).toMatchObject({
      kind: "ok",
      options: {
        dialect: "sglang",
        models: ["a", "b"],
        slots: 3,
        timeScale: 0.5,
        priority: true,
        cachedTokens: true,
        faults: ["stall=9"],
      },
    });
    if (parsed.kind === "ok") await (await startFakeEngine(parsed.options)).close();
  });

  it("mean the defaults when none is given", async () => {
    const parsed = outcome({});
    if (parsed.kind === "invalid") throw new Error(parsed.message);
    const engine = await startFakeEngine(parsed.options);
    expect([engine.name, engine.host]).toEqual(["fake", "127.0.0.1"]);
    await engine.close();
  });

  it.each([
    [{ dialect: "vlm" }, `--dialect 'vlm' is not one of ${DIALECTS.join(", ")}`],
    [{ profile: "h200" }, "--profile 'h200' is not one of instant, laptop-1b-x2, h100-8b, h100x8-70b"],
    [{ "time-scale": "fast" }, "--time-scale 'fast' is not a number above 0 and at most 1000"],
    [{ fault: "stal" }, "--fault: unknown fault 'stal'; known: die-at-once"],
    [{ slots: "0" }, "slots 0 is not a whole number from 1"],
    [{ label: "one" }, "labels: a classifier needs at least two"],
  ])("that are wrong are named: %j", (given, message) => {
    const parsed = outcome(given);
    expect(parsed.kind === "invalid" && parsed.message.startsWith(message)).toBe(true);
  });

  it("each say what they do, with their default or its absence", () => {
    for (const [flag, spec] of Object.entries(FAKE_ENGINE_FLAGS)) {
      expect(flag).toMatch(/^[a-z-]+$/);
      expect(spec.about.length).toBeGreaterThan(10);
      expect(spec.kind === "boolean").toBe(!("value" in spec));
    }
  });
});
