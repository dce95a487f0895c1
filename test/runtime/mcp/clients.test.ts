/** What every client sees, whichever SDK and era it is of. */
import { describe, expect, test } from "vitest";
import { answerCalls, answerText, until } from "../fake-dataplane.ts";
import { bench, type Bench } from "../host-bench.ts";
import { CLIENT_KINDS, connect, portOf, serve, type Person, type ToolResult } from "./face.ts";

type Entry = { readonly handle: string; readonly state: string; readonly [field: string]: unknown };
const resultsOf = ({ structuredContent }: ToolResult): readonly Entry[] =>
  structuredContent["results"] as readonly Entry[];
const handlesOf = ({ structuredContent }: ToolResult): readonly string[] =>
  structuredContent["handles"] as readonly string[];

/** A run's model calls the tool that a person is asked about. */
async function wantsToErase(world: Bench): Promise<void> {
  answerCalls(await world.dataplane.nextTurn(), [{ name: "erase", args: { n: 1 } }]);
}

/** ... and nobody answers at once. */
async function asking(world: Bench): Promise<void> {
  await wantsToErase(world);
  await until("it asks", () => world.service.tree("ann").some(({ pendingApprovals }) => pendingApprovals > 0));
}

describe.each(CLIENT_KINDS)("a client of %s", (kind) => {
  test("finds the eight tools", async () => {
    const client = await connect(kind, await serve(await bench()));
    expect((await client.listTools()).map(({ name }) => name).sort()).toEqual(
      ["approve", "await", "cancel", "decide", "run", "spawn", "status", "tools"].sort(),
    );
  });

  test("spawns several, and awaits any and all of them", async () => {
    const world = await bench();
    const client = await connect(kind, await serve(world));
    const spawned = await client.call("spawn", { tasks: ["one", { task: "two", model: "other" }], maxTokens: "20" });
    expect(spawned.structuredContent).toMatchObject({ model: "m, other", next: "await with these handles" });
    const handles = handlesOf(spawned);
    const [first, second] = [await world.dataplane.nextTurn(), await world.dataplane.nextTurn()];
    expect([first.body["max_tokens"], second.body["max_tokens"]]).toEqual([20, 20]);
    const any = client.call("await", { handles, mode: "any" });
    answerText(first, "1");
    const one = await any;
    expect(one.structuredContent).toMatchObject({ done: true });
    expect(
      resultsOf(one)
        .map(({ state }) => state)
        .sort(),
    ).toEqual(["Completed", "Running"]);
    const all = client.call("await", { handles: JSON.stringify(handles) });
    answerText(second, "2");
    expect((await all).structuredContent).toMatchObject({ done: true });
    expect(new Set(resultsOf(await all).map(({ answer }) => answer))).toEqual(new Set(["1", "2"]));
    expect(JSON.parse((await all).content[0]?.text ?? "")).toEqual((await all).structuredContent);
  });

  test("that asks again for what has ended gets it again, and an unknown handle is an entry", async () => {
    const world = await bench();
    const client = await connect(kind, await serve(world));
    const handles = handlesOf(await client.call("spawn", { task: "t" }));
    answerText(await world.dataplane.nextTurn(), "x");
    const first = await client.call("await", { handles });
    expect((await client.call("await", { handles })).structuredContent).toEqual(first.structuredContent);
    const mixed = await client.call("await", { handles: [...handles, "run-unknown"] });
    expect(resultsOf(mixed)[1]).toEqual({ handle: "run-unknown", error: "unknown handle" });
  });

  test("runs one and waits for it", async () => {
    const world = await bench();
    const client = await connect(kind, await serve(world));
    const result = client.call("run", { task: "t" });
    answerText(await world.dataplane.nextTurn(), "there");
    expect((await result).structuredContent).toMatchObject({ state: "Completed", answer: "there", turns: 1 });
    expect((await result).isError).toBe(false);
  });

  test("sees a run that failed as a failed call, with the reason", async () => {
    const world = await bench();
    const client = await connect(kind, await serve(world));
    const result = client.call("run", { task: "t" });
    (await world.dataplane.nextTurn()).response.writeHead(404).end(`{"error":{"message":"no such model"}}`);
    expect(await result).toMatchObject({ isError: true, structuredContent: { state: "Failed", reason: "failed" } });
  });

  test("gets what there is when the time of await is over, and what to call next", async () => {
    const world = await bench();
    const client = await connect(kind, await serve(world));
    const handles = handlesOf(await client.call("spawn", { task: "t" }));
    await world.dataplane.nextTurn();
    const result = await client.call("await", { handles, timeoutSeconds: 0 });
    expect(result.structuredContent).toMatchObject({ done: false, results: [{ state: "Running" }] });
    expect(result.structuredContent["next"]).toContain(handles[0]);
  });

  test("answers an approval by a form", async () => {
    const world = await bench();
    const forms: string[] = [];
    const person: Person = async ({ message }) => {
      forms.push(message);
      return { action: "accept", content: { allow: true } };
    };
    const client = await connect(kind, await serve(world), { person });
    const result = client.call("run", { task: "t" });
    await wantsToErase(world);
    (await world.tools.next()).answer({ ok: true, text: "erased" });
    answerText(await world.dataplane.nextTurn(), "done");
    expect((await result).structuredContent).toMatchObject({ state: "Completed", answer: "done" });
    expect(forms).toHaveLength(1);
    expect(forms[0]).toContain("lab/erase");
    // One run: the answered call did not spawn again.
    expect(world.dataplane.turns).toHaveLength(2);
  });

  test("refuses by a form, after the time that a person needs", async () => {
    const world = await bench();
    const person: Person = async () => {
      world.clock.advance(1_500);
      return { action: "decline" };
    };
    const client = await connect(kind, await serve(world), { person });
    const result = client.call("run", { task: "t" });
    await wantsToErase(world);
    const second = await world.dataplane.nextTurn();
    expect(JSON.stringify(second.body)).toContain("Error: the user declined this tool call");
    answerText(second, "then not");
    expect((await result).structuredContent).toMatchObject({ state: "Completed", answer: "then not" });
    expect(world.tools.calls).toEqual([]);
  });

  test.each<[string, Awaited<ReturnType<Person>>]>([
    ["an instant decline", { action: "decline" }],
    ["a cancel", { action: "cancel" }],
    ["an accept without an answer", { action: "accept", content: {} }],
  ])("%s is nobody's answer: the run stays pending, and the text says how to go on", async (_name, answer) => {
    const world = await bench();
    const client = await connect(kind, await serve(world), { person: async () => answer });
    const result = client.call("run", { task: "t" });
    await wantsToErase(world);
    const { structuredContent } = await result;
    expect(structuredContent).toMatchObject({ state: "AwaitingApproval", pendingApproval: { tool: "erase" } });
    expect(structuredContent["next"]).toContain("approve");
    const { handle } = structuredContent as { readonly handle: string };
    const decided = await client.call("approve", { handle, allow: "false" });
    expect(decided.structuredContent).toMatchObject({ handle, tool: "lab/erase", allow: false, scope: "once" });
    answerText(await world.dataplane.nextTurn(), "then not");
    const after = await client.call("await", { handles: [handle] });
    expect(after.structuredContent).toMatchObject({ done: true, results: [{ answer: "then not" }] });
  });

  test("without forms waits on, and may answer by approve from another call", async () => {
    const world = await bench();
    const client = await connect(kind, await serve(world));
    const handles = handlesOf(await client.call("spawn", { task: "t" }));
    await asking(world);
    const waiting = client.call("await", { handles });
    const { structuredContent } = await client.call("status", { handle: handles[0] });
    expect(structuredContent["runs"]).toMatchObject([
      { state: "AwaitingApproval", pendingApproval: { tool: "erase" } },
    ]);
    await client.call("approve", { handle: handles[0], allow: true, scope: "run" });
    (await world.tools.next()).answer({ ok: true, text: "erased" });
    answerText(await world.dataplane.nextTurn(), "done");
    expect((await waiting).structuredContent).toMatchObject({ done: true });
  });

  test("cancels a run, and with it the waiting", async () => {
    const world = await bench();
    const client = await connect(kind, await serve(world));
    const handles = handlesOf(await client.call("spawn", { task: "t" }));
    const turn = await world.dataplane.nextTurn();
    const waiting = client.call("await", { handles });
    expect((await client.call("cancel", { handle: handles[0] })).structuredContent).toEqual({ cancelled: 1 });
    expect(resultsOf(await waiting)).toMatchObject([{ state: "Cancelled", reason: "cancelled" }]);
    await until("its turn is withdrawn", () => turn.gone);
    expect((await client.call("cancel", { handle: handles[0] })).structuredContent).toEqual({ cancelled: 0 });
  });

  test("that gives up a call, or goes away, ends the waiting and not the run", async () => {
    const world = await bench();
    const served = await serve(world);
    const client = await connect(kind, served);
    const handles = handlesOf(await client.call("spawn", { task: "t" }));
    const turn = await world.dataplane.nextTurn();
    const abort = new AbortController();
    const waiting = client.call("await", { handles }, { signal: abort.signal });
    const seen = waiting.then(
      () => "answered",
      () => "given up",
    );
    await waitingCalls(world, 1);
    abort.abort();
    expect(await seen).toBe("given up");
    await waitingCalls(world, 0);
    client.call("await", { handles }).catch(() => undefined);
    await waitingCalls(world, 1);
    await client.close();
    await waitingCalls(world, 0);
    expect(turn.gone).toBe(false);
    answerText(turn, "still here");
    const again = await connect(kind, served);
    expect(resultsOf(await again.call("await", { handles }))).toMatchObject([{ answer: "still here" }]);
  });

  test("finds its runs again after the runtime was killed, and they go on", async () => {
    const world = await bench();
    const served = await serve(world);
    const client = await connect(kind, served);
    const handles = handlesOf(await client.call("spawn", { task: "t" }));
    await world.dataplane.nextTurn();
    const cut = client.call("await", { handles }).catch(() => "cut");
    await waitingCalls(world, 1);
    await served.stop();
    await client.close();
    await cut;
    const next = await world.restart();
    const again = await connect(kind, await serve(next, { port: portOf(served) }));
    answerText(await next.dataplane.nextTurn(), "after all");
    const listed = await again.call("status", {});
    expect(listed.structuredContent["runs"]).toMatchObject([{ handle: handles[0] }]);
    expect(resultsOf(await again.call("await", { handles }))).toMatchObject([{ answer: "after all" }]);
  });

  test("is told the expected shape of wrong arguments", async () => {
    const client = await connect(kind, await serve(await bench()));
    for (const [name, args, words] of [
      ["spawn", {}, "exactly one of `task`"],
      ["spawn", { task: "t", maxToolCalls: "many" }, "maxToolCalls"],
      ["await", {}, "handles"],
      ["await", { handles: ["x"], mode: "some" }, '"all" | "any"'],
      ["approve", { handle: "run-x", allow: "perhaps" }, "allow"],
      ["run", { task: "t", tasks: ["u"] }, "tasks"],
    ] as const) {
      const { isError, content } = await client.call(name, args);
      expect([isError, content[0]?.text]).toEqual([true, expect.stringContaining(words)]);
    }
  });

  test("hears of the progress of a long call, strictly rising", async () => {
    const world = await bench();
    const client = await connect(kind, await serve(world));
    const heard: [number, string | undefined][] = [];
    const result = client.call("run", { task: "t" }, { onProgress: (...said) => heard.push([said[0], said[1]]) });
    const turn = await world.dataplane.nextTurn();
    await waitingCalls(world, 1);
    for (let tick = 1; tick <= 3; tick += 1) {
      const before = world.clock.timersSet;
      world.clock.advance(10_000);
      await until("the tick is heard", () => heard.length >= tick);
      await until("the next is set", () => world.clock.timersSet > before);
    }
    answerText(turn, "x");
    await result;
    expect(heard).toEqual([
      [1, "turn-held"],
      [2, "turn-held"],
      [3, "turn-held"],
    ]);
  });

  test("of another principal sees nothing of it", async () => {
    const world = await bench();
    const served = await serve(world);
    const ann = await connect(kind, served);
    const bob = await connect(kind, served, { token: "token-bob" });
    const handles = handlesOf(await ann.call("spawn", { task: "t" }));
    await world.dataplane.nextTurn();
    expect(resultsOf(await bob.call("await", { handles }))).toEqual([{ handle: handles[0], error: "unknown handle" }]);
    expect((await bob.call("cancel", { handle: handles[0] })).isError).toBe(true);
    expect((await bob.call("approve", { handle: handles[0], allow: true })).isError).toBe(true);
    expect((await bob.call("spawn", { task: "t", parent: handles[0] })).isError).toBe(true);
    expect((await bob.call("status", {})).structuredContent["runs"]).toEqual([]);
  });

  test("that lost the answer of run asks again and gets the same run", async () => {
    const world = await bench();
    const client = await connect(kind, await serve(world));
    const first = client.call("run", { task: "t" });
    const second = client.call("run", { task: "t" });
    answerText(await world.dataplane.nextTurn(), "once");
    expect((await second).structuredContent).toEqual((await first).structuredContent);
    expect(world.dataplane.turns).toHaveLength(1);
  });
});

/** Waits until so many calls wait at the face. */
async function waitingCalls(world: Bench, count: number): Promise<void> {
  const metric = world.runtime.metrics.getSingleMetric("luftpause_runtime_mcp_calls_waiting");
  const deadline = performance.now() + 5_000;
  for (;;) {
    const { values } = (await metric?.get()) ?? { values: [] };
    if (values[0]?.value === count) return;
    if (performance.now() > deadline) throw new Error(`not within 5 s: ${count} calls wait (${values[0]?.value})`);
    await new Promise((resolve) => {
      setTimeout(resolve, 2);
    });
  }
}
