/**
 * The scheduler's end of the link between processes: one connection per dataplane, authenticated by its first frame
 * (spec 2, The link). A dataplane that is lost is told to the core at once; the core counts its grace.
 */
import { createServer, type AddressInfo, type Server, type Socket } from "node:net";
import { createServer as createTlsServer } from "node:tls";
import { FrameSocket, LINK_SOCKET } from "../http/index.ts";
import type { Log } from "../telemetry/index.ts";
import { LINK_PROTOCOL, type DataplaneMessage, type SchedulerMessage } from "../wire/admission.ts";
import {
  isDataplaneMessage,
  isLinkOpening,
  nameOfMessage,
  OPENING_BYTES_MAX,
  type LinkAnswer,
} from "../wire/link-frames.ts";
import type { DataplaneSession, DataplaneSink } from "./service.ts";

export type LinkServerOptions = {
  readonly attach: (sink: DataplaneSink) => DataplaneSession;
  /** Whether a token opens the link. */
  readonly admits: (token: string | undefined) => boolean;
  readonly log: Log;
  /** PEM texts; undefined: plain TCP. */
  readonly tls?: { readonly cert: string; readonly key: string };
  /** Of this scheduler; 1 without a standby. */
  readonly epoch?: number;
};

export type LinkServer = {
  listen(host: string, port: number): Promise<{ readonly host: string; readonly port: number }>;
  connections(): number;
  close(): Promise<void>;
};

/** A dataplane fleet is small; what is more is a mistake or an attack. */
const CONNECTIONS_MAX = 1_024;
/** The opening must have come by then, and the handshake of TLS before it. */
const OPENING_MS = 5_000;

/** A scheduler has little to say, some hundred bytes for a turn: this much unread is a dataplane that is stuck. */
const SEND_BYTES_MAX = 32 * 1024 * 1024;

export function createLinkServer(options: LinkServerOptions): LinkServer {
  const { tls } = options;
  const open = new Set<FrameSocket>();
  const epoch = options.epoch ?? 1;

  const serve = (socket: Socket): void => {
    const limits = { frameBytesMax: OPENING_BYTES_MAX, sendBytesMax: SEND_BYTES_MAX };
    const frames = new FrameSocket(socket, { ...LINK_SOCKET, ...limits });
    let session: DataplaneSession | undefined;
    open.add(frames);
    const timer = setTimeout(() => frames.close("no opening"), OPENING_MS);
    const refuse = (reason: string): void => {
      options.log("warn", "dataplane-refused", { reason, peer: socket.remoteAddress });
      frames.send({ accepted: false, reason } satisfies LinkAnswer);
      frames.end(reason);
    };
    const opening = (value: unknown): void => {
      if (!isLinkOpening(value)) refuse("the first frame is no opening");
      else if (value.protocol !== LINK_PROTOCOL) {
        refuse(
          `this scheduler speaks protocol ${LINK_PROTOCOL}, the dataplane ${value.protocol}: run the same version`,
        );
      } else if (!options.admits(value.token)) refuse("the token is missing or wrong");
      else {
        clearTimeout(timer);
        frames.allow(LINK_SOCKET.frameBytesMax);
        frames.send({ accepted: true, epoch } satisfies LinkAnswer);
        session = options.attach({ send: (message: SchedulerMessage) => frames.send({ epoch, message }) });
      }
    };
    frames.onFrame = (value) => {
      if (session === undefined) opening(value);
      else if (isDataplaneMessage(value)) receive(session, value, frames);
      else frames.close(`malformed message ${nameOfMessage(value)}`);
    };
    frames.onClosed = (reason) => {
      clearTimeout(timer);
      open.delete(frames);
      // A stranger that leaves is not worth a line each time; one that was refused has its own.
      if (session !== undefined) options.log("info", "link-closed", { reason, peer: socket.remoteAddress });
      session?.lost();
    };
  };

  const receive = (session: DataplaneSession, message: DataplaneMessage, frames: FrameSocket): void => {
    try {
      session.receive(message);
    } catch (error) {
      // A message that the core cannot take is a fault of the peer or ours: the resync starts from known ground.
      options.log("error", "link-fault", { error: error instanceof Error ? error.stack : String(error) });
      frames.close("fault");
    }
  };

  const server: Server =
    tls === undefined ? createServer(serve) : createTlsServer({ ...tls, handshakeTimeout: OPENING_MS }, serve);
  server.maxConnections = CONNECTIONS_MAX;
  // Node reports a handshake that failed or never came, but leaves the connection to us.
  server.on("tlsClientError", (_error: Error, socket: Socket) => socket.destroy());
  const onError = (error: Error): void => options.log("error", "link-listen-fault", { error: String(error) });
  return {
    listen(host, port) {
      return new Promise((resolve, reject) => {
        server.once("error", reject);
        server.listen({ host, port }, () => {
          server.off("error", reject);
          // No file handle left for a connection is said here: it must not end the scheduler.
          server.on("error", onError);
          const address = server.address() as AddressInfo;
          resolve({ host: address.address, port: address.port });
        });
      });
    },
    connections: () => open.size,
    close() {
      return new Promise((resolve) => {
        server.close(() => resolve());
        for (const frames of open) frames.close("the scheduler stops");
      });
    },
  };
}
