/** Both ends of a link over real sockets, with what they heard. */
import { afterEach } from "vitest";
import { asTurnId } from "../../src/base/ids.ts";
import { createLinkClient, type LinkClient, type LinkClientOptions } from "../../src/dataplane/index.ts";
import {
  createLinkServer,
  type DataplaneSink,
  type LinkServer,
  type LinkServerOptions,
} from "../../src/scheduler/index.ts";
import { SILENT_LOG } from "../../src/telemetry/index.ts";
import type { DataplaneMessage, SchedulerMessage } from "../../src/wire/admission.ts";

export const closers: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closers.splice(0).toReversed()) await close();
});

export type Heard = { readonly messages: DataplaneMessage[]; sink: DataplaneSink | undefined; lost: number };

export async function startServer(
  options: {
    readonly token?: string;
    readonly port?: number;
    readonly epoch?: number;
    readonly tls?: LinkServerOptions["tls"];
    readonly attach?: LinkServerOptions["attach"];
  } = {},
): Promise<Heard & { readonly port: number; readonly server: LinkServer }> {
  const heard: Heard = { messages: [], sink: undefined, lost: 0 };
  const server = createLinkServer({
    attach:
      options.attach ??
      ((sink) => {
        heard.sink = sink;
        return {
          receive: (message) => void heard.messages.push(message),
          lost() {
            heard.lost += 1;
          },
        };
      }),
    admits: (token) => options.token === undefined || token === options.token,
    log: SILENT_LOG,
    ...(options.epoch === undefined ? {} : { epoch: options.epoch }),
    ...(options.tls === undefined ? {} : { tls: options.tls }),
  });
  closers.push(() => server.close());
  const { port } = await server.listen("127.0.0.1", options.port ?? 0);
  return Object.assign(heard, { port, server });
}

export type Events = {
  readonly log: string[];
  /** Why the link was lost or not made, once per reason. */
  readonly reasons: string[];
  readonly messages: SchedulerMessage[];
  readonly client: LinkClient;
};

export function startClient(
  port: number,
  token?: string,
  options: Partial<LinkClientOptions> & { readonly onLinked?: (client: LinkClient) => void } = {},
): Events {
  const log: string[] = [];
  const reasons: string[] = [];
  const messages: SchedulerMessage[] = [];
  const client = createLinkClient({
    host: "127.0.0.1",
    port,
    token,
    connectTimeoutMs: 5_000,
    linkRetryMs: 50,
    log: (_level, _event, fields) => void reasons.push(String(fields?.["reason"])),
    ...options,
  });
  closers.push(() => client.close());
  client.port.attach({
    onLinked() {
      log.push("linked");
      options.onLinked?.(client);
    },
    onLost: () => void log.push("lost"),
    onMessage: (message) => void messages.push(message),
  });
  return { log, reasons, messages, client };
}

export const open = (turns: string[]): DataplaneMessage => ({ type: "open-turns", turns: turns.map(asTurnId) });

/** A frame as it is on the wire. */
export function encode(values: unknown[]): Buffer {
  const text = Buffer.from(JSON.stringify(values));
  const head = Buffer.alloc(4);
  head.writeUInt32BE(text.length, 0);
  return Buffer.concat([head, text]);
}
