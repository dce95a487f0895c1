/** The runtime behind its MCP face, as the official conformance suite wants to meet it: no token, its tools, its answers. */
import { createAuth, createFront, type Exchange } from "../../src/http/index.ts";
import { createMcpFace } from "../../src/runtime/mcp/face.ts";
import { REAL_CLOCK, SILENT_LOG } from "../../src/telemetry/index.ts";
import { onCleanUp } from "../runtime/fake-dataplane.ts";
import { bench } from "../runtime/host-bench.ts";
import { answerAssignment, FIXTURES, withDamagedJob } from "./fixtures-as-runs.ts";

/** @returns the address to give to the suite. */
export async function serveForConformance(): Promise<string> {
  const world = await bench({ clock: REAL_CLOCK, wallMs: () => Date.now() });
  world.dataplane.onTurn = answerAssignment;
  world.tools.onCall = ({ answer }) => answer({ ok: true, text: "erased" });
  const face = await createMcpFace({
    service: withDamagedJob(world.service),
    store: world.store,
    clock: REAL_CLOCK,
    wallMs: () => Date.now(),
    log: SILENT_LOG,
    metrics: world.runtime.metrics,
    version: "0.0.0",
    authenticate: createAuth({ token: undefined, serviceToken: undefined, principals: [] }),
    allowedHosts: [],
    requestStateKey: undefined,
    humanMinMs: 1_000,
    keepFinishedMs: 7 * 86_400_000,
    extraTools: FIXTURES,
  });
  const front = createFront({ handler: (exchange) => face.handle(allowingWhatIsConfirmed(exchange)) });
  const { port } = await front.listen("127.0.0.1", 0);
  onCleanUp(async () => {
    await face.close();
    await front.close();
  });
  return `http://127.0.0.1:${port}/mcp`;
}

/** The suite fills in every form with `confirm`, whatever its fields are; an approval is given by `allow`. */
function allowingWhatIsConfirmed(exchange: Exchange): Exchange {
  const readBody: Exchange["readBody"] = (most, read) =>
    exchange.readBody(most, (body) => {
      if (!Buffer.isBuffer(body)) read(body);
      else read(Buffer.from(body.toString("utf8").replaceAll(`"confirm":true`, `"confirm":true,"allow":true`)));
    });
  return new Proxy(exchange, {
    get(target, name) {
      if (name === "readBody") return readBody;
      const value: unknown = Reflect.get(target, name);
      return typeof value === "function" ? (value.bind(target) as unknown) : value;
    },
    set: (target, name, value) => Reflect.set(target, name, value),
  });
}
