// The programs that the bench needs: its own C programs (built here), nginx and haproxy (Debian's packages), Portkey's
// gateway (from the lock in peers/, copied and patched). Everything made lies in .cache below this folder.
import { execFile } from "node:child_process";
import crypto from "node:crypto";
import fs from "node:fs";
import path from "node:path";
import { promisify } from "node:util";
import { UsageError } from "./options.ts";

const run = promisify(execFile);
const HERE = import.meta.dirname;
const CACHE = path.join(HERE, ".cache");
export const REPOSITORY = path.resolve(HERE, "../..");

/** Thrown when a program is missing; the bench then ends with exit code 3. */
export class MissingTool extends UsageError {}

function digest(files: readonly string[]): string {
  const hash = crypto.createHash("sha256");
  for (const file of files) hash.update(fs.readFileSync(file));
  return hash.digest("hex").slice(0, 12);
}

/** Whether a program can be run at all. */
export async function has(program: string, args: string[] = ["--version"]): Promise<boolean> {
  try {
    await run(program, args, { timeout: 10_000 });
    return true;
  } catch {
    return false;
  }
}

/** First line that matches in what a program prints about its version (nginx says it on stderr). */
export async function versionOf(program: string, args: string[], pattern: RegExp): Promise<string | null> {
  try {
    const { stdout, stderr } = await run(program, args, { timeout: 10_000 });
    return pattern.exec(`${stdout}\n${stderr}`)?.[1] ?? null;
  } catch {
    return null;
  }
}

const HEADERS = ["common.h", "load.h"];
const SOURCES = { stub: ["stub.c"], load: ["load.c", "load-answer.c", "load-request.c"] } as const;

export type Programs = { readonly stub: string; readonly load: string };

/** Builds the stub and the generator with gcc, unless these very sources were built before. */
export async function buildPrograms(): Promise<Programs> {
  const sources = [...HEADERS, ...Object.values(SOURCES).flat()].map((name) => path.join(HERE, name));
  const folder = path.join(CACHE, `c-${digest(sources)}`);
  const programs = { stub: path.join(folder, "stub"), load: path.join(folder, "load") };
  if (fs.existsSync(programs.stub) && fs.existsSync(programs.load)) return programs;
  if (!(await has("gcc")))
    throw new MissingTool("gcc is missing (stub and load generator are C): apt-get install gcc libc6-dev");
  fs.mkdirSync(folder, { recursive: true });
  for (const name of ["stub", "load"] as const) {
    // Built under another name first: a build that is cut short must not look like a finished one.
    const target = `${programs[name]}.${process.pid}`;
    const files = SOURCES[name].map((file) => path.join(HERE, file));
    await run("gcc", ["-O2", "-Wall", "-Wextra", "-o", target, ...files, "-lm"], { timeout: 120_000 });
    fs.renameSync(target, programs[name]);
  }
  return programs;
}

/** nginx and haproxy: found, installed when asked, or refused with the line to type. */
export async function needPackages(names: readonly string[], install: boolean): Promise<void> {
  const missing: string[] = [];
  for (const name of names) if (!(await has(name, ["-v"]))) missing.push(name);
  if (missing.length === 0) return;
  const line = `apt-get install --no-install-recommends ${missing.join(" ")}`;
  if (!install)
    throw new MissingTool(`${missing.join(" and ")} not found. Install by: ${line} (or leave it out: --variants)`);
  if (process.getuid?.() !== 0) throw new MissingTool(`--install needs root. As root: ${line}`);
  console.log(`installing ${missing.join(" and ")} …`);
  const env = { ...process.env, DEBIAN_FRONTEND: "noninteractive" };
  await run("apt-get", ["update", "-qq"], { timeout: 300_000, env });
  await run("apt-get", ["install", "-y", "-qq", "--no-install-recommends", ...missing], { timeout: 600_000, env });
}

export type Portkey = { readonly script: string; readonly version: string; readonly patched: boolean };

// The published build appends headers to the Response of a stream, which is immutable when it comes from fetch or from
// node-server's own class (issues 1389 and 1550 of its repository): every streaming call ends in status 500. The patch
// copies the Response of a streaming call first, and changes nothing for other calls.
const BROKEN = "this.updateHeaders(i,n.cacheStatus,o)";
const MENDED = `(this.context.isStreaming&&(i=new Response(i.body,{status:i.status,statusText:i.statusText,headers:i.headers})),${BROKEN})`;

/** Installs the gateway by the lock in peers/ into the cache, and patches that copy. */
export async function preparePortkey(): Promise<Portkey> {
  const files = ["package.json", "package-lock.json"].map((name) => path.join(HERE, "peers", name));
  const folder = path.join(CACHE, `portkey-${digest(files)}`);
  const gateway = path.join(folder, "node_modules/@portkey-ai/gateway");
  if (!fs.existsSync(path.join(folder, "ready"))) {
    console.log("installing the Portkey gateway from bench/overhead/peers/package-lock.json …");
    fs.mkdirSync(folder, { recursive: true });
    for (const file of files) fs.copyFileSync(file, path.join(folder, path.basename(file)));
    await run("npm", ["ci", "--ignore-scripts", "--omit=dev"], { cwd: folder, timeout: 300_000 });
    fs.writeFileSync(path.join(folder, "ready"), "");
  }
  const { version } = JSON.parse(fs.readFileSync(path.join(gateway, "package.json"), "utf8")) as { version: string };
  const published = fs.readFileSync(path.join(gateway, "build/start-server.js"), "utf8");
  const patched = published.split(BROKEN).length === 2;
  const script = path.join(gateway, "build/start-server.bench.js");
  fs.writeFileSync(script, patched ? published.replace(BROKEN, MENDED) : published);
  return { script, version, patched };
}

/** The checkout's commit, with + when files are changed; null outside git. */
export async function commit(): Promise<string | null> {
  try {
    const { stdout: head } = await run("git", ["rev-parse", "--short", "HEAD"], { cwd: REPOSITORY });
    const { stdout: changes } = await run("git", ["status", "--porcelain", "--", "src"], { cwd: REPOSITORY });
    return head.trim() + (changes.trim() === "" ? "" : "+");
  } catch {
    return null;
  }
}
