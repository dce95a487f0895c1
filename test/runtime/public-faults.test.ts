/**
 * Faults that durable agent runtimes have had in public, each as a test named after the right behaviour. What other files
 * test already is listed with its place, and the list is checked; the rest stands here.
 */
import { readFileSync } from "node:fs";
import path from "node:path";
import { describe, expect, test } from "vitest";
import { createMemoryStore } from "../../src/runtime/store/memory.ts";
import { answerAll, answerCalls, answerText, until } from "./fake-dataplane.ts";
import { faultyStore, ANSWER_LOST } from "./faulty-store.ts";
import { ANN, bench, ended, spawnOne, type Bench } from "./host-bench.ts";

const ROOT = path.resolve(import.meta.dirname, "../..");

/** Reports, the right behaviour in words, and where it is tested. `here`: below. */
const FAULTS: readonly (readonly [reports: string, behaviour: string, file: string, title: string])[] = [
  [
    "langgraph #7780",
    "a second approval of a run runs no tool again",
    "here",
    "a second approval of one run runs no tool again",
  ],
  [
    "langgraph #6208",
    "one of two answers runs nothing again",
    "here",
    "one of two answers lets its own call begin, and the turn waits for both",
  ],
  [
    "langgraph #6663",
    "a second answer changes nothing",
    "test/runtime/run-host.test.ts",
    "a destructive call waits for a person; a second answer returns the first decision",
  ],
  [
    "openai-agents-py #4244",
    "an answer is not asked again after a restart",
    "test/runtime/run-host.test.ts",
    "an answer survives a restart, and an open question too",
  ],
  [
    "openai-agents-py #5141 #4414",
    "a grandchild's question is answered at the root",
    "here",
    "a grandchild's question is answered after a restart, and it goes on",
  ],
  [
    "openai-agents-js #1768",
    "a gate holds beside calls that need none",
    "here",
    "a gate holds its call, and not the harmless ones beside it",
  ],
  [
    "claude-agent-sdk #993 #370",
    "no gated call without a decision",
    "test/runs/crash.test.ts",
    "killed after any record, another process ends the story, and the laws hold over both",
  ],
  [
    "claude-code #95138",
    "cancel reaches the whole tree",
    "test/runtime/run-host.test.ts",
    "cancel ends it durably, aborts its turns and tool calls, and refuses later children",
  ],
  [
    "claude-code #86025 #89267",
    "busy engines end no run",
    "test/runtime/run-host.test.ts",
    "goes on through any number of 503, and is never Completed by one",
  ],
  [
    "claude-code #80315",
    "an acknowledged spawn is known",
    "test/runtime/run-host.test.ts",
    "is not acknowledged when the journal does not take it",
  ],
  [
    "claude-code #67524",
    "a run that is not over says what it waits for",
    "test/runtime/run-host.test.ts",
    "shows what it is doing",
  ],
  [
    "claude-code #69578 #72732",
    "depth and number of children are bounded",
    "test/runs/budget.test.ts",
    "depth and number of children are bounded",
  ],
  [
    "vercel/workflow #2780",
    "other events dispatch nothing again",
    "test/runtime/run-host.test.ts",
    "storms of status, approve and await while a tool runs leave it at one call",
  ],
  [
    "vercel/workflow #2675",
    "a lost write runs no tool again",
    "test/runtime/run-host.test.ts",
    "a commit whose fate is unknown makes the tree be read again: the tool is not run again",
  ],
  [
    "vercel/workflow #1203",
    "a journal of before goes on",
    "test/journals/journals.test.ts",
    "a journal of version 1 replays, and its open run goes on",
  ],
  [
    "inngest #4897",
    "parallel calls run once",
    "here",
    "of parallel calls those with an outcome are not made again after a crash",
  ],
  [
    "dbos-py #716",
    "a store that is away while a tree is taken over strands nobody",
    "here",
    "a journal that is away while runs are taken over strands none of them",
  ],
  [
    "dbos-py #742 #804",
    "an owner of before writes nothing",
    "test/runtime/store-conformance.ts",
    "shuts out an owner whose epoch is over",
  ],
  [
    "dbos-java #491",
    "a second process takes over no live run",
    "test/runtime/store-failures.test.ts",
    "cannot open the journal, and is told who has it; after a kill it can at once",
  ],
  [
    "dbos-ts #1205 #1206",
    "a decision is read from the journal",
    "test/runs/approval.test.ts",
    "an answer is not asked again after a restart, an open question is",
  ],
  [
    "restate #5196",
    "a run never stands still without a reason",
    "test/runs/crash.test.ts",
    "every story ends, and keeps the laws",
  ],
  [
    "mastra #5549 #7464 #4630",
    "a run resumes from its last outcome",
    "test/runtime/run-host.test.ts",
    "the open turn is asked again and nothing is called twice",
  ],
  ["Flowise #4848", "of two racing answers one wins", "here", "of an allow and a decline that race exactly one counts"],
  [
    "pydantic-ai #5536",
    "an error of a tool is a result, and nothing repeats it",
    "here",
    "an allowed call that fails is a result: it is not made again",
  ],
  [
    "dust #28780 #30742",
    "a stop is not an end",
    "here",
    "a stop in the middle of a turn ends no run, and a slow call is no dead one",
  ],
  ["agenc-core #2172", "cancel always ends", "test/runtime/run-host.test.ts", "a spawn is known whose turn never came"],
  [
    "babysitter #191",
    "two answers at one moment take two places",
    "here",
    "two answers at the same moment are two records, and none follows the end",
  ],
  [
    "Cotal #862",
    "a stop during parallel calls is no failure of theirs",
    "test/runtime/run-host.test.ts",
    "draining waits for tool calls that run, and leaves no failure behind",
  ],
  [
    "qwen-code #8735 #12097",
    "a journal that cannot be read is an error, not a new start",
    "test/runtime/run-host.test.ts",
    "a run whose journal is damaged is not gone on with, and nobody waits for it",
  ],
  [
    "ml-commons #4820",
    "nothing left is not unlimited",
    "here",
    "a budget of 0 is refused, and one that is used up stays used up",
  ],
  ["goose #11999", "why a run stopped is seen", "here", "a run that used its calls up says so, with its answer"],
  [
    "orbit #407",
    "a key is kept as long as its run",
    "here",
    "the key of a spawn is kept as long as its run, however long that takes",
  ],
  [
    "extra #139",
    "other arguments fail closed",
    "test/runs/approval.test.ts",
    "a decision for other arguments fails closed",
  ],
  [
    "openclaw #9404",
    "a resumed run can be cancelled",
    "here",
    "a run that was resumed can be cancelled, with the call that it makes",
  ],
  [
    "claude-code #76204",
    "a lost channel leaves the question open",
    "test/runtime/mcp/clients.test.ts",
    "without forms waits on, and may answer by approve from another call",
  ],
  ["agent-kit #196", "what was counted stays counted", "here", "calls are counted on over a restart"],
];

describe("the list of public faults", () => {
  test.each(FAULTS)("%s: %s", (_reports, _behaviour, file, title) => {
    const text = readFileSync(file === "here" ? import.meta.filename : path.join(ROOT, file), "utf8");
    expect(text).toContain(`test("${title}"`);
  });

  test("is whole", () => {
    expect(FAULTS).toHaveLength(36);
  });
});

async function asks(world: Bench, count: number): Promise<void> {
  await until(`${count} questions are open`, () => {
    return world.service.tree("ann").reduce((sum, row) => sum + pendingBelow(row), 0) === count;
  });
}

function pendingBelow(row: ReturnType<Bench["service"]["tree"]>[number]): number {
  return row.pendingApprovals + row.children.reduce((sum, child) => sum + pendingBelow(child), 0);
}

const names = (world: Bench): readonly string[] => world.tools.calls.map(({ tool }) => tool);

describe("approvals", () => {
  test("a second approval of one run runs no tool again", async () => {
    const world = await bench();
    const handle = await spawnOne(world);
    for (const n of [1, 2]) {
      answerCalls(await world.dataplane.nextTurn(), [{ name: "erase", args: { n } }]);
      await asks(world, 1);
      await world.service.approve(ANN, { handle, allow: true, channel: "tool" });
      (await world.tools.next()).answer({ ok: true, text: "erased" });
    }
    answerText(await world.dataplane.nextTurn(), "end");
    await ended(world, [handle]);
    expect(world.tools.calls.map((call) => call.arguments)).toEqual([{ n: 1 }, { n: 2 }]);
  });

  test("one of two answers lets its own call begin, and the turn waits for both", async () => {
    const world = await bench();
    const handle = await spawnOne(world, { parallelToolCalls: true });
    answerCalls(await world.dataplane.nextTurn(), [
      { name: "erase", args: { n: 1 } },
      { name: "erase", args: { n: 2 } },
    ]);
    await asks(world, 2);
    const [first, second] = (await world.service.view(ANN, handle))?.pendingApprovals ?? [];
    await world.service.approve(ANN, { handle, id: second?.id, allow: true, channel: "tool" });
    (await world.tools.next()).answer({ ok: true, text: "two" });
    await asks(world, 1);
    expect(world.dataplane.turns).toHaveLength(1);
    await world.service.approve(ANN, { handle, id: first?.id, allow: false, channel: "tool" });
    answerText(await world.dataplane.nextTurn(), "end");
    await ended(world, [handle]);
    expect(world.tools.calls.map((call) => call.arguments)).toEqual([{ n: 2 }]);
  });

  test("a grandchild's question is answered after a restart, and it goes on", async () => {
    const world = await bench();
    const top = await spawnOne(world);
    const middle = await spawnOne(world, { task: "middle", parent: top });
    const leaf = await spawnOne(world, { task: "leaf", parent: middle });
    const turns = [
      await world.dataplane.nextTurn(),
      await world.dataplane.nextTurn(),
      await world.dataplane.nextTurn(),
    ];
    const turn = turns.find(({ headers }) => headers["x-luftpause-run-id"] === leaf);
    if (turn === undefined) throw new Error("the leaf has asked no turn");
    answerCalls(turn, [{ name: "erase", args: { n: 1 } }]);
    await asks(world, 1);
    const next = await world.restart();
    const inbox = await next.service.approvals(ANN);
    expect(inbox).toMatchObject([{ handle: leaf, tool: "erase" }]);
    await next.service.approve(ANN, { handle: leaf, allow: true, channel: "http" });
    (await next.tools.next()).answer({ ok: true, text: "erased" });
    answerAll(next.dataplane, "end");
    const results = await ended(next, [top, middle, leaf]);
    expect(results.map(({ state }) => state)).toEqual(["Completed", "Completed", "Completed"]);
    expect(names(next)).toEqual(["erase"]);
  });

  test("a gate holds its call, and not the harmless ones beside it", async () => {
    const world = await bench();
    const handle = await spawnOne(world, { parallelToolCalls: true });
    answerCalls(await world.dataplane.nextTurn(), [
      { name: "look", args: { n: 1 } },
      { name: "erase", args: { n: 1 } },
      { name: "look", args: { n: 2 } },
    ]);
    (await world.tools.next()).answer({ ok: true, text: "one" });
    (await world.tools.next()).answer({ ok: true, text: "two" });
    await asks(world, 1);
    expect(names(world)).toEqual(["look", "look"]);
    expect(world.dataplane.turns).toHaveLength(1);
    expect(await world.service.view(ANN, handle)).toMatchObject({ state: "AwaitingApproval" });
  });

  test("of an allow and a decline that race exactly one counts", async () => {
    for (let round = 0; round < 10; round += 1) {
      const world = await bench();
      const handle = await spawnOne(world);
      answerCalls(await world.dataplane.nextTurn(), [{ name: "erase", args: { n: round } }]);
      await asks(world, 1);
      const answers = await Promise.all(
        [true, false, true, false].map((allow) => world.service.approve(ANN, { handle, allow, channel: "tool" })),
      );
      const counted = new Set(answers.map((answer) => (answer.kind === "decided" ? answer.allow : undefined)));
      expect([...counted]).toEqual([true]);
      (await world.tools.next()).answer({ ok: true, text: "erased" });
      answerText(await world.dataplane.nextTurn(), "end");
      expect(await ended(world, [handle])).toMatchObject([{ toolCalls: 1, failedToolCalls: 0 }]);
    }
  });

  test("an allowed call that fails is a result: it is not made again", async () => {
    const world = await bench();
    const handle = await spawnOne(world);
    answerCalls(await world.dataplane.nextTurn(), [{ name: "erase", args: { n: 1 } }]);
    await asks(world, 1);
    await world.service.approve(ANN, { handle, allow: true, channel: "tool" });
    (await world.tools.next()).answer({ ok: false, text: "Error: locked" });
    answerText(await world.dataplane.nextTurn(), "it is locked");
    expect(await ended(world, [handle])).toMatchObject([{ state: "Completed", failedToolCalls: 1 }]);
    expect(world.tools.calls).toHaveLength(1);
  });

  test("two answers at the same moment are two records, and none follows the end", async () => {
    const world = await bench();
    const handle = await spawnOne(world, { parallelToolCalls: true });
    answerCalls(await world.dataplane.nextTurn(), [
      { name: "erase", args: { n: 1 } },
      { name: "erase", args: { n: 2 } },
    ]);
    await asks(world, 2);
    const ids = (await world.service.view(ANN, handle))?.pendingApprovals.map(({ id }) => id) ?? [];
    await Promise.all(ids.map((id) => world.service.approve(ANN, { handle, id, allow: false, channel: "tool" })));
    answerText(await world.dataplane.nextTurn(), "end");
    await ended(world, [handle]);
    const records = (await world.store.load(handle))?.records ?? [];
    expect(records.filter(({ type }) => type === "approval-decided")).toHaveLength(2);
    expect(records.findIndex(({ type }) => type === "ended")).toBe(records.length - 1);
  });
});

describe("restarts", () => {
  test("of parallel calls those with an outcome are not made again after a crash", async () => {
    const world = await bench();
    const handle = await spawnOne(world, { parallelToolCalls: true });
    answerCalls(await world.dataplane.nextTurn(), [
      { name: "look", args: { n: 1 } },
      { name: "look", args: { n: 2 } },
      { name: "look", args: { n: 3 } },
    ]);
    const calls = [await world.tools.next(), await world.tools.next(), await world.tools.next()];
    calls[1]?.answer({ ok: true, text: "two" });
    await until("it is written", () => world.service.tree("ann")[0]?.own.failedToolCalls === 0);
    await until("the outcome is durable", () => world.runtime.ready().ready);
    const outcomes = async (): Promise<number> =>
      ((await world.store.load(handle))?.records ?? []).filter(({ type }) => type === "call-outcome").length;
    while ((await outcomes()) < 1) await new Promise((resolve) => setTimeout(resolve, 2));
    const next = await world.restart();
    const again = [await next.tools.next(), await next.tools.next()];
    expect(again.map((call) => call.arguments)).toEqual([{ n: 1 }, { n: 3 }]);
    for (const call of again) call.answer({ ok: true, text: "again" });
    answerText(await next.dataplane.nextTurn(), "end");
    expect(await ended(next, [handle])).toMatchObject([{ state: "Completed", toolCalls: 3 }]);
  });

  test("a journal that is away while runs are taken over strands none of them", async () => {
    let away = false;
    const store = faultyStore(createMemoryStore(), () => (away ? { kind: "fail", outcome: ANSWER_LOST } : undefined));
    const world = await bench({ store });
    const handles = [await spawnOne(world), await spawnOne(world, { task: "another" })];
    answerCalls(await world.dataplane.nextTurn(), [{ name: "write", args: {} }]);
    await world.tools.next();
    away = true;
    const next = await world.restart();
    away = false;
    await until("they are taken over in the end", () => {
      next.clock.advance(1_000);
      return (
        next.service.tree("ann").length === 2 && next.service.tree("ann").some((row) => row.pendingApprovals === 1)
      );
    });
    const asking = (await next.service.approvals(ANN))[0];
    await next.service.approve(ANN, {
      handle: asking?.handle ?? "",
      allow: true,
      resolution: "result",
      result: "written",
      channel: "tool",
    });
    answerAll(next.dataplane, "end");
    expect((await ended(next, handles)).map(({ state }) => state)).toEqual(["Completed", "Completed"]);
    expect(names(next)).toEqual(["write"]);
  });

  test("a stop in the middle of a turn ends no run, and a slow call is no dead one", async () => {
    const world = await bench();
    const handle = await spawnOne(world);
    answerCalls(await world.dataplane.nextTurn(), [{ name: "write", args: {} }]);
    const call = await world.tools.next();
    world.clock.advance(600_000);
    expect(call.signal.aborted).toBe(false);
    call.answer({ ok: true, text: "written" });
    await world.dataplane.nextTurn();
    await world.runtime.drain();
    const next = await world.restart();
    expect(await next.service.view(ANN, handle)).toMatchObject({ state: "Running" });
    answerText(await next.dataplane.nextTurn(), "end");
    expect(await ended(next, [handle])).toMatchObject([{ state: "Completed", toolCalls: 1 }]);
    expect(next.tools.calls).toHaveLength(1);
  });

  test("a run that was resumed can be cancelled, with the call that it makes", async () => {
    const world = await bench();
    const handle = await spawnOne(world);
    answerCalls(await world.dataplane.nextTurn(), [{ name: "look", args: {} }]);
    await world.tools.next();
    const next = await world.restart();
    const call = await next.tools.next();
    expect(await next.service.cancel(ANN, handle)).toEqual({ cancelled: 1 });
    expect(call.signal.aborted).toBe(true);
    expect(await ended(next, [handle])).toMatchObject([{ state: "Cancelled", reason: "cancelled" }]);
  });

  test("calls are counted on over a restart", async () => {
    const world = await bench();
    const handle = await spawnOne(world, { maxToolCalls: 2 });
    answerCalls(await world.dataplane.nextTurn(), [{ name: "look", args: {} }]);
    (await world.tools.next()).answer({ ok: true, text: "seen" });
    await world.dataplane.nextTurn();
    const next = await world.restart();
    answerCalls(await next.dataplane.nextTurn(), [{ name: "look", args: {} }]);
    (await next.tools.next()).answer({ ok: true, text: "seen" });
    const last = await next.dataplane.nextTurn();
    expect(last.body["tool_choice"]).toBe("none");
    answerText(last, "end");
    expect(await ended(next, [handle])).toMatchObject([{ toolCalls: 2, turns: 3 }]);
  });
});

describe("bounds", () => {
  test("a budget of 0 is refused, and one that is used up stays used up", async () => {
    const world = await bench();
    for (const budget of [{ budgetTokens: 0 }, { budgetToolCalls: 0 }, { budgetSeconds: -1 }]) {
      expect(await world.service.spawn(ANN, [{ task: "t", ...budget }])).toMatchObject({ kind: "refused" });
    }
    const top = await spawnOne(world, { budgetToolCalls: 1 });
    answerCalls(await world.dataplane.nextTurn(), [
      { name: "look", args: { n: 1 } },
      { name: "look", args: { n: 2 } },
    ]);
    (await world.tools.next()).answer({ ok: true, text: "one" });
    expect(await ended(world, [top])).toMatchObject([{ state: "Cancelled", reason: "budget" }]);
    expect(await world.service.spawn(ANN, [{ task: "t", parent: top }])).toMatchObject({ kind: "refused" });
    expect(world.tools.calls).toHaveLength(1);
  });

  test("a run that used its calls up says so, with its answer", async () => {
    const world = await bench();
    const handle = await spawnOne(world, { maxToolCalls: 1 });
    answerCalls(await world.dataplane.nextTurn(), [{ name: "look", args: {} }]);
    (await world.tools.next()).answer({ ok: true, text: "seen" });
    answerText(await world.dataplane.nextTurn(), "as far as I saw");
    expect(await ended(world, [handle])).toMatchObject([
      { state: "Completed", reason: "max_tool_calls", answer: "as far as I saw" },
    ]);
  });

  test("the key of a spawn is kept as long as its run, however long that takes", async () => {
    const world = await bench();
    const spec = { task: "t", idempotencyKey: "k" };
    const one = await world.service.spawn(ANN, [spec]);
    answerText(await world.dataplane.nextTurn(), "end");
    await ended(world, one.kind === "spawned" ? one.handles : []);
    world.clock.advance(6 * 86_400_000);
    expect(await world.service.spawn(ANN, [spec])).toEqual(one);
  });
});
