// Child process of the bench: one pool of simulated engines for each side, so that both meet the same caches, and the tools.
import type { ProfileName } from "../../src/engine/index.ts";
import { startFakeEngine, startFakeTools } from "../../src/testbed/index.ts";

export type WorldSettings = {
  readonly engines: number;
  readonly profile: ProfileName;
  readonly timeScale: number;
  readonly model: string;
  readonly toolMs: number;
};

export type World = { readonly direct: readonly string[]; readonly ours: readonly string[]; readonly tools: string };

const { engines, profile, timeScale, model, toolMs } = JSON.parse(process.argv[2] ?? "") as WorldSettings;

async function pool(): Promise<readonly string[]> {
  const started = await Promise.all(
    Array.from({ length: engines }, () => startFakeEngine({ profile, timeScale, models: [model], dialect: "vllm" })),
  );
  return started.map(({ url }) => url);
}

const { url } = await startFakeTools({ lookupMs: [toolMs * timeScale, toolMs * timeScale] });
const world: World = { direct: await pool(), ours: await pool(), tools: url };
console.log(JSON.stringify(world));
