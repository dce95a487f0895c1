import { describe, expect, it } from "vitest";
import { startFakeEngine } from "../../src/testbed/index.ts";
import { loadgen } from "../../src/cli/commands/loadgen.ts";
import { parseFlags } from "../../src/cli/flags.ts";

const run = (...args: string[]): Promise<number> => loadgen.run(parseFlags(loadgen, args));

describe("luftpause loadgen", () => {
  it.each([
    [["--class", "fast"], "--class 'fast' is not interactive or batch"],
    [["--world", "ocean"], "--world 'ocean' is not one of own-loop, light, own-loop-x2, tool-bound"],
    [["--time-scale", "0"], "--time-scale '0' is not a number above 0 and at most 1000"],
    [["--url", "localhost:7700"], "--url 'localhost:7700' is no http or https address"],
  ])("says what is wrong with %j", async (args, message) => {
    await expect(run(...args, "--model", "m")).rejects.toMatchObject({
      exitCode: 2,
      message: `luftpause loadgen: ${message}`,
    });
  });

  it("says what answered, or that nothing did, where no model is named", async () => {
    const gone = await startFakeEngine();
    await gone.close();
    await expect(run("--url", gone.url)).rejects.toMatchObject({
      exitCode: 1,
      message: expect.stringMatching(/\/v1\/models: ECONNREFUSED; --model names the model without asking$/) as string,
    });
    const engine = await startFakeEngine({ apiKey: "k" });
    await expect(run("--url", engine.url)).rejects.toMatchObject({
      message: expect.stringContaining("status 401") as string,
    });
    await engine.close();
  });

  it("finds the model by itself and exits with 0 when every run was answered", async () => {
    const engine = await startFakeEngine({ models: ["m"] });
    const lines: string[] = [];
    const write = process.stdout.write.bind(process.stdout);
    process.stdout.write = (text: string | Uint8Array) => lines.push(text.toString()) > 0;
    try {
      const flags = ["--agents", "2", "--duration-s", "20", "--time-scale", "0.01", "--json", "-"];
      expect(await run("--url", engine.url, ...flags)).toBe(0);
    } finally {
      process.stdout.write = write;
    }
    const { model, report } = JSON.parse(lines.join("")) as { model: string; report: { batch: { runs: number } } };
    expect(model).toBe("m");
    expect(report.batch.runs).toBeGreaterThan(0);
    await engine.close();
  });
});
