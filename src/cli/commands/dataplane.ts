import { createLinkClient } from "../../dataplane/index.ts";
import { createFront } from "../../http/index.ts";
import { checkBind, listenProblem, parseAddress, reachable } from "../address.ts";
import { logFor, makeDataplane } from "../compose.ts";
import { CONFIG_FLAGS, configFromFlags } from "../config/from-flags.ts";
import { endpointsOf, hasToken, serviceTokenOf } from "../config/resolve.ts";
import type { Config } from "../config/schema.ts";
import { CommandError, EXIT } from "../exit.ts";
import type { Command } from "../flags.ts";
import { readPem } from "../pem.ts";
import { reloadOnHangup } from "../reload.ts";
import { drainOnSignals } from "../signals.ts";

export const dataplane: Command = {
  name: "dataplane",
  operands: "",
  summary: "Starts a proxy as a service of its own, attached to a scheduler.",
  flags: {
    ...CONFIG_FLAGS,
    listen: { kind: "string", value: "HOST:PORT", about: "Address of the proxy (127.0.0.1:8080)." },
    scheduler: { kind: "string", value: "HOST:PORT", about: "Link of its scheduler (127.0.0.1:5000)." },
    insecure: { kind: "boolean", about: "Serves beyond this machine without a token." },
  },
  positionals: { least: 0, most: 0 },
  async run(flags) {
    const load = (): Config =>
      configFromFlags(flags, { listen: "dataplane.listen", scheduler: "dataplane.scheduler" }).config;
    const config = load();
    if (config.endpoints.length === 0) {
      throw new CommandError(
        EXIT.config,
        "no endpoints are configured: name the engines in luftpause.yaml (endpoints)",
      );
    }
    const wanted = parseAddress(config.dataplane.listen);
    const insecure = flags.has("insecure") || process.env["LUFTPAUSE_INSECURE"] === "1";
    checkBind(wanted, { token: hasToken(config), insecure });
    const log = logFor(config, "dataplane");
    const { schedulerTls, linkRetryMs } = config.dataplane;
    const ca = schedulerTls?.caFile ?? undefined;
    const link = createLinkClient({
      ...parseAddress(config.dataplane.scheduler),
      token: serviceTokenOf(config),
      connectTimeoutMs: config.limits.connectTimeoutMs,
      linkRetryMs,
      log,
      ...(schedulerTls === null
        ? {}
        : { tls: { ca: ca === undefined ? undefined : readPem(ca, "dataplane.schedulerTls.caFile") } }),
    });
    const parts = makeDataplane(config, endpointsOf(config), link.port);
    const service = parts.dataplane;
    service.metrics.setDefaultLabels({ service: "dataplane" });
    const front = createFront({ handler: (exchange) => service.handle(exchange) });
    const address = await front.listen(wanted.host, wanted.port).catch((error: unknown) => {
      throw listenProblem(error, wanted, "--listen HOST:PORT");
    });
    process.stdout.write(
      `luftpause dataplane: base_url ${reachable(address)}/v1, scheduler ${config.dataplane.scheduler}\n`,
    );
    reloadOnHangup(log, () => service.reconfigure(endpointsOf(load())));
    return drainOnSignals(
      async () => {
        // Readiness falls first: a load balancer sees it while the port still answers.
        await service.drain();
        front.stopListening();
        parts.close();
        link.close();
        await front.close();
      },
      (line) => process.stderr.write(`${line}\n`),
    );
  },
};
