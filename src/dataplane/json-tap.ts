/** Looks at a whole JSON answer of a turn: kept up to a bound and parsed at its end; of a larger one only the end is read. */
import { ChatChunks } from "./chat-chunk.ts";
import type { Tap, TapFindings } from "./inspection.ts";

const BODY_BYTES_MAX = 1_048_576;
const TAIL_CHARS = 16_384;
/** Usage stands behind the choices in every engine's answer. */
const USAGE = /"usage"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})/;
const FINISH = /"finish_reason"\s*:\s*"([^"\\]*)"/;

export function createJsonTap(): Tap {
  const chunks = new ChatChunks();
  let parts: Buffer[] = [];
  let bytes = 0;
  let tail = "";
  let skipped = 0;

  const large = (text: string): void => {
    tail = (tail + text).slice(-TAIL_CHARS);
  };

  const readTail = (): void => {
    const usage = USAGE.exec(tail)?.[1];
    const finishReason = FINISH.exec(tail)?.[1];
    try {
      if (usage !== undefined) chunks.take({ usage: JSON.parse(usage) as unknown });
    } catch {
      // Not usage after all; the answer itself has passed unchanged.
    }
    if (finishReason !== undefined) chunks.finishReason = finishReason;
  };

  return {
    push(buffer, start, end) {
      chunks.started = true;
      bytes += end - start;
      if (bytes > BODY_BYTES_MAX) {
        if (skipped === 0) {
          skipped = 1;
          for (const part of parts) large(part.toString("latin1"));
          parts = [];
        }
        large(buffer.toString("latin1", start, end));
        return;
      }
      parts.push(Buffer.from(buffer.subarray(start, end)));
    },
    finish() {
      if (skipped > 0) {
        readTail();
        return;
      }
      try {
        chunks.take(JSON.parse(Buffer.concat(parts).toString("utf8")) as unknown);
      } catch {
        // Whatever the engine sent went to the client as it is; there is nothing to learn from it.
      }
      parts = [];
    },
    get findings(): TapFindings {
      const { started, usage, finishReason, toolCalls, responseId } = chunks;
      return { started, usage, finishReason, toolCalls, responseId, terminal: true, betweenEvents: false, skipped };
    },
  };
}
