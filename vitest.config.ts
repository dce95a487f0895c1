import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    exclude: ["**/node_modules/**", "test/real/**", "test/clis/**"],
    // Two cores is what CI has; more workers only make socket tests wait for each other.
    maxWorkers: 2,
    testTimeout: 20_000,
    hookTimeout: 20_000,
    // On a busy machine a second is nothing: what is waited for is an event, never a speed.
    expect: { poll: { timeout: 10_000 } },
  },
});
