/** Addresses to listen on: parsing, the loopback rule, and who holds a port that is taken. */
import { readdirSync, readFileSync, readlinkSync } from "node:fs";
import { CommandError, EXIT } from "./exit.ts";

export type Address = { readonly host: string; readonly port: number };

/** Splits `HOST:PORT` or `[HOST]:PORT`; the schema has checked the form. */
export function parseAddress(text: string): Address {
  const at = text.lastIndexOf(":");
  return { host: text.slice(0, at).replace(/^\[|\]$/g, ""), port: Number(text.slice(at + 1)) };
}

export function formatAddress({ host, port }: Address): string {
  return host.includes(":") ? `[${host}]:${port}` : `${host}:${port}`;
}

/** An address that a person on this machine can type: a wildcard is reached by loopback. */
export function reachable({ host, port }: Address): string {
  const name = host === "0.0.0.0" ? "127.0.0.1" : host === "::" ? "::1" : host;
  return `http://${formatAddress({ host: name, port })}`;
}

function isLoopback(host: string): boolean {
  return host === "localhost" || host === "::1" || /^127\.\d{1,3}\.\d{1,3}\.\d{1,3}$/.test(host);
}

/**
 * Without a token nobody but this machine may come in (spec 7, Tokens and routes).
 * @throws CommandError (config) for another address without a token, unless insecure.
 */
export function checkBind(address: Address, options: { readonly token: boolean; readonly insecure: boolean }): void {
  if (options.token || options.insecure || isLoopback(address.host)) return;
  throw new CommandError(
    EXIT.config,
    [
      `${formatAddress(address)} is reachable from other machines, and no token is set.`,
      "Anybody who finds it could use your engines. Either",
      "  set a token:          LUFTPAUSE_TOKEN=… (or token / principals in luftpause.yaml)",
      "  stay on this machine: --listen 127.0.0.1:7700",
      "  or accept the risk:   --insecure",
    ].join("\n"),
  );
}

/** Turns a failed listen into words: who holds the port, where that can be known, and the flag to change it. */
export function listenProblem(error: unknown, address: Address, flag: string): CommandError {
  const code = (error as NodeJS.ErrnoException).code;
  const where = formatAddress(address);
  if (code === "EADDRINUSE") {
    const holder = portHolder(address.port);
    const who = holder === undefined ? "another process" : holder;
    return new CommandError(EXIT.fault, `${where} is taken by ${who}. Choose another: ${flag}`);
  }
  if (code === "EACCES")
    return new CommandError(EXIT.fault, `${where} may not be used by this user. Choose another: ${flag}`);
  if (code === "EADDRNOTAVAIL" || code === "ENOTFOUND") {
    return new CommandError(EXIT.fault, `${where} is no address of this machine. Choose another: ${flag}`);
  }
  return new CommandError(EXIT.fault, `cannot listen on ${where}: ${String(error)}`);
}

/** The process that listens on a port, as `NAME (pid N)`; Linux only, and only where /proc may be read. */
function portHolder(port: number): string | undefined {
  try {
    const inodes = listeningInodes(port);
    if (inodes.size === 0) return undefined;
    for (const pid of readdirSync("/proc")) {
      if (!/^\d+$/.test(pid) || !holdsInode(pid, inodes)) continue;
      const name = readFileSync(`/proc/${pid}/comm`, "utf8").trim();
      return `${name} (pid ${pid})`;
    }
  } catch {
    // Without /proc there is nobody to name: the message says "another process".
  }
  return undefined;
}

function listeningInodes(port: number): Set<string> {
  const hex = port.toString(16).toUpperCase().padStart(4, "0");
  const inodes = new Set<string>();
  for (const table of ["/proc/net/tcp", "/proc/net/tcp6"]) {
    for (const line of readFileSync(table, "utf8").split("\n").slice(1)) {
      const [, local, , state, , , , , , inode] = line.trim().split(/\s+/);
      if (state === "0A" && local?.endsWith(`:${hex}`) === true && inode !== undefined) inodes.add(inode);
    }
  }
  return inodes;
}

function holdsInode(pid: string, inodes: ReadonlySet<string>): boolean {
  try {
    return readdirSync(`/proc/${pid}/fd`).some((fd) => {
      const inode = /^socket:\[(\d+)\]$/.exec(readlinkSync(`/proc/${pid}/fd/${fd}`))?.[1];
      return inode !== undefined && inodes.has(inode);
    });
  } catch {
    return false;
  }
}
