import { createAuth, createFront } from "../../http/index.ts";
import { createLinkServer, schedulerMetrics } from "../../scheduler/index.ts";
import { checkBind, formatAddress, listenProblem, parseAddress, reachable } from "../address.ts";
import { healthRoute, logFor, makeScheduler, metricsRoute, statusRoute, withRoutes } from "../compose.ts";
import { CONFIG_FLAGS, configFromFlags } from "../config/from-flags.ts";
import { authOf, endpointsOf, hasToken, schedulingOf, serviceTokenOf } from "../config/resolve.ts";
import type { Config } from "../config/schema.ts";
import { CommandError, EXIT } from "../exit.ts";
import type { Command, ParsedFlags } from "../flags.ts";
import { readPem } from "../pem.ts";
import { reloadOnHangup } from "../reload.ts";
import { drainOnSignals } from "../signals.ts";

export const scheduler: Command = {
  name: "scheduler",
  operands: "",
  summary: "Starts the scheduler as a service of its own; dataplanes attach to its link.",
  flags: {
    ...CONFIG_FLAGS,
    listen: { kind: "string", value: "HOST:PORT", about: "Address of status, metrics and health (127.0.0.1:5001)." },
    link: { kind: "string", value: "HOST:PORT", about: "Address of the link for dataplanes (127.0.0.1:5000)." },
    insecure: { kind: "boolean", about: "Serves beyond this machine without a token." },
  },
  positionals: { least: 0, most: 0 },
  async run(flags) {
    const load = (): Config => configFromFlags(flags, { listen: "scheduler.listen", link: "scheduler.link" }).config;
    const config = load();
    if (config.endpoints.length === 0) {
      throw new CommandError(
        EXIT.config,
        "no endpoints are configured: name the engines in luftpause.yaml (endpoints)",
      );
    }
    const log = logFor(config, "scheduler");
    const endpoints = endpointsOf(config);
    const service = makeScheduler(config, endpoints);
    const link = makeLink(config, flags, service);
    const linkWanted = parseAddress(config.scheduler.link);
    const linkAddress = await link.listen(linkWanted.host, linkWanted.port).catch((error: unknown) => {
      throw listenProblem(error, linkWanted, "--link HOST:PORT");
    });
    const front = createFront({
      handler: withRoutes(
        config,
        [
          statusRoute(service),
          metricsRoute({ scheduler: schedulerMetrics(service) }, log),
          healthRoute("/healthz", () => ({ ok: true, status: "ok" })),
          healthRoute("/readyz", () => ({ ok: true, status: "ready" })),
        ],
        undefined,
      ),
    });
    const wanted = parseAddress(config.scheduler.listen);
    const address = await front.listen(wanted.host, wanted.port).catch((error: unknown) => {
      throw listenProblem(error, wanted, "--listen HOST:PORT");
    });
    process.stdout.write(
      `luftpause scheduler: link on ${formatAddress(linkAddress)}, status on ${reachable(address)}/status\n`,
    );
    reloadOnHangup(log, () => {
      const next = load();
      const nextEndpoints = endpointsOf(next);
      service.reconfigure(schedulingOf(next, nextEndpoints), nextEndpoints);
    });
    await service.start();
    return drainOnSignals(
      async () => {
        // Nothing is lost with a scheduler: dataplanes hold their turns and hand their state to the next one.
        await link.close();
        await Promise.all([service.stop(), front.close()]);
      },
      (line) => process.stderr.write(`${line}\n`),
    );
  },
};

function makeLink(config: Config, flags: ParsedFlags, service: ReturnType<typeof makeScheduler>) {
  const insecure = flags.has("insecure") || process.env["LUFTPAUSE_INSECURE"] === "1";
  const token = hasToken(config);
  for (const text of [config.scheduler.link, config.scheduler.listen])
    checkBind(parseAddress(text), { token, insecure });
  if (config.principals.length > 0 && serviceTokenOf(config) === undefined) {
    throw new CommandError(
      EXIT.config,
      "principals are configured, but no serviceToken for our own services: set serviceToken",
    );
  }
  const authenticate = createAuth(authOf(config));
  const { linkTls } = config.scheduler;
  return createLinkServer({
    attach: (sink) => service.attach(sink),
    // Only our own services may attach: a principal's token opens no link.
    admits(shown) {
      if (!token) return true;
      const header = (name: string) => (name === "x-api-key" ? shown : undefined);
      return authenticate({ header })?.service === true;
    },
    log: logFor(config, "scheduler"),
    ...(linkTls === null
      ? {}
      : {
          tls: {
            cert: readPem(linkTls.certFile, "scheduler.linkTls.certFile"),
            key: readPem(linkTls.keyFile, "scheduler.linkTls.keyFile"),
          },
        }),
  });
}
