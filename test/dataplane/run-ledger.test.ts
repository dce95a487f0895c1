import { describe, expect, it } from "vitest";
import { ANONYMOUS_CALLER, asReplicaId, asRunId, SOLE_PRINCIPAL } from "../../src/base/ids.ts";
import { RunLedger, type RunOwner } from "../../src/dataplane/run-ledger.ts";
import { DEFAULTS } from "../../src/wire/limits.ts";

const owner = (run: string, principal = "default"): RunOwner => ({
  run: asRunId(run),
  principal: principal as typeof SOLE_PRINCIPAL,
  caller: ANONYMOUS_CALLER,
  class: "interactive",
});
const A = asReplicaId("a");
const key = (hash: string) => ({ source: "tool-calls", hash }) as const;
const runs = (ledger: RunLedger, nowMs: number): string[] => ledger.runReports(nowMs).map((report) => report.run);

describe("the run ledger", () => {
  it("remembers an idle run for 30 minutes and no longer", () => {
    expect(DEFAULTS.runIdleExpiryMs).toBe(30 * 60_000);
    const ledger = new RunLedger(DEFAULTS);
    ledger.admitted(owner("r"), A, false, 0);
    expect(runs(ledger, DEFAULTS.runIdleExpiryMs - 1)).toEqual(["r"]);
    expect(runs(ledger, DEFAULTS.runIdleExpiryMs)).toEqual([]);
    expect(ledger.runCount).toBe(0);
  });

  it("lets every turn of a run renew it", () => {
    const ledger = new RunLedger(DEFAULTS);
    ledger.admitted(owner("r"), A, false, 0);
    ledger.finished(owner("r"), true, false, [], 1_700_000);
    expect(ledger.runReports(1_800_000)).toMatchObject([
      { run: "r", phase: "paused", quietMs: 100_000, pausedMs: 100_000 },
    ]);
  });

  it("keeps what a main turn left when a side call ends", () => {
    const ledger = new RunLedger(DEFAULTS);
    ledger.admitted(owner("r"), A, false, 0);
    ledger.finished(owner("r"), true, false, [], 10);
    ledger.admitted(owner("r"), asReplicaId("b"), true, 20);
    ledger.finished(owner("r"), false, true, [], 30);
    ledger.failed(owner("r"), true, 40);
    expect(ledger.runReports(50)).toMatchObject([{ phase: "paused", replica: "a", quietMs: 10, pausedMs: 40 }]);
  });

  it("has a run idle after a failed turn, and keeps its replica for the retry", () => {
    const ledger = new RunLedger(DEFAULTS);
    ledger.admitted(owner("r"), A, false, 0);
    ledger.finished(owner("r"), true, false, [], 10);
    ledger.failed(owner("r"), false, 20);
    expect(ledger.runReports(20)).toMatchObject([{ phase: "idle", replica: "a", pausedMs: undefined }]);
  });

  it("keeps runs of two principals apart that have the same id", () => {
    const ledger = new RunLedger(DEFAULTS);
    ledger.admitted(owner("r", "p"), A, false, 0);
    ledger.admitted(owner("r", "q"), A, false, 0);
    ledger.ended(asRunId("r"), "p" as typeof SOLE_PRINCIPAL);
    expect(ledger.runReports(1).map((report) => report.principal)).toEqual(["q"]);
  });

  it("bounds runs and keys by count, the oldest go first", () => {
    const ledger = new RunLedger({ ...DEFAULTS, identityKeysMax: 3 });
    for (let at = 0; at < 10; at += 1) {
      ledger.admitted(owner(`r${at}`), A, false, at);
      ledger.finished(owner(`r${at}`), true, false, [key(`k${at}`)], at);
      expect(ledger.runCount).toBeLessThanOrEqual(3);
      expect(ledger.keyCount).toBeLessThanOrEqual(3);
    }
    expect(runs(ledger, 10)).toEqual(["r7", "r8", "r9"]);
    expect(ledger.keyReports(10).map((report) => report.keys[0]?.hash)).toEqual(["k7", "k8", "k9"]);
  });

  it("forgets keys after 30 minutes although their run lives on", () => {
    expect(DEFAULTS.identityTtlMs).toBe(30 * 60_000);
    const ledger = new RunLedger(DEFAULTS);
    ledger.finished(owner("r"), true, false, [key("k")], 0);
    ledger.finished(owner("r"), true, false, [key("l")], 1_000_000);
    expect(ledger.keyReports(DEFAULTS.identityTtlMs)).toMatchObject([{ keys: [key("l")], ageMs: 800_000 }]);
    expect(runs(ledger, DEFAULTS.identityTtlMs)).toEqual(["r"]);
  });

  it("forgets the keys of a run that has ended", () => {
    const ledger = new RunLedger(DEFAULTS);
    ledger.finished(owner("r"), true, false, [key("k")], 0);
    ledger.ended(asRunId("r"), SOLE_PRINCIPAL);
    expect([ledger.runCount, ledger.keyCount, ledger.keyReports(0)]).toEqual([0, 0, []]);
  });
});
