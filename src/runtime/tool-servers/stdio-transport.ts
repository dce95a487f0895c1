/**
 * MCP over the standard input and output of a child process.
 *
 * The SDK's own transport closes on a line above 10 MiB, takes quadratic time for a long one, and leaves grandchildren
 * behind: `npx` starts the server as one.
 *
 * P1: the child leads a process group of its own, and the whole group is ended.
 * P2: what is no JSON-RPC message on its output is skipped: servers print banners.
 * P3: an answer that is longer than `LINE_BYTES_MAX` becomes an error for its call, when its id can be read.
 */
import { spawn, type ChildProcessByStdio } from "node:child_process";
import type { Readable, Writable } from "node:stream";
import type { JSONRPCMessage, Transport } from "@modelcontextprotocol/client";

const LINE_BYTES_MAX = 32 * 1024 * 1024;
const STDERR_CHARS_KEPT = 2_000;
/** A server may end by itself when its input is closed; then it is asked to, then it is killed. */
const GRACE_MS = 1_000;
/** As much of a long line as is looked into for an id. */
const ID_CHARS = 200;

/** Whom a child trusts: behind a company's own certificates npx or a tool would wait for ever without them. */
const TRUST = ["NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"];
/** What a child inherits of our own environment; secrets of ours are not among it. */
const INHERITED = ["HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER", ...TRUST];

export type StdioCommand = {
  readonly command: string;
  readonly args: readonly string[];
  readonly env: { readonly [name: string]: string };
};

type Child = ChildProcessByStdio<Writable, Readable, Readable>;

export class StdioTransport implements Transport {
  onclose?: (() => void) | undefined;
  onerror?: ((error: Error) => void) | undefined;
  onmessage?: ((message: JSONRPCMessage) => void) | undefined;
  readonly #command: StdioCommand;
  #child: Child | undefined;
  #parts: Buffer[] = [];
  #partsBytes = 0;
  /** The beginning of a line that is too long; undefined: the running line is not. */
  #longHead: string | undefined;
  #longTail = "";
  #stderr = "";
  #closed = false;

  constructor(command: StdioCommand) {
    this.#command = command;
  }

  /** The last that the child wrote to its standard error. */
  get stderr(): string {
    return this.#stderr.trim();
  }

  start(): Promise<void> {
    const { command, args, env } = this.#command;
    const inherited = INHERITED.flatMap((name) => {
      const value = process.env[name];
      return value === undefined ? [] : [[name, value]];
    });
    const child = spawn(command, args, {
      env: { ...Object.fromEntries(inherited), ...env },
      stdio: ["pipe", "pipe", "pipe"],
      detached: true, // P1
    });
    this.#child = child;
    child.stdout.on("data", (bytes: Buffer) => this.#take(bytes));
    child.stderr.setEncoding("utf8").on("data", (text: string) => {
      this.#stderr = (this.#stderr + text).slice(-STDERR_CHARS_KEPT);
    });
    // A child that is gone is told by its exit.
    for (const stream of [child.stdin, child.stdout, child.stderr]) stream.on("error", () => undefined);
    child.on("exit", () => {
      this.#endGroup("SIGTERM");
      this.#over();
    });
    return new Promise((resolve, reject) => {
      child.once("spawn", resolve);
      child.on("error", (error: NodeJS.ErrnoException) => {
        const why = error.code === "ENOENT" ? "no such command" : (error.code ?? error.message);
        reject(new Error(`${command} cannot be started: ${why}`));
        this.#over();
      });
    });
  }

  send(message: JSONRPCMessage): Promise<void> {
    const child = this.#child;
    if (child === undefined || this.#closed) return Promise.reject(new Error("the server's process has ended"));
    return new Promise((resolve, reject) => {
      child.stdin.write(`${JSON.stringify(message)}\n`, (error) => {
        if (error === undefined || error === null) resolve();
        else reject(new Error("the server's process does not read any more", { cause: error }));
      });
    });
  }

  async close(): Promise<void> {
    const child = this.#child;
    if (child === undefined || this.#closed) return;
    const exited = new Promise<void>((resolve) => {
      child.once("exit", () => resolve());
    });
    child.stdin.end();
    for (const signal of ["SIGTERM", "SIGKILL"] as const) {
      if (child.exitCode !== null || child.signalCode !== null) break;
      if (await within(exited, GRACE_MS)) break;
      this.#endGroup(signal);
    }
    await within(exited, GRACE_MS);
    this.#endGroup("SIGKILL");
    this.#over();
  }

  #endGroup(signal: NodeJS.Signals): void {
    const pid = this.#child?.pid;
    if (pid === undefined) return;
    try {
      process.kill(-pid, signal);
    } catch {
      // Nobody of the group is left.
    }
  }

  #over(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#parts = [];
    this.onclose?.();
  }

  #take(bytes: Buffer): void {
    let from = 0;
    for (;;) {
      const end = bytes.indexOf(0x0a, from);
      if (end === -1) break;
      this.#add(bytes.subarray(from, end));
      this.#line();
      from = end + 1;
    }
    if (from < bytes.length) this.#add(bytes.subarray(from));
  }

  #add(bytes: Buffer): void {
    if (this.#longHead !== undefined) {
      this.#longTail = (this.#longTail + bytes.subarray(-ID_CHARS).toString("latin1")).slice(-ID_CHARS);
      return;
    }
    this.#parts.push(bytes);
    this.#partsBytes += bytes.length;
    if (this.#partsBytes <= LINE_BYTES_MAX) return;
    this.#longHead = this.#parts[0]?.subarray(0, ID_CHARS).toString("latin1") ?? "";
    this.#longTail = bytes.subarray(-ID_CHARS).toString("latin1");
    this.#parts = [];
    this.#partsBytes = 0;
  }

  #line(): void {
    if (this.#longHead !== undefined) {
      const id = idOf(this.#longHead, this.#longTail);
      this.#longHead = undefined;
      const message = `its answer is longer than ${LINE_BYTES_MAX} bytes`;
      if (id === undefined) this.onerror?.(new Error(message));
      else this.onmessage?.({ jsonrpc: "2.0", id, error: { code: -32_000, message } }); // P3
      return;
    }
    const text = Buffer.concat(this.#parts).toString("utf8").trim();
    this.#parts = [];
    this.#partsBytes = 0;
    if (text === "") return;
    const message = messageOf(text);
    if (message === undefined) this.onerror?.(new Error("a line that is no JSON-RPC message")); // P2
    else this.onmessage?.(message);
  }
}

function messageOf(text: string): JSONRPCMessage | undefined {
  try {
    const value: unknown = JSON.parse(text);
    const isMessage = typeof value === "object" && value !== null && "jsonrpc" in value;
    return isMessage ? (value as JSONRPCMessage) : undefined;
  } catch {
    return undefined;
  }
}

/** Servers write the id of an answer before or behind its result. */
function idOf(head: string, tail: string): number | undefined {
  const [, id] =
    /^\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,15})\b/.exec(head) ??
    /"id"\s*:\s*(\d{1,15})\s*\}\s*$/.exec(tail) ??
    [];
  return id === undefined ? undefined : Number(id);
}

/** @returns whether it came in time. */
async function within(awaited: Promise<void>, ms: number): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<boolean>((resolve) => {
    timer = setTimeout(() => resolve(false), ms);
  });
  try {
    return await Promise.race([awaited.then(() => true), late]);
  } finally {
    clearTimeout(timer);
  }
}
