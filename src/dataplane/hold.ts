/**
 * Holding without losing the client (spec 8): a held streaming turn gets an early 200 and keep-alives, another one is
 * answered before the deadline at which its client gives up.
 */
import { earlyAnswerHeaders } from "./answer-headers.ts";
import { holdAnswerAfterMs } from "./client-deadline.ts";
import { finishWithError } from "./finish.ts";
import type { AnsweringPhase, AttemptPhase, HeldPhase, Turn } from "./turn-state.ts";

/** How long a sign that is due waits for the scheduler's words. */
const EXPLAIN_WAIT_MS = 1_000;

/** The turn is held from here on; the caller asks the scheduler afterwards, then calls `watchHeld`. */
export function enterHeld(turn: Turn): void {
  const bytes = turn.body?.bytes.length ?? 0;
  turn.host.heldBodies.add(bytes);
  turn.phase = { kind: "held", bytes, stop: undefined, explaining: false };
}

/** Starts the timer of a turn that is still held after it was asked for: one that is admitted at once never has one. */
export function watchHeld(turn: Turn): void {
  const { phase, host } = turn;
  if (phase.kind !== "held" || phase.stop !== undefined) return;
  if (turn.stream) {
    nextSign(turn, phase);
    return;
  }
  const afterMs = holdAnswerAfterMs(turn.exchange, host.limits);
  if (afterMs === undefined) return;
  const inMs = turn.arrivalMs + afterMs - host.clock.nowMs();
  phase.stop = host.clock.after(Math.max(0, inMs), () => answerEarly(turn, phase));
}

/** Capacity exists but is taken: 429. None exists: 503. SDKs come back by themselves after both. */
function answerEarly(turn: Turn, phase: HeldPhase): void {
  if (turn.phase !== phase) return;
  phase.stop = undefined;
  const heldSeconds = Math.round((turn.host.clock.nowMs() - turn.arrivalMs) / 1000);
  if (turn.host.pool.hasCapacity(turn.model, turn.api.api)) {
    finishWithError(turn, {
      code: "hold_deadline",
      message: `held for ${heldSeconds} s, and this client gives up soon: send it again, it keeps its place for a minute`,
    });
  } else {
    finishWithError(turn, {
      code: "no_healthy_replica",
      message: `no healthy replica serves model '${turn.model}'; held for ${heldSeconds} s`,
    });
  }
}

/** Keep-alives go on in every phase until the engine's first body byte. */
export function keepSigns(turn: Turn, phase: AttemptPhase | AnsweringPhase): void {
  if (turn.stream && turn.exchange.begun) nextSign(turn, phase);
}

function nextSign(turn: Turn, phase: HeldPhase | AttemptPhase | AnsweringPhase): void {
  const { clock } = turn.host;
  phase.stop = clock.after(Math.max(0, turn.nextSignMs - clock.nowMs()), () => signDue(turn, phase));
}

function signDue(turn: Turn, phase: HeldPhase | AttemptPhase | AnsweringPhase): void {
  if (turn.phase !== phase) return;
  phase.stop = undefined;
  if (phase.kind !== "held") {
    sign(turn, phase, `admitted to ${phase.replica.config.name}, no byte of the answer so far`);
    return;
  }
  const { admissions, clock } = turn.host;
  if (!admissions.linked) {
    sign(turn, phase, `${heldText(turn)}: the scheduler cannot be reached, asking again each second`);
    return;
  }
  phase.explaining = true;
  admissions.explain(turn);
  // In one process the answer came within the call.
  if (turn.phase !== phase || !phase.explaining) return;
  phase.stop = clock.after(EXPLAIN_WAIT_MS, () => {
    if (turn.phase === phase) sign(turn, phase, heldText(turn));
  });
}

/** The scheduler has said why the turn is held. */
export function explained(turn: Turn, reason: string, place: number): void {
  const { phase } = turn;
  if (phase.kind !== "held" || !phase.explaining) return;
  phase.stop?.();
  sign(turn, phase, `${heldText(turn)} at place ${place}: ${reason}`);
}

function heldText(turn: Turn): string {
  return `held ${Math.round((turn.host.clock.nowMs() - turn.arrivalMs) / 1000)} s`;
}

/** Writes a keep-alive, before it the early 200 where none was sent, and sets the time for the next one. */
function sign(turn: Turn, phase: HeldPhase | AttemptPhase | AnsweringPhase, text: string): void {
  const { exchange, host } = turn;
  if (phase.kind === "held") phase.explaining = false;
  if (!exchange.begun) {
    exchange.begin(200, earlyHeaders(turn), { kind: "stream" });
    host.metrics.early200();
  }
  exchange.write(Buffer.from(turn.api.keepAlive(oneLine(text)), "utf8"));
  turn.nextSignMs = host.clock.nowMs() + host.limits.holdSignEveryMs;
  nextSign(turn, phase);
}

/** A reason can hold names from the config: it stays one line. */
function oneLine(text: string): string {
  // eslint-disable-next-line no-control-regex
  return text.replaceAll(/[\x00-\x1f\x7f-\x9f\u2028\u2029]/g, " ");
}

function earlyHeaders(turn: Turn): string[] {
  return earlyAnswerHeaders({
    run: turn.run ?? turn.ownRun,
    source: turn.source,
    loweredClass: turn.lowered ? turn.class : undefined,
  });
}
