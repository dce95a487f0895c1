/** The decision log: each file replays on its own, whatever the disk does, and no decision waits for it. */
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { describe, expect, test } from "vitest";
import { asTurnId } from "../../src/base/ids.ts";
import { createEventLog, schedulerMetrics, type EventLog } from "../../src/scheduler/index.ts";
import { replay } from "../../src/scheduling/index.ts";
import { CONFIG, hello, makeScheduler, request, stops } from "./support.ts";

function makeFolder(): string {
  const folder = mkdtempSync(path.join(tmpdir(), "luftpause-log-"));
  stops.push(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

function makeLog(
  file: string,
  options: { readonly bytesMax?: number; readonly filesMax?: number; readonly bufferBytesMax?: number } = {},
): { readonly eventLog: EventLog; readonly words: string[] } {
  const words: string[] = [];
  const eventLog = createEventLog({
    path: file,
    bytesMax: 1_000_000,
    filesMax: 3,
    version: "1",
    wallMs: () => 0,
    log: (_level, event) => void words.push(event),
    ...options,
  });
  return { eventLog, words };
}

/** Outcomes of all files, the newest first, and the events in them. */
function replayAll(folder: string): { readonly kinds: string[]; readonly events: number } {
  const kinds: string[] = [];
  let events = 0;
  for (const name of readdirSync(folder).toSorted()) {
    const outcome = replay(readFileSync(path.join(folder, name), "utf8").split("\n"), { version: "1", force: false });
    kinds.push(outcome.kind);
    if (outcome.kind === "same") events += outcome.events;
  }
  return { kinds, events };
}

const turnOfLoop = (): Promise<void> => new Promise((resolve) => void setImmediate(resolve));

describe("the decision log", () => {
  test("replays to the same effects, each file on its own, also after rotation", async () => {
    const folder = makeFolder();
    const { eventLog } = makeLog(path.join(folder, "decisions.log"), { bytesMax: 20_000 });
    const { scheduler, clock } = makeScheduler(CONFIG, eventLog);
    const session = scheduler.attach({ send: () => undefined });
    session.receive(hello);
    for (let at = 0; at < 300; at += 1) {
      clock.advance(10);
      session.receive(request(`t${at}`, `r${at % 7}`));
      if (at % 3 === 0) session.receive({ type: "abandoned", turn: asTurnId(`t${at}`), reason: "client-left" });
      if (at % 50 === 0) await turnOfLoop();
    }
    await scheduler.stop();
    expect(readdirSync(folder).toSorted()).toEqual(["decisions.log", "decisions.log.1", "decisions.log.2"]);
    expect(replayAll(folder).kinds).toEqual(["same", "same", "same"]);
  });

  test("holds every event once, over all files", async () => {
    const folder = makeFolder();
    const { eventLog } = makeLog(path.join(folder, "log"), { bytesMax: 5_000, filesMax: 1_000 });
    const { scheduler } = makeScheduler(CONFIG, eventLog);
    const session = scheduler.attach({ send: () => undefined });
    session.receive(hello);
    for (let at = 0; at < 200; at += 1) session.receive(request(`t${at}`));
    await scheduler.stop();
    const { kinds, events } = replayAll(folder);
    expect(new Set(kinds)).toEqual(new Set(["same"]));
    expect(events).toBe(scheduler.counts().events);
    expect(eventLog.counts()).toEqual({ written: events, leftOut: 0 });
  });

  test("is not rotated by the size of what it has to say first", async () => {
    const folder = makeFolder();
    const { eventLog } = makeLog(path.join(folder, "log"), { bytesMax: 20_000, filesMax: 1_000 });
    const { scheduler } = makeScheduler(CONFIG, eventLog);
    const session = scheduler.attach({ send: () => undefined });
    session.receive(hello);
    // Held turns make the header grow far beyond the limit.
    for (let at = 0; at < 600; at += 1) session.receive(request(`t${at}`));
    await scheduler.stop();
    const last = readFileSync(path.join(folder, "log.1"), "utf8");
    expect(last.indexOf("\n")).toBeGreaterThan(60_000);
    expect(readdirSync(folder).length).toBeLessThan(20);
  });

  test("keeps the log of the process before", async () => {
    const folder = makeFolder();
    for (let start = 0; start < 3; start += 1) {
      const { eventLog } = makeLog(path.join(folder, "log"));
      const { scheduler } = makeScheduler(CONFIG, eventLog);
      const session = scheduler.attach({ send: () => undefined });
      session.receive(hello);
      await scheduler.stop();
    }
    expect(readdirSync(folder).toSorted()).toEqual(["log", "log.1", "log.2"]);
    expect(replayAll(folder)).toEqual({ kinds: ["same", "same", "same"], events: 3 });
  });

  test("of another version is refused unless forced, and a changed effect is found", async () => {
    const folder = makeFolder();
    const file = path.join(folder, "log");
    const { eventLog } = makeLog(file);
    const { scheduler } = makeScheduler(CONFIG, eventLog);
    const session = scheduler.attach({ send: () => undefined });
    session.receive(hello);
    session.receive({ ...request("t1"), model: "other" });
    await scheduler.stop();
    const lines = readFileSync(file, "utf8").split("\n");
    expect(replay(lines, { version: "2", force: false })).toMatchObject({ kind: "refused" });
    expect(replay(lines, { version: "2", force: true })).toMatchObject({ kind: "same", events: 2, effects: 1 });
    const changed = lines.map((line) => line.replace("reject-turn", "admit-turn"));
    expect(replay(changed, { version: "1", force: false })).toMatchObject({ kind: "differs", line: 3 });
    expect(replay(["hello"], { version: "1", force: false })).toMatchObject({ kind: "broken" });
  });
});

describe("a disk that", () => {
  test("is too slow costs events, counted, and never a decision; each file is whole", async () => {
    const folder = makeFolder();
    const { eventLog, words } = makeLog(path.join(folder, "log"), { bufferBytesMax: 10_000, filesMax: 100 });
    const { scheduler } = makeScheduler(CONFIG, eventLog);
    const session = scheduler.attach({ send: () => undefined });
    session.receive(hello);
    let asked = 0;
    // Within one turn of the event loop nothing reaches the disk: the buffer fills.
    for (let burst = 0; burst < 3; burst += 1) {
      for (let at = 0; at < 200; at += 1) session.receive(request(`t${(asked += 1)}`));
      await expect
        .poll(() => {
          session.receive(request(`t${(asked += 1)}`));
          return words.filter((word) => word === "event-log-resumed").length;
        })
        .toBe(burst + 1);
    }
    expect(scheduler.status().turns.held).toBe(asked);
    const page = await schedulerMetrics(scheduler).metrics();
    await scheduler.stop();
    const { kinds, events } = replayAll(folder);
    expect(kinds).toEqual(["same", "same", "same", "same"]);
    const { written, leftOut } = eventLog.counts();
    expect(events).toBe(written);
    expect(written + leftOut).toBe(scheduler.counts().events);
    expect(leftOut).toBeGreaterThan(300);
    expect(page).toContain(`luftpause_scheduler_event_log_left_out_total ${leftOut}\n`);
  });

  test.skipIf(!existsSync("/dev/full"))("is full ends the log with one message, not the service", async () => {
    const { eventLog, words } = makeLog("/dev/full", { filesMax: 1 });
    const { scheduler } = makeScheduler(CONFIG, eventLog);
    const session = scheduler.attach({ send: () => undefined });
    session.receive(hello);
    await expect.poll(() => words).toEqual(["event-log-failed"]);
    session.receive(request("t1"));
    expect(scheduler.status().turns.held).toBe(1);
    expect(eventLog.counts().leftOut).toBe(1);
    await scheduler.stop();
    expect(words).toEqual(["event-log-failed"]);
  });

  test("loses the folder ends the log with one message at the next rotation", async () => {
    const folder = makeFolder();
    const { eventLog, words } = makeLog(path.join(folder, "log"), { bytesMax: 3_000 });
    const { scheduler } = makeScheduler(CONFIG, eventLog);
    const session = scheduler.attach({ send: () => undefined });
    session.receive(hello);
    rmSync(folder, { recursive: true });
    for (let at = 0; at < 50; at += 1) session.receive(request(`t${at}`));
    await expect.poll(() => words).toEqual(["event-log-failed"]);
    await scheduler.stop();
    expect(words).toEqual(["event-log-failed"]);
  });

  test("cannot be written at the start is said at once", () => {
    const { eventLog } = makeLog(path.join(makeFolder(), "none", "log"));
    expect(() => makeScheduler(CONFIG, eventLog)).toThrow("ENOENT");
  });
});
