/**
 * A stream tap that also takes out the usage chunk which only our splice asked for (spec 3, Forwarding). Everything else
 * passes byte for byte and at once. Only after a finish reason, when nothing but the end can follow, a partial event is
 * held until it is whole.
 *
 * C1: bytes out = bytes in without the events that are cut.
 * C2: before a finish reason was seen nothing is held back.
 */
import type { CuttingTap, TapFindings } from "./inspection.ts";
import { isUsageChunk } from "./chat-chunk.ts";
import { eventData, eventEnd, eventJson } from "./sse-events.ts";
import { createStreamTap } from "./stream-tap.ts";

type Emit = (buffer: Buffer, start: number, end: number) => void;

/** A read that holds the end of an answer, or usage: only then events have to be told apart. */
const ENDING = /"(?:finish_reason"\s*:\s*"|usage"\s*:\s*\{)/;
/** A held event larger than this is passed on: no usage chunk is. */
const HELD_CHARS_MAX = 65_536;

export function createCuttingTap(): CuttingTap {
  const tap = createStreamTap();
  /** A partial event after the finish reason, not passed on yet. */
  let held = "";
  /** Part of the running event was passed on: it cannot be cut any more. */
  let open = false;

  /** Passes on a text of whole events and a partial one, without what is cut. */
  const sort = (text: string, buffer: Buffer, start: number, emit: Emit): void => {
    let from = 0;
    let pending = 0;
    if (open) {
      const end = eventEnd(text, 0);
      if (end === -1) {
        emit(buffer, start, start + text.length);
        return;
      }
      from = end;
      open = false;
    }
    for (let end = eventEnd(text, from); end !== -1; end = eventEnd(text, from)) {
      if (isCut(text.slice(from, end))) {
        if (from > pending) emit(buffer, start + pending, start + from);
        pending = end;
      }
      from = end;
    }
    const holds = tap.finishReason !== undefined && text.length - from <= HELD_CHARS_MAX;
    held = holds ? text.slice(from) : "";
    const to = holds ? from : text.length;
    if (to > pending) emit(buffer, start + pending, start + to);
    open = !holds && from < text.length;
  };

  return {
    push(buffer, start, end, emit) {
      const wasBetween = tap.betweenEvents;
      tap.push(buffer, start, end);
      if (held !== "") {
        const text = held + buffer.toString("latin1", start, end);
        held = "";
        sort(text, Buffer.from(text, "latin1"), 0, emit);
        return;
      }
      if (tap.finishReason === undefined && !ENDING.test(buffer.toString("latin1", start, end))) {
        open = !tap.betweenEvents;
        emit(buffer, start, end);
        return;
      }
      open = !wasBetween;
      sort(buffer.toString("latin1", start, end), buffer, start, emit);
    },
    finish(emit) {
      tap.finish();
      if (held === "") return;
      const bytes = Buffer.from(held, "latin1");
      if (!isCut(held)) emit(bytes, 0, bytes.length);
      held = "";
    },
    get findings(): TapFindings {
      return {
        started: tap.started,
        usage: tap.usage,
        finishReason: tap.finishReason,
        toolCalls: tap.toolCalls,
        responseId: tap.responseId,
        terminal: tap.terminal,
        skipped: tap.skipped,
        // What is held has not reached the client: for it the last event is whole.
        betweenEvents: held !== "" || tap.betweenEvents,
      };
    },
  };
}

function isCut(event: string): boolean {
  if (!event.includes('"usage"')) return false;
  const data = eventData(event);
  return data !== undefined && isUsageChunk(eventJson(data));
}
