import { describe, expect, it } from "vitest";
import { POLICIES, policyTable, SIMULATED_WORLDS, simulate, type Simulation } from "../../src/simulation/index.ts";

function programOf(name: string): Simulation["program"] {
  const found = SIMULATED_WORLDS.find((world) => world.name === name);
  if (found === undefined) throw new Error(`no world ${name}`);
  return found.program;
}

const SMALL = {
  program: programOf("own-loop"),
  dialect: "sglang",
  profile: "laptop-1b-x2",
  engines: 2,
  agents: { interactive: 2, batch: 24 },
  seed: 3,
  warmUpSeconds: 20,
  seconds: 60,
} as const satisfies Omit<Simulation, "policy">;

const policy = (name: string): Simulation["policy"] => {
  const found = POLICIES.find((one) => one.name === name);
  if (found === undefined) throw new Error(`no policy ${name}`);
  return found;
};

describe("a simulation", () => {
  it.each(POLICIES.map(({ name }) => name))("%s: the same seed gives the same report, another seed another", (name) => {
    const one = JSON.stringify(simulate({ ...SMALL, policy: policy(name) }));
    expect(JSON.stringify(simulate({ ...SMALL, policy: policy(name) }))).toBe(one);
    expect(JSON.stringify(simulate({ ...SMALL, seed: 4, policy: policy(name) }))).not.toBe(one);
  });

  it.each(["sglang", "vllm"] as const)(
    "%s engines: every policy serves runs of both classes, and none fails",
    (dialect) => {
      for (const each of POLICIES) {
        const { interactive, batch } = simulate({ ...SMALL, dialect, policy: each });
        expect(interactive.runs, each.name).toBeGreaterThan(0);
        expect(interactive.failed + batch.failed, each.name).toBe(0);
        expect(batch.runs > 0, each.name).toBe(each.interactiveOnly !== true);
      }
    },
  );

  it("an idle pool is the bound: nothing serves interactive runs better than engines without batch", () => {
    const rate = (name: string): number =>
      simulate({ ...SMALL, seconds: 240, policy: policy(name) }).interactive.runsPerMinute;
    const bound = rate("idle-pool");
    for (const name of ["router", "classic", "active-set"]) expect(rate(name)).toBeLessThan(bound);
  });

  // What the flood over real sockets shows (bench/flood); the figures themselves are no test.
  it("orders the policies as the flood over sockets does: the class-blind router last", () => {
    const rate = (name: string): number =>
      simulate({ ...SMALL, agents: { interactive: 4, batch: 48 }, seconds: 600, policy: policy(name) }).interactive
        .runsPerMinute;
    const [router, atOnce, classic, activeSet] = ["router", "classic-at-once", "classic", "active-set"].map(rate);
    expect(atOnce).toBeGreaterThan(router ?? Infinity);
    expect(classic).toBeGreaterThan(atOnce ?? Infinity);
    expect(activeSet).toBeGreaterThan(atOnce ?? Infinity);
  });

  it("gives every policy the same work: what the k-th run of an agent asks depends on the seed alone", () => {
    // Light enough that nobody waits: then the same runs end in the same time, whatever stands in front.
    const light = { ...SMALL, agents: { interactive: 1, batch: 0 }, seconds: 120 };
    const one = simulate({ ...light, policy: policy("router") });
    for (const name of ["classic", "active-set"]) {
      const other = simulate({ ...light, policy: policy(name) });
      expect([other.interactive.runs, other.interactive.turns]).toEqual([one.interactive.runs, one.interactive.turns]);
      expect(other.outputTokensPerSecond).toBe(one.outputTokensPerSecond);
    }
  });
});

describe("the policy table", () => {
  const report = simulate({ ...SMALL, policy: policy("router") });
  const scaled = (factor: number) => ({
    ...report,
    interactive: { ...report.interactive, runsPerMinute: report.interactive.runsPerMinute * factor },
  });

  it("gives ratios to the first policy seed by seed, with their spread", () => {
    const rows = policyTable([
      { policy: "a", seed: 1, report },
      { policy: "a", seed: 2, report: scaled(2) },
      { policy: "b", seed: 1, report: scaled(2) },
      { policy: "b", seed: 2, report: scaled(8) },
    ]);
    expect(rows.map((row) => row.policy)).toEqual(["a", "b"]);
    expect(rows[0]?.interactiveRatio).toMatchObject({ mean: 1, sd: 0 });
    // 2 and 4: mean 3, standard deviation √2; with one degree of freedom the interval is 12.706 standard errors wide.
    expect(rows[1]?.interactiveRatio?.mean).toBeCloseTo(3, 9);
    expect(rows[1]?.interactiveRatio?.sd).toBeCloseTo(Math.SQRT2, 9);
    expect(rows[1]?.interactiveRatio?.half).toBeCloseTo(12.706, 3);
  });

  it("has no ratio where there is nothing to compare with, and no interval for one seed", () => {
    const [row] = policyTable([{ policy: "a", seed: 1, report: scaled(0) }]);
    expect(row?.interactiveRatio).toBeUndefined();
    expect(row?.batchRatio?.half).toBeNaN();
  });
});
