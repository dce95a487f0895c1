/** Recovers calls from texts that come as JSON lines, for the adapter beside this file. */
import { createInterface } from "node:readline";
import { recoverCalls } from "../../src/runs/text-calls/index.ts";

type Question = {
  readonly text: string;
  readonly tools: readonly { readonly function: { readonly name: string; readonly parameters?: object } }[];
};

for await (const line of createInterface({ input: process.stdin })) {
  const { text, tools } = JSON.parse(line) as Question;
  const schemas = new Map(tools.map((tool) => [tool.function.name, { ...tool.function.parameters }]));
  const { calls, content, reasoning } = recoverCalls(text, (name) => schemas.get(name));
  process.stdout.write(`${JSON.stringify({ calls, content, reasoning })}\n`);
}
