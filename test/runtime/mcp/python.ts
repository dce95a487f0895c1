/** The official MCP SDK for Python as one more client, in a process of its own (bridge.py). */
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import path from "node:path";
import { createInterface } from "node:readline";
import { onCleanUp } from "../fake-dataplane.ts";
import { PROTOCOL } from "./raw.ts";
import type { Person, Served, TestClient, ToolResult } from "./face.ts";

const PYTHON = path.resolve(import.meta.dirname, "../../../.cache/python/bin/python");
const BRIDGE = path.join(import.meta.dirname, "bridge.py");

/** Whether it was set up (tools/setup-python.sh). */
export const HAS_PYTHON = existsSync(PYTHON);

type Said = {
  readonly id?: number;
  readonly ready?: string;
  readonly form?: number;
  readonly message?: string;
  readonly progress?: number;
  readonly tools?: readonly string[];
  readonly error?: string;
} & Partial<ToolResult>;

type Pending = {
  readonly settle: (said: Said) => void;
  readonly onProgress?: (progress: number, message?: string) => void;
};

export async function connectPython(
  mode: "legacy" | "auto",
  { url }: Served,
  { person, token }: { readonly person: Person | undefined; readonly token: string },
): Promise<TestClient> {
  const child = spawn(PYTHON, [BRIDGE, url, token, mode, person === undefined ? "no" : "yes"], {
    stdio: ["pipe", "pipe", "pipe"],
  });
  const exited = new Promise<void>((resolve) => {
    child.once("exit", () => resolve());
  });
  let errors = "";
  child.stderr.on("data", (bytes: Buffer) => (errors += bytes.toString("utf8")));
  child.stdin.on("error", () => undefined);
  const pending = new Map<number, Pending>();
  const write = (command: object): void => void child.stdin.write(`${JSON.stringify(command)}\n`);
  let ready: (version: string) => void = () => undefined;
  const began = new Promise<string>((resolve, reject) => {
    ready = resolve;
    child.once("exit", () => reject(new Error(`the Python client has ended: ${errors}`)));
  });
  createInterface({ input: child.stdout }).on("line", (line) => {
    const said = JSON.parse(line) as Said;
    if (said.ready !== undefined) ready(said.ready);
    else if (said.form !== undefined) {
      person?.({ message: said.message ?? "" }).then(
        (answer) => write({ op: "form", form: said.form, answer }),
        () => undefined,
      );
    } else if (said.progress !== undefined) {
      pending.get(said.id ?? 0)?.onProgress?.(said.progress, said.message);
    } else {
      pending.get(said.id ?? 0)?.settle(said);
      pending.delete(said.id ?? 0);
    }
  });
  const close = async (): Promise<void> => {
    write({ op: "close" });
    const timer = setTimeout(() => child.kill("SIGKILL"), 3_000);
    await exited;
    clearTimeout(timer);
  };
  onCleanUp(close);
  const version = await began;
  if ((version === PROTOCOL) !== (mode === "auto"))
    throw new Error(`the Python client speaks ${version} in mode ${mode}`);

  let count = 0;
  const ask = (
    command: object,
    onProgress?: Pending["onProgress"],
  ): { readonly id: number; readonly said: Promise<Said> } => {
    count += 1;
    const id = count;
    const said = new Promise<Said>((resolve, reject) => {
      const settle = (answer: Said): void => {
        if (answer.error === undefined) resolve(answer);
        else reject(new Error(answer.error));
      };
      pending.set(id, { settle, ...(onProgress === undefined ? {} : { onProgress }) });
      child.once("exit", () => reject(new Error("the Python client has ended")));
    });
    write({ ...command, id });
    return { id, said };
  };
  return {
    async call(name, args, { signal, onProgress } = {}) {
      const { id, said } = ask({ op: "call", name, args, progress: onProgress !== undefined }, onProgress);
      signal?.addEventListener("abort", () => write({ op: "cancel", id }), { once: true });
      const { structuredContent, content, isError } = await said;
      return { structuredContent: structuredContent ?? {}, content: content ?? [], isError: isError ?? false };
    },
    listTools: async () => ((await ask({ op: "list" }).said).tools ?? []).map((name) => ({ name })),
    close,
  };
}
