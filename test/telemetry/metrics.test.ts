import { describe, expect, it } from "vitest";
import { Distribution, Registry, Tally } from "../../src/telemetry/index.ts";

const page = async (...metrics: readonly (Tally | Distribution)[]): Promise<string[]> => {
  const registry = new Registry();
  for (const { metric } of metrics) registry.registerMetric(metric);
  return (await registry.metrics()).split("\n").filter((line) => line !== "");
};

describe("a tally", () => {
  it("shows what was counted, by its labels, at each reading", async () => {
    const tally = new Tally({ name: "t_total", help: "Things.", labels: ["a", "b"] });
    tally.add(1, "x", "y");
    tally.add(2, "x", "y");
    tally.add(5, "x", "z");
    const expected = [
      "# HELP t_total Things.",
      "# TYPE t_total counter",
      't_total{a="x",b="y"} 3',
      't_total{a="x",b="z"} 5',
    ];
    expect(await page(tally)).toEqual(expected);
    expect(await page(tally)).toEqual(expected);
    tally.add(1, "x", "y");
    expect(await page(tally)).toContain('t_total{a="x",b="y"} 4');
  });

  it("is there with 0 when it has no labels", async () => {
    expect(await page(new Tally({ name: "t_total", help: "Things.", labels: [] }))).toContain("t_total 0");
  });
});

describe("a distribution", () => {
  it("shows cumulative buckets, sum and count for each label value, as Prometheus reads a histogram", async () => {
    const seconds = new Distribution({ name: "s", help: "Seconds.", label: "class", bounds: [0.1, 1] });
    for (const value of [0.1, 0.05, 0.5, 7]) seconds.observe(value, "batch");
    expect(await page(seconds)).toEqual([
      "# HELP s Seconds.",
      "# TYPE s histogram",
      's_bucket{le="0.1",class="batch"} 2',
      's_bucket{le="1",class="batch"} 3',
      's_bucket{le="+Inf",class="batch"} 4',
      's_sum{class="batch"} 7.65',
      's_count{class="batch"} 4',
    ]);
  });
});
