/**
 * Which Host and Origin may reach the face: a page in a browser must not reach it under a name that its owner points at this
 * machine (DNS rebinding). Ports do not count.
 */
import { isIP } from "node:net";

const LOCAL: ReadonlySet<string> = new Set(["localhost", "127.0.0.1", "::1"]);

/**
 * @param allowedHosts names from the config; `*` allows all.
 * @returns what is wrong and how to mend it; undefined when it may pass.
 */
export function originProblem(
  headers: { readonly host: string | undefined; readonly origin: string | undefined },
  allowedHosts: readonly string[],
): string | undefined {
  if (allowedHosts.includes("*")) return undefined;
  const host = hostname(`http://${headers.host ?? ""}`);
  const named = new Set(allowedHosts.map((name) => name.toLowerCase()));
  const known = (name: string): boolean => LOCAL.has(name) || name.endsWith(".localhost") || named.has(name);
  // An address is what the browser connected to: nobody can point it elsewhere.
  if (host === undefined || !(known(host) || isIP(host) !== 0)) {
    return `host '${headers.host ?? ""}' is not known here: add its name to runtime.allowedHosts`;
  }
  if (headers.origin === undefined) return undefined;
  const origin = hostname(headers.origin);
  if (origin !== undefined && (known(origin) || origin === host)) return undefined;
  return `origin '${headers.origin}' may not call this: add its host name to runtime.allowedHosts`;
}

function hostname(url: string): string | undefined {
  if (!URL.canParse(url)) return undefined;
  const name = new URL(url).hostname.toLowerCase().replace(/^\[(.*)\]$/, "$1");
  return name === "" ? undefined : name;
}
