/** The event log: what is written, and that the same core makes the same effects of it again (spec 2, Event log). */
import { describe, expect, test } from "vitest";
import { asReplicaId, asTurnId } from "../../src/base/ids.ts";
import {
  createReplay,
  createState,
  decide,
  eventLine,
  headerLine,
  replay,
  type SchedulerEvent,
  type SchedulerState,
} from "../../src/scheduling/index.ts";
import { config, finished, probed, replica, requested } from "./support.ts";

const about = { version: "1.2.3", wallClock: "2026-12-01T12:00:00.000Z" };
const same = { version: "1.2.3", force: false };

const EVENTS: readonly SchedulerEvent[] = [
  probed(0, "a", { load: { running: 2, waiting: 1 } }),
  requested(1, "t1", { run: "r" }),
  requested(2, "t2", { run: "s" }),
  requested(3, "t3", { run: "q", class: "batch" }),
  finished(4, "t1", { paused: true, keys: ["tool-calls:x", "prefix~:y"] }),
  { type: "turn-pushed-back", nowMs: 5, turn: asTurnId("t2"), retryAfterMs: 1_000 },
  requested(6, "t4", { keys: ["tool-calls:x"] }),
  { type: "turn-failed", nowMs: 7, turn: asTurnId("t3"), reason: "engine-unreachable" },
  { type: "ticked", nowMs: 1_500 },
];

/** A log of the events from `from` on: a header with the state before it, and a line for each. */
function log(from = 0): { readonly lines: string[]; readonly state: SchedulerState } {
  let state = createState(config({ replicas: [replica("a"), replica("b")] }), 0);
  let lines: string[] = [];
  for (const [at, event] of EVENTS.entries()) {
    if (at === from) lines = [headerLine(state, about)];
    const decided = decide(state, event);
    state = decided.state;
    lines.push(eventLine(event, decided.effects));
  }
  return { lines, state };
}

describe("replay", () => {
  test("reproduces every effect, wherever the log begins", () => {
    for (const from of EVENTS.keys()) {
      const outcome = replay(log(from).lines, same);
      expect(outcome).toMatchObject({ kind: "same", events: EVENTS.length - from, cutOff: false });
    }
  });

  test("names the first line whose effects come out otherwise, with both", () => {
    const { lines } = log();
    const changed = lines.map((line, at) => (at === 2 ? line.replace('"replica":"a"', '"replica":"b"') : line));
    expect(changed).not.toEqual(lines);
    expect(replay(changed, same)).toMatchObject({
      kind: "differs",
      line: 3,
      recorded: expect.stringContaining('"replica":"b"') as string,
      replayed: expect.stringContaining('"replica":"a"') as string,
    });
  });

  test("refuses a log of another version, unless forced", () => {
    const { lines } = log();
    expect(replay(lines, { version: "2.0.0", force: false })).toEqual({
      kind: "refused",
      reason: "the log was written by 1.2.3, this is 2.0.0; --force replays it all the same",
    });
    expect(replay(lines, { version: "2.0.0", force: true }).kind).toBe("same");
  });

  test("refuses another format even when forced", () => {
    const { lines } = log();
    const other = [lines[0]!.replace('"format":1', '"format":2'), ...lines.slice(1)];
    expect(replay(other, { ...same, force: true })).toEqual({
      kind: "refused",
      reason: "the log has format 2, this version reads 1",
    });
  });

  test("takes a last line that a crash cut off, and says so", () => {
    const { lines } = log();
    const cut = [...lines.slice(0, -1), lines.at(-1)!.slice(0, 10)];
    expect(replay(cut, same)).toMatchObject({ kind: "same", events: EVENTS.length - 1, cutOff: true });
  });

  test("a line in the middle that is no JSON is named", () => {
    const { lines } = log();
    expect(replay([lines[0]!, "{", ...lines.slice(1)], same)).toEqual({ kind: "broken", line: 2, reason: "not JSON" });
  });

  test("what is no event log is said to be none", () => {
    expect(replay([], same)).toEqual({ kind: "broken", line: 1, reason: "the log is empty" });
    const reason = "the first line is not the header of an event log";
    expect(replay(['{"a":1}'], same)).toEqual({ kind: "broken", line: 1, reason });
    expect(replay(["null"], same)).toEqual({ kind: "broken", line: 1, reason });
    const damaged = log().lines[0]!.replace('"runs":[]', '"runs":7');
    expect(replay([damaged], same)).toMatchObject({ kind: "broken", line: 1 });
    expect(replay([log().lines[0]!, "[]"], same)).toEqual({
      kind: "broken",
      line: 2,
      reason: "not an event with its effects",
    });
  });

  test("goes line by line and shows the state that it has reached", () => {
    const { lines, state } = log();
    const run = createReplay(same);
    expect(run.state).toBeUndefined();
    for (const line of lines) expect(run.push(line)).toBeUndefined();
    expect(run.end().kind).toBe("same");
    expect(run.state?.replicas.get(asReplicaId("a"))?.cap).toBe(state.replicas.get(asReplicaId("a"))?.cap);
  });
});
