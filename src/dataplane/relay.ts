/**
 * The engine's body on its way to the client. Bytes pass as they come; the tap looks at them. A slow client stops the
 * engine's socket, nothing is buffered here.
 *
 * R1: nothing is allocated per chunk but the view that is written.
 * R2: a stream that ends without its end in the API is a failed stream: its last chunk is not passed on.
 */
import type { EngineFailure } from "../http/index.ts";
import { addPiece, takePieces } from "./coalesce.ts";
import { engineErrorText } from "./engine-error.ts";
import { finishPassedError, finishSaidFailed, finishWhole, finishWithEngineError, finishWithError } from "./finish.ts";
import type { TapFindings } from "./inspection.ts";
import { answerKeys } from "./run-identity.ts";
import type { AnsweringPhase, Relay, Turn } from "./turn-state.ts";

/** An engine's error that is told in the stream is read up to here; what is longer is cut. */
const ERROR_BYTES_MAX = 65_536;
/** A longer name of a tool tells the scheduler nothing more. */
const TOOL_CHARS_MAX = 128;
const LAST_SIZE = Buffer.from("0\r\n", "latin1");
const LAST_CHUNK = Buffer.from("0\r\n\r\n", "latin1");

/**
 * One function per turn that takes what a cutting tap lets through.
 * @param framed the engine client tells the end of each read by `onFrames`: its pieces are written together.
 */
export function emitter(turn: Turn, framed: boolean): (buffer: Buffer, start: number, end: number) => void {
  return (buffer, start, end) => {
    const { phase } = turn;
    if (phase.kind !== "answering") return;
    const piece = buffer.subarray(start, end);
    const bytes = framed ? addPiece(turn, piece) : piece;
    if (bytes !== undefined) pass(turn, phase, bytes);
  };
}

function flushPieces(turn: Turn, phase: AnsweringPhase): void {
  if (phase.relay.kind !== "cut") return;
  const bytes = takePieces(turn);
  if (bytes !== undefined) pass(turn, phase, bytes);
}

function pass(turn: Turn, phase: AnsweringPhase, bytes: Buffer): void {
  if (!turn.exchange.write(bytes)) phase.call.pause();
}

export function takePayload(turn: Turn, buffer: Buffer, start: number, end: number): void {
  const { phase } = turn;
  if (phase.kind !== "answering") return;
  if (!phase.bodyBegun) {
    phase.bodyBegun = true;
    phase.stop?.();
    phase.stop = undefined;
  }
  turn.answerBytes += end - start;
  const { relay } = phase;
  switch (relay.kind) {
    case "plain":
      relay.tap?.push(buffer, start, end);
      break;
    case "framed":
      relay.tap.push(buffer, start, end);
      break;
    case "cut":
      relay.tap.push(buffer, start, end, relay.emit);
      break;
    case "collect":
      collect(relay, buffer.subarray(start, end));
      return;
  }
  if (!turn.reportedStart && (relay.tap === undefined || relay.tap.findings.started)) reportStart(turn);
  if (relay.kind === "plain") pass(turn, phase, buffer.subarray(start, end));
}

function reportStart(turn: Turn): void {
  const { host } = turn;
  turn.reportedStart = true;
  host.metrics.firstToken(turn.class, host.clock.nowMs() - turn.arrivalMs);
  host.admissions.started(turn);
}

function collect(relay: Extract<Relay, { readonly kind: "collect" }>, bytes: Buffer): void {
  const part = Buffer.from(bytes.subarray(0, ERROR_BYTES_MAX - relay.bytes));
  relay.parts.push(part);
  relay.bytes += part.length;
}

export function takeFrames(turn: Turn, buffer: Buffer, start: number, end: number): void {
  const { phase, exchange } = turn;
  if (phase.kind !== "answering") return;
  const { relay, call } = phase;
  if (relay.kind !== "framed") {
    flushPieces(turn, phase);
    return;
  }
  if (relay.held !== undefined) {
    if (relay.held === LAST_SIZE && end - start === 2 && buffer[start] === 0x0d) {
      relay.held = LAST_CHUNK;
      return;
    }
    // It was the end of a chunk that looks like a last one.
    exchange.writeFramed(relay.held);
    relay.held = undefined;
  }
  let to = end;
  if (!hasEnded(relay.tap.findings) && call.betweenFrames) {
    relay.held = lastChunkOf(buffer, start, end); // R2
    if (relay.held !== undefined) to -= relay.held.length;
  }
  if (to > start && !exchange.writeFramed(buffer.subarray(start, to))) call.pause();
}

/** What may be a last chunk, or its first line, at the end of wire bytes. */
function lastChunkOf(buffer: Buffer, start: number, end: number): Buffer | undefined {
  if (buffer[end - 1] !== 0x0a || buffer[end - 2] !== 0x0d || end - start < LAST_SIZE.length) return undefined;
  if (buffer[end - 3] === 0x30) return LAST_SIZE;
  const whole = end - start >= LAST_CHUNK.length && buffer[end - 3] === 0x0a && buffer[end - 5] === 0x30;
  return whole && buffer[end - 4] === 0x0d ? LAST_CHUNK : undefined;
}

/** The API's own end was seen: its terminal event, or a reason why the model stopped; or it may be in what was skipped. */
function hasEnded(findings: TapFindings): boolean {
  return findings.terminal || findings.finishReason !== undefined || findings.skipped > 0;
}

/** The engine's body is whole. */
export function takeEnd(turn: Turn): void {
  const { phase } = turn;
  if (phase.kind !== "answering") return;
  const { relay } = phase;
  if (relay.kind === "collect") {
    finishCollected(turn, phase);
    return;
  }
  if (relay.kind === "cut") relay.tap.finish(relay.emit);
  else relay.tap?.finish();
  flushPieces(turn, phase);
  const findings = relay.tap?.findings;
  if (findings !== undefined && findings.skipped > 0) turn.host.metrics.tapSkipped();
  if (findings?.failed === true) {
    // Its words have passed. Where it ended its API's stream by itself the end is its own, else there is none.
    turn.host.metrics.engineError(phase.replica.config.name, "in-answer");
    if (!phase.sse || findings.terminal)
      turn.exchange.end({ framed: relay.kind === "framed" && relay.held === undefined });
    finishSaidFailed(turn);
    return;
  }
  if (phase.sse && findings !== undefined && !hasEnded(findings)) {
    const { name } = phase.replica.config;
    turn.host.metrics.engineError(name, "lost");
    finishWithError(turn, { code: "engine_lost", message: `engine ${name}: its stream ended before the answer did` });
    return;
  }
  turn.exchange.end({ framed: relay.kind === "framed" && relay.held === undefined });
  if (turn.reportedError) finishPassedError(turn);
  else finishAnswer(turn, findings);
}

function finishAnswer(turn: Turn, findings: TapFindings | undefined): void {
  if (!turn.reportedStart && findings?.started === true) reportStart(turn);
  finishWhole(turn, {
    usage: findings?.usage ?? {},
    finishReason: findings?.finishReason,
    paused: (findings?.toolCalls.length ?? 0) > 0,
    tool: findings?.toolCalls[0]?.name.slice(0, TOOL_CHARS_MAX),
    keys: findings === undefined ? [] : answerKeys(turn, findings),
  });
}

/** The answer broke off. */
export function relayFailed(turn: Turn, phase: AnsweringPhase, failure: EngineFailure): void {
  flushPieces(turn, phase);
  if (phase.relay.kind === "collect") {
    finishCollected(turn, phase);
    return;
  }
  const { name } = phase.replica.config;
  turn.host.metrics.engineError(name, "lost");
  finishWithError(turn, { code: "engine_lost", message: `engine ${name}: ${failure.reason}` });
}

function finishCollected(turn: Turn, phase: AnsweringPhase): void {
  if (phase.relay.kind !== "collect") return;
  const { status, parts } = phase.relay;
  const body = Buffer.concat(parts).toString("utf8");
  finishWithEngineError(turn, engineErrorText({ status, body, replica: phase.replica.config.name }));
}
