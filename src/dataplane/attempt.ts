/**
 * One attempt at an engine, from the admission to the head of its answer: what is sent, and what the head means.
 * The body that follows is `relay.ts`.
 */
import type { EngineFailure, EngineHead } from "../http/index.ts";
import { answerKind, copyEngineHeaders, headerOf, turnHeaders, type AnswerKind } from "./answer-headers.ts";
import { createCuttingTap } from "./cutting-tap.ts";
import { finishWithError, stopPhase } from "./finish.ts";
import { enterHeld, keepSigns, watchHeld } from "./hold.ts";
import { createJsonTap } from "./json-tap.ts";
import { engineOf, holdsBackpressure, type Replica } from "./pool.ts";
import { emitter } from "./relay.ts";
import { attemptHeaders } from "./request-headers.ts";
import { spliceRequest, USAGE_SPLICE } from "./splice.ts";
import { createStreamTap } from "./stream-tap.ts";
import type { AnsweringPhase, AttemptPhase, Relay, Turn } from "./turn-state.ts";

const NONE: readonly string[] = [];

/**
 * Sends the turn to the engine that it was admitted to.
 * @param priority what the engine is told; undefined: nothing.
 */
export function startAttempt(turn: Turn, replica: Replica, priority: number | undefined): void {
  const { host, exchange, body } = turn;
  if (body === undefined) return;
  stopPhase(turn);
  const { config, target } = replica;
  const { body: bytes, spliced } = config.splice
    ? spliceRequest(body.bytes, body.splicePlace, priority)
    : { body: body.bytes, spliced: NONE };
  turn.spliced = spliced.length === 0 ? undefined : spliced.join(", ");
  turn.usageAsked = spliced.includes(USAGE_SPLICE);
  turn.replica = config.name;
  const request = {
    method: "POST",
    path: target.basePath + exchange.path + exchange.query,
    headers: attemptHeaders({
      rawHeaders: exchange.rawHeaders,
      hosted: engineOf(replica) === "hosted",
      forwardHeaders: config.forwardHeaders,
      apiKey: config.apiKey,
      hop: host.hop,
    }),
    body: bytes as Uint8Array | undefined,
  };
  const phase: AttemptPhase = { kind: "attempt", replica, sent: request, call: undefined, stop: undefined };
  turn.phase = phase;
  const call = host.engineClient.call(target, request, turn);
  phase.call = call;
  if (turn.phase !== phase) call.abort();
  else keepSigns(turn, phase);
}

/** The head of the engine's answer is here: from now on the turn stays with this engine, unless it refuses it. */
export function takeHead(turn: Turn, head: EngineHead): void {
  const { phase, exchange, host } = turn;
  if (phase.kind !== "attempt" || phase.call === undefined) return;
  const { status } = head;
  const refused = status === 429 || status === 503;
  // After an early 200 a refusal could only become an error in the stream: holding again serves the client better.
  if (refused && (holdsBackpressure(phase.replica) || exchange.begun)) {
    pushBack(turn, phase, head);
    return;
  }
  if (status < 200 || status >= 300) {
    takeErrorHead(turn, phase, head);
    return;
  }
  const kind = answerKind(head.rawHeaders);
  if (exchange.begun && !kind.sse) {
    host.metrics.engineError(phase.replica.config.name, "lost");
    finishWithError(turn, {
      code: "engine_lost",
      message: `engine ${phase.replica.config.name}: answered a stream with something else`,
    });
    return;
  }
  // A stream is delimited by its chunks, whatever length the engine announces.
  const streams = kind.sse || head.lengthBytes === undefined;
  answer(turn, phase, relayFor(turn, head, kind, streams), kind.sse && !kind.encoded);
  if (!exchange.begun) begin(turn, head, kind, streams);
}

function relayFor(turn: Turn, head: EngineHead, kind: AnswerKind, streams: boolean): Relay {
  if (kind.encoded) return { kind: "plain", tap: undefined };
  if (!kind.sse) return { kind: "plain", tap: createJsonTap(head.lengthBytes) };
  if (turn.usageAsked) return { kind: "cut", tap: createCuttingTap(), emit: emitter(turn, head.framed) };
  const tap = createStreamTap();
  return streams && head.framed && turn.exchange.takesFrames
    ? { kind: "framed", tap, held: undefined }
    : { kind: "plain", tap };
}

/** An engine's error passes through byte for byte; the scheduler hears at once, since the engine works on nothing. */
function takeErrorHead(turn: Turn, phase: AttemptPhase, head: EngineHead): void {
  const { exchange, host } = turn;
  host.metrics.engineError(phase.replica.config.name, head.status >= 500 ? "5xx" : "4xx");
  if (!turn.reportedStart) host.admissions.started(turn);
  turn.reportedStart = true;
  turn.reportedError = true;
  host.admissions.failed(turn, "engine-error");
  if (exchange.begun) {
    answer(turn, phase, { kind: "collect", status: head.status, parts: [], bytes: 0 }, false);
    return;
  }
  const kind = answerKind(head.rawHeaders);
  answer(turn, phase, { kind: "plain", tap: undefined }, false);
  begin(turn, head, kind, kind.sse || head.lengthBytes === undefined);
}

function answer(turn: Turn, phase: AttemptPhase, relay: Relay, sse: boolean): void {
  const { replica, call, sent, stop } = phase;
  if (call === undefined) return;
  const answering: AnsweringPhase = { kind: "answering", replica, call, relay, sse, stop: undefined, bodyBegun: false };
  stop?.();
  turn.phase = answering;
  // Nothing is sent again from here on: a long answer must not keep a large request in memory.
  turn.body = undefined;
  sent.body = undefined;
  turn.exchange.onDrain = turn.onDrain;
  keepSigns(turn, answering);
}

function begin(turn: Turn, head: EngineHead, kind: AnswerKind, streams: boolean): void {
  const headers = turnHeaders({
    run: turn.run,
    source: turn.source,
    replica: turn.replica,
    loweredClass: turn.lowered ? turn.class : undefined,
    spliced: turn.spliced,
  });
  copyEngineHeaders(headers, head.rawHeaders, kind.sse);
  const { status, lengthBytes = 0 } = head;
  if (status === 204 || status === 304) turn.exchange.begin(status, headers, { kind: "none" });
  else if (streams) turn.exchange.begin(status, headers, { kind: "stream" });
  else turn.exchange.begin(status, headers, { kind: "length", bytes: lengthBytes });
}

/** The engine is full: the turn is held again with its old arrival (spec 3, Back-pressure). */
function pushBack(turn: Turn, phase: AttemptPhase, head: EngineHead): void {
  const { host } = turn;
  host.metrics.heldAgain(phase.replica.config.name, "pushed-back");
  const waitMs = retryAfterMs(headerOf(head.rawHeaders, "retry-after"), host.limits);
  holdAgain(turn, () => host.admissions.pushedBack(turn, waitMs));
}

/** The scheduler wants the turn back: given, unless an answer has begun. */
export function withdraw(turn: Turn): void {
  const { phase, host } = turn;
  if (phase.kind === "answering") {
    host.admissions.tooLate(turn);
  } else if (phase.kind === "attempt") {
    host.metrics.heldAgain(phase.replica.config.name, "withdrawn");
    holdAgain(turn, () => host.admissions.withdrawn(turn));
  }
}

function holdAgain(turn: Turn, tell: () => void): void {
  stopPhase(turn);
  turn.attempts += 1;
  turn.replica = undefined;
  turn.spliced = undefined;
  turn.usageAsked = false;
  enterHeld(turn);
  tell();
  if (turn.host.draining && turn.phase.kind === "held") {
    finishWithError(turn, { code: "draining", message: "luftpause is shutting down: send the turn again" });
  } else {
    watchHeld(turn);
  }
}

/** No answer came, or it broke off. */
export function attemptFailed(turn: Turn, phase: AttemptPhase, failure: EngineFailure): void {
  const { host } = turn;
  const { name } = phase.replica.config;
  host.metrics.engineError(name, failure.kind);
  if (!turn.reportedStart) host.admissions.started(turn);
  turn.reportedStart = true;
  const code = failure.kind === "unreachable" ? "engine_unreachable" : "engine_lost";
  finishWithError(turn, { code, message: `engine ${name}: ${failure.reason}` });
}

/** What an engine's Retry-After means: whole seconds or a date, bounded; without one the default. */
function retryAfterMs(
  text: string | undefined,
  limits: { readonly retryAfterDefaultMs: number; readonly retryAfterHonouredMaxMs: number },
): number {
  const { retryAfterDefaultMs, retryAfterHonouredMaxMs } = limits;
  if (text === undefined) return retryAfterDefaultMs;
  const isSeconds = /^\d{1,9}$/.test(text);
  // Date.parse takes almost anything for a date: only the form of HTTP begins with a day's name.
  if (!isSeconds && !/^[A-Z][a-z]{2}, /.test(text)) return retryAfterDefaultMs;
  const wantedMs = isSeconds ? Number(text) * 1000 : Date.parse(text) - Date.now();
  if (Number.isNaN(wantedMs)) return retryAfterDefaultMs;
  return Math.max(0, Math.min(retryAfterHonouredMaxMs, wantedMs));
}
