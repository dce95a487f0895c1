/**
 * Hands each argument to a sub-agent of its own, waits for all of them and prints their answers. Any MCP client can do this;
 * this one is the official SDK.
 */
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const USAGE = `node examples/mcp-fan-out/fan-out.ts TASK...
  LUFTPAUSE_MCP    where luftpause's MCP is (http://127.0.0.1:7700/mcp)
  LUFTPAUSE_TOKEN  its token, where one is set`;

type Result = {
  readonly handle: string;
  readonly state: string;
  readonly answer?: string;
  readonly error?: string;
  readonly turns: number;
  readonly toolCalls: number;
  readonly failedToolCalls: number;
  readonly pendingApprovals?: readonly { readonly tool: string; readonly server: string; readonly arguments: object }[];
};

async function main(tasks: readonly string[]): Promise<number> {
  if (tasks.length === 0) {
    console.error(USAGE);
    return 2;
  }
  const client = new Client({ name: "fan-out", version: "1" }, { versionNegotiation: { mode: "auto" } });
  const token = process.env["LUFTPAUSE_TOKEN"];
  const headers = token === undefined ? {} : { authorization: `Bearer ${token}` };
  const url = new URL(process.env["LUFTPAUSE_MCP"] ?? "http://127.0.0.1:7700/mcp");
  await client.connect(new StreamableHTTPClientTransport(url, { requestInit: { headers } })).catch((error: unknown) => {
    throw new Error(`${url.href}: no answer; is luftpause running? (${String(error)})`);
  });
  try {
    // One call for all of them: clients run tool calls one after the other. Half the default of tool calls does here.
    const spawned = await call<{ handles: string[] }>(client, "spawn", {
      tasks,
      maxToolCalls: 4,
      serviceClass: "batch",
    });
    const { handles } = spawned;
    for (;;) {
      // An await ends after 50 seconds at the latest: nothing is lost, it is called again.
      const { done, results } = await call<{ done: boolean; results: Result[] }>(client, "await", { handles });
      if (!done) {
        for (const line of results.map(waitingFor).filter((text) => text !== undefined)) console.error(line);
        continue;
      }
      for (const [at, result] of results.entries()) print(tasks[at] ?? "", result);
      return results.every(({ state }) => state === "Completed") ? 0 : 1;
    }
  } finally {
    await client.close();
  }
}

async function call<Answer>(client: Client, name: string, args: { [name: string]: unknown }): Promise<Answer> {
  const answer = await client.callTool({ name, arguments: args }, { timeout: 120_000 });
  if (answer.isError === true)
    throw new Error(answer.content.map((part) => ("text" in part ? part.text : "")).join("\n"));
  return answer.structuredContent as Answer;
}

function waitingFor({ handle, pendingApprovals: [asked] = [] }: Result): string | undefined {
  if (asked === undefined) return undefined;
  return `${handle} waits for a person: ${asked.server}/${asked.tool} ${JSON.stringify(asked.arguments)} (luftpause approvals ls)`;
}

function print(task: string, { state, answer, error, turns, toolCalls, failedToolCalls }: Result): void {
  console.log(`${task}\n[${state}, ${turns} turns, ${toolCalls} tool calls, ${failedToolCalls} failed]`);
  console.log(`${answer ?? error ?? ""}\n`);
}

try {
  process.exitCode = await main(process.argv.slice(2));
} catch (error) {
  console.error(error instanceof Error ? error.message : String(error));
  process.exitCode = 1;
}
