import path from "node:path";
import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    root: path.resolve(import.meta.dirname, "../.."),
    include: ["test/clis/**/*.test.ts"],
    globalSetup: [path.join(import.meta.dirname, "setup.ts")],
    maxWorkers: 1,
    testTimeout: 120_000,
    hookTimeout: 30_000,
    reporters: ["verbose"],
  },
});
