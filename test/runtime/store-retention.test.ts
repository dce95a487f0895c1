import { expect, test } from "vitest";
import type { Clock } from "../../src/base/clock.ts";
import { createMemoryStore } from "../../src/runtime/store/memory.ts";
import { keepTidy } from "../../src/runtime/store/retention.ts";
import { ended, spawn } from "./store-conformance.ts";

/** A clock whose next timer fires when the test says so. */
function handClock(): Clock & { readonly fire: () => number | undefined; readonly pending: () => number } {
  const timers: { readonly delayMs: number; readonly action: () => void }[] = [];
  return {
    nowMs: () => 0,
    after(delayMs, action) {
      const timer = { delayMs, action };
      timers.push(timer);
      return () => timers.splice(timers.indexOf(timer), 1);
    },
    fire() {
      const timer = timers.shift();
      timer?.action();
      return timer?.delayMs;
    },
    pending: () => timers.length,
  };
}

test("what ended long ago goes chunk by chunk with rests, what did not stays, and the next sweep comes", async () => {
  const store = createMemoryStore();
  await store.append(Array.from({ length: 45 }, (_, index) => spawn(`old-${index}`, ended(1_000))));
  await store.append([spawn("young", ended(9_000)), spawn("live")]);
  const clock = handClock();
  const swept: number[] = [];
  const stop = keepTidy({
    store,
    clock,
    wallMs: () => 10_000,
    keepFinishedMs: 5_000,
    onFault: (error) => {
      throw error;
    },
    onSwept: (runs) => swept.push(runs),
  });
  const rests = [];
  while (swept.length === 0) {
    await expect.poll(() => clock.pending() + swept.length).toBeGreaterThan(0);
    if (swept.length === 0) rests.push(clock.fire());
  }
  expect(swept).toEqual([45]);
  expect(rests).toEqual([20, 20, 20]);
  expect((await store.list({ limit: 99 })).items.map((entry) => entry.row.id)).toEqual(["live", "young"]);
  await store.append([spawn("another", ended(2_000))]);
  await expect.poll(() => clock.pending()).toBe(1);
  expect(clock.fire()).toBe(600_000);
  await expect.poll(async () => (await store.entry("another")) === undefined).toBe(true);
  stop();
});

test("a sweep that fails is told and begins again; after the stop nothing is asked any more", async () => {
  const store = createMemoryStore();
  const clock = handClock();
  const faults: unknown[] = [];
  let asked = 0;
  store.deleteEnded = () => {
    asked += 1;
    return Promise.reject(new Error("the disk is full"));
  };
  const stop = keepTidy({
    store,
    clock,
    wallMs: () => 0,
    keepFinishedMs: 1,
    onFault: (error) => faults.push((error as Error).message),
  });
  await expect.poll(() => faults).toEqual(["the disk is full"]);
  expect(clock.fire()).toBe(600_000);
  await expect.poll(() => [faults.length, clock.pending()]).toEqual([2, 1]);
  stop();
  expect([asked, clock.pending()]).toEqual([2, 0]);
});
