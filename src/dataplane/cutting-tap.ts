/**
 * A stream tap that also takes out the usage chunk which only our splice asked for (spec 3, Forwarding): the event with
 * usage and no choice that follows a finish reason. Everything else passes byte for byte and at once.
 *
 * C1: bytes out = bytes in without the events that are cut, however the bytes are split over reads.
 * C2: before a finish reason was seen nothing is held back. After it, when only the end can follow, the running event is
 *     held until it is whole; a long one is passed on instead, since no usage chunk is long.
 */
import type { Usage } from "../wire/admission.ts";
import { isUsageChunk } from "./chat-chunk.ts";
import type { AnsweredToolCall, CuttingTap, TapFindings } from "./inspection.ts";
import { StreamTap } from "./stream-tap.ts";

type Emit = (buffer: Buffer, start: number, end: number) => void;

/** An event longer than this is not cut. */
const CUT_BYTES_MAX = 8_192;

/** A tap on a stream whose request was spliced. */
export function createCuttingTap(): CuttingTap {
  return new CuttingStreamTap();
}

class CuttingStreamTap implements CuttingTap, TapFindings {
  /** Events of the running push to take out: starts and ends alternating, as positions in it. */
  #cuts: number[] = [];
  /** The running event, of which nothing was passed on; undefined when there is none or it is on its way. */
  #held: string | undefined;
  #ending = false;
  readonly #tap = new StreamTap((chunk, start, end) => {
    if (!this.#ending) this.#ending = this.#tap.finishReason !== undefined;
    else if (end - start <= CUT_BYTES_MAX && isUsageChunk(chunk)) this.#cuts.push(start, end);
  });

  get findings(): TapFindings {
    return this;
  }

  get started(): boolean {
    return this.#tap.started;
  }

  get failed(): boolean {
    return this.#tap.failed;
  }

  get usage(): Usage {
    return this.#tap.usage;
  }

  get finishReason(): string | undefined {
    return this.#tap.finishReason;
  }

  get toolCalls(): readonly AnsweredToolCall[] {
    return this.#tap.toolCalls;
  }

  get responseId(): string | undefined {
    return this.#tap.responseId;
  }

  get terminal(): boolean {
    return this.#tap.terminal;
  }

  get skipped(): number {
    return this.#tap.skipped;
  }

  /** What is held has not reached the client: for it the last event is whole. */
  get betweenEvents(): boolean {
    return this.#held !== undefined || this.#tap.betweenEvents;
  }

  push(buffer: Buffer, start: number, end: number, emit: Emit): void {
    const text = buffer.toString("latin1", start, end);
    this.#tap.pushText(text);
    if (!this.#ending) {
      emit(buffer, start, end);
      return;
    }
    const partial = this.#tap.partialBytes ?? 0;
    if (partial > text.length) {
      this.#growHeld(text, emit);
      return;
    }
    this.#releaseHeld(emit);
    // The running event began in this push: it is held if it can still be cut.
    const holds = partial > 0 && partial <= CUT_BYTES_MAX;
    const to = holds ? text.length - partial : text.length;
    this.#passBetweenCuts(buffer, start, to, emit);
    this.#held = holds ? text.slice(to) : undefined;
  }

  finish(emit: Emit): void {
    this.#tap.finish();
    this.#releaseHeld(emit);
    this.#cuts = [];
  }

  /** The whole push belongs to an event that began before it. */
  #growHeld(text: string, emit: Emit): void {
    if (this.#held !== undefined && this.#held.length + text.length <= CUT_BYTES_MAX) {
      this.#held += text;
      return;
    }
    const bytes = Buffer.from((this.#held ?? "") + text, "latin1");
    this.#held = undefined;
    emit(bytes, 0, bytes.length);
  }

  /** The held event is whole, or ends with the stream: passes it on unless it is cut. */
  #releaseHeld(emit: Emit): void {
    const held = this.#held;
    this.#held = undefined;
    if (held === undefined || (this.#cuts[0] ?? 0) < 0) return;
    const bytes = Buffer.from(held, "latin1");
    emit(bytes, 0, bytes.length);
  }

  /** Passes on the push up to `to`, without what is cut. A cut that began earlier was held, or is too late to make. */
  #passBetweenCuts(buffer: Buffer, start: number, to: number, emit: Emit): void {
    let from = 0;
    for (let at = 0; at < this.#cuts.length; at += 2) {
      const cutStart = Math.max(0, this.#cuts[at] ?? 0);
      if (cutStart > from) emit(buffer, start + from, start + cutStart);
      from = this.#cuts[at + 1] ?? from;
    }
    if (to > from) emit(buffer, start + from, start + to);
    this.#cuts = [];
  }
}
