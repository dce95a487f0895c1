/**
 * The tools of the conformance suite that are sub-agents here: what is tested is the task of a real run, with its approvals,
 * its cancellation and its journal. The model behind them does what the assignment says.
 */
import { ProtocolError } from "@modelcontextprotocol/server";
import type { ExtraCall, ExtraTools } from "../../src/runtime/mcp/deps.ts";
import type { RunService, SpawnSpec } from "../../src/runtime/run-service.ts";
import { damagedView } from "../../src/runtime/run-view.ts";
import { answerCalls, answerText, type SeenTurn } from "../runtime/fake-dataplane.ts";
import { listed, PLAIN_FIXTURES, text, untilNamed } from "./fixtures.ts";

const MISSING_CAPABILITY = -32021;
const TASKS = "io.modelcontextprotocol/tasks";
const DAMAGED_JOB = "a job whose journal is damaged";

let assignments = 0;

/** Equal assignments within seconds are one run, and the suite calls the same tool several times. */
function assignment(words: string, more: Partial<SpawnSpec> = {}): { readonly run: SpawnSpec } {
  assignments += 1;
  return { run: { task: `${words} (${assignments})`, ...more } };
}

const RUN_FIXTURES: {
  readonly [name: string]: (call: ExtraCall) => { readonly run: SpawnSpec } | { readonly result: object };
} = {
  slow_compute: ({ arguments: given }) => assignment(`answer after ${Number(given["seconds"])} s`),
  failing_job: ({ client }) => {
    if (client.tasks) return assignment("fail");
    throw new ProtocolError(MISSING_CAPABILITY, `this needs the client capability ${TASKS}`, {
      requiredCapabilities: { extensions: { [TASKS]: {} } },
    });
  },
  protocol_error_job: () => assignment(DAMAGED_JOB),
  confirm_delete: () => assignment("erase 1"),
  multi_input: () => assignment("erase 2", { parallelToolCalls: true }),
  test_tool_with_task: (call) => {
    let name: string | undefined;
    const result = untilNamed(call, (given) => text((name = given)));
    return name === undefined ? { result } : assignment(`say Hello, ${name}!`);
  },
};

export const FIXTURES: ExtraTools = {
  list: [
    listed("greet", { name: { type: "string" } }),
    ...PLAIN_FIXTURES.map((fixture) => fixture.listed),
    ...Object.keys(RUN_FIXTURES).map((name) => listed(name)),
  ],
  async call(call) {
    if (call.name === "greet") return { result: text(`Hello, ${String(call.arguments["name"])}!`) };
    const asRun = RUN_FIXTURES[call.name];
    if (asRun !== undefined) return asRun(call);
    const fixture = PLAIN_FIXTURES.find((one) => one.listed.name === call.name);
    return { result: (await fixture?.call(call)) ?? {} };
  },
};

type Message = { readonly role: string; readonly content: string };

/** The model: does what the first line of the conversation asks for. */
export function answerAssignment(turn: SeenTurn): void {
  const messages = turn.body["messages"] as readonly Message[];
  const task = messages.find(({ role }) => role === "user")?.content ?? "";
  const [, seconds] = /^answer after ([\d.]+) s/.exec(task) ?? [];
  if (seconds !== undefined) {
    setTimeout(() => answerText(turn, "computed"), Number(seconds) * 1000).unref();
    return;
  }
  if (task.startsWith("fail")) {
    turn.response.writeHead(404).end(`{"error":{"message":"no such model"}}`);
    return;
  }
  const [, erasures] = /^erase (\d)/.exec(task) ?? [];
  if (erasures !== undefined && !messages.some(({ role }) => role === "tool")) {
    const calls = Array.from({ length: Number(erasures) }, (_, n) => ({ name: "erase", args: { n } }));
    answerCalls(turn, calls);
    return;
  }
  answerText(turn, /^say (.*!)/.exec(task)?.[1] ?? "done");
}

/** The runtime's service, with one job whose journal nobody can read any more. */
export function withDamagedJob(service: RunService): RunService {
  const task: RunService["task"] = async (who, id) => {
    const found = await service.task(who, id);
    if (found?.run.task.startsWith(DAMAGED_JOB) !== true) return found;
    return { ...found, run: damagedView(found.run, "record 2: its checksum is wrong") };
  };
  return new Proxy(service, {
    get(target, name) {
      if (name === "task") return task;
      const value: unknown = Reflect.get(target, name);
      return typeof value === "function" ? (value.bind(target) as unknown) : value;
    },
  });
}
