/** Installs the command-line agents, at the versions that were tried, into the cache folder of the project. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdir, writeFile } from "node:fs/promises";
import path from "node:path";

/** By name of the package. */
const PACKAGES = {
  "@anthropic-ai/claude-code": "2.1.332",
  "@google/gemini-cli": "0.61.0",
  "@openai/codex": "0.171.0",
} as const;

/** What starts each. */
export const PROGRAMS = {
  claude: programOf("@anthropic-ai/claude-code/cli-wrapper.cjs"),
  codex: programOf("@openai/codex/bin/codex.js"),
  gemini: programOf("@google/gemini-cli/bundle/gemini.js"),
} as const;

const INSTALL_MS = 300_000;

function folder(): string {
  const versions = Object.values(PACKAGES).join("-");
  return path.resolve(import.meta.dirname, `../../.cache/clis-${versions}`);
}

function programOf(file: string): string {
  return path.join(folder(), "node_modules", file);
}

/** vitest's global set-up. 760 MB of disk, some 20 s; nothing of theirs runs while they are installed. */
export default async function setUp(): Promise<void> {
  if (Object.values(PROGRAMS).every((file) => existsSync(file))) return;
  await mkdir(folder(), { recursive: true });
  await writeFile(path.join(folder(), "package.json"), '{"private":true}\n');
  const names = Object.entries(PACKAGES).map(([name, version]) => `${name}@${version}`);
  const child = spawn("npm", ["install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-save", ...names], {
    cwd: folder(),
    stdio: ["ignore", "ignore", "pipe"],
    timeout: INSTALL_MS,
  });
  let said = "";
  child.stderr.on("data", (bytes: Buffer) => (said += bytes.toString("utf8")));
  const [code] = (await once(child, "close")) as [number | null];
  const missing = Object.values(PROGRAMS).filter((file) => !existsSync(file));
  if (code === 0 && missing.length === 0) return;
  throw new Error(
    `npm could not install ${names.join(" ")} (exit code ${code}); missing: ${missing.join(", ")}\n${said}`,
  );
}
