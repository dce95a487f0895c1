/** Two simulated engines and two simulated tool servers for a first minute without any GPU. */
import { startFakeEngine, startFakeTools, type FakeEngine, type FakeToolsServer } from "../testbed/index.ts";
import type { EndpointEntry, ToolServerEntry } from "./config/schema.ts";

/** What they serve. */
const SIMULATED_MODEL = "sim-8b";

/** Starts them on free loopback ports; both play one vLLM-like replica on one small GPU each. */
export async function startSimulatedEngines(): Promise<readonly FakeEngine[]> {
  const names = ["simulated-a", "simulated-b"];
  return Promise.all(
    names.map((name, at) =>
      startFakeEngine({ name, dialect: "vllm", profile: "h100-8b", models: [SIMULATED_MODEL], seed: at + 1 }),
    ),
  );
}

/** The endpoint of a simulated engine, as if it stood in the config. */
export function endpointOfUrl(name: string, url: string): EndpointEntry {
  return {
    name,
    url,
    kind: "generative",
    engine: "auto",
    models: [],
    healthPath: "/health",
    loadFrom: [],
    maxInFlight: null,
    speaks: "auto",
    backpressure: "auto",
    priority: "auto",
    splice: true,
    lastTurn: "by-engine",
    classifyPath: "auto",
    labels: [],
    forwardHeaders: [],
  };
}

/** What each of the two tool servers offers. */
const SIMULATED_TOOLS = {
  reference: ["lookup", "deep_search"],
  records: ["note", "put", "destroy"],
} as const;

export type SimulatedTools = { readonly server: FakeToolsServer; readonly entry: ToolServerEntry };

/** Starts them on free loopback ports. */
export async function startSimulatedTools(): Promise<readonly SimulatedTools[]> {
  return Promise.all(
    Object.entries(SIMULATED_TOOLS).map(async ([name, allow]) => {
      const server = await startFakeTools({});
      return { server, entry: toolServerOfUrl(`simulated-${name}`, server.url, allow) };
    }),
  );
}

function toolServerOfUrl(name: string, url: string, allow: readonly string[]): ToolServerEntry {
  return {
    name,
    url,
    command: null,
    args: [],
    env: {},
    headers: {},
    allow: [...allow],
    deny: [],
    trust: true,
    approve: "explicit",
    effects: {},
    onCrash: "ask",
    timeoutSeconds: 600,
    resultBytesMax: 65_536,
  };
}
