/**
 * Own-loop agents under virtual time. What they ask, what the model answers and what their tools take is drawn as over
 * sockets (src/workload, src/engine): the k-th run of an agent is the same work whatever stands in front.
 */
import { createRandom, type Random } from "../base/random.ts";
import {
  countTokens,
  hashBlocks,
  renderChat,
  scriptChatAnswer,
  TESTBED_WORLD,
  tokenizeAnswer,
  type Answer,
  type EngineRequest,
} from "../engine/index.ts";
import type { ServiceClass } from "../wire/admission.ts";
import {
  LOOKUP_TOOL,
  question,
  systemPrompt,
  toolResult,
  toolTimeMs,
  type LoadWorld,
  type RunSample,
  type TurnSample,
} from "../workload/index.ts";
import type { AskedTurn, Front } from "./front.ts";
import type { SimulatedPool } from "./pool.ts";
import type { VirtualTime } from "./timeline.ts";

export type AgentsOptions = {
  readonly time: VirtualTime;
  readonly pool: SimulatedPool;
  readonly front: Front;
  readonly world: LoadWorld;
  readonly seed: number;
  readonly agents: { readonly [Class in ServiceClass]: number };
  /** A priority where nobody names one: SGLang puts those last, vLLM counts them as 0. */
  readonly unranked: number;
  readonly onTurn: (sample: TurnSample) => void;
  readonly onRun: (sample: RunSample) => void;
};

/** The seed of the model's answers, as the simulated engines have it. */
const MODEL_SEED = 1;
const PREFIX_KEY = "system prompt and tools";

export function startAgents(options: AgentsOptions): void {
  for (const serviceClass of ["interactive", "batch"] as const) {
    for (let agent = 0; agent < options.agents[serviceClass]; agent += 1) {
      const draws = createRandom(options.seed).split(`${serviceClass} ${agent}`);
      beginRun(options, { class: serviceClass, agent, draws }, 0);
    }
  }
}

type Agent = { readonly class: ServiceClass; readonly agent: number; readonly draws: Random };

function beginRun(options: AgentsOptions, agent: Agent, number: number): void {
  const { world, time } = options;
  const random = agent.draws.split(`run ${number}`);
  const run: Run = {
    name: `${agent.class}-${agent.agent}-${number}`,
    class: agent.class,
    random,
    messages: [
      { role: "system", content: systemPrompt(world) },
      { role: "user", content: question(world, random) },
    ],
    startedMs: time.nowMs,
    turns: 0,
    toolCalls: 0,
    end: (failure) => {
      const { class: serviceClass, turns, toolCalls, startedMs } = run;
      const endedMs = time.nowMs;
      options.onRun({ class: serviceClass, endedMs, ms: endedMs - startedMs, turns, toolCalls, failure });
      // A moment later: a run that fails at once must not begin the next one inside itself.
      time.after(failure === undefined ? 0 : FAILED_PAUSE_MS, () => beginRun(options, agent, number + 1));
    },
  };
  askTurn(options, run);
}

/** After a failure an agent comes again after a second, as SDKs do. */
const FAILED_PAUSE_MS = 1_000;

type Run = {
  readonly name: string;
  readonly class: ServiceClass;
  readonly random: Random;
  readonly messages: object[];
  readonly startedMs: number;
  turns: number;
  toolCalls: number;
  readonly end: (failure: string | undefined) => void;
};

function askTurn(options: AgentsOptions, run: Run): void {
  const { time, pool, front, world, unranked } = options;
  const tools = [LOOKUP_TOOL];
  const prompt = renderChat(run.messages, tools);
  const written = scriptChatAnswer({
    messages: run.messages,
    tools,
    toolChoice: "auto",
    parallelCalls: true,
    answerSchema: undefined,
    seed: MODEL_SEED,
    world: TESTBED_WORLD,
    overrides: {},
  });
  const answer = tokenizeAnswer(written, world.maxTokens);
  // An answer that was cut calls nothing.
  const calls = answer.finish === "tool_calls" ? written.calls : [];
  const promptTokens = countTokens(prompt);
  const turn: AskedTurn = {
    id: `${run.name}-${run.turns}`,
    run: run.name,
    class: run.class,
    caller: "",
    promptBytes: prompt.length,
    prefixKey: PREFIX_KEY,
    promptHashes: hashBlocks(prompt),
  };
  const request: Omit<EngineRequest, "priority"> = {
    id: turn.id,
    blockHashes: hashBlocks(prompt + answer.text),
    promptTokens,
    outputTokens: answer.parts.length,
    maxTokens: world.maxTokens,
  };
  const askedMs = time.nowMs;
  let at = -1;
  let begun = false;
  let firstContentMs = 0;
  // Of the first time that it left the queue: what was computed before a preemption is not cached afterwards.
  let cachedTokens: number | undefined;
  const start = (): void => {
    if (begun) return;
    begun = true;
    firstContentMs = time.nowMs - askedMs;
    front.started(turn);
  };
  front.ask(turn, {
    send(engine, priority) {
      at = engine;
      cachedTokens = undefined;
      return pool.send(
        engine,
        { ...request, priority: priority ?? unranked },
        {
          onAdmitted: (cached) => (cachedTokens ??= cached),
          onFirstToken: start,
          onFinished(completionTokens) {
            start();
            run.turns += 1;
            const usage = { promptTokens, completionTokens, cachedTokens: cachedTokens ?? 0 };
            options.onTurn({
              class: run.class,
              atMs: time.nowMs,
              firstContentMs,
              ...usage,
              replica: `engine-${engine}`,
            });
            front.finished(turn, { usage, tool: calls.length === 0 ? undefined : LOOKUP_TOOL.function.name });
            if (calls.length === 0) run.end(undefined);
            else callTools(options, run, written);
          },
        },
      );
    },
    takeBack() {
      if (begun || at < 0) return false;
      pool.abort(at, turn.id);
      return true;
    },
    fail: (why) => run.end(why),
  });
}

/** Calls of one answer run side by side, as agents do: the slowest counts. */
function callTools(options: AgentsOptions, run: Run, { content, calls }: Answer): void {
  const { time, world } = options;
  let waitMs = 0;
  const echoed: object[] = [];
  const results: object[] = [];
  for (const { name, arguments: text } of calls) {
    run.toolCalls += 1;
    const id = `call-${run.toolCalls}`;
    const tool = run.random.split(`tool ${run.toolCalls}`);
    waitMs = Math.max(waitMs, toolTimeMs(world, tool));
    echoed.push({ id, type: "function", function: { name, arguments: text } });
    results.push({ role: "tool", tool_call_id: id, content: toolResult(world, tool) });
  }
  run.messages.push({ role: "assistant", content: content === "" ? null : content, tool_calls: echoed }, ...results);
  time.after(waitMs, () => askTurn(options, run));
}
