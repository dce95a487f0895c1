/** All tool servers of the config, behind the port. */
import { Gauge, type Log, type Registry } from "../../telemetry/index.ts";
import type { OfferedTool, ToolServers } from "./port.ts";
import type { ToolServerConfig } from "./server-config.ts";
import { ToolServer, type ToolServerDeps } from "./tool-server.ts";

/** A tool server as it is shown. */
export type ToolServerView = { readonly name: string; readonly state: "ok" | "down"; readonly tools: number };

export type SupervisedToolServers = ToolServers & {
  servers(): readonly ToolServerView[];
  /** Resolves when every server was tried once, at the latest after `withinMs`. */
  tried(withinMs: number): Promise<void>;
  /** Shows them on a metrics page. */
  show(registry: Registry): void;
};

/** Begins to connect to every server. */
export function createToolServers(configs: readonly ToolServerConfig[], deps: ToolServerDeps): SupervisedToolServers {
  const servers = configs.map((config) => new ToolServer(config, deps));
  for (const server of servers) {
    server.start();
    server.tried.then(
      () => tellUnknownEffects(deps.log, server.tools),
      () => undefined,
    );
  }
  return {
    servers: () => servers.map(({ name, state, tools }) => ({ name, state, tools: tools.length })),
    list: () => servers.flatMap((server) => server.tools),
    call(call) {
      const server = servers.find(({ name }) => name === call.server);
      if (server !== undefined) return server.call(call);
      const text = `Error: the tool server ${call.server} is not in the config any more`;
      return Promise.resolve({ ok: false, text });
    },
    async tried(withinMs) {
      let stop: () => void = () => undefined;
      const late = new Promise<void>((resolve) => {
        stop = deps.clock.after(withinMs, resolve);
      });
      await Promise.race([Promise.all(servers.map((server) => server.tried)), late]);
      stop();
    },
    show(registry) {
      showMetrics(registry, servers);
    },
    async close() {
      await Promise.all(servers.map((server) => server.close()));
    },
  };
}

/** Told once, since such a call asks a person after a crash. */
function tellUnknownEffects(log: Log, tools: readonly OfferedTool[]): void {
  const unknown = tools.filter((tool) => tool.effect === "unsafe" && tool.onCrash === "ask");
  if (unknown.length === 0) return;
  log("info", "tools-of-unknown-effect", {
    tools: unknown
      .map(({ server, name }) => `${server}/${name}`)
      .join(", ")
      .slice(0, 1_000),
    mend: "name their effects in the config (tools.effects), or they ask a person after a crash",
  });
}

function showMetrics(registry: Registry, servers: readonly ToolServer[]): void {
  const gauge = (name: string, help: string, read: (server: ToolServer) => number) =>
    new Gauge({
      name: `luftpause_runtime_${name}`,
      help,
      labelNames: ["server"],
      registers: [registry],
      collect() {
        for (const server of servers) this.set({ server: server.name }, read(server));
      },
    });
  gauge("tool_server_up", "Whether a tool server is connected.", ({ state }) => (state === "ok" ? 1 : 0));
  gauge("tool_server_tools", "Tools that a server offers to sub-agents.", ({ tools }) => tools.length);
  gauge("tool_server_calls_waiting", "Tool calls that a server owes an answer.", ({ pending }) => pending);
}
