import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import type * as WorkerThreads from "node:worker_threads";
import { afterEach, describe, expect, test, vi } from "vitest";
import { createMemoryStore } from "../../src/runtime/store/memory.ts";
import type { StoreHealth } from "../../src/runtime/store/port.ts";
import { openSqliteStore } from "../../src/runtime/store/sqlite.ts";
import { ANSWER_LOST, DISK_FULL, faultyStore } from "./faulty-store.ts";
import { spawn, storeConformance } from "./store-conformance.ts";

const threads: { readonly name: string | undefined; terminate(): Promise<number> }[] = [];

vi.mock("node:worker_threads", async (original) => {
  const real = await original<typeof WorkerThreads>();
  class Worker extends real.Worker {
    constructor(...args: ConstructorParameters<typeof real.Worker>) {
      super(...args);
      threads.push({ name: args[1]?.name, terminate: () => this.terminate() });
    }
  }
  return { ...real, Worker };
});

storeConformance("a journal without a fault in the wrapper", {
  open: () => Promise.resolve(faultyStore(createMemoryStore(), () => undefined)),
});

describe("the wrapper that makes a journal fail", () => {
  test("fails the commit that it was told to, and no other", async () => {
    const store = faultyStore(createMemoryStore(), (number) =>
      number === 2 ? { kind: "fail", outcome: DISK_FULL } : undefined,
    );
    const outcomes = [];
    for (const id of ["a", "b", "c"]) outcomes.push((await store.append([spawn(id)])).kind);
    expect(outcomes).toEqual(["durable", "unavailable", "durable"]);
    expect([store.appends(), await store.load("b")]).toEqual([3, undefined]);
  });

  test("loses the answer of a commit that was written", async () => {
    const store = faultyStore(createMemoryStore(), () => ({ kind: "lose-answer" }));
    expect(await store.append([spawn("a")])).toEqual(ANSWER_LOST);
    expect((await store.entry("a"))?.lastSeq).toBe(1);
  });

  test("holds a commit up before and after it is written", async () => {
    const gate = Promise.withResolvers<void>();
    const store = faultyStore(createMemoryStore(), (number) => ({
      kind: number === 1 ? "delay-before" : "delay-after",
      until: gate.promise,
    }));
    const both = [store.append([spawn("a")]), store.append([spawn("b")])];
    await expect.poll(() => store.entry("b")).toBeDefined();
    expect(await store.entry("a")).toBeUndefined();
    gate.resolve();
    expect(await Promise.all(both)).toEqual([{ kind: "durable" }, { kind: "durable" }]);
  });
});

describe("a thread of the SQLite journal that dies", () => {
  let folder = "";
  afterEach(() => rm(folder, { recursive: true }));

  test.each(["journal-writer", "journal-reader"])(
    "%s: everything that hung on it is answered, with words",
    async (name) => {
      threads.length = 0;
      folder = await mkdtemp(path.join(tmpdir(), "luftpause-journal-"));
      const file = path.join(folder, "runs.db");
      const store = await openSqliteStore({ file });
      await store.append([spawn("r1")]);
      const seen: StoreHealth[] = [];
      store.onHealth((health) => seen.push(health));
      const thread = threads.find((one) => one.name === name);
      const asked = store.load("r1").then(
        (run) => run?.row.id,
        (error: Error) => error.message,
      );
      const [end, answer] = [thread?.terminate(), await asked];
      await end;
      expect(["r1", expect.stringContaining("start luftpause again")]).toContainEqual(answer);
      await expect.poll(() => store.health().state).toBe("failed");
      expect(seen).toEqual([{ state: "failed", message: expect.stringContaining(file) }]);
      expect(await store.append([spawn("r2")])).toMatchObject({ kind: "unavailable" });
      await expect(store.load("r1")).rejects.toThrow("start luftpause again");
      await store.close();
      const again = await openSqliteStore({ file });
      expect((await again.load("r1"))?.records).toHaveLength(1);
      await again.close();
    },
  );

  test("with a commit under way answers that nobody knows", async () => {
    threads.length = 0;
    folder = await mkdtemp(path.join(tmpdir(), "luftpause-journal-"));
    const store = await openSqliteStore({ file: path.join(folder, "runs.db") });
    const thread = threads.find((one) => one.name === "journal-writer");
    // Terminated in the same turn of the event loop, before the commit went over.
    const outcome = store.append([spawn("r1")]);
    const end = thread?.terminate();
    expect(await outcome).toMatchObject({ kind: "unavailable", why: "lost" });
    await end;
    await store.close();
  });
});
