/** Runs made of text, the very text that the load generator sends over sockets: prefixes are shared by what it says. */
import type { Random } from "../base/random.ts";
import {
  countTokens,
  hashBlocks,
  renderChat,
  scriptChatAnswer,
  TESTBED_WORLD,
  tokenizeAnswer,
} from "../engine/index.ts";
import { LOOKUP_TOOL, question, systemPrompt, toolResult, toolTimeMs, type LoadWorld } from "../workload/index.ts";
import type { PlannedTurn, Program } from "./program.ts";

/** The seed of the model's answers, as the simulated engines have it. */
const MODEL_SEED = 1;

export function textProgram(world: LoadWorld): Program {
  return {
    prefixKey: world.name,
    // An agent with a loop of its own never says that it is done.
    tellsEnd: false,
    begin(_class, random) {
      const messages: object[] = [
        { role: "system", content: systemPrompt(world) },
        { role: "user", content: question(world, random) },
      ];
      let toolCalls = 0;
      return {
        next() {
          const planned = plan(world, random, messages, toolCalls);
          toolCalls += planned.tools?.calls ?? 0;
          return planned;
        },
      };
    },
  };
}

/** Plans a turn, and appends its answer and the results of its tools to the messages. */
function plan(world: LoadWorld, random: Random, messages: object[], toolCalls: number): PlannedTurn {
  const tools = [LOOKUP_TOOL];
  const prompt = renderChat(messages, tools);
  const written = scriptChatAnswer({
    messages,
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
  let ms = 0;
  const echoed: object[] = [];
  const results: object[] = [];
  for (const [at, { name, arguments: text }] of calls.entries()) {
    const number = toolCalls + at + 1;
    const id = `call-${number}`;
    const tool = random.split(`tool ${number}`);
    // Calls of one answer run side by side, as agents do: the slowest counts.
    ms = Math.max(ms, toolTimeMs(world, tool));
    echoed.push({ id, type: "function", function: { name, arguments: text } });
    results.push({ role: "tool", tool_call_id: id, content: toolResult(world, tool) });
  }
  const { content } = written;
  messages.push({ role: "assistant", content: content === "" ? null : content, tool_calls: echoed }, ...results);
  return {
    promptTokens: countTokens(prompt),
    outputTokens: answer.parts.length,
    maxTokens: world.maxTokens,
    promptBytes: prompt.length,
    promptHashes: hashBlocks(prompt),
    blockHashes: hashBlocks(prompt + answer.text),
    tools: calls.length === 0 ? undefined : { name: LOOKUP_TOOL.function.name, calls: calls.length, ms },
  };
}
