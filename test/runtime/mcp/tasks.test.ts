/** MCP Tasks: with the official client, and request by request. */
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import {
  createApplicationInputHandler,
  createTaskSessionFromClient,
  resultFromTaskOutcome,
  type ApplicationElicitResult,
} from "@modelcontextprotocol/ext-tasks/client";
import { describe, expect, test } from "vitest";
import { createMemoryStore } from "../../../src/runtime/store/memory.ts";
import { answerCalls, answerText, onCleanUp, until } from "../fake-dataplane.ts";
import { damagedStore } from "../faulty-store.ts";
import { bench, type Bench } from "../host-bench.ts";
import { portOf, serve, type Served } from "./face.ts";
import { callTool, modern, post, PROTOCOL, WITH_TASKS, type Answer } from "./raw.ts";

const get = (served: Served, taskId: string, token?: string): Promise<Answer> =>
  post(served, modern("tasks/get", { taskId }, WITH_TASKS), token);

async function task(served: Served): Promise<string> {
  const { body } = await callTool(served, { name: "run", arguments: { task: "t" } }, { capabilities: WITH_TASKS });
  expect(body.result).toMatchObject({ resultType: "task", status: "working", pollIntervalMs: 1_000 });
  return body.result?.["taskId"] as string;
}

async function wantsToErase(world: Bench): Promise<void> {
  answerCalls(await world.dataplane.nextTurn(), [{ name: "erase", args: { n: 1 } }]);
}

async function asking(world: Bench): Promise<void> {
  await wantsToErase(world);
  await until("it asks", () => world.service.tree("ann").some(({ pendingApprovals }) => pendingApprovals > 0));
}

function questionsOf({ body }: Answer): readonly string[] {
  return Object.keys((body.result?.["inputRequests"] as object | undefined) ?? {});
}

function update(served: Served, taskId: string, inputResponses: object): Promise<Answer> {
  return post(served, modern("tasks/update", { taskId, inputResponses }, WITH_TASKS));
}

describe("a task", () => {
  test("goes from working to completed with the result of its run", async () => {
    const world = await bench();
    const served = await serve(world);
    const id = await task(served);
    expect((await get(served, id)).body.result).toMatchObject({
      taskId: id,
      status: "working",
      ttlMs: 7 * 86_400_000,
      resultType: "complete",
    });
    answerText(await world.dataplane.nextTurn(), "there");
    await until("it ends", () => world.dataplane.ended.length > 0);
    const { body } = await get(served, id);
    expect(body.result).toMatchObject({
      status: "completed",
      result: { resultType: "complete", structuredContent: { state: "Completed", answer: "there" } },
    });
  });

  test("of a run that failed is completed, with a result that says so", async () => {
    const world = await bench();
    const served = await serve(world);
    const id = await task(served);
    (await world.dataplane.nextTurn()).response.writeHead(404).end(`{"error":{"message":"no such model"}}`);
    await until("it ends", () => world.dataplane.ended.length > 0);
    expect((await get(served, id)).body.result).toMatchObject({ status: "completed", result: { isError: true } });
  });

  test("of a run whose journal is damaged has failed, by an error of the server's", async () => {
    let damaged = false;
    const world = await bench({ store: damagedStore(createMemoryStore(), () => damaged) });
    const served = await serve(world);
    const id = await task(served);
    await world.dataplane.nextTurn();
    damaged = true;
    await served.stop();
    const again = await serve(await world.restart(), { port: portOf(served) });
    expect((await get(again, id)).body.result).toMatchObject({
      taskId: id,
      status: "failed",
      error: { code: -32603, message: expect.stringContaining("record 2") as string },
    });
  });

  test("lives through a killed runtime, with the same questions", async () => {
    const world = await bench();
    const served = await serve(world);
    const id = await task(served);
    await asking(world);
    const before = await get(served, id);
    expect(before.body.result).toMatchObject({ status: "input_required" });
    await served.stop();
    const next = await world.restart();
    const again = await serve(next, { port: portOf(served) });
    const after = await get(again, id);
    expect(after.body.result).toEqual(before.body.result);
    const [question = ""] = questionsOf(after);
    const { body } = await update(again, id, { [question]: { action: "accept", content: { allow: true } } });
    expect(body.error).toBeUndefined();
    (await next.tools.next()).answer({ ok: true, text: "erased" });
    answerText(await next.dataplane.nextTurn(), "done");
    await until("it ends", () => next.dataplane.ended.length > 0);
    expect((await get(again, id)).body.result).toMatchObject({ status: "completed" });
  });

  test("takes no instant decline for an answer, and asks once more", async () => {
    const world = await bench();
    const served = await serve(world);
    const id = await task(served);
    await asking(world);
    const [question = ""] = questionsOf(await get(served, id));
    await update(served, id, { [question]: { action: "decline" }, unknown: { action: "accept" } });
    expect(questionsOf(await get(served, id))).toEqual([question]);
    world.clock.advance(1_500);
    await update(served, id, { [question]: { action: "decline" } });
    answerText(await world.dataplane.nextTurn(), "then not");
    await until("it ends", () => world.dataplane.ended.length > 0);
    expect((await get(served, id)).body.result).toMatchObject({ status: "completed" });
  });

  test("that is cancelled cancels its run, once", async () => {
    const world = await bench();
    const served = await serve(world);
    const id = await task(served);
    const turn = await world.dataplane.nextTurn();
    for (let time = 0; time < 2; time += 1) {
      expect((await post(served, modern("tasks/cancel", { taskId: id }, WITH_TASKS))).body.error).toBeUndefined();
    }
    await until("its turn is withdrawn", () => turn.gone);
    expect((await get(served, id)).body.result).toMatchObject({ status: "cancelled" });
  });

  test("belongs to its principal, needs the capability, and is unknown after its run was deleted", async () => {
    const world = await bench();
    const served = await serve(world);
    const id = await task(served);
    expect((await get(served, id, "token-bob")).body.error).toMatchObject({ code: -32602 });
    expect((await get(served, "task-unknown")).body.error).toMatchObject({ code: -32602 });
    const without = await post(served, modern("tasks/get", { taskId: id }));
    expect([without.status, without.body.error]).toEqual([400, expect.objectContaining({ code: -32021 })]);
    answerText(await world.dataplane.nextTurn(), "x");
    await until("it ends", () => world.dataplane.ended.length > 0);
    await world.store.deleteEnded({ endedBeforeMs: Number.MAX_SAFE_INTEGER });
    const next = await world.restart();
    const again = await serve(next);
    expect((await get(again, id)).body.error).toMatchObject({ code: -32602 });
  });

  test("is one for a repeated run, and none for a client that cannot poll", async () => {
    const world = await bench();
    const served = await serve(world);
    expect(await task(served)).toBe(await task(served));
    const { body } = await callTool(served, { name: "await", arguments: { handles: [] } });
    expect(body.result).toMatchObject({ isError: true, resultType: "complete" });
  });
});

describe("the official client of the Tasks extension", () => {
  async function session(served: Served, person: () => ApplicationElicitResult) {
    const requestInit = { headers: { authorization: "Bearer token-ann" } };
    const clientInfo = { name: "tasks", version: "1" };
    const client = new Client(clientInfo, { capabilities: WITH_TASKS, versionNegotiation: { mode: "auto" } });
    await client.connect(new StreamableHTTPClientTransport(new URL(served.url), { requestInit }));
    let id = 100;
    const made = createTaskSessionFromClient(client, {
      endpointId: "luftpause",
      v2RequestFraming: { protocolVersion: PROTOCOL, clientInfo, clientCapabilities: WITH_TASKS },
      async rawDispatch(request) {
        const { method, params } = request as { readonly method: string; readonly params: { [name: string]: unknown } };
        const { headers } = modern(method, params);
        id += 1;
        return (await post(served, { headers, body: { jsonrpc: "2.0", id, ...(request as object) } })).body as never;
      },
      onInputRequest: createApplicationInputHandler({
        elicitation: person,
        sampling: () => {
          throw new Error("not asked for");
        },
        roots: () => {
          throw new Error("not asked for");
        },
      }),
    });
    onCleanUp(async () => {
      await made.close();
      await client.close();
    });
    return made;
  }

  test("runs a sub-agent as a task, answers its question, and gets the answer", async () => {
    const world = await bench();
    const tasks = await session(await serve(world), () => ({ action: "accept", content: { allow: true } }));
    const execution = await tasks.callTool("run", { task: "t" });
    expect(execution.kind).toBe("task");
    const settled = execution.settle();
    await wantsToErase(world);
    (await world.tools.next()).answer({ ok: true, text: "erased" });
    answerText(await world.dataplane.nextTurn(), "done");
    const { outcome } = await settled;
    expect(resultFromTaskOutcome(outcome)).toMatchObject({ structuredContent: { answer: "done", toolCalls: 1 } });
  });

  test("gets the other tools' answers at once, and cancels a task", async () => {
    const world = await bench();
    const tasks = await session(await serve(world), () => ({ action: "cancel" }));
    const spawned = await tasks.callTool("spawn", { task: "t" });
    expect(spawned.kind).toBe("immediate");
    await world.dataplane.nextTurn();
    const execution = await tasks.callTool("run", { task: "u" });
    const turn = await world.dataplane.nextTurn();
    await execution.cancel();
    await until("its turn is withdrawn", () => turn.gone);
    const { outcome } = await execution.settle();
    expect(outcome.status).toBe("cancelled");
  });
});
