// The transports that are compared, all behind one shape: JSON values in order, both ways, on one long-lived connection.
// Ours is the code of the product. The others get the same batching (one message for each turn of the event loop), since
// that is what they would be built with; `ws` and gRPC are also measured as they come, one message for each value.
import fs from "node:fs";
import { createServer as createHttpServer } from "node:http";
import { createServer as createHttpsServer } from "node:https";
import { createRequire } from "node:module";
import { connect, createServer, type AddressInfo, type Socket } from "node:net";
import path from "node:path";
import { connect as connectTls, createServer as createTlsServer } from "node:tls";
import { FrameSocket, LINK_SOCKET } from "../../src/http/index.ts";

export const VARIANTS = [
  "call",
  "frames-unix",
  "frames-tcp",
  "frames-tls",
  "ws",
  "ws-single",
  "ws-tls",
  "grpc",
  "grpc-single",
] as const;
export type Variant = (typeof VARIANTS)[number];

export type Channel = { send(value: unknown): void; onValue: (value: unknown) => void };

/** Where peers are installed, and the certificate for the variants with TLS. */
export type Folders = { readonly peers: string; readonly tls: string };

/** @returns the address to dial. */
export async function serve(
  variant: Variant,
  folders: Folders,
  onChannel: (channel: Channel) => void,
): Promise<string> {
  const onSocket = (socket: Socket): void => onChannel(overFrames(socket));
  switch (variant) {
    case "call":
      throw new Error("a function call has no server");
    case "frames-unix": {
      const file = path.join(folders.tls, `link-${process.pid}.sock`);
      await listen(createServer(onSocket), file);
      return file;
    }
    case "frames-tcp":
      return listen(createServer(onSocket), 0);
    case "frames-tls":
      return listen(createTlsServer(certificate(folders), onSocket), 0);
    case "ws":
    case "ws-single":
    case "ws-tls": {
      const server = variant === "ws-tls" ? createHttpsServer(certificate(folders)) : createHttpServer();
      const { WebSocketServer } = load<WsModule>(folders, "ws");
      new WebSocketServer({ server, perMessageDeflate: false }).on("connection", (socket) => {
        onChannel(overWs(socket, variant !== "ws-single"));
      });
      return listen(server, 0);
    }
    case "grpc":
    case "grpc-single":
      return serveGrpc(folders, (stream) => onChannel(overGrpc(stream, variant === "grpc")));
  }
}

export async function dial(variant: Variant, folders: Folders, address: string): Promise<Channel> {
  const port = Number(address);
  switch (variant) {
    case "call":
      throw new Error("a function call is not dialled");
    case "frames-unix":
      return overFrames(connect(address));
    case "frames-tcp":
      return overFrames(connect(port, "127.0.0.1"));
    case "frames-tls":
      return overFrames(connectTls({ host: "localhost", port, ca: certificate(folders).cert }));
    case "ws":
    case "ws-single":
    case "ws-tls": {
      const { WebSocket } = load<WsModule>(folders, "ws");
      const url = variant === "ws-tls" ? `wss://localhost:${port}` : `ws://127.0.0.1:${port}`;
      const socket = new WebSocket(url, { perMessageDeflate: false, ca: certificate(folders).cert });
      await new Promise<void>((resolve) => {
        socket.on("open", () => resolve());
      });
      return overWs(socket, variant !== "ws-single");
    }
    case "grpc":
    case "grpc-single": {
      const grpc = load<GrpcModule>(folders, "@grpc/grpc-js");
      const Client = grpc.makeGenericClientConstructor(GRPC_SERVICE, "Link");
      const client = new Client(`127.0.0.1:${port}`, grpc.credentials.createInsecure());
      return overGrpc(client.attach(), variant === "grpc");
    }
  }
}

function overFrames(socket: Socket): Channel {
  const frames = new FrameSocket(socket, LINK_SOCKET);
  const channel: Channel = { send: (value) => frames.send(value), onValue: () => undefined };
  frames.onFrame = (value) => channel.onValue(value);
  return channel;
}

/** The peers' side of the same batching: what is sent in one turn of the event loop is one array. */
function over(
  batched: boolean,
  write: (text: string) => void,
): { readonly channel: Channel; readonly take: (text: string) => void } {
  let outgoing: unknown[] = [];
  const flush = (): void => {
    const values = outgoing;
    outgoing = [];
    write(JSON.stringify(values));
  };
  const channel: Channel = {
    send(value) {
      if (!batched) {
        write(JSON.stringify([value]));
        return;
      }
      outgoing.push(value);
      if (outgoing.length === 1) setImmediate(flush);
    },
    onValue: () => undefined,
  };
  return {
    channel,
    take(text) {
      for (const value of JSON.parse(text) as unknown[]) channel.onValue(value);
    },
  };
}

function overWs(socket: WsSocket, batched: boolean): Channel {
  const { channel, take } = over(batched, (text) => socket.send(text));
  socket.on("message", (data) => take(String(data)));
  return channel;
}

function overGrpc(stream: GrpcStream, batched: boolean): Channel {
  const { channel, take } = over(batched, (text) => void stream.write(Buffer.from(text)));
  stream.on("data", (data) => take(data.toString("utf8")));
  stream.on("error", (error) => {
    throw error;
  });
  return channel;
}

async function serveGrpc(folders: Folders, onStream: (stream: GrpcStream) => void): Promise<string> {
  const grpc = load<GrpcModule>(folders, "@grpc/grpc-js");
  const server = new grpc.Server();
  server.addService(GRPC_SERVICE, { attach: onStream });
  const port = await new Promise<number>((resolve, reject) => {
    server.bindAsync("127.0.0.1:0", grpc.ServerCredentials.createInsecure(), (error, bound) => {
      if (error === null) resolve(bound);
      else reject(error);
    });
  });
  return String(port);
}

const same = (bytes: Buffer): Buffer => bytes;
/** Bytes as they are: what is measured is the transport, with the same JSON inside as the others carry. */
const GRPC_SERVICE = {
  attach: {
    path: "/luftpause.Link/Attach",
    requestStream: true,
    responseStream: true,
    requestSerialize: same,
    requestDeserialize: same,
    responseSerialize: same,
    responseDeserialize: same,
  },
};

/** What is used of the peers; they are not installed in the project, so neither are their types. */
type WsSocket = { send(text: string): void; on(event: "open" | "message", listener: (data: unknown) => void): void };
type WsModule = {
  readonly WebSocket: new (url: string, options: object) => WsSocket;
  readonly WebSocketServer: new (options: object) => {
    on(event: "connection", listener: (socket: WsSocket) => void): void;
  };
};
type GrpcStream = {
  write(bytes: Buffer): boolean;
  on(event: "data", listener: (bytes: Buffer) => void): void;
  on(event: "error", listener: (error: Error) => void): void;
};
type GrpcModule = {
  readonly credentials: { createInsecure(): unknown };
  readonly ServerCredentials: { createInsecure(): unknown };
  readonly Server: new () => {
    addService(service: object, handlers: object): void;
    bindAsync(address: string, credentials: unknown, done: (error: Error | null, port: number) => void): void;
  };
  makeGenericClientConstructor(
    service: object,
    name: string,
  ): new (address: string, credentials: unknown) => { attach(): GrpcStream };
};

function load<Module>(folders: Folders, name: string): Module {
  return createRequire(path.join(folders.peers, "package.json"))(name) as Module;
}

function certificate(folders: Folders): { readonly cert: string; readonly key: string } {
  const read = (name: string): string => fs.readFileSync(path.join(folders.tls, name), "utf8");
  return { cert: read("cert.pem"), key: read("key.pem") };
}

async function listen(
  server: { listen(at: object, done: () => void): unknown; address(): AddressInfo | string | null },
  at: string | number,
): Promise<string> {
  const where = typeof at === "string" ? { path: at } : { host: "127.0.0.1", port: at };
  await new Promise<void>((resolve) => {
    server.listen(where, resolve);
  });
  const address = server.address();
  return typeof address === "object" && address !== null ? String(address.port) : String(at);
}
