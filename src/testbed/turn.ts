/**
 * One turn at the simulated engine, from its body to the last byte of its answer.
 *
 * T1: a turn is in `open` from its submission to its `finished` or `aborted` event, and nowhere else.
 * T2: all that a step gives a turn leaves in one write (see response-writer.ts).
 */
import type { EngineEvent } from "../engine/index.ts";
import { createAnswerShape } from "./answer-shape.ts";
import type { AnswerShape } from "./answer-shape.ts";
import { faultNumber } from "./faults.ts";
import type { FaultSet } from "./faults.ts";
import type { ResolvedOptions } from "./options.ts";
import type { MutableRecord, Recorder } from "./recorder.ts";
import type { ResponseWriter } from "./response-writer.ts";
import type { TurnRequest } from "./turn-request.ts";

export type OpenTurn = {
  readonly id: string;
  readonly clientId: string | undefined;
  readonly request: TurnRequest;
  readonly faults: FaultSet;
  readonly shape: AnswerShape;
  readonly writer: ResponseWriter;
  readonly record: MutableRecord;
  /** Tokens whose chunks were written. */
  sent: number;
  generated: number;
  cachedTokens: number;
  ended: "finished" | "aborted" | undefined;
  /** Stopped by `/abort_request`: the client is still there and gets an end. */
  stopped: boolean;
};

export const JSON_HEADERS = { "content-type": "application/json" } as const;
export const STREAM_HEADERS = { "content-type": "text/event-stream; charset=utf-8" } as const;

/** Makes the turn that a request becomes; the caller submits it. */
export function createTurn(options: {
  readonly options: ResolvedOptions;
  readonly request: TurnRequest;
  readonly faults: FaultSet;
  readonly writer: ResponseWriter;
  readonly record: MutableRecord;
  readonly id: string;
  readonly callId: () => string;
}): OpenTurn {
  const { request, faults, writer, record, id, callId } = options;
  const shape = createAnswerShape({
    dialect: options.options.dialect,
    faults,
    request,
    id,
    createdSeconds: Math.floor(Date.now() / 1_000),
    cachedTokens: options.options.cachedTokens,
    callId,
  });
  record.promptTokens = request.promptTokens;
  record.priority = request.priority;
  return {
    id,
    clientId: request.clientId,
    request,
    faults,
    shape,
    writer,
    record,
    sent: 0,
    generated: 0,
    cachedTokens: 0,
    ended: undefined,
    stopped: false,
  };
}

/** Books the events of one delivery and writes what they give each turn. */
export function deliver(
  events: readonly EngineEvent[],
  open: Map<string, OpenTurn>,
  parts: { readonly recorder: Recorder; readonly nextAdmission: () => number },
): void {
  const touched = new Set<OpenTurn>();
  for (const event of events) {
    const turn = open.get(event.id);
    if (turn === undefined) continue;
    switch (event.kind) {
      case "admitted":
        if (turn.record.admission !== undefined) break;
        turn.record.admission = parts.nextAdmission();
        turn.cachedTokens = event.cachedTokens;
        turn.record.cachedTokens = event.cachedTokens;
        parts.recorder.onChange?.();
        break;
      case "token":
        turn.generated = event.generated;
        turn.record.generatedTokens = event.generated;
        touched.add(turn);
        break;
      case "finished":
      case "aborted":
        turn.ended = event.kind;
        open.delete(turn.id); // T1
        touched.add(turn);
        break;
      default: // a preemption shows as a pause only
    }
  }
  for (const turn of touched) write(turn, parts.recorder);
}

function write(turn: OpenTurn, recorder: Recorder): void {
  const { writer, request, shape, generated, cachedTokens } = turn;
  const reason = turn.ended === "aborted" ? "abort" : request.answer.finish;
  if (turn.ended !== undefined) turn.record.status ??= 200;
  // A turn that is being stopped may still get tokens: the step in flight ends before the abort does.
  const answers = turn.ended === "finished" || (turn.ended === "aborted" && turn.stopped);
  if (!request.stream) {
    if (answers) writer.whole(200, JSON_HEADERS, shape.whole(reason, generated, cachedTokens));
  } else if (turn.ended !== "aborted" || answers) {
    writer.begin(200, STREAM_HEADERS, false);
    turn.record.status ??= 200;
    for (const chunk of shape.tokens(turn.sent, generated)) writer.event(chunk);
    turn.sent = generated;
    if (answers) finishStream(turn, reason);
    else writer.flush();
  }
  if (turn.ended !== undefined) recorder.settle(turn.record, turn.ended);
  else recorder.onChange?.();
}

function finishStream(turn: OpenTurn, reason: string): void {
  const { writer, shape, generated, cachedTokens, faults } = turn;
  for (const chunk of shape.finish(reason, generated, cachedTokens)) writer.event(chunk);
  if (!faults.has("no-done")) writer.event("[DONE]");
  writer.end();
}

/** The engine request of a turn. */
export function engineRequestOf(turn: OpenTurn): {
  readonly id: string;
  readonly blockHashes: Float64Array;
  readonly promptTokens: number;
  readonly outputTokens: number;
  readonly maxTokens: number;
  readonly priority: number;
  readonly stallAfterTokens?: number;
} {
  const { request } = turn;
  const stall = faultNumber(turn.faults, "stall");
  return {
    id: turn.id,
    blockHashes: request.blockHashes,
    promptTokens: request.promptTokens,
    outputTokens: request.answer.parts.length,
    maxTokens: request.maxTokens,
    priority: request.priority,
    ...(stall === undefined ? {} : { stallAfterTokens: stall }),
  };
}
