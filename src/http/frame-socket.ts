/**
 * Frames of JSON over one long-lived connection: four bytes of length (big endian), then UTF-8 JSON; a frame of length 0
 * is a sign of life. What is sent within one turn of the event loop travels in one frame (docs/decisions/0022).
 *
 * F1: the order of frames is the order of `send`.
 * F2: `onClosed` is called once; nothing is delivered after it.
 * F3: a peer that is silent for `deadMs`, sends a malformed or over-long frame, or does not read is cut off.
 * F4: a socket never outlives `onClosed` by more than CLOSING_MS.
 */
import type { Socket } from "node:net";

export type FrameSocketOptions = {
  /** Largest frame that is accepted, in bytes. */
  frameBytesMax: number;
  /** A sign of life is sent this often. */
  readonly beatMs: number;
  /** A peer without any byte for this long is dead, though its connection may look alive. */
  readonly deadMs: number;
  /** Bytes that the peer has not taken yet; beyond it is cut off and has to come again. */
  readonly sendBytesMax: number;
};

export const LINK_SOCKET: FrameSocketOptions = {
  // A resync hands over every run and key at once: some hundred bytes each, 300,000 of them at most.
  frameBytesMax: 128 * 1024 * 1024,
  beatMs: 1_000,
  deadMs: 5_000,
  sendBytesMax: 256 * 1024 * 1024,
};

/** What was said last must have been taken by then. */
const CLOSING_MS = 1_000;

const EMPTY = Buffer.alloc(0);
const BEAT = Buffer.alloc(4);

export class FrameSocket {
  onFrame: (value: unknown) => void = () => undefined;
  onClosed: (reason: string) => void = () => undefined;
  readonly #socket: Socket;
  readonly #options: FrameSocketOptions;
  readonly #beat: NodeJS.Timeout;
  /** Parts of the frame that is being read, and their bytes. */
  #parts: Buffer[] = [];
  #bytes = 0;
  #outgoing: unknown[] = [];
  #closed = false;
  /** Beats since the peer was last heard. Counted, not timed: a stall of our own is one beat, however long it was. */
  #silentBeats = 0;

  constructor(socket: Socket, options: FrameSocketOptions) {
    this.#socket = socket;
    this.#options = { ...options };
    socket.setNoDelay(true);
    socket.on("data", (bytes: Buffer) => this.#take(bytes));
    socket.on("end", () => this.close("closed by the peer"));
    socket.on("close", () => this.close("connection closed"));
    socket.on("error", (error: NodeJS.ErrnoException) => this.close(error.code ?? "connection failed"));
    // The socket's own time-out does not do: our beats count as activity there.
    this.#beat = setInterval(() => this.#tick(), options.beatMs);
    this.#beat.unref();
  }

  /** Accepts frames up to this size from now on: little before the peer is authenticated, much afterwards. */
  allow(frameBytesMax: number): void {
    this.#options.frameBytesMax = frameBytesMax;
  }

  /** Queues a value; everything queued in one turn of the event loop becomes one frame, an array in order. */
  send(value: unknown): void {
    if (this.#closed) return;
    this.#outgoing.push(value);
    if (this.#outgoing.length === 1) setImmediate(() => this.#flush());
  }

  /** Sends what is queued and closes. */
  end(reason: string): void {
    if (this.#closed) return;
    this.#flush();
    this.#finish(reason);
    this.#socket.end();
    // F4: a peer that neither reads nor closes must not keep the socket.
    setTimeout(() => this.#socket.destroy(), CLOSING_MS).unref();
  }

  close(reason: string): void {
    if (this.#closed) return;
    this.#finish(reason);
    this.#socket.destroy();
  }

  #finish(reason: string): void {
    if (this.#closed) return;
    this.#closed = true;
    clearInterval(this.#beat);
    this.#outgoing = [];
    this.#parts = [];
    this.onClosed(reason); // F2
  }

  #flush(): void {
    if (this.#closed || this.#outgoing.length === 0) return;
    const text = JSON.stringify(this.#outgoing);
    this.#outgoing = [];
    const frame = Buffer.allocUnsafe(4 + Buffer.byteLength(text));
    frame.writeUInt32BE(frame.length - 4, 0);
    frame.write(text, 4, "utf8");
    this.#write(frame);
  }

  #tick(): void {
    const { beatMs, deadMs } = this.#options;
    this.#silentBeats += 1;
    if (this.#silentBeats * beatMs >= deadMs) this.close(`no sign of life for ${deadMs} ms`);
    else this.#write(BEAT);
  }

  #write(frame: Buffer): void {
    if (this.#closed) return;
    this.#socket.write(frame);
    if (this.#socket.writableLength > this.#options.sendBytesMax) this.close("the peer does not read");
  }

  #take(bytes: Buffer): void {
    if (this.#closed) return;
    this.#silentBeats = 0;
    this.#parts.push(bytes);
    this.#bytes += bytes.length;
    if (this.#bytes < 4) return;
    let first = this.#parts[0] ?? EMPTY;
    if (first.length < 4) first = this.#join();
    // A large frame comes in many reads: they are joined once, when it is whole.
    if (this.#bytes - 4 < first.readUInt32BE(0)) {
      if (first.readUInt32BE(0) > this.#options.frameBytesMax) this.close("frame over the limit");
      return;
    }
    this.#frames(this.#join());
  }

  #join(): Buffer {
    const whole = this.#parts.length === 1 ? (this.#parts[0] ?? EMPTY) : Buffer.concat(this.#parts);
    this.#parts = [whole];
    return whole;
  }

  #frames(bytes: Buffer): void {
    let at = 0;
    while (bytes.length - at >= 4) {
      const length = bytes.readUInt32BE(at);
      if (length > this.#options.frameBytesMax) {
        this.close("frame over the limit");
        return;
      }
      if (bytes.length - at - 4 < length) break;
      if (length > 0 && !this.#deliver(bytes.toString("utf8", at + 4, at + 4 + length))) return;
      at += 4 + length;
    }
    const rest = bytes.subarray(at);
    this.#parts = rest.length === 0 ? [] : [rest];
    this.#bytes = rest.length;
  }

  /** Gives the values of a frame to the receiver; false when the connection is over. */
  #deliver(text: string): boolean {
    let values: unknown;
    try {
      values = JSON.parse(text);
    } catch {
      this.close("malformed frame");
      return false;
    }
    if (!Array.isArray(values)) {
      this.close("malformed frame");
      return false;
    }
    for (const value of values as unknown[]) {
      if (this.#closed) return false;
      this.onFrame(value);
    }
    return !this.#closed;
  }
}
