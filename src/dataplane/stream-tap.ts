/**
 * Looks at a stream of chat or text completion chunks while its bytes pass (spec 3, Answers). One Latin-1 text and one
 * regex per read on the common path; only events that the regex marks are parsed, and those before the first content.
 * It does not change, delay or keep the stream: whoever calls it passes the bytes on.
 *
 * S1: never throws, and never keeps more than one partial event, bounded; a larger one is skipped and counted.
 * S2: what it finds does not depend on how the bytes are split over reads.
 */
import type { Usage } from "../wire/admission.ts";
import { ChatChunks } from "./chat-chunk.ts";
import type { AnsweredToolCall, Tap, TapFindings } from "./inspection.ts";
import { EVENT_END_CHARS, eventData, eventEnd, eventJson, lastEventEnd, skipLineEnds } from "./sse-events.ts";

/** An event that may say more than text. Quotes inside content are escaped, so content never looks like this. */
const MARKED =
  /"(?:tool_calls"\s*:\s*(?:\[\s*\{|\{)|finish_reason"\s*:\s*"|usage"\s*:\s*\{|timings"\s*:\s*\{|error"\s*:\s*[{"])|\[DONE\]/;

/** Largest event that is looked into. */
const EVENT_CHARS_MAX = 262_144;

const BYTE_ORDER_MARK = "\u00ef\u00bb\u00bf";

/**
 * Called for every event that was parsed, in order. Positions are those of the text that is being pushed; an event that
 * began in an earlier push has a negative start.
 */
export type OnChunk = (chunk: unknown, start: number, end: number) => void;

/** A tap on one stream of chat or text completion chunks. */
export function createStreamTap(): Tap {
  return new StreamTap();
}

export class StreamTap implements Tap, TapFindings {
  terminal = false;
  skipped = 0;
  readonly #chunks = new ChatChunks();
  readonly #onChunk: OnChunk | undefined;
  /** The event that is not whole yet. Grows as a rope: it is searched only where it grew. */
  #carry = "";
  /** The end of the carry, where an event end can begin. */
  #tail = "";
  /** The running event is too large to be looked into. */
  #skipping = false;
  #atStart = true;

  constructor(onChunk?: OnChunk) {
    this.#onChunk = onChunk;
  }

  get findings(): TapFindings {
    return this;
  }

  get started(): boolean {
    return this.#chunks.started;
  }

  get failed(): boolean {
    return this.#chunks.failed;
  }

  get usage(): Usage {
    return this.#chunks.usage;
  }

  get finishReason(): string | undefined {
    return this.#chunks.finishReason;
  }

  get toolCalls(): readonly AnsweredToolCall[] {
    return this.#chunks.toolCalls;
  }

  get responseId(): string | undefined {
    return this.#chunks.responseId;
  }

  get betweenEvents(): boolean {
    return this.#carry === "" && !this.#skipping;
  }

  /** Bytes of the running event that is not whole yet; undefined for one that is skipped. */
  get partialBytes(): number | undefined {
    return this.#skipping ? undefined : this.#carry.length;
  }

  push(buffer: Buffer, start: number, end: number): void {
    this.pushText(buffer.toString("latin1", start, end));
  }

  /** As `push`, for bytes that were read as Latin-1 already. */
  pushText(text: string): void {
    if (this.#carry === "" && !this.#skipping) {
      this.#pushFrom(text, 0);
      return;
    }
    // Only the seam and the new text can hold the end of the carried event.
    const endAt = eventEnd(this.#tail + text, 0);
    if (endAt === -1) {
      this.#keep(text);
      return;
    }
    const used = endAt - this.#tail.length;
    if (!this.#skipping) this.#look(this.#carry + text.slice(0, used), -this.#carry.length);
    this.#carry = "";
    this.#tail = "";
    this.#skipping = false;
    this.#pushFrom(text, used);
  }

  finish(): void {
    if (!this.#skipping && this.#carry !== "") this.#look(this.#carry, -this.#carry.length);
    this.#carry = "";
    this.#tail = "";
  }

  /** Takes a text from a position that lies between events. */
  #pushFrom(text: string, from: number): void {
    const rest = from === 0 ? text : text.slice(from);
    if (rest.endsWith("\n\n") && !rest.includes("\r")) {
      this.#look(rest, from);
      return;
    }
    const last = lastEventEnd(rest);
    if (last > 0) this.#look(rest.slice(0, last), from);
    this.#keep(rest.slice(skipLineEnds(rest, last)));
  }

  #keep(text: string): void {
    if (text === "") return;
    if (this.#skipping || this.#carry.length + text.length > EVENT_CHARS_MAX) {
      if (!this.#skipping) this.skipped += 1;
      this.#skipping = true;
      this.#carry = "";
    } else {
      this.#carry += text;
    }
    this.#tail = (this.#tail + text).slice(-EVENT_END_CHARS);
  }

  /** Looks at a text of whole events that begins at `base` of what is being pushed. */
  #look(text: string, base: number): void {
    if (this.started && text.length <= EVENT_CHARS_MAX && !MARKED.test(text)) return;
    for (let from = skipLineEnds(text, 0); from < text.length;) {
      const at = eventEnd(text, from);
      const to = at === -1 ? text.length : at;
      this.#event(text.slice(from, to), base + from, base + to);
      from = skipLineEnds(text, to);
    }
  }

  #event(text: string, start: number, end: number): void {
    // One that is whole within a read is skipped like one that is not: S2.
    if (text.length > EVENT_CHARS_MAX) {
      this.skipped += 1;
      return;
    }
    const event = this.#atStart && text.startsWith(BYTE_ORDER_MARK) ? text.slice(BYTE_ORDER_MARK.length) : text;
    this.#atStart = false;
    if (this.started && !MARKED.test(event)) return;
    const data = eventData(event);
    if (data === undefined) return;
    if (data === "[DONE]") {
      this.terminal = true;
      return;
    }
    const chunk = eventJson(data);
    this.#chunks.take(chunk);
    this.#onChunk?.(chunk, start, end);
  }
}
