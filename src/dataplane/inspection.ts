/**
 * What the dataplane reads out of requests and answers, as types. The bytes themselves pass unchanged:
 * the readers look, they never rewrite (spec 3, Forwarding).
 */
import type { IdentityKey, Usage } from "../wire/admission.ts";

/** Byte range [start, end) in a request body. */
export type ByteRange = { readonly start: number; readonly end: number };

/** One element of `messages`. */
export type ScannedMessage = ByteRange & { readonly role: string };

/** A tool call of the last assistant message, as the client echoes it. `arguments` is the text as sent. */
export type EchoedToolCall = { readonly id: string; readonly name: string; readonly arguments: string };

/** A tool call of an answer. `choice`: the index of the choice that it is in; a client goes on with one of them. */
export type AnsweredToolCall = EchoedToolCall & { readonly choice: number };

/** What one pass over the body of a turn finds. Duplicate top-level keys: the last one counts, as in JSON.parse. */
export type RequestScan = {
  readonly model: string;
  readonly stream: boolean;
  /** The client asked for usage on the stream itself: nothing is cut. */
  readonly includeUsage: boolean;
  /** The value of a top-level `stream_options`, whatever it is, where one stands. */
  readonly streamOptions: ByteRange | undefined;
  /** The values of a top-level `tools` and `priority`, whatever they are, where they stand. */
  readonly tools: ByteRange | undefined;
  readonly priority: ByteRange | undefined;
  /** The whole top-level object, for insertions before its `}`. */
  readonly root: ByteRange;
  /** None when there are more than are kept (request-scan.ts). */
  readonly messages: readonly ScannedMessage[];
  readonly lastToolCalls: readonly EchoedToolCall[];
};

export type ScanProblem = {
  readonly code: "invalid_json" | "missing_model";
  /** For the client: what is wrong, where, how to mend it. */
  readonly message: string;
  readonly param?: string;
};

/** What the tap has found so far. */
export type TapFindings = {
  /** First content byte seen: text, reasoning or a tool call, not the role chunk, not a comment. */
  readonly started: boolean;
  readonly usage: Usage;
  /** The engine said inside its answer that it failed (an `error` in a chunk or in the body). */
  readonly failed: boolean;
  /** Last one seen. */
  readonly finishReason: string | undefined;
  /** Complete at the end of the answer only. */
  readonly toolCalls: readonly AnsweredToolCall[];
  readonly responseId: string | undefined;
  /** The API's own terminal event was seen (`[DONE]`, `message_stop`, `response.completed` …). */
  readonly terminal: boolean;
  /** The last byte that was passed on ended an SSE event: an event of ours may stand here. */
  readonly betweenEvents: boolean;
  /** Parts of the answer that were too large to look into. */
  readonly skipped: number;
};

/**
 * Looks at the payload of one answer. Never throws, never buffers the stream (it carries at most one partial event,
 * bounded; a larger event is skipped and counted), never slows it.
 */
export type Tap = {
  push(buffer: Buffer, start: number, end: number): void;
  /** After the last byte: resolves what needed the whole answer. */
  finish(): void;
  readonly findings: TapFindings;
};

/**
 * A tap that also takes out the usage chunk which only our splice asked for. `push` gives the bytes to pass on
 * to `emit`, in order; a partial event at the very end of a stream may be given later, by `finish` at the latest.
 */
export type CuttingTap = {
  push(buffer: Buffer, start: number, end: number, emit: (buffer: Buffer, start: number, end: number) => void): void;
  finish(emit: (buffer: Buffer, start: number, end: number) => void): void;
  readonly findings: TapFindings;
};

/** Keys of a request (to look up) and of its answer (to remember), made by run-identity. */
export type IdentityKeys = readonly IdentityKey[];
