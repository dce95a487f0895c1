import { describe, expect, test } from "vitest";
import { createMemoryStore } from "../../src/runtime/store/memory.ts";
import { answerAll, answerCalls, answerText, FROM_ENGINE, SSE, until } from "./fake-dataplane.ts";
import { damagedStore, faultyStore } from "./faulty-store.ts";
import { ANN, bench, BOB, ended, spawnOne } from "./host-bench.ts";

const messagesOf = (turn: { readonly body: { readonly [key: string]: unknown } }) =>
  turn.body["messages"] as readonly { readonly role: string; readonly content: string }[];

describe("a run", () => {
  test("asks a turn, calls a tool, and ends with the answer", async () => {
    const world = await bench();
    const handle = await spawnOne(world, { system: "be brief" });
    const first = await world.dataplane.nextTurn();
    expect(first.headers).toMatchObject({ "x-luftpause-run-id": handle, "x-luftpause-principal": "ann" });
    expect(first.body["tools"]).toHaveLength(3);
    answerCalls(first, [{ name: "look", args: { n: 1 } }]);
    const call = await world.tools.next();
    expect(call).toMatchObject({ server: "lab", tool: "look", arguments: { n: 1 }, idempotencyKey: `${handle}/1/0` });
    call.answer({ ok: true, text: "five boats" });
    const second = await world.dataplane.nextTurn();
    expect(messagesOf(second).map(({ role }) => role)).toEqual(["system", "user", "assistant", "tool"]);
    expect(messagesOf(second).slice(0, 2)).toEqual(messagesOf(first));
    answerText(second, "There are five.");
    const [result] = await ended(world, [handle]);
    expect(result).toMatchObject({
      handle,
      state: "Completed",
      reason: "completed",
      answer: "There are five.",
      turns: 2,
      toolCalls: 1,
      failedToolCalls: 0,
      usage: { promptTokens: 100, completionTokens: 14, cachedTokens: 40 },
    });
    await until("the dataplane hears of the end", () => world.dataplane.ended.includes(handle));
  });

  test("shows what it is doing", async () => {
    const world = await bench();
    const handle = await spawnOne(world);
    const turn = await world.dataplane.nextTurn();
    expect(await world.service.view(ANN, handle)).toMatchObject({ state: "Running", detail: "turn-held" });
    turn.response.writeHead(200, FROM_ENGINE);
    turn.response.write(`data: {"choices":[{"delta":{"content":"so far"}}]}\n\n`);
    await until("it generates", () => world.service.tree("ann")[0]?.detail === "generating");
    await world.service.cancel(ANN, handle);
    const [result] = await ended(world, [handle]);
    expect(result).toMatchObject({ state: "Cancelled", reason: "cancelled", partial: "so far" });
    await until("its turn is withdrawn", () => turn.gone);
  });

  test("goes on through any number of 503, and is never Completed by one", async () => {
    const world = await bench();
    const handle = await spawnOne(world);
    for (let at = 0; at < 8; at += 1) {
      const { response } = await world.dataplane.nextTurn();
      const before = world.clock.timersSet;
      response.writeHead(503, { "retry-after": "5" }).end("{}");
      await until("the pause is set", () => world.clock.timersSet > before);
      expect(await world.service.view(ANN, handle)).toMatchObject({ state: "Running" });
      await until("it waits", () => {
        world.clock.advance(5_000);
        return world.dataplane.turns.length > at + 1;
      });
    }
    answerText(await world.dataplane.nextTurn(), "late");
    expect(await ended(world, [handle])).toMatchObject([{ state: "Completed", answer: "late", turns: 1 }]);
  });

  test("a tool name that does not exist and arguments that are no object are told to the model", async () => {
    const world = await bench();
    await spawnOne(world, { parallelToolCalls: true });
    answerCalls(await world.dataplane.nextTurn(), [
      { name: "fly", args: {} },
      { name: "look", args: [1] },
    ]);
    const results = messagesOf(await world.dataplane.nextTurn()).filter(({ role }) => role === "tool");
    expect(results[0]?.content).toMatch(/^Error: .*fly/);
    expect(results[1]?.content).toMatch(/^Error: /);
    expect(world.tools.calls).toEqual([]);
  });

  test("that ended is served again and again", async () => {
    const world = await bench();
    const handle = await spawnOne(world);
    answerText(await world.dataplane.nextTurn(), "x");
    const first = await ended(world, [handle]);
    const next = await world.restart();
    expect(await ended(next, [handle])).toEqual(first);
  });
});

describe("whose run it is", () => {
  test("another principal's handle is unknown", async () => {
    const world = await bench();
    const handle = await spawnOne(world);
    expect(await world.service.view(BOB, handle)).toBeUndefined();
    expect(await world.service.cancel(BOB, handle)).toMatchObject({ kind: "refused" });
    const { results } = await world.service.awaitRuns(BOB, { handles: [handle], mode: "all", timeoutMs: 0 });
    expect(results).toEqual([{ handle, error: "unknown handle" }]);
    expect(await world.service.spawn(BOB, [{ task: "t", parent: handle }])).toMatchObject({ kind: "refused" });
    expect((await world.service.list(BOB, { mine: false, limit: 50 })).runs).toEqual([]);
    expect(world.service.tree("bob")).toEqual([]);
  });

  test("runs are listed newest first, also after a restart, and of one session with `mine`", async () => {
    const world = await bench();
    const first = await spawnOne(world);
    world.clock.advance(5);
    const spawned = await world.service.spawn({ ...ANN, session: "s2" }, [{ task: "t" }]);
    const second = spawned.kind === "spawned" ? spawned.handles[0] : undefined;
    const next = await world.restart();
    const handles = async (mine: boolean) =>
      (await next.service.list(ANN, { mine, limit: 50 })).runs.map(({ handle }) => handle);
    expect(await handles(false)).toEqual([second, first]);
    expect(await handles(true)).toEqual([first]);
  });
});

describe("spawn", () => {
  test("refuses a whole list for one bad entry", async () => {
    const world = await bench();
    const outcome = await world.service.spawn(ANN, [{ task: "good" }, { task: "bad", tools: ["no-such-tool"] }]);
    expect(outcome).toMatchObject({ kind: "refused" });
    expect((await world.service.list(ANN, { mine: false, limit: 50 })).runs).toEqual([]);
  });

  test.each([
    [{ budgetTokens: 0 }, /budgetTokens/],
    [{ budgetSeconds: 0 }, /budgetSeconds/],
    [{ maxToolCalls: -1 }, /maxToolCalls/],
    [{ approveTools: ["nope"] }, /approveTools/],
    [{ parent: "run-unknown" }, /parent/],
    [{ task: " " }, /task/],
  ])("refuses %j", async (spec, text) => {
    const world = await bench();
    const outcome = await world.service.spawn(ANN, [{ task: "t", ...spec }]);
    expect(outcome.kind === "refused" ? outcome.message : "").toMatch(text);
  });

  test("the same key and arguments give the same handle, also at once and after a restart; other arguments an error", async () => {
    const world = await bench();
    const spec = { task: "t", idempotencyKey: "k" };
    const [one, two] = await Promise.all([world.service.spawn(ANN, [spec]), world.service.spawn(ANN, [spec])]);
    expect(one).toMatchObject({ kind: "spawned" });
    expect(two).toEqual(one);
    const next = await world.restart();
    expect(await next.service.spawn(ANN, [spec])).toEqual(one);
    expect(await next.service.spawn(ANN, [{ ...spec, task: "other" }])).toMatchObject({ kind: "refused" });
    expect(await next.service.spawn(BOB, [spec])).not.toEqual(one);
    // Nor does it change when the run goes on in the new process, and ends there.
    answerAll(next.dataplane, "done");
    await ended(next, one?.kind === "spawned" ? one.handles : []);
    expect(await next.service.spawn(ANN, [spec])).toEqual(one);
    expect(await (await next.restart()).service.spawn(ANN, [spec])).toEqual(one);
  });

  test("an equal run within 10 s is the repeat of a lost answer, a later one is not", async () => {
    const world = await bench();
    const one = await world.service.run(ANN, { task: "t" });
    expect(await world.service.run(ANN, { task: "t" })).toEqual(one);
    world.clock.advance(10_001);
    expect(await world.service.run(ANN, { task: "t" })).not.toEqual(one);
  });

  test("an equal run is the repeat of a lost answer also when a crash lies between", async () => {
    const world = await bench();
    const one = await world.service.run(ANN, { task: "t" });
    const spawned = await world.service.spawn(ANN, [{ task: "u" }]);
    const next = await world.restart();
    next.clock.advance(9_000);
    const again = await Promise.all([next.service.run(ANN, { task: "t" }), next.service.run(ANN, { task: "t" })]);
    expect(again).toEqual([one, one]);
    expect(await next.service.run(BOB, { task: "t" })).not.toEqual(one);
    // What `spawn` has started is meant to be another one.
    expect(await next.service.run(ANN, { task: "u" })).not.toEqual(spawned);
    next.clock.advance(1_001);
    const last = await next.restart();
    expect(await last.service.run(ANN, { task: "t" })).not.toEqual(one);
  });

  test("a list under one key is the same only as a whole", async () => {
    const world = await bench();
    const list = (...tasks: string[]) => tasks.map((task) => ({ task, idempotencyKey: "k" }));
    const one = await world.service.spawn(ANN, list("a", "b"));
    expect(one).toMatchObject({ kind: "spawned" });
    expect(await world.service.spawn(ANN, list("a", "b"))).toEqual(one);
    for (const other of [list("a", "b", "c"), list("a"), list("b", "a")]) {
      expect(await world.service.spawn(ANN, other)).toMatchObject({
        kind: "refused",
        message: expect.stringContaining("'k' was used with other arguments") as string,
      });
    }
  });

  test("a list under one parent counts against maxChildren as a whole", async () => {
    const world = await bench({ maxChildren: 2 });
    const parent = await spawnOne(world);
    const three = [
      { task: "a", parent },
      { task: "b", parent },
      { task: "c", parent },
    ];
    expect(await world.service.spawn(ANN, three)).toMatchObject({ kind: "refused" });
    expect(await world.service.spawn(ANN, three.slice(1))).toMatchObject({ kind: "spawned" });
    expect((await world.service.view(ANN, parent))?.children).toHaveLength(2);
  });

  test("a finished parent may get a child after a restart", async () => {
    const world = await bench();
    const parent = await spawnOne(world);
    answerText(await world.dataplane.nextTurn(), "x");
    await ended(world, [parent]);
    const next = await world.restart();
    const child = await spawnOne(next, { parent });
    expect(await next.service.view(ANN, child)).toMatchObject({ parent, state: "Running" });
    expect(await next.service.view(ANN, parent)).toMatchObject({ children: [child], state: "Completed" });
  });

  test("is not acknowledged when the journal does not take it", async () => {
    const store = faultyStore(createMemoryStore(), (number) =>
      number === 1
        ? { kind: "fail", outcome: { kind: "unavailable", why: "disk-full", message: "the disk is full" } }
        : undefined,
    );
    const world = await bench({ store });
    expect(await world.service.spawn(ANN, [{ task: "t" }])).toMatchObject({ kind: "refused" });
    expect(world.dataplane.turns).toEqual([]);
    expect(await world.service.spawn(ANN, [{ task: "t" }])).toMatchObject({ kind: "spawned" });
  });
});

describe("await", () => {
  test("any returns when one has ended, all when all have, each with its results so far", async () => {
    const world = await bench();
    const one = await spawnOne(world);
    const turnOne = await world.dataplane.nextTurn();
    const two = await spawnOne(world, { task: "other" });
    const turnTwo = await world.dataplane.nextTurn();
    const any = world.service.awaitRuns(ANN, { handles: [one, two], mode: "any", timeoutMs: 50_000 });
    const all = world.service.awaitRuns(ANN, { handles: [one, two], mode: "all", timeoutMs: 50_000 });
    answerText(turnOne, "first");
    expect(await any).toMatchObject({ done: true, results: [{ state: "Completed" }, { state: "Running" }] });
    answerText(turnTwo, "second");
    expect(await all).toMatchObject({ done: true, results: [{ answer: "first" }, { answer: "second" }] });
  });

  test("returns after its time, or at once when the caller leaves; the run goes on", async () => {
    const world = await bench();
    const handle = await spawnOne(world);
    const turn = await world.dataplane.nextTurn();
    const waiting = { handles: [handle], mode: "all", timeoutMs: 50_000 } as const;
    const before = world.clock.timersSet;
    const timed = world.service.awaitRuns(ANN, waiting);
    await until("it waits", () => world.clock.timersSet > before);
    world.clock.advance(50_000);
    expect(await timed).toMatchObject({ done: false, results: [{ state: "Running" }] });
    const controller = new AbortController();
    const left = world.service.awaitRuns(ANN, { ...waiting, signal: controller.signal });
    controller.abort();
    expect(await left).toMatchObject({ done: false });
    answerText(turn, "x");
    expect(await ended(world, [handle])).toMatchObject([{ answer: "x" }]);
  });
});

describe("approvals", () => {
  test("a destructive call waits for a person; a second answer returns the first decision", async () => {
    const world = await bench();
    const handle = await spawnOne(world);
    answerCalls(await world.dataplane.nextTurn(), [{ name: "erase", args: { n: 3 } }]);
    await until("it asks", () => world.service.tree("ann")[0]?.state === "AwaitingApproval");
    const view = await world.service.view(ANN, handle);
    expect(view?.pendingApprovals).toMatchObject([{ tool: "erase", arguments: { n: 3 }, reason: "destructive" }]);
    const id = view?.pendingApprovals[0]?.id;
    expect((await world.service.approvals(ANN)).map((row) => row.id)).toEqual([id]);
    expect(await world.service.approve(BOB, { handle, allow: true, channel: "tool" })).toMatchObject({
      kind: "refused",
    });
    const both = await Promise.all([
      world.service.approve(ANN, { handle, allow: true, channel: "tool" }),
      world.service.approve(ANN, { handle, allow: false, channel: "http" }),
    ]);
    expect(both).toMatchObject([
      { kind: "decided", id, allow: true },
      { kind: "decided", id, allow: true },
    ]);
    expect(await world.tools.next()).toMatchObject({ tool: "erase", arguments: { n: 3 } });
    expect(await world.service.approvals(ANN)).toEqual([]);
  });

  test("an answer survives a restart, and an open question too", async () => {
    const world = await bench();
    const handle = await spawnOne(world, { approveTools: ["look"] });
    answerCalls(await world.dataplane.nextTurn(), [
      { name: "look", args: { n: 1 } },
      { name: "look", args: { n: 2 } },
    ]);
    await until("it asks", () => world.service.tree("ann")[0]?.state === "AwaitingApproval");
    await world.service.approve(ANN, { handle, allow: false, channel: "tool" });
    const next = await world.restart();
    const view = await next.service.view(ANN, handle);
    expect(view?.pendingApprovals).toMatchObject([{ arguments: { n: 2 }, reason: "listed" }]);
    expect(next.tools.calls).toEqual([]);
  });

  test("with several pending an answer must name one", async () => {
    const world = await bench();
    const handle = await spawnOne(world, { parallelToolCalls: true });
    answerCalls(await world.dataplane.nextTurn(), [
      { name: "erase", args: { n: 1 } },
      { name: "erase", args: { n: 2 } },
    ]);
    await until("it asks", () => world.service.tree("ann")[0]?.pendingApprovals === 2);
    const answer = await world.service.approve(ANN, { handle, allow: true, channel: "tool" });
    expect(answer.kind === "refused" ? answer.message : "").toMatch(/2 approvals.*\.1\.0.*\.1\.1/s);
  });
});

describe("after a crash", () => {
  test("the open turn is asked again and nothing is called twice", async () => {
    const world = await bench();
    const handle = await spawnOne(world);
    answerCalls(await world.dataplane.nextTurn(), [{ name: "write", args: {} }]);
    (await world.tools.next()).answer({ ok: true, text: "written" });
    await world.dataplane.nextTurn();
    const next = await world.restart();
    answerText(await next.dataplane.nextTurn(), "end");
    expect(await ended(next, [handle])).toMatchObject([{ state: "Completed", turns: 2, toolCalls: 1 }]);
    expect(world.tools.calls).toHaveLength(1);
  });

  test("an unsafe call that had begun asks what happened, a read-only one runs again under its key", async () => {
    const world = await bench();
    const handle = await spawnOne(world, { parallelToolCalls: true });
    answerCalls(await world.dataplane.nextTurn(), [
      { name: "write", args: {} },
      { name: "look", args: {} },
    ]);
    await world.tools.next();
    await world.tools.next();
    const next = await world.restart();
    const again = await next.tools.next();
    expect(again).toMatchObject({ tool: "look", idempotencyKey: `${handle}/1/1` });
    again.answer({ ok: true, text: "seen" });
    const view = await next.service.view(ANN, handle);
    expect(view?.pendingApprovals).toMatchObject([{ tool: "write", reason: "indeterminate" }]);
    const decided = await next.service.approve(ANN, {
      handle,
      allow: true,
      resolution: "result",
      result: "it was written",
      channel: "tool",
    });
    expect(decided).toMatchObject({ kind: "decided", resolution: "result" });
    const results = messagesOf(await next.dataplane.nextTurn()).filter(({ role }) => role === "tool");
    expect(results.map(({ content }) => content)).toEqual(["it was written", "seen"]);
    expect(next.tools.calls).toHaveLength(3);
  });

  test("a spawn is known whose turn never came", async () => {
    const world = await bench();
    const handle = await spawnOne(world);
    const next = await world.restart();
    expect(await next.service.view(ANN, handle)).toMatchObject({ state: "Running" });
    expect(await next.service.cancel(ANN, handle)).toEqual({ cancelled: 1 });
  });

  test("a commit whose fate is unknown makes the tree be read again: the tool is not run again", async () => {
    let outcomes = 0;
    const store = faultyStore(createMemoryStore(), (_number, changes) => {
      const has = changes.some(({ records }) => records.some(({ type }) => type === "call-outcome"));
      if (!has) return undefined;
      outcomes += 1;
      return outcomes === 1 ? { kind: "lose-answer" } : undefined;
    });
    const world = await bench({ store });
    const handle = await spawnOne(world);
    answerCalls(await world.dataplane.nextTurn(), [{ name: "write", args: {} }]);
    (await world.tools.next()).answer({ ok: true, text: "written" });
    await until("the tree is read again and asks its turn", () => {
      world.clock.advance(1_000);
      return world.dataplane.turns.length > 1;
    });
    answerText(await world.dataplane.nextTurn(), "end");
    expect(await ended(world, [handle])).toMatchObject([{ state: "Completed", toolCalls: 1 }]);
    expect(world.tools.calls).toHaveLength(1);
  });

  test("a full disk makes live runs wait, and they go on when it takes the commit", async () => {
    let failures = 3;
    const store = faultyStore(createMemoryStore(), (number) => {
      if (number < 2 || failures === 0) return undefined;
      failures -= 1;
      return { kind: "fail", outcome: { kind: "unavailable", why: "disk-full", message: "full" } };
    });
    const world = await bench({ store });
    const handle = await spawnOne(world);
    answerText(await world.dataplane.nextTurn(), "end");
    await until("the disk takes it", () => {
      world.clock.advance(1_000);
      return failures === 0;
    });
    world.clock.advance(1_000);
    expect(await ended(world, [handle])).toMatchObject([{ answer: "end" }]);
  });
});

describe("the tree", () => {
  test("cancel ends it durably, aborts its turns and tool calls, and refuses later children", async () => {
    const world = await bench();
    const top = await spawnOne(world);
    const turn = await world.dataplane.nextTurn();
    const kid = await spawnOne(world, { task: "kid", parent: top });
    answerCalls(await world.dataplane.nextTurn(), [{ name: "write", args: {} }]);
    const call = await world.tools.next();
    expect(await world.service.cancel(ANN, top)).toEqual({ cancelled: 2 });
    await until("the turn is withdrawn", () => turn.gone);
    expect(call.signal.aborted).toBe(true);
    call.answer({ ok: true, text: "too late" });
    expect(await ended(world, [top, kid])).toMatchObject([{ state: "Cancelled" }, { state: "Cancelled" }]);
    expect(await world.service.cancel(ANN, top)).toEqual({ cancelled: 0 });
    expect(await world.service.spawn(ANN, [{ task: "t", parent: kid }])).toMatchObject({ kind: "refused" });
  });

  test("a budget in seconds fires on an idle subtree, also after a restart", async () => {
    const world = await bench();
    const handle = await spawnOne(world, { budgetSeconds: 60 });
    await world.dataplane.nextTurn();
    const next = await world.restart();
    await next.dataplane.nextTurn();
    next.clock.advance(60_000);
    expect(await ended(next, [handle])).toMatchObject([
      {
        state: "Cancelled",
        reason: "budget",
        error: "budget exceeded: seconds 60/60",
        budget: { exceeded: "budget exceeded: seconds 60/60" },
      },
    ]);
  });

  test("shows own figures and the subtree's sums, also after a restart", async () => {
    const world = await bench();
    const top = await spawnOne(world, { budgetTokens: 10_000 });
    await world.dataplane.nextTurn();
    const kid = await spawnOne(world, { task: "kid", parent: top });
    answerText(await world.dataplane.nextTurn(), "x");
    await ended(world, [kid]);
    const sums = { turns: 1, promptTokens: 50, completionTokens: 7 };
    const expected = [
      { handle: top, own: { turns: 0 }, subtree: sums, children: [{ handle: kid, own: sums, subtree: sums }] },
    ];
    expect(world.service.tree("ann")).toMatchObject(expected);
    const next = await world.restart();
    expect(next.service.tree("ann")).toMatchObject(expected);
    expect((await next.service.view(ANN, top))?.budget).toMatchObject({
      used: { tokens: 57 },
      limits: { tokens: 10_000 },
    });
  });
});

test("draining waits for tool calls that run, and leaves no failure behind", async () => {
  const world = await bench();
  const handle = await spawnOne(world);
  answerCalls(await world.dataplane.nextTurn(), [{ name: "write", args: {} }]);
  const call = await world.tools.next();
  const drained = world.runtime.drain();
  call.answer({ ok: true, text: "written" });
  await drained;
  expect(world.runtime.ready().ready).toBe(false);
  expect(await world.service.spawn(ANN, [{ task: "t" }])).toMatchObject({ kind: "refused" });
  expect(world.dataplane.turns).toHaveLength(1);
  const next = await world.restart();
  const turn = await next.dataplane.nextTurn();
  expect(messagesOf(turn).at(-1)).toMatchObject({ role: "tool", content: "written" });
  answerText(turn, "end");
  expect(await ended(next, [handle])).toMatchObject([{ state: "Completed" }]);
});

test("storms of status, approve and await while a tool runs leave it at one call", async () => {
  const world = await bench();
  const handle = await spawnOne(world);
  answerCalls(await world.dataplane.nextTurn(), [{ name: "write", args: {} }]);
  const call = await world.tools.next();
  await Promise.all(
    Array.from({ length: 50 }, async () => {
      await world.service.view(ANN, handle);
      await world.service.approve(ANN, { handle, allow: true, channel: "tool" });
      await world.service.awaitRuns(ANN, { handles: [handle], mode: "all", timeoutMs: 0 });
    }),
  );
  call.answer({ ok: true, text: "once" });
  answerText(await world.dataplane.nextTurn(), "end");
  await ended(world, [handle]);
  expect(world.tools.calls).toHaveLength(1);
});

test("an early 200 that is held for minutes is a turn that waits, not a failure", async () => {
  const world = await bench();
  const handle = await spawnOne(world);
  const { response } = await world.dataplane.nextTurn();
  response.writeHead(200, SSE);
  for (let at = 0; at < 12; at += 1) {
    const before = world.clock.timersSet;
    response.write(": held\n\n");
    await until("the comment is read", () => world.clock.timersSet > before);
    world.clock.advance(50_000);
  }
  response.end(`data: {"choices":[{"delta":{"content":"at last"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n`);
  expect(await ended(world, [handle])).toMatchObject([{ state: "Completed", answer: "at last" }]);
});

test("a run whose journal is damaged is not gone on with, and nobody waits for it", async () => {
  let damaged = false;
  const store = damagedStore(createMemoryStore(), () => damaged);
  const world = await bench({ store });
  const handle = await spawnOne(world);
  answerCalls(await world.dataplane.nextTurn(), [{ name: "erase", args: { n: 1 } }]);
  await until("it asks", () => world.service.tree("ann").some(({ pendingApprovals }) => pendingApprovals > 0));
  damaged = true;
  const after = await world.restart();
  const [result] = await ended(after, [handle]);
  expect(result).toMatchObject({ handle, state: "Failed", reason: "failed", pendingApprovals: [] });
  expect(result?.error).toMatch(/damaged .*record 2 .*checksum is wrong.*journal verify/);
  expect(after.dataplane.turns).toHaveLength(1);
});
