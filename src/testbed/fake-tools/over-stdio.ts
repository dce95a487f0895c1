/** The simulated tools over standard input and output, in both eras. */
import { spawn } from "node:child_process";
import type { Readable, Writable } from "node:stream";
import { StdioServerTransport, serveStdio } from "@modelcontextprotocol/server/stdio";
import type { FakeToolsHost } from "./server.ts";

/** What servers print where only messages may stand. */
const NOISE = ["Starting the server…", "{not json", "[1,2,3]", ""].join("\n");
const STUBBORN_CHILD = "process.on('SIGTERM', () => {}); setInterval(() => {}, 1000)";

/** Serves until the input ends. */
export function serveToolsOverStdio(host: FakeToolsHost, input: Readable, output: Writable): Promise<void> {
  const { faults, era } = host.options;
  const transport = new FaultyStdio(host, input, output);
  if (era === "sessions") {
    // An old server knows one handshake, and answers anything else before it with an error.
    host
      .build("legacy")
      .connect(transport)
      .catch(() => process.exit(1));
  } else {
    serveStdio((context) => host.build(context.era), { transport, ...(era === "both" ? {} : { legacy: "reject" }) });
  }
  if (faults.has("stubborn")) {
    spawn(process.execPath, ["-e", STUBBORN_CHILD], { stdio: "ignore" });
    process.on("SIGTERM", () => undefined);
    return new Promise(() => {
      setInterval(() => undefined, 1_000);
    });
  }
  return new Promise((resolve) => {
    input.once("end", resolve);
  });
}

class FaultyStdio extends StdioServerTransport {
  readonly #host: FakeToolsHost;
  readonly #output: Writable;

  constructor(host: FakeToolsHost, input: Readable, output: Writable) {
    super(input, output);
    this.#host = host;
    this.#output = output;
  }

  override async send(message: Parameters<StdioServerTransport["send"]>[0]): Promise<void> {
    const { faults } = this.#host.options;
    await this.#host.awake;
    if (faults.has("noise")) this.#output.write(`${NOISE}\n`);
    const isResult = "result" in message && typeof message.id === "number" && "content" in message.result;
    const lost = faults.has("wrong-id") && isResult;
    await super.send(lost ? { ...message, id: Number(message.id) + 1000 } : message);
    if (faults.has("noise")) this.#output.write(`${NOISE}\n`);
  }
}
