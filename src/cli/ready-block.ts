/** The block that `luftpause up` prints when it is ready (spec 7, First minutes). It only grows. */
import type { ToolServerView } from "../runtime/index.ts";
import type { Status } from "../scheduler/index.ts";
import type { EndpointConfig } from "../wire/endpoint.ts";
import { table } from "./table.ts";
import { version } from "./version.ts";

export type ReadyFacts = {
  /** An address that a person on this machine can type. */
  readonly url: string;
  readonly address: string;
  readonly replicas: Status["replicas"];
  readonly problems: Status["problems"];
  readonly endpoints: readonly EndpointConfig[];
  readonly simulated: boolean;
  /** Tool servers of sub-agents, with how many tools each offers. */
  readonly toolServers: readonly ToolServerView[];
  readonly token: boolean;
};

export function readyBlock(facts: ReadyFacts): string {
  const { url, replicas, token } = facts;
  const urls = new Map(facts.endpoints.map((endpoint) => [endpoint.name as string, endpoint.url]));
  const engines = table(
    [{ title: "  engine" }, { title: "kind" }, { title: "state" }, { title: "address" }, { title: "models" }],
    replicas.map((row) => [
      `  ${row.replica}`,
      row.engine,
      row.healthy
        ? row.reportsLoad
          ? "healthy"
          : "healthy, reports no load"
        : (facts.problems[row.replica] ?? "unknown"),
      urls.get(row.replica) ?? "",
      row.models.length === 0 ? "-" : row.models.join(", "),
    ]),
  );
  const note = facts.simulated
    ? [
        "  No engine is named, so simulated ones run, with tools. Your own: --engine http://HOST:PORT, or luftpause.yaml",
        "",
      ]
    : [];
  const servers = table(
    [{ title: "  tool server" }, { title: "state" }, { title: "tools" }],
    facts.toolServers.map(({ name, state, tools }) => [`  ${name}`, state, String(tools)]),
  );
  return [
    `luftpause ${version()} listens on ${facts.address}`,
    "",
    `  base_url   ${url}/v1`,
    `  MCP        ${url}/mcp   (sub-agents: spawn, await, run, …)`,
    `  status     ${url}/status   (luftpause status)`,
    `  metrics    ${url}/metrics`,
    `  token      ${token ? "set: send it as `Authorization: Bearer …`" : "none: this machine only"}`,
    "",
    engines,
    "",
    ...(facts.toolServers.length === 0 ? [] : [servers, ""]),
    ...note,
    "Try it:",
    curl(facts),
    "",
    "Let Claude Code spawn sub-agents:",
    addToClaude(url, token),
    "",
  ].join("\n");
}

/** How Claude Code gets to know the runtime; the token stays in its variable. */
export function addToClaude(url: string, token = false): string {
  const header = token ? ' --header "Authorization: Bearer $LUFTPAUSE_TOKEN"' : "";
  return `  claude mcp add --transport http --scope local luftpause ${url}/mcp${header}`;
}

/** A line that works when it is pasted into a shell; the token stays in its variable. */
function curl({ url, replicas, token }: ReadyFacts): string {
  const model = replicas.find((row) => row.healthy && row.models.length > 0)?.models[0] ?? "MODEL";
  const body = JSON.stringify({
    model,
    stream: true,
    messages: [{ role: "user", content: "Why do agents wait?" }],
  });
  const header = token ? ' -H "Authorization: Bearer $LUFTPAUSE_TOKEN"' : "";
  const quoted = `'${body.replaceAll("'", "'\\''")}'`;
  return `  curl -N ${url}/v1/chat/completions -H 'content-type: application/json'${header} -d ${quoted}`;
}
