/**
 * What every journal must do, whatever keeps it: run on each implementation of `RunStore`. A store that outlives its
 * process passes `reopen`, one that several runtimes share passes `beside`.
 */
import fc from "fast-check";
import { afterEach, describe, expect, test } from "vitest";
import type {
  ApprovalRow,
  JournalRecord,
  RunChange,
  RunRow,
  RunStore,
  StoredRun,
} from "../../src/runtime/store/port.ts";

export type StoreUnderTest = {
  /** An empty store. */
  open(): Promise<RunStore>;
  /** Closes the store and opens the same journal again. */
  readonly reopen?: (store: RunStore) => Promise<RunStore>;
  /** Lets go of whatever the test left. */
  readonly clean?: () => Promise<void>;
};

export function record(type: string, more: { readonly [field: string]: unknown } = {}): JournalRecord {
  return { v: 1, at: 1_000, type, ...more };
}

export function row(id: string, more: Partial<RunRow> = {}): RunRow {
  return {
    id,
    root: id,
    principal: "alice",
    caller: "",
    state: "Running",
    createdAtMs: 1_000,
    updatedAtMs: 1_000,
    ...more,
  };
}

export function spawn(id: string, more: Partial<RunRow> = {}): RunChange {
  return { runId: id, expectedSeq: 0, records: [record("spawned", { task: id })], row: row(id, more) };
}

function approval(id: string, runId: string, more: Partial<ApprovalRow> = {}): ApprovalRow {
  const base = { id, runId, root: runId, principal: "alice", askedAtMs: 1, expiresAtMs: 2 };
  return { ...base, state: "open", detail: { tool: "drop_table" }, ...more };
}

export async function collect(runs: AsyncIterable<StoredRun>): Promise<readonly StoredRun[]> {
  const all: StoredRun[] = [];
  for await (const run of runs) all.push(run);
  return all;
}

export function storeConformance(name: string, under: StoreUnderTest): void {
  describe(`${name}: a journal of runs`, () => {
    let open: RunStore[] = [];
    const make = async (): Promise<RunStore> => {
      const store = await under.open();
      open.push(store);
      return store;
    };
    const again = async (store: RunStore): Promise<RunStore> => {
      if (under.reopen === undefined) return store;
      const next = await under.reopen(store);
      open.push(next);
      return next;
    };
    afterEach(async () => {
      await Promise.all(open.map((store) => store.close()));
      open = [];
      await under.clean?.();
    });

    describe("append", () => {
      test("gives back the records of a run in order, as they were stored, also when opened again", async () => {
        const store = await make();
        const odd = { text: '\u2028 \ud83d\ude00 \u0000 "\\', deep: [{ a: null }, 1.5, true], big: "x".repeat(20_000) };
        expect(await store.append([spawn("r1")])).toEqual({ kind: "durable" });
        const more = [record("turn-answered", odd), record("ended")];
        expect(await store.append([{ runId: "r1", expectedSeq: 1, records: more }])).toEqual({ kind: "durable" });
        const loaded = await (await again(store)).load("r1");
        expect(loaded).toEqual({
          row: row("r1"),
          lastSeq: 3,
          epoch: 0,
          records: [record("spawned", { task: "r1" }), ...more],
        });
      });

      test("keeps what it stored when the caller changes the record afterwards", async () => {
        const store = await make();
        const list = ["first"];
        const done = store.append([{ ...spawn("r1"), records: [record("spawned", { list })] }]);
        list.push("second");
        await done;
        expect((await store.load("r1"))?.records).toEqual([record("spawned", { list: ["first"] })]);
      });

      test("refuses a commit that expects another last record, and changes nothing", async () => {
        const store = await make();
        await store.append([spawn("r1")]);
        const late = await store.append([{ runId: "r1", expectedSeq: 0, records: [record("x")], row: row("r1") }]);
        expect(late).toMatchObject({ kind: "conflict", on: "sequence", runId: "r1", found: 1 });
        const early = await store.append([{ runId: "r1", expectedSeq: 2, records: [record("x")] }]);
        expect(early).toMatchObject({ kind: "conflict", on: "sequence", found: 1 });
        expect((await store.load("r1"))?.lastSeq).toBe(1);
      });

      test("lets one of two commits for the same place win", async () => {
        const store = await make();
        await store.append([spawn("r1")]);
        const race = ["a", "b"].map((type) => store.append([{ runId: "r1", expectedSeq: 1, records: [record(type)] }]));
        const outcomes = await Promise.all(race);
        expect(outcomes.map(({ kind }) => kind).sort()).toEqual(["conflict", "durable"]);
        expect((await store.load("r1"))?.records).toHaveLength(2);
      });

      test("takes commits of one run that were handed in one after the other without waiting", async () => {
        const store = await make();
        const outcomes = await Promise.all([
          store.append([spawn("r1")]),
          ...[1, 2, 3, 4].map((seq) => store.append([{ runId: "r1", expectedSeq: seq, records: [record(`n${seq}`)] }])),
        ]);
        expect(outcomes.every(({ kind }) => kind === "durable")).toBe(true);
        const types = (await store.load("r1"))?.records.map(({ type }) => type);
        expect(types).toEqual(["spawned", "n1", "n2", "n3", "n4"]);
      });

      test("is all or nothing over several runs", async () => {
        const store = await make();
        await store.append([spawn("old")]);
        const outcome = await store.append([
          { ...spawn("new"), tasks: [{ id: "t1", runId: "new", principal: "alice", createdAtMs: 1 }] },
          { runId: "old", expectedSeq: 7, records: [record("x")] },
        ]);
        expect(outcome).toMatchObject({ kind: "conflict", runId: "old" });
        expect(await store.load("new")).toBeUndefined();
        expect(await store.task("t1")).toBeUndefined();
      });

      test("does not let a refused commit take others with it that came at the same time", async () => {
        const store = await make();
        const outcomes = await Promise.all([
          store.append([spawn("a")]),
          store.append([{ runId: "b", expectedSeq: 3, records: [record("x")], row: row("b") }]),
          store.append([spawn("c")]),
        ]);
        expect(outcomes.map(({ kind }) => kind)).toEqual(["durable", "conflict", "durable"]);
        expect((await store.list({ limit: 10 })).items.map((entry) => entry.row.id)).toEqual(["c", "a"]);
      });

      test("several changes of one run in one commit follow each other", async () => {
        const store = await make();
        const next: RunChange = { runId: "r1", expectedSeq: 1, records: [record("ended")], row: row("r1", ended(5)) };
        expect(await store.append([spawn("r1"), next])).toEqual({ kind: "durable" });
        expect(await store.entry("r1")).toEqual({ row: row("r1", ended(5)), lastSeq: 2, epoch: 0 });
      });

      test("refuses the first record of a run that comes without a row", async () => {
        const store = await make();
        const outcome = await store.append([{ runId: "r1", expectedSeq: 0, records: [record("spawned")] }]);
        expect(outcome).toMatchObject({ kind: "conflict", on: "row-missing", runId: "r1" });
      });

      test("shuts out an owner whose epoch is over", async () => {
        const store = await make();
        await store.append([{ ...spawn("r1"), epoch: 1 }]);
        const takeover = await store.append([{ runId: "r1", expectedSeq: 1, epoch: 2, records: [record("claimed")] }]);
        expect(takeover).toEqual({ kind: "durable" });
        const stale = await store.append([{ runId: "r1", expectedSeq: 2, epoch: 1, records: [record("x")] }]);
        expect(stale).toMatchObject({ kind: "conflict", on: "epoch", found: 2 });
        expect(await (await again(store)).entry("r1")).toMatchObject({ lastSeq: 2, epoch: 2 });
      });

      test("answers after closing that it is closed", async () => {
        const store = await make();
        await store.close();
        expect(await store.append([spawn("r1")])).toMatchObject({ kind: "unavailable", why: "closed" });
        await expect(store.load("r1")).rejects.toThrow("closed");
      });

      test("writes what was handed in before it closes", async () => {
        const store = await make();
        const done = Array.from({ length: 5_000 }, (_, at) => store.append([spawn(`r${at}`)]));
        await store.close();
        expect(new Set((await Promise.all(done)).map(({ kind }) => kind))).toEqual(new Set(["durable"]));
      });
    });

    describe("idempotency keys", () => {
      test("belong to one run of a principal", async () => {
        const store = await make();
        const keyed = { idempotencyKey: "k", argumentsDigest: "d" };
        await store.append([spawn("r1", keyed)]);
        const second = await store.append([spawn("r2", keyed)]);
        expect(second).toMatchObject({ kind: "conflict", on: "idempotency-key", runId: "r2", found: "r1" });
        expect(await store.append([spawn("r3", { ...keyed, principal: "bob" })])).toEqual({ kind: "durable" });
        const reopened = await again(store);
        expect((await reopened.findByIdempotencyKey("alice", "k"))?.row).toEqual(row("r1", keyed));
        expect((await reopened.findByIdempotencyKey("bob", "k"))?.row.id).toBe("r3");
        expect(await reopened.findByIdempotencyKey("carol", "k")).toBeUndefined();
      });

      test("are taken once by two spawns at the same moment", async () => {
        const store = await make();
        const outcomes = await Promise.all(
          ["r1", "r2"].map((id) => store.append([spawn(id, { idempotencyKey: "k" })])),
        );
        expect(outcomes.map(({ kind }) => kind)).toEqual(["durable", "conflict"]);
      });

      test("two runs of one commit cannot share one", async () => {
        const store = await make();
        const both = [spawn("r1", { idempotencyKey: "k" }), spawn("r2", { idempotencyKey: "k" })];
        expect(await store.append(both)).toMatchObject({ kind: "conflict", on: "idempotency-key", found: "r1" });
        expect(await store.entry("r1")).toBeUndefined();
      });

      test("stay with the run when its row is written again", async () => {
        const store = await make();
        await store.append([spawn("r1", { idempotencyKey: "k" })]);
        const later = row("r1", { idempotencyKey: "k", state: "AwaitingApproval" });
        expect(await store.append([{ runId: "r1", expectedSeq: 1, records: [], row: later }])).toEqual({
          kind: "durable",
        });
        expect((await store.findByIdempotencyKey("alice", "k"))?.row.state).toBe("AwaitingApproval");
      });
    });

    describe("what is looked up", () => {
      test("live runs come back with their journals, oldest first; ended ones do not", async () => {
        const store = await make();
        for (const id of ["a", "b", "c"]) await store.append([spawn(id)]);
        await store.append([{ runId: "b", expectedSeq: 1, records: [record("ended")], row: row("b", ended(9)) }]);
        const reopened = await again(store);
        expect((await collect(reopened.loadLive())).map((run) => [run.row.id, run.records.length])).toEqual([
          ["a", 1],
          ["c", 1],
        ]);
        expect((await collect(reopened.loadAll())).map((run) => run.row.id)).toEqual(["a", "b", "c"]);
      });

      test("live runs come back whole when there are many and their records are large", async () => {
        const store = await make();
        const ids = Array.from({ length: 150 }, (_, index) => `run-${index}`);
        const body = "y".repeat(30_000);
        await Promise.all(
          ids.map((id) => store.append([{ ...spawn(id), records: [record("spawned", { id, body })] }])),
        );
        const runs = await collect(store.loadLive());
        expect(runs.map((run) => run.row.id)).toEqual(ids);
        expect(runs.every((run) => run.records[0]?.id === run.row.id && run.records[0]?.body === body)).toBe(true);
      });

      test("a principal's runs are listed newest first, page by page, without another's", async () => {
        const store = await make();
        for (const id of ["a", "b", "c", "d", "e"]) await store.append([spawn(id)]);
        await store.append([spawn("other", { principal: "bob" })]);
        const first = await store.list({ principal: "alice", limit: 2 });
        expect(first.items.map((entry) => entry.row.id)).toEqual(["e", "d"]);
        // A run that comes in between does not move the pages that follow.
        await store.append([spawn("f")]);
        const pages = [];
        for (let cursor = first.cursor; cursor !== undefined;) {
          const page = await store.list({ principal: "alice", limit: 2, cursor });
          pages.push(page.items.map((entry) => entry.row.id));
          cursor = page.cursor;
        }
        expect(pages).toEqual([["c", "b"], ["a"]]);
      });

      test("a cursor that is none is refused with words", async () => {
        const store = await make();
        await expect(store.list({ limit: 1, cursor: "what is this" })).rejects.toThrow("cursor");
        await expect(store.openApprovals({ limit: 1, cursor: "-1" })).rejects.toThrow("cursor");
      });

      test("runs are filtered by session, tree, parent and life", async () => {
        const store = await make();
        await store.append([
          spawn("root", { session: "s1" }),
          spawn("kid", { parent: "root", root: "root", session: "s2" }),
          spawn("grandkid", { parent: "kid", root: "root" }),
          spawn("alone", { ...ended(4), session: "s1" }),
        ]);
        const ids = async (filter: object): Promise<readonly string[]> =>
          (await store.list({ limit: 10, ...filter })).items.map((entry) => entry.row.id);
        expect(await ids({ session: "s1" })).toEqual(["alone", "root"]);
        expect(await ids({ root: "root" })).toEqual(["grandkid", "kid", "root"]);
        expect(await ids({ parent: "root" })).toEqual(["kid"]);
        expect(await ids({ live: true })).toEqual(["grandkid", "kid", "root"]);
        expect(await ids({ principal: "alice", session: "s1", live: true })).toEqual(["root"]);
        expect((await store.children("kid")).map((entry) => entry.row.id)).toEqual(["grandkid"]);
      });

      test("tasks and approvals are found by id and by run, and replaced by id", async () => {
        const store = await make();
        const task = { id: "t1", runId: "r1", principal: "alice", createdAtMs: 3, detail: { ttlMs: 5 } };
        await store.append([
          { ...spawn("r1"), tasks: [task], approvals: [approval("p1", "r1"), approval("p2", "r1")] },
        ]);
        await store.append([
          { runId: "r1", expectedSeq: 1, records: [], approvals: [approval("p1", "r1", { state: "decided" })] },
        ]);
        const reopened = await again(store);
        expect(await reopened.task("t1")).toEqual(task);
        expect(await reopened.tasksOf("r1")).toEqual([task]);
        expect(await reopened.task("t2")).toBeUndefined();
        expect(await reopened.approval("p1")).toEqual(approval("p1", "r1", { state: "decided" }));
        expect((await reopened.approvalsOf("r1")).map(({ id, state }) => [id, state])).toEqual([
          ["p1", "decided"],
          ["p2", "open"],
        ]);
        expect(await reopened.approval("p3")).toBeUndefined();
      });

      test("open approvals are listed oldest first, by principal and tree, page by page", async () => {
        const store = await make();
        await store.append([
          { ...spawn("r1"), approvals: [approval("p1", "r1"), approval("p2", "r1", { state: "expired" })] },
          { ...spawn("r2"), approvals: [approval("p3", "r2"), approval("p4", "r2")] },
          { ...spawn("r3"), approvals: [approval("p5", "r3", { principal: "bob" })] },
        ]);
        const first = await store.openApprovals({ principal: "alice", limit: 2 });
        expect(first.items.map(({ id }) => id)).toEqual(["p1", "p3"]);
        const second = await store.openApprovals({ principal: "alice", limit: 2, cursor: first.cursor ?? "" });
        expect([second.items.map(({ id }) => id), second.cursor]).toEqual([["p4"], undefined]);
        expect((await store.openApprovals({ root: "r2", limit: 9 })).items.map(({ id }) => id)).toEqual(["p3", "p4"]);
      });

      test("counters add up, over ancestors too, in the commit's own transaction", async () => {
        const store = await make();
        await store.append([spawn("root"), spawn("kid", { parent: "root", root: "root" })]);
        const add = (runId: string, name: string, add: number) => ({ runId, name, add });
        const counters = [add("kid", "tokens", 10), add("root", "tokens", 10), add("root", "turns", 1)];
        await store.append([{ runId: "kid", expectedSeq: 1, records: [record("t")], counters }]);
        await store.append([{ runId: "kid", expectedSeq: 1, records: [record("again")], counters }]);
        await store.append([{ runId: "kid", expectedSeq: 2, records: [], counters: [add("root", "tokens", -4)] }]);
        await store.append([{ runId: "kid", expectedSeq: 2, records: [], counters: [add("gone", "tokens", 1)] }]);
        const sums = await (await again(store)).counters(["root", "kid", "gone"]);
        expect([...sums].map(([id, names]) => [id, Object.fromEntries(names)])).toEqual([
          ["root", { tokens: 6, turns: 1 }],
          ["kid", { tokens: 10 }],
        ]);
      });

      test("a key made once stays, whoever asks again", async () => {
        const store = await make();
        expect(await store.meta("mac")).toBeUndefined();
        expect(await Promise.all([store.metaOnce("mac", "one"), store.metaOnce("mac", "two")])).toEqual(["one", "one"]);
        const reopened = await again(store);
        expect(await reopened.metaOnce("mac", "three")).toBe("one");
        expect(await reopened.meta("mac")).toBe("one");
      });
    });

    describe("retention", () => {
      const sweep = async (store: RunStore, endedBeforeMs: number): Promise<number> => {
        let runs = 0;
        for (;;) {
          const chunk = await store.deleteEnded({ endedBeforeMs });
          runs += chunk.runs;
          if (!chunk.more) return runs;
        }
      };

      test("deletes what ended before, with everything of it, and nothing else", async () => {
        const store = await make();
        const task = { id: "t1", runId: "old", principal: "alice", createdAtMs: 3 };
        const counters = [{ runId: "old", name: "turns", add: 1 }];
        await store.append([
          {
            ...spawn("old", { ...ended(50), idempotencyKey: "k" }),
            tasks: [task],
            approvals: [approval("p", "old")],
            counters,
          },
          spawn("young", ended(100)),
          spawn("live"),
        ]);
        expect(await sweep(store, 100)).toBe(1);
        const reopened = await again(store);
        expect((await reopened.list({ limit: 9 })).items.map((entry) => entry.row.id)).toEqual(["live", "young"]);
        expect(await reopened.load("old")).toBeUndefined();
        expect([await reopened.task("t1"), await reopened.approval("p")]).toEqual([undefined, undefined]);
        expect((await reopened.counters(["old"])).size).toBe(0);
        expect((await reopened.openApprovals({ limit: 9 })).items).toEqual([]);
        expect(await reopened.append([spawn("next", { idempotencyKey: "k" })])).toEqual({ kind: "durable" });
      });

      test("keeps an ended run as long as it has children, and takes the children first", async () => {
        const store = await make();
        await store.append([
          spawn("root", ended(1)),
          spawn("kid", { ...ended(2), parent: "root", root: "root" }),
          spawn("lively", { parent: "root", root: "root" }),
        ]);
        expect(await sweep(store, 10)).toBe(1);
        expect((await store.children("root")).map((entry) => entry.row.id)).toEqual(["lively"]);
        await store.append([
          {
            runId: "lively",
            expectedSeq: 1,
            records: [],
            row: row("lively", { ...ended(3), parent: "root", root: "root" }),
          },
        ]);
        expect(await sweep(store, 10)).toBe(2);
        expect((await store.list({ limit: 9 })).items).toEqual([]);
      });

      test("goes through many runs and long journals in chunks; a run of the same name can begin anew", async () => {
        const store = await make();
        const many = Array.from({ length: 60 }, (_, index) => spawn(`old-${index}`, ended(5)));
        await store.append(many);
        const long = Array.from({ length: 1_000 }, (_, index) => record("n", { index }));
        await store.append([{ ...spawn("old-long", ended(5)), records: long }]);
        expect(await sweep(store, 6)).toBe(61);
        expect(await store.append([spawn("old-long")])).toEqual({ kind: "durable" });
        const reopened = await again(store);
        expect(await sweep(reopened, 6)).toBe(0);
        expect((await collect(reopened.loadAll())).map((run) => [run.row.id, run.records.length])).toEqual([
          ["old-long", 1],
        ]);
      });
    });

    test("holds what it answered, for any mixture of commits and openings", async () => {
      const step = fc.oneof(
        { weight: 8, arbitrary: fc.record({ run: fc.nat(4), seq: fc.nat(6), count: fc.nat(3), last: fc.boolean() }) },
        { weight: 1, arbitrary: fc.constant("reopen" as const) },
      );
      await fc.assert(
        fc.asyncProperty(fc.array(step, { maxLength: 30 }), async (steps) => {
          let store = await make();
          const model = new Map<string, { records: JournalRecord[]; live: boolean }>();
          for (const [index, one] of steps.entries()) {
            if (one === "reopen") {
              store = await again(store);
              continue;
            }
            const runId = `r${one.run}`;
            const records = Array.from({ length: one.count }, (_, place) => record("n", { index, place }));
            const life = one.last ? ended(5) : {};
            const known = model.get(runId)?.records ?? [];
            const outcome = await store.append([{ runId, expectedSeq: one.seq, records, row: row(runId, life) }]);
            expect(outcome.kind).toBe(one.seq === known.length ? "durable" : "conflict");
            if (outcome.kind === "durable") model.set(runId, { records: [...known, ...records], live: !one.last });
          }
          const found = await collect((await again(store)).loadAll());
          expect(Object.fromEntries(found.map((run) => [run.row.id, run.records]))).toEqual(
            Object.fromEntries([...model].map(([id, { records }]) => [id, records])),
          );
          const live = (await collect(open.at(-1)!.loadLive())).map((run) => run.row.id);
          expect(live.sort()).toEqual([...model].flatMap(([id, run]) => (run.live ? [id] : [])).sort());
          await open.at(-1)!.close();
        }),
        { numRuns: under.reopen === undefined ? 100 : 10 },
      );
    }, 60_000);
  });
}

export function ended(endedAtMs: number): Partial<RunRow> {
  return { state: "Completed", reason: "completed", endedAtMs };
}
