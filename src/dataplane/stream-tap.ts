/**
 * Looks at a stream of chat or text completion chunks while its bytes pass (spec 3, Answers). One Latin-1 slice and one
 * regex per read on the common path; only events that the regex marks are parsed.
 *
 * S1: never throws and never keeps more than one partial event, bounded; a larger one is skipped and counted.
 * S2: what it finds does not depend on how the bytes are split over reads.
 */
import { ChatChunks } from "./chat-chunk.ts";
import type { EchoedToolCall, Tap, TapFindings } from "./inspection.ts";
import { eventData, eventEnd, eventJson } from "./sse-events.ts";
import type { Usage } from "../wire/admission.ts";

/** An event that may say more than text. Quotes inside content are escaped, so content never looks like this. */
const MARKED =
  /"(?:tool_calls"\s*:\s*(?:\[\s*\{|\{)|finish_reason"\s*:\s*"|usage"\s*:\s*\{|timings"\s*:\s*\{)|\[DONE\]/;

const EVENT_CHARS_MAX = 262_144;

export function createStreamTap(): StreamTap {
  return new StreamTap();
}

export class StreamTap implements Tap, TapFindings {
  terminal = false;
  /** Events that were too large to look into. */
  skipped = 0;
  readonly #chunks = new ChatChunks();
  /** The event that is not whole yet. Grows as a rope: it is searched only where it grew. */
  #carry = "";
  /** The end of the carry, where an event end can begin. */
  #tail = "";
  #skipping = false;

  get findings(): TapFindings {
    return this;
  }

  get started(): boolean {
    return this.#chunks.started;
  }

  get usage(): Usage {
    return this.#chunks.usage;
  }

  get finishReason(): string | undefined {
    return this.#chunks.finishReason;
  }

  get toolCalls(): readonly EchoedToolCall[] {
    return this.#chunks.toolCalls;
  }

  get responseId(): string | undefined {
    return this.#chunks.responseId;
  }

  get betweenEvents(): boolean {
    return this.#carry === "" && !this.#skipping;
  }

  push(buffer: Buffer, start: number, end: number): void {
    let text = buffer.toString("latin1", start, end);
    if (this.#carry === "" && !this.#skipping) {
      if (text.endsWith("\n\n") && !text.includes("\r")) {
        this.#whole(text);
        return;
      }
      text = this.#split(text);
      this.#keep(text);
      return;
    }
    // Only the seam and the new text can hold the end of the carried event.
    const seam = this.#tail + text;
    const endAt = eventEnd(seam, 0);
    if (endAt === -1) {
      this.#keep(text);
      return;
    }
    const used = endAt - this.#tail.length;
    if (!this.#skipping) this.#whole(this.#carry + text.slice(0, used));
    this.#carry = "";
    this.#tail = "";
    this.#skipping = false;
    this.#keep(this.#split(text.slice(used)));
  }

  finish(): void {
    if (!this.#skipping && this.#carry !== "") this.#whole(this.#carry);
    this.#carry = "";
  }

  /** Takes the whole events at the front of a text; returns the partial one behind them. */
  #split(text: string): string {
    let last = 0;
    for (let at = eventEnd(text, 0); at !== -1; at = eventEnd(text, last)) last = at;
    if (last > 0) this.#whole(text.slice(0, last));
    return last === 0 ? text : text.slice(last);
  }

  #keep(text: string): void {
    // Line ends between events belong to none.
    const added = this.#carry === "" && !this.#skipping ? text.replace(/^[\r\n]+/, "") : text;
    if (added === "") return;
    if (this.#skipping || this.#carry.length + added.length > EVENT_CHARS_MAX) {
      if (!this.#skipping) this.skipped += 1;
      this.#skipping = true;
      this.#carry = "";
    } else {
      this.#carry += added;
    }
    this.#tail = (this.#tail + added).slice(-3);
  }

  /** Looks at a text of whole events. */
  #whole(text: string): void {
    if (this.started && !MARKED.test(text)) return;
    let from = 0;
    while (from < text.length) {
      const at = eventEnd(text, from);
      const to = at === -1 ? text.length : at;
      this.#event(text.slice(from, to));
      from = to;
    }
  }

  #event(event: string): void {
    if (this.started && !MARKED.test(event)) return;
    const data = eventData(event);
    if (data === undefined) return;
    if (data === "[DONE]") this.terminal = true;
    else this.#chunks.take(eventJson(data));
  }
}
