/**
 * A dataplane's end of the link between processes: an AdmissionPort over one connection that is made again each second
 * while it is lost (spec 2, The link). Messages sent meanwhile are dropped: the dataplane hands its state over at the next
 * `onLinked`, so nothing is kept here.
 *
 * C1: `onLinked` and `onLost` alternate; nothing is delivered outside of them.
 * C2: a scheduler of a lower epoch than was seen is never obeyed.
 */
import { connect, type Socket } from "node:net";
import { connect as connectTls } from "node:tls";
import { FrameSocket, LINK_SOCKET } from "../http/index.ts";
import type { Log } from "../telemetry/index.ts";
import { LINK_PROTOCOL, type AdmissionPort, type AdmissionReceiver, type DataplaneMessage } from "../wire/admission.ts";
import { isLinkAnswer, isSchedulerFrame, type LinkOpening } from "../wire/link-frames.ts";

export type LinkClientOptions = {
  readonly host: string;
  readonly port: number;
  readonly token: string | undefined;
  /** Undefined: plain TCP. `ca`: PEM text of the authority, instead of those that Node brings. */
  readonly tls?: { readonly ca: string | undefined };
  readonly connectTimeoutMs: number;
  readonly linkRetryMs: number;
  readonly log: Log;
};

export type LinkClient = { readonly port: AdmissionPort; close(): void };

/** Connects as soon as the receiver is attached, and stays connected until `close`. */
export function createLinkClient(options: LinkClientOptions): LinkClient {
  const client = new Client(options);
  return { port: client, close: () => client.close() };
}

class Client implements AdmissionPort {
  readonly #options: LinkClientOptions;
  #receiver: AdmissionReceiver | undefined;
  #frames: FrameSocket | undefined;
  #accepted = false;
  /** Highest epoch seen: a scheduler that was replaced must not be obeyed any more. */
  #epoch = 0;
  #retry: NodeJS.Timeout | undefined;
  /** Runs until the scheduler has accepted us. */
  #opening: NodeJS.Timeout | undefined;
  #closed = false;
  /** Why the last try failed: said once, not each second. */
  #problem = "";

  constructor(options: LinkClientOptions) {
    this.#options = options;
  }

  get linked(): boolean {
    return this.#accepted;
  }

  attach(receiver: AdmissionReceiver): void {
    this.#receiver = receiver;
    this.#connect();
  }

  send(message: DataplaneMessage): void {
    if (this.#accepted) this.#frames?.send(message);
  }

  close(): void {
    this.#closed = true;
    clearTimeout(this.#retry);
    clearTimeout(this.#opening);
    this.#frames?.end("the dataplane stops");
  }

  #connect(): void {
    const { host, port, tls, token, connectTimeoutMs } = this.#options;
    const target = { host, port };
    const socket: Socket =
      tls === undefined ? connect(target) : connectTls({ ...target, ...(tls.ca === undefined ? {} : { ca: tls.ca }) });
    const frames = new FrameSocket(socket, LINK_SOCKET);
    this.#frames = frames;
    frames.onFrame = (value) => this.#take(value, frames);
    frames.onClosed = (reason) => this.#lost(frames, reason);
    frames.send({ protocol: LINK_PROTOCOL, token } satisfies LinkOpening);
    // A host that drops packets would else be waited for until the connection counts as dead.
    this.#opening = setTimeout(() => frames.close(`no answer within ${connectTimeoutMs} ms`), connectTimeoutMs);
  }

  #take(value: unknown, frames: FrameSocket): void {
    if (!this.#accepted) {
      if (!isLinkAnswer(value)) frames.close("the peer is no scheduler");
      else if (!value.accepted) frames.close(`refused: ${value.reason}`);
      else if (value.epoch < this.#epoch)
        frames.close(`a scheduler of epoch ${value.epoch}, after one of ${this.#epoch}`); // C2
      else {
        clearTimeout(this.#opening);
        this.#epoch = value.epoch;
        this.#accepted = true;
        this.#problem = "";
        this.#receiver?.onLinked();
      }
      return;
    }
    if (!isSchedulerFrame(value)) {
      frames.close("malformed message");
      return;
    }
    if (value.epoch < this.#epoch) return; // C2
    this.#epoch = value.epoch;
    this.#receiver?.onMessage(value.message);
  }

  #lost(frames: FrameSocket, reason: string): void {
    if (this.#frames !== frames) return;
    this.#frames = undefined;
    clearTimeout(this.#opening);
    const { host, port, log } = this.#options;
    if (this.#accepted) {
      this.#accepted = false;
      this.#receiver?.onLost();
    }
    if (this.#closed) return;
    if (reason !== this.#problem) log("warn", "link-lost", { scheduler: `${host}:${port}`, reason });
    this.#problem = reason;
    this.#retry = setTimeout(() => this.#connect(), this.#options.linkRetryMs);
  }
}
