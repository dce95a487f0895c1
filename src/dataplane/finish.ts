/**
 * Every end of a turn. It stops what the phase owns, tells the scheduler once, counts, and ends the answer in the one
 * way that is left: with a status, with the API's error event and a broken-off connection, or by cutting it off.
 */
import { answerWhole } from "../http/index.ts";
import type { FailureReason, IdentityKey, Usage } from "../wire/admission.ts";
import { errorBody, ERRORS, type ErrorCode, type LuftpauseError } from "../wire/errors.ts";
import { retryAfterHeader, turnHeaders } from "./answer-headers.ts";
import { errorEvent, type EventError } from "./error-events.ts";
import type { Outcome } from "./metrics.ts";
import { engineOf } from "./pool.ts";
import type { Phase, Turn } from "./turn-state.ts";

const ENDED: Phase = { kind: "ended" };

/** What went wrong: an error of our own, or what an engine said when its status could no longer be passed on. */
export type TurnError =
  | { readonly kind: "own"; readonly error: LuftpauseError }
  | { readonly kind: "engine"; readonly event: EventError };

/**
 * Ends a turn with an error of our own. Knows whether headers were sent: before, the error is a status with a body;
 * afterwards it is the API's error event, where one may stand, and the connection is broken off (spec 3, How a failed
 * stream ends).
 */
export function finishWithError(turn: Turn, error: LuftpauseError): void {
  endWithError(turn, { kind: "own", error });
}

/** Ends a turn whose engine answered with an error after an early 200: its own words, in the stream. */
export function finishWithEngineError(turn: Turn, event: EventError): void {
  endWithError(turn, { kind: "engine", event });
}

function endWithError(turn: Turn, failure: TurnError): void {
  const { phase, exchange } = turn;
  if (phase.kind === "ended") return;
  const mayInsert = eventMayStand(turn);
  const code = failure.kind === "own" ? failure.error.code : undefined;
  leave(turn, failure.kind === "own" ? reasonOf(failure.error.code) : "engine-error", code ?? "engine-error");
  if (exchange.over) return;
  if (!exchange.begun) {
    // Nothing of an engine's answer is lost: after its head the answer has begun.
    if (failure.kind === "own") answerError(turn, failure.error);
    else exchange.breakOff();
    return;
  }
  exchange.breakOff(mayInsert ? eventOf(turn, failure) : undefined);
}

function eventOf(turn: Turn, failure: TurnError): Buffer {
  if (failure.kind === "engine") return errorEvent(turn.api.api, failure.event);
  const { code, message } = failure.error;
  return errorEvent(turn.api.api, { message, type: ERRORS[code].openaiType, code });
}

/** The client left. Nothing can be said to it; the engine's request is closed at once, so that generation stops. */
export function finishGone(turn: Turn): void {
  const { phase } = turn;
  if (phase.kind === "ended") return;
  if (phase.kind === "answering") abortAtEngine(turn);
  leave(turn, "client-left", phase.kind === "held" || phase.kind === "reading" ? "client-left-held" : "client-left");
}

export type WholeAnswer = {
  readonly usage: Usage;
  readonly finishReason: string | undefined;
  /** It ended in tool calls. */
  readonly paused: boolean;
  /** The first one that it calls. */
  readonly tool: string | undefined;
  readonly keys: readonly IdentityKey[];
};

/** The engine's answer is whole and the client's answer was ended. */
export function finishWhole(turn: Turn, answer: WholeAnswer): void {
  turn.host.admissions.finished(turn, answer);
  close(turn, "finished");
}

/** The engine said inside a whole answer that it failed. An answer that the caller did not end is broken off. */
export function finishSaidFailed(turn: Turn): void {
  if (!turn.exchange.over) turn.exchange.breakOff();
  turn.host.admissions.failed(turn, "engine-error");
  close(turn, "engine-error");
}

/** An engine's error has passed through whole; the scheduler heard of it at the head. */
export function finishPassedError(turn: Turn): void {
  close(turn, "engine-error");
}

/** Stops what the phase owns, except a call that is to go on (T1). */
export function stopPhase(turn: Turn): void {
  const { phase } = turn;
  if (phase.kind === "reading" || phase.kind === "ended") return;
  phase.stop?.();
  phase.stop = undefined;
  if (phase.kind === "held") turn.host.heldBodies.remove(phase.bytes);
  else phase.call?.abort();
}

function leave(turn: Turn, reason: FailureReason, outcome: Outcome): void {
  const { kind } = turn.phase;
  stopPhase(turn);
  close(turn, outcome);
  if (kind === "held") turn.host.admissions.abandoned(turn, reason);
  else turn.host.admissions.failed(turn, reason);
}

/** Lets go of everything (T2). */
function close(turn: Turn, outcome: Outcome): void {
  const { exchange, host } = turn;
  turn.phase = ENDED;
  turn.body = undefined;
  exchange.onGone = undefined;
  exchange.onDrain = undefined;
  host.turns.delete(turn);
  host.metrics.turnEnded(outcome, turn.class);
  if (turn.answerBytes > 0) host.metrics.answerBytes(turn.answerBytes);
  host.log(outcome === "engine_lost" || outcome === "engine_unreachable" ? "warn" : "debug", "turn-ended", {
    turn: turn.id,
    run: turn.run ?? turn.ownRun,
    class: turn.class,
    outcome,
    replica: turn.replica,
    ms: Math.round(host.clock.nowMs() - turn.arrivalMs),
    answerBytes: turn.answerBytes,
  });
}

/** Whether an event of ours may follow what was sent so far: no event and no chunk of the engine is open. */
function eventMayStand(turn: Turn): boolean {
  const { phase } = turn;
  if (phase.kind !== "answering") return true;
  if (!phase.sse) return phase.relay.kind === "collect";
  switch (phase.relay.kind) {
    case "collect":
      return true;
    case "framed":
      return phase.call.betweenFrames && (phase.relay.tap?.findings.betweenEvents ?? false);
    case "plain":
    case "cut":
      return phase.relay.tap?.findings.betweenEvents ?? false;
  }
}

const REASONS: { readonly [Code in ErrorCode]?: FailureReason } = {
  engine_unreachable: "engine-unreachable",
  engine_lost: "engine-lost",
  hold_deadline: "hold-deadline",
  no_healthy_replica: "hold-deadline",
  draining: "draining",
};

function reasonOf(code: ErrorCode): FailureReason {
  return REASONS[code] ?? "internal";
}

/** Answers with the status and body of an error; every answer of a turn names its run, but for a 413 (spec 3). */
function answerError(turn: Turn, error: LuftpauseError): void {
  const run = turn.run ?? turn.ownRun ?? turn.freshRun;
  const headers =
    error.code === "body_too_large"
      ? []
      : turnHeaders({
          run,
          source: turn.source,
          replica: turn.replica,
          loweredClass: turn.lowered ? turn.class : undefined,
          spliced: turn.spliced,
        });
  headers.push(...retryAfterHeader(error.code, turn.host.limits));
  answerWhole(turn.exchange, ERRORS[error.code].status, headers, errorBody(turn.api.shape, error, turn.id));
}

/** A request of ours that nobody waits for ends after this long. */
const ABORT_WAIT_MS = 5_000;

/** Some SGLang builds go on decoding when the connection closes: they are told by the request's id, where it is known. */
function abortAtEngine(turn: Turn): void {
  const { phase, host } = turn;
  if (phase.kind !== "answering" || phase.relay.kind === "collect" || engineOf(phase.replica) !== "sglang") return;
  const rid = phase.relay.tap?.findings.responseId;
  if (rid === undefined) return;
  const { target, config } = phase.replica;
  const headers = ["content-type", "application/json"];
  if (config.apiKey !== undefined) headers.push("authorization", `Bearer ${config.apiKey}`);
  const body = Buffer.from(JSON.stringify({ rid }), "utf8");
  const request = { method: "POST", path: `${target.basePath}/abort_request`, headers, body };
  const ignore = (): void => undefined;
  const ended = (): void => stop();
  const call = host.engineClient.call(target, request, {
    onHead: ignore,
    onPayload: ignore,
    onFrames: ignore,
    onEnd: ended,
    onFail: ended,
  });
  const stop = host.clock.after(ABORT_WAIT_MS, () => call.abort());
}
