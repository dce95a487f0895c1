import { createFront } from "../../http/index.ts";
import { schedulerMetrics } from "../../scheduler/index.ts";
import type { FakeEngine } from "../../testbed/index.ts";
import { checkBind, formatAddress, listenProblem, parseAddress, reachable } from "../address.ts";
import { learnedPool, makeRuntime, runTreeFor, withMcp } from "../compose-runtime.ts";
import {
  healthRoute,
  logFor,
  makeDataplane,
  makeScheduler,
  metricsRoute,
  statusRoute,
  withRoutes,
} from "../compose.ts";
import { CONFIG_FLAGS, configFromFlags } from "../config/from-flags.ts";
import { endpointsOf, hasToken, schedulingOf } from "../config/resolve.ts";
import type { Config } from "../config/schema.ts";
import { CommandError, EXIT } from "../exit.ts";
import type { Command, ParsedFlags } from "../flags.ts";
import { readyBlock } from "../ready-block.ts";
import { reloadOnHangup } from "../reload.ts";
import { drainOnSignals } from "../signals.ts";
import { answerStarting } from "../starting.ts";
import { endpointOfUrl, startSimulatedEngines, startSimulatedTools } from "../simulated.ts";

export const up: Command = {
  name: "up",
  operands: "",
  summary: "Starts everything in one process on one port; simulated engines where none is named.",
  flags: {
    ...CONFIG_FLAGS,
    listen: { kind: "string", value: "HOST:PORT", about: "Address to serve on (127.0.0.1:7700)." },
    engine: {
      kind: "string",
      value: "URL",
      many: true,
      about: "An engine to use, several times for several, besides those in the config.",
    },
    insecure: { kind: "boolean", about: "Serves beyond this machine without a token." },
  },
  positionals: { least: 0, most: 0 },
  async run(flags) {
    const load = (): Config => withEngines(configFromFlags(flags, { listen: "listen" }).config, flags);
    const config = load();
    const wanted = parseAddress(config.listen);
    checkBind(wanted, { token: hasToken(config), insecure: isInsecure(flags) });

    // The address first: everything after it would be started in vain.
    let handle: Parameters<typeof createFront>[0]["handler"] = answerStarting;
    const front = createFront({ handler: (exchange) => handle(exchange) });
    const address = await front.listen(wanted.host, wanted.port).catch((error: unknown) => {
      throw listenProblem(error, wanted, "--listen HOST:PORT");
    });

    const simulated: readonly FakeEngine[] = config.endpoints.length === 0 ? await startSimulatedEngines() : [];
    if (simulated.length > 0) {
      config.endpoints = simulated.map((engine, at) => endpointOfUrl(`simulated-${"ab"[at]}`, engine.url));
    }
    const simulatedTools = simulated.length > 0 && config.tools.length === 0 ? await startSimulatedTools() : [];
    config.tools.push(...simulatedTools.map(({ entry }) => entry));
    const endpoints = endpointsOf(config);
    const log = logFor(config, "up");
    const scheduler = makeScheduler(config, endpoints);
    const parts = makeDataplane(config, endpoints, scheduler.localPort());
    const { dataplane } = parts;
    const agents = await makeRuntime(config, {
      dataplaneUrl: reachable(address),
      pool: learnedPool(scheduler),
    });
    const { runtime } = agents;
    const routes = withRoutes(
      config,
      [
        statusRoute(scheduler, runTreeFor(config, runtime)),
        metricsRoute(
          { scheduler: schedulerMetrics(scheduler), dataplane: dataplane.metrics, runtime: runtime.metrics },
          log,
        ),
        healthRoute("/healthz", () => ({ ok: true, status: "ok" })),
        healthRoute("/readyz", () => {
          // The worst of the services.
          const worst = [dataplane.ready(), runtime.ready()].find(({ ready }) => !ready);
          return { ok: worst === undefined, status: worst?.reason ?? "ready" };
        }),
      ],
      (exchange) => dataplane.handle(exchange),
    );
    await scheduler.start();
    // The runs that are taken over ask for turns at once: by this port.
    handle = (exchange) => (agents.face.owns(exchange.path) ? answerStarting(exchange) : routes(exchange));
    await agents.start();
    handle = withMcp(agents.face, routes);

    process.stdout.write(
      readyBlock({
        url: reachable(address),
        address: formatAddress(address),
        replicas: scheduler.status().replicas,
        problems: scheduler.status().problems,
        endpoints,
        simulated: simulated.length > 0,
        toolServers: agents.toolServers(),
        token: hasToken(config),
      }),
    );
    reloadOnHangup(log, () => {
      if (simulated.length > 0) return;
      const next = load();
      const nextEndpoints = endpointsOf(next);
      dataplane.reconfigure(nextEndpoints);
      scheduler.reconfigure(schedulingOf(next, nextEndpoints), nextEndpoints);
    });
    return drainOnSignals(
      async () => {
        // Readiness falls first: a load balancer sees it while the port still answers.
        // Sub-agents' turns go through the dataplane: both stop taking work at once.
        await Promise.all([dataplane.drain(), agents.close(config.limits.drainSeconds * 1000)]);
        front.stopListening();
        parts.close();
        await Promise.all([scheduler.stop(), front.close()]);
        await Promise.all([...simulated, ...simulatedTools.map(({ server }) => server)].map((one) => one.close()));
      },
      (line) => process.stderr.write(`${line}\n`),
    );
  },
};

function isInsecure(flags: ParsedFlags): boolean {
  return flags.has("insecure") || process.env["LUFTPAUSE_INSECURE"] === "1";
}

/** Adds the engines of `--engine`, named by their host and port. */
function withEngines(config: Config, flags: ParsedFlags): Config {
  for (const url of flags.texts("engine")) {
    if (!URL.canParse(url) || !/^https?:$/.test(new URL(url).protocol)) {
      throw new CommandError(EXIT.usage, `--engine '${url}' is not an address such as http://127.0.0.1:8000`);
    }
    const name = new URL(url).host.replaceAll(/[^A-Za-z0-9.-]/g, "-").replace(/^-+/, "");
    if (config.endpoints.some((endpoint) => endpoint.name === name)) {
      throw new CommandError(EXIT.usage, `--engine '${url}': an endpoint named '${name}' is there already`);
    }
    config.endpoints.push(endpointOfUrl(name, url));
  }
  return config;
}
