/**
 * The routes of the dataplane as data (spec 3, Routes). Nothing that is not here is ever proxied: paths are compared as
 * they were sent, without decoding, so that no spelling of a path reaches another route than the one that was checked.
 */
import type { WireApi } from "../wire/endpoint.ts";

export type RouteAction =
  | { readonly kind: "turn"; readonly api: WireApi }
  | { readonly kind: "auxiliary"; readonly api: "embeddings" | "classify" }
  | { readonly kind: "models" }
  | { readonly kind: "run-get" }
  | { readonly kind: "run-delete" }
  | { readonly kind: "healthz" }
  | { readonly kind: "readyz" }
  | { readonly kind: "metrics" }
  | { readonly kind: "well-known" };

/** `open`: for everybody; `metrics`: open only with `metrics.public`; `token`: needs the token. */
export type RouteGuard = "open" | "metrics" | "token";

export type Route = {
  readonly method: "GET" | "POST" | "DELETE";
  /** The whole path, or with `*` at its end the beginning of one. */
  readonly path: string;
  readonly guard: RouteGuard;
  readonly action: RouteAction;
};

export const ROUTES: readonly Route[] = [
  { method: "POST", path: "/v1/chat/completions", guard: "token", action: { kind: "turn", api: "chat" } },
  { method: "POST", path: "/v1/completions", guard: "token", action: { kind: "turn", api: "completions" } },
  { method: "POST", path: "/v1/embeddings", guard: "token", action: { kind: "auxiliary", api: "embeddings" } },
  { method: "POST", path: "/v1/decide", guard: "token", action: { kind: "auxiliary", api: "classify" } },
  { method: "GET", path: "/v1/models", guard: "token", action: { kind: "models" } },
  { method: "GET", path: "/v1/runs/*", guard: "token", action: { kind: "run-get" } },
  { method: "DELETE", path: "/v1/runs/*", guard: "token", action: { kind: "run-delete" } },
  { method: "GET", path: "/healthz", guard: "open", action: { kind: "healthz" } },
  { method: "GET", path: "/readyz", guard: "open", action: { kind: "readyz" } },
  { method: "GET", path: "/metrics", guard: "metrics", action: { kind: "metrics" } },
  { method: "GET", path: "/.well-known/*", guard: "open", action: { kind: "well-known" } },
];

export type Matched =
  | {
      readonly kind: "route";
      readonly route: Route;
      /** What stands in the place of `*`, as sent. */ readonly rest: string;
    }
  | { readonly kind: "wrong-method"; readonly allow: string }
  | { readonly kind: "unknown" };

type PathRoutes = { readonly routes: readonly Route[]; readonly allow: string };

const groups = Map.groupBy(ROUTES, (route) => route.path);
const byPath = new Map<string, PathRoutes>(
  [...groups].map(([path, routes]) => [path, { routes, allow: routes.map((route) => route.method).join(", ") }]),
);
const prefixes = [...byPath.keys()].filter((path) => path.endsWith("*")).map((path) => path.slice(0, -1));

const UNKNOWN: Matched = { kind: "unknown" };

/** Finds the route of a request. A path with `..` or with an empty or encoded segment of ours matches nothing. */
export function matchRoute(method: string, path: string): Matched {
  const exact = byPath.get(path);
  if (exact !== undefined && !path.endsWith("*")) return choose(exact, method, "");
  for (const prefix of prefixes) {
    if (!path.startsWith(prefix)) continue;
    const rest = path.slice(prefix.length);
    const found = byPath.get(`${prefix}*`);
    if (found === undefined || !isPlainRest(rest)) return UNKNOWN;
    return choose(found, method, rest);
  }
  return UNKNOWN;
}

/** One or more segments in the characters of a URL's path, none of them empty or dots only. */
function isPlainRest(rest: string): boolean {
  if (!/^[A-Za-z0-9\-._~!$&'()*+,;=:@%/]+$/.test(rest)) return false;
  return rest.split("/").every((segment) => segment !== "" && segment !== "." && segment !== "..");
}

function choose(found: PathRoutes, method: string, rest: string): Matched {
  for (const route of found.routes) if (route.method === method) return { kind: "route", route, rest };
  return { kind: "wrong-method", allow: found.allow };
}
