/**
 * Crash-point enumeration: a random story of a tree of runs, killed after every record of its journal, also in the middle
 * of a commit; each time another process takes over and lives on to the end. The laws look at the journal and at the
 * ledger of the tools, not at the core's books.
 */
import * as fc from "fast-check";
import { expect, test } from "vitest";
import { replayRun, type RunRecord, type RunState } from "../../src/runs/index.ts";
import { createWorld, isBelow, keep, live, spawn, takeOver, worldAt, type Line, type World } from "./world.ts";

const STORIES = { numRuns: Number(process.env["LUFTPAUSE_RUNS"] ?? 60) };

function story(seed: number): World {
  const world = createWorld(seed);
  keep(world, spawn(world, undefined));
  expect(live(world)).toBe(true);
  return world;
}

test("every story ends, and keeps the laws", () => {
  fc.assert(
    fc.property(fc.integer(), (seed) => {
      checkLaws(story(seed));
    }),
    { numRuns: STORIES.numRuns * 10 },
  );
});

test("killed after any record, another process ends the story, and the laws hold over both", () => {
  fc.assert(
    fc.property(fc.integer(), (seed) => {
      const whole = story(seed);
      for (let cut = 1; cut <= whole.lines.length; cut += 1) {
        const world = worldAt(whole, cut, seed ^ cut);
        takeOver(world);
        expect(live(world)).toBe(true);
        checkLaws(world);
        // I6: an end that was journalled is the end that is served for ever.
        expect(ends(world.lines)).toMatchObject(ends(whole.lines.slice(0, cut)));
      }
    }),
    STORIES,
  );
});

test("killed twice, the laws still hold", () => {
  fc.assert(
    fc.property(fc.integer(), fc.nat(), fc.nat(), (seed, first, second) => {
      const whole = story(seed);
      const once = worldAt(whole, 1 + (first % whole.lines.length), seed ^ 1);
      takeOver(once);
      expect(live(once)).toBe(true);
      const twice = worldAt(once, 1 + (second % once.lines.length), seed ^ 2);
      takeOver(twice);
      expect(live(twice)).toBe(true);
      checkLaws(twice);
    }),
    { numRuns: STORIES.numRuns * 5 },
  );
});

function journals(lines: readonly Line[]): ReadonlyMap<string, readonly RunRecord[]> {
  const found = new Map<string, RunRecord[]>();
  for (const { run, record } of lines) found.set(run, [...(found.get(run) ?? []), record]);
  return found;
}

function ends(lines: readonly Line[]): { readonly [run: string]: unknown } {
  const found = lines.flatMap(({ run, record }) => (record.type === "ended" ? [[run, record]] : []));
  return JSON.parse(JSON.stringify(Object.fromEntries(found))) as { readonly [run: string]: unknown };
}

function checkLaws(world: World): void {
  const states = new Map<string, RunState>();
  for (const [run, records] of journals(world.lines)) {
    const outcome = replayRun(JSON.parse(JSON.stringify(records)) as RunRecord[]);
    // I7: nothing after the terminal record (a journal with one does not replay); I2: every spawn that is known ends.
    expect(outcome).toMatchObject({ kind: "replayed", run: { end: {} } });
    if (outcome.kind === "replayed") states.set(run, outcome.run);
    expect(records.at(-1)?.type).toBe("ended");
    checkApprovals(records);
    checkTurns(records);
  }
  checkCalls(world);
  checkBudgets(world, states);
  checkCancels(world, states);
}

/** I3: one effective decision per approval. */
function checkApprovals(records: readonly RunRecord[]): void {
  const asked = records.flatMap((record) => (record.type === "approval-asked" ? [record.approval] : []));
  expect(new Set(asked).size).toBe(asked.length);
  const settled = records.flatMap((record) =>
    record.type === "approval-decided" || record.type === "approval-expired" ? [record.approval] : [],
  );
  expect(new Set(settled).size).toBe(settled.length);
  const consumed = records.flatMap((record) =>
    record.type === "call-intent" && record.approval !== undefined ? [record.approval] : [],
  );
  expect(new Set(consumed).size).toBe(consumed.length);
}

/** At most maxToolCalls + 1 turns and one more, never one while calls are open. */
function checkTurns(records: readonly RunRecord[]): void {
  const [first] = records;
  const most = (first?.type === "spawned" ? first.assignment.maxToolCalls : 0) + 2;
  const turns = records.filter(({ type }) => type === "turn-requested");
  expect(turns.length).toBeLessThanOrEqual(most);
}

/** I1: an unsafe call begins at most once without a person's word, and a gated one never without a decision. */
function checkCalls(world: World): void {
  const begun = new Map<string, number>();
  for (const { key } of world.ledger.begun) begun.set(key, (begun.get(key) ?? 0) + 1);
  for (const [run, records] of journals(world.lines)) {
    for (const record of records) {
      if (record.type !== "turn-answered") continue;
      for (const [index, { judgement }] of record.calls.entries()) {
        const key = `${run}/${record.turn}/${index}`;
        const decisions = records.flatMap((other) =>
          other.type === "approval-decided" && other.turn === record.turn && other.index === index ? [other] : [],
        );
        const times = begun.get(key) ?? 0;
        if (judgement.kind === "refused") {
          expect(times).toBe(0);
          continue;
        }
        const reruns = decisions.filter(({ approval, decision }) => {
          const asked = records.find((other) => other.type === "approval-asked" && other.approval === approval);
          const { resolution = decision.allow ? "rerun" : "fail" } = decision;
          return asked?.type === "approval-asked" && asked.reason === "indeterminate" && resolution === "rerun";
        });
        const harmless = judgement.effect !== "unsafe" || judgement.onCrash === "rerun";
        if (!harmless) expect(times).toBeLessThanOrEqual(1 + reruns.length);
        const gated = judgement.asks !== undefined;
        if (gated && times > 0) expect(decisions.some(({ decision }) => decision.allow)).toBe(true);
      }
    }
  }
}

/** I4: what a subtree used is at most its limit and one answer that ran past its estimate; calls never exceed theirs. */
function checkBudgets(world: World, states: ReadonlyMap<string, RunState>): void {
  const answered = [...states.values()].reduce(
    (total, { sums }) => total + sums.promptTokens + sums.completionTokens,
    0,
  );
  expect(answered).toBe(world.ledger.tokens);
  for (const { id, assignment } of states.values()) {
    const below = [...states.values()].filter((state) => isBelow(states, state.id, id));
    const { tokens, toolCalls } = assignment.limits;
    const used = below.reduce((total, { sums }) => total + sums.promptTokens + sums.completionTokens, 0);
    // The engines of this world give at most 60 tokens an answer, whatever was asked for.
    if (tokens !== undefined) expect(used).toBeLessThanOrEqual(tokens + 60);
    const started = below.reduce((total, { sums }) => total + sums.callsStarted, 0);
    if (toolCalls !== undefined) expect(started).toBeLessThanOrEqual(toolCalls);
  }
}

/** I5: after a cancel nothing begins in the subtree. */
function checkCancels(world: World, states: ReadonlyMap<string, RunState>): void {
  for (const [at, { run, record }] of world.lines.entries()) {
    if (record.type !== "cancel-requested") continue;
    const later = world.lines.slice(at + 1).filter((line) => isBelow(states, line.run, run));
    const types = later.map((line) => line.record.type);
    expect(types.filter((type) => type === "call-intent" || type === "turn-requested" || type === "spawned")).toEqual(
      [],
    );
    const begun = world.ledger.begun.filter(({ key, afterLine }) => {
      return afterLine > at + 1 && isBelow(states, key.split("/")[0] ?? "", run);
    });
    expect(begun).toEqual([]);
  }
}
