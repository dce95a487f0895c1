/**
 * Looks at a whole JSON answer of a turn: kept up to a bound and parsed at its end. Of a larger one only the parts that
 * say something are kept, found by their keys while the bytes pass; a quote inside a string is escaped, so content never
 * looks like one of these keys.
 *
 * J1: never throws, and keeps at most BODY_BYTES_MAX of an answer.
 * J2: what it finds does not depend on how the bytes are split.
 */
import type { Usage } from "../wire/admission.ts";
import { ChatChunks } from "./chat-chunk.ts";
import type { AnsweredToolCall, Tap, TapFindings } from "./inspection.ts";
import { JsonProblem, JsonScan } from "./json-scan.ts";

/** Larger bodies would stop every other turn for milliseconds while they are parsed. */
const BODY_BYTES_MAX = 1_048_576;
/** Of a value that is kept out of a larger one. */
const VALUE_BYTES_MAX = 262_144;

/** @param lengthBytes what the answer's content-length says; one that is here in one piece is never copied. */
export function createJsonTap(lengthBytes?: number): Tap {
  return new JsonTap(lengthBytes);
}

class JsonTap implements Tap, TapFindings {
  /** A body ends with its last byte, whose arrival the HTTP framing tells. */
  readonly terminal = true;
  readonly betweenEvents = false;
  readonly #chunks = new ChatChunks();
  readonly #lengthBytes: number | undefined;
  #parts: Buffer[] = [];
  #bytes = 0;
  #large: LargeBody | undefined;

  constructor(lengthBytes: number | undefined) {
    this.#lengthBytes = lengthBytes;
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

  get skipped(): number {
    return this.#large === undefined ? 0 : 1;
  }

  push(buffer: Buffer, start: number, end: number): void {
    this.#chunks.started = true;
    this.#bytes += end - start;
    if (end - start === this.#lengthBytes && this.#bytes <= BODY_BYTES_MAX) {
      this.#chunks.take(parsed(buffer.subarray(start, end)));
      return;
    }
    if (this.#large === undefined && this.#bytes > BODY_BYTES_MAX) {
      this.#large = new LargeBody();
      for (const part of this.#parts) this.#large.push(part.toString("latin1"));
      this.#parts = [];
    }
    if (this.#large === undefined) this.#parts.push(Buffer.from(buffer.subarray(start, end)));
    else this.#large.push(buffer.toString("latin1", start, end));
  }

  finish(): void {
    if (this.#large !== undefined) this.#large.finish(this.#chunks);
    else if (this.#parts.length > 0) this.#chunks.take(parsed(Buffer.concat(this.#parts)));
    this.#parts = [];
  }
}

/** What begins a part that says something. The first of each counts: an answer has one usage, and one choice as a rule. */
const KEYS = [
  { name: "usage", begins: /"usage"\s*:\s*(?=\{)/ },
  { name: "timings", begins: /"timings"\s*:\s*(?=\{)/ },
  { name: "tool_calls", begins: /"tool_calls"\s*:\s*(?=\[\s*\{)/ },
  { name: "finish_reason", begins: /"finish_reason"\s*:\s*(?=")/ },
] as const;
/** A key, its colon and white space around it; more white space than that is not looked through. */
const KEY_CHARS_MAX = 256;

type Kept = { readonly name: (typeof KEYS)[number]["name"]; text: string };

class LargeBody {
  readonly #kept: Kept[] = [];
  readonly #missing = new Set(KEYS);
  #tail = "";

  push(text: string): void {
    for (const kept of this.#kept) if (kept.text.length < VALUE_BYTES_MAX) kept.text += text;
    const seam = this.#tail + text;
    for (const key of this.#missing) {
      const match = key.begins.exec(seam);
      if (match === null) continue;
      this.#missing.delete(key);
      this.#kept.push({ name: key.name, text: seam.slice(match.index + match[0].length) });
    }
    this.#tail = seam.slice(-KEY_CHARS_MAX);
  }

  finish(chunks: ChatChunks): void {
    const found: { [Name in Kept["name"]]?: unknown } = {};
    for (const { name, text } of this.#kept) found[name] = valueAtStart(text);
    const { usage, timings, tool_calls, finish_reason } = found;
    chunks.take({ usage, timings, choices: [{ finish_reason, message: { tool_calls } }] });
  }
}

/** The JSON value with which a text begins; undefined where it does not end within what was kept. */
function valueAtStart(text: string): unknown {
  const bytes = Buffer.from(text.slice(0, VALUE_BYTES_MAX), "latin1");
  const cursor = new JsonScan(bytes);
  try {
    cursor.value(0);
  } catch (error) {
    if (error instanceof JsonProblem) return undefined;
    throw error;
  }
  return parsed(bytes.subarray(0, cursor.at));
}

function parsed(bytes: Buffer): unknown {
  try {
    return JSON.parse(bytes.toString("utf8")) as unknown;
  } catch {
    // Whatever the engine sent has gone to the client as it is; there is nothing to learn from it.
    return undefined;
  }
}
