// The routers that are compared, from PyPI into a virtual environment beside this file. Exact versions.
import { execFile } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import { promisify } from "node:util";

const run = promisify(execFile);
const WANTED = ["sglang-router==0.3.2", "smg==1.13.0", "vllm-router==0.1.17"] as const;
const FOLDER = path.join(import.meta.dirname, ".cache", "peers");

export type Peers = {
  readonly python: string;
  readonly bin: (name: string) => string;
  readonly versions: readonly string[];
};

/** Installs them once; about 100 MB. */
export async function preparePeers(): Promise<Peers> {
  const stamp = path.join(FOLDER, `.installed-${WANTED.join("-")}`);
  if (!fs.existsSync(stamp)) {
    console.log("installing the routers from PyPI …");
    fs.rmSync(FOLDER, { recursive: true, force: true });
    await run("python3", ["-m", "venv", FOLDER], { timeout: 120_000 });
    const pip = path.join(FOLDER, "bin", "pip");
    await run(pip, ["install", "--quiet", "--disable-pip-version-check", ...WANTED], { timeout: 600_000 });
    fs.writeFileSync(stamp, "");
  }
  const bin = (name: string): string => path.join(FOLDER, "bin", name);
  return { python: bin("python"), bin, versions: WANTED };
}
