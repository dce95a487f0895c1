import { describe, expect, it } from "vitest";
import { sim } from "../../src/cli/commands/sim.ts";
import { parseFlags } from "../../src/cli/flags.ts";

async function output(...args: string[]): Promise<string> {
  const lines: string[] = [];
  const write = process.stdout.write.bind(process.stdout);
  process.stdout.write = (text: string | Uint8Array) => lines.push(text.toString()) > 0;
  try {
    expect(await sim.run(parseFlags(sim, args))).toBe(0);
  } finally {
    process.stdout.write = write;
  }
  return lines.join("");
}

const SHORT = ["--seeds", "2", "--seconds", "30", "--warm-up", "10", "--batch", "12", "--interactive", "2"];

describe("luftpause sim", () => {
  it("prints a row per policy, the first one as the base, the same every time", async () => {
    const text = await output("--policies", "router,active-set", ...SHORT);
    expect(text).toContain("2 seeds from 1, 30 simulated seconds after 10");
    expect(text).toMatch(/^POLICY +INTERACTIVE\/MIN +× /m);
    expect(text).toMatch(/^router +[\d.]+ ± [\d.]+ +1\.00 ± 0\.00 /m);
    expect(text).toMatch(/^active-set +[\d.]+ ± [\d.]+ +[\d.]+ ± [\d.]+ /m);
    expect(await output("--policies", "router,active-set", ...SHORT)).toBe(text);
  });

  it("gives every run as JSON", async () => {
    const { runs, world } = JSON.parse(await output("--policies", "classic", "--json", ...SHORT)) as {
      readonly world: string;
      readonly runs: readonly { readonly policy: string; readonly seed: number }[];
    };
    expect(world).toBe("own-loop");
    expect(runs.map(({ policy, seed }) => [policy, seed])).toEqual([
      ["classic", 1],
      ["classic", 2],
    ]);
  });

  it.each([
    [["--policies", "clasic"], "--policies 'clasic' is not one of router, "],
    [
      ["--world", "ocean"],
      "--world 'ocean' is not one of own-loop, light, own-loop-x2, tool-bound, sub-agents, coding",
    ],
    [["--dialect", "tgi"], "--dialect 'tgi' is not one of sglang, vllm"],
  ])("says what is wrong with %j", async (args, words) => {
    await expect(sim.run(parseFlags(sim, args))).rejects.toMatchObject({
      exitCode: 2,
      message: expect.stringContaining(`luftpause sim: ${words}`) as string,
    });
  });
});
