/** Two simulated engines for a first minute without any GPU. */
import { startFakeEngine, type FakeEngine } from "../testbed/index.ts";
import type { EndpointEntry } from "./config/schema.ts";

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
    splice: true,
    lastTurn: "by-engine",
    classifyPath: "auto",
    labels: [],
    forwardHeaders: [],
  };
}
