import { createFront } from "../../http/index.ts";
import { checkBind, listenProblem, parseAddress, reachable } from "../address.ts";
import { configuredPool, makeRuntime, runtimeStatusRoute, withMcp } from "../compose-runtime.ts";
import { healthRoute, logFor, metricsRoute, withRoutes } from "../compose.ts";
import { CONFIG_FLAGS, configFromFlags } from "../config/from-flags.ts";
import { hasToken, runtimeTokenOf } from "../config/resolve.ts";
import { CommandError, EXIT } from "../exit.ts";
import type { Command } from "../flags.ts";
import { addToClaude } from "../ready-block.ts";
import { drainOnSignals } from "../signals.ts";
import { answerStarting } from "../starting.ts";

export const runtime: Command = {
  name: "runtime",
  operands: "",
  summary: "Starts the runtime as a service of its own: durable sub-agents over MCP.",
  flags: {
    ...CONFIG_FLAGS,
    listen: { kind: "string", value: "HOST:PORT", about: "Address of MCP, status and metrics (127.0.0.1:7000)." },
    dataplane: { kind: "string", value: "URL", about: "Its dataplane (http://127.0.0.1:8080)." },
    "state-dir": { kind: "string", value: "DIR", about: "Where its journal is (./state)." },
    insecure: { kind: "boolean", about: "Serves beyond this machine without a token." },
  },
  positionals: { least: 0, most: 0 },
  async run(flags) {
    const keys = { listen: "runtime.listen", dataplane: "runtime.dataplane", "state-dir": "stateDir" };
    const { config } = configFromFlags(flags, keys);
    const wanted = parseAddress(config.runtime.listen);
    const insecure = flags.has("insecure") || process.env["LUFTPAUSE_INSECURE"] === "1";
    checkBind(wanted, { token: hasToken(config), insecure });
    if (config.principals.length > 0 && runtimeTokenOf(config) === undefined) {
      throw new CommandError(
        EXIT.config,
        "principals are configured, but no token with which the runtime may speak for them: set serviceToken",
      );
    }
    const log = logFor(config, "runtime");
    // The address first: nothing is taken over by a process that cannot be reached.
    let handle: Parameters<typeof createFront>[0]["handler"] = answerStarting;
    const front = createFront({ handler: (exchange) => handle(exchange) });
    const address = await front.listen(wanted.host, wanted.port).catch((error: unknown) => {
      throw listenProblem(error, wanted, "--listen HOST:PORT");
    });
    const { dataplane } = config.runtime;
    const parts = await makeRuntime(config, {
      dataplaneUrl: dataplane.replace(/\/+$/, "").replace(/\/v1$/, ""),
      pool: configuredPool(config),
    });
    const routes = withRoutes(
      config,
      [
        runtimeStatusRoute(config, parts.runtime),
        metricsRoute({ runtime: parts.runtime.metrics }, log),
        healthRoute("/healthz", () => ({ ok: true, status: "ok" })),
        healthRoute("/readyz", () => {
          const { ready, reason } = parts.runtime.ready();
          return { ok: ready, status: reason };
        }),
      ],
      undefined,
    );
    handle = (exchange) => (parts.face.owns(exchange.path) ? answerStarting(exchange) : routes(exchange));
    await parts.start();
    // Nothing may be asked before the runs of the process before are taken over.
    handle = withMcp(parts.face, routes);
    const url = reachable(address);
    process.stdout.write(
      `luftpause runtime: MCP on ${url}/mcp, status on ${url}/status, dataplane ${dataplane}\n${addToClaude(url, hasToken(config))}\n`,
    );
    return drainOnSignals(
      async () => {
        // Readiness falls first: a load balancer sees it while the port still answers.
        await parts.close(config.limits.drainSeconds * 1000);
        front.stopListening();
        await front.close();
      },
      (line) => process.stderr.write(`${line}\n`),
    );
  },
};
