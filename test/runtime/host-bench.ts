/** A runtime between a dataplane and tools that are in the test's hands. A second one can take over the same store. */
import { createEngineClient } from "../../src/http/index.ts";
import { createModelClient } from "../../src/runtime/model-client.ts";
import type { Requester } from "../../src/runtime/run-service.ts";
import { createRuntime, type Runtime, type RuntimeOptions } from "../../src/runtime/service.ts";
import { createMemoryStore } from "../../src/runtime/store/memory.ts";
import type { RunStore } from "../../src/runtime/store/port.ts";
import type { OfferedTool, ToolCall, ToolOutcome, ToolServers } from "../../src/runtime/tool-servers/port.ts";
import { SILENT_LOG } from "../../src/telemetry/index.ts";
import { fakeDataplane, onCleanUp, TestClock, until, type FakeDataplane } from "./fake-dataplane.ts";

export const ANN: Requester = { principal: "ann", caller: "c", session: "s1" };
export const BOB: Requester = { principal: "bob", caller: "c" };

const SCHEMA = { type: "object", properties: { n: { type: "number" } } };

function tool(name: string, more: Partial<OfferedTool> = {}): OfferedTool {
  return {
    server: "lab",
    name,
    description: `does ${name}`,
    inputSchema: SCHEMA,
    effect: "unsafe",
    onCrash: "ask",
    asks: undefined,
    state: "ok",
    ...more,
  };
}

const TOOLS = [tool("look", { effect: "read-only" }), tool("write"), tool("erase", { asks: "destructive" })];

export type SeenCall = ToolCall & { readonly answer: (outcome: ToolOutcome) => void };

class FakeTools implements ToolServers {
  /** Every call that began, over all runtimes. */
  readonly calls: SeenCall[] = [];
  onCall: ((call: SeenCall) => void) | undefined;
  #taken = 0;

  list(): readonly OfferedTool[] {
    return TOOLS;
  }

  call(call: ToolCall): Promise<ToolOutcome> {
    return new Promise((resolve) => {
      const seen = { ...call, answer: resolve };
      this.calls.push(seen);
      this.onCall?.(seen);
    });
  }

  async next(): Promise<SeenCall> {
    const at = this.#taken;
    this.#taken += 1;
    await until(`tool call ${at + 1} begins`, () => this.calls.length > at);
    return this.calls[at] as SeenCall;
  }

  close(): Promise<void> {
    return Promise.resolve();
  }
}

export type Bench = {
  readonly dataplane: FakeDataplane;
  readonly tools: FakeTools;
  readonly clock: TestClock;
  readonly store: RunStore;
  readonly runtime: Runtime;
  readonly service: Runtime["service"];
  /** Kills this runtime as kill -9 would, and starts another one on its store. */
  restart(): Promise<Bench>;
};

export async function bench(options: Partial<RuntimeOptions> = {}): Promise<Bench> {
  const dataplane = await fakeDataplane();
  const parts = {
    dataplane,
    tools: new FakeTools(),
    clock: new TestClock(),
    store: options.store ?? createMemoryStore(),
  };
  return started(parts, options);
}

async function started(
  parts: Pick<Bench, "dataplane" | "tools" | "clock" | "store">,
  options: Partial<RuntimeOptions>,
): Promise<Bench> {
  const { dataplane, tools, clock, store } = parts;
  const model = createModelClient({
    url: dataplane.url,
    token: undefined,
    http: createEngineClient({ connectTimeoutMs: 2_000, reusedSocketRetryMs: 0 }),
    clock,
    turnTimeoutMs: 600_000,
    silenceMs: 60_000,
  });
  const runtime = createRuntime({
    model,
    tools,
    clock,
    // One clock for both, so that a test moves them together.
    wallMs: () => 1_700_000_000_000 + clock.nowMs(),
    log: SILENT_LOG,
    defaultModel: "m",
    modelOrder: () => [],
    lastTurnOf: () => "none",
    maxToolCalls: 8,
    maxTokens: 256,
    maxDepth: 3,
    maxChildren: 64,
    approvalExpireMs: 86_400_000,
    keepFinishedMs: 7 * 86_400_000,
    classifierModel: () => undefined,
    labelsOf: () => [],
    ...options,
    store,
  });
  await runtime.start();
  onCleanUp(() => runtime.close());
  return {
    ...parts,
    runtime,
    service: runtime.service,
    restart() {
      runtime.close();
      return started(parts, options);
    },
  };
}

/** Spawns one run for ann. */
export async function spawnOne({ service }: Bench, spec: object = {}): Promise<string> {
  const outcome = await service.spawn(ANN, [{ task: "count the boats", ...spec }]);
  if (outcome.kind === "refused") throw new Error(outcome.message);
  return outcome.handles[0] as string;
}

/** Waits for the end of runs on the test's clock, which stands still. */
export async function ended({ service }: Bench, handles: readonly string[]) {
  const { results } = await service.awaitRuns(ANN, { handles, mode: "all", timeoutMs: 1_000_000 });
  return results as readonly Exclude<(typeof results)[number], { error: "unknown handle" }>[];
}
