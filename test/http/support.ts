/** A client of raw bytes, and a front that is closed after its test. */
import { once } from "node:events";
import { connect, type Socket } from "node:net";
import { afterEach } from "vitest";
import { createFront, type Exchange, type Front, type FrontOptions } from "../../src/http/index.ts";

const fronts: Front[] = [];
const clients: RawClient[] = [];
afterEach(async () => {
  for (const client of clients.splice(0)) client.socket.destroy();
  await Promise.all(fronts.splice(0).map((front) => front.close()));
});

export async function startFront(
  handler: (exchange: Exchange) => void,
  options: Partial<FrontOptions> = {},
): Promise<{ port: number; front: Front }> {
  const front = createFront({ handler, ...options });
  fronts.push(front);
  const { port } = await front.listen("127.0.0.1", 0);
  return { port, front };
}

/** A connection that keeps what it reads. */
export class RawClient {
  readonly socket: Socket;
  text = "";
  ended = false;
  closed = false;
  error: string | undefined;

  constructor(port: number, options: { readonly allowHalfOpen?: boolean } = {}) {
    this.socket = connect({ port, host: "127.0.0.1", noDelay: true, ...options });
    this.socket.on("data", (bytes) => {
      this.text += bytes.toString("latin1");
    });
    this.socket.on("end", () => {
      this.ended = true;
    });
    this.socket.on("close", () => {
      this.closed = true;
    });
    this.socket.on("error", (error: NodeJS.ErrnoException) => {
      this.error = error.code;
    });
    clients.push(this);
  }

  /** Writes and waits until the system has taken it. */
  send(bytes: string | Buffer): Promise<void> {
    return new Promise((resolve) => {
      this.socket.write(typeof bytes === "string" ? Buffer.from(bytes, "latin1") : bytes, () => resolve());
    });
  }

  /** How many answers with this status have begun. */
  count(status: number): number {
    return this.text.split(`HTTP/1.1 ${status} `).length - 1;
  }
}

export async function client(port: number, options: { readonly allowHalfOpen?: boolean } = {}): Promise<RawClient> {
  const made = new RawClient(port, options);
  await once(made.socket, "connect");
  return made;
}
