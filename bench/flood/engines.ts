// Child process of the bench: two simulated engines that share what their profile says, on ports that it prints.
import { createSharedGpu, PROFILES } from "../../src/engine/index.ts";
import { startFakeEngine } from "../../src/testbed/index.ts";
import type { EngineSettings } from "./arms.ts";

const settings = JSON.parse(process.argv[2] ?? "") as EngineSettings;
const { enginesPerGpu } = PROFILES[settings.profile];
const gpu = enginesPerGpu > 1 ? createSharedGpu() : undefined;
const engines = await Promise.all(
  ["engine-a", "engine-b"].map((name) =>
    startFakeEngine({
      ...settings,
      name,
      models: [settings.model],
      priority: true,
      ...(gpu === undefined ? {} : { gpu }),
    }),
  ),
);
console.log(JSON.stringify({ urls: engines.map(({ url }) => url) }));
