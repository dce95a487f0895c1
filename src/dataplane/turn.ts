/**
 * A turn: from its request to the end of its answer. This file holds its fields and hands each event to the phase it is
 * for; the phases and the invariants T1 to T4 are in `turn-state.ts`.
 *
 * One object per turn serves as the handler of its engine call and as the link's view of it: nothing else is allocated.
 */
import {
  ANONYMOUS_CALLER,
  asRunId,
  asTurnId,
  type CallerId,
  type PrincipalId,
  type ReplicaId,
  type RunId,
  type TurnId,
} from "../base/ids.ts";
import type { EngineFailure, EngineHead, Exchange, Identity } from "../http/index.ts";
import type { FlightReport, RunSource, ServiceClass, TurnRequest } from "../wire/admission.ts";
import type { LuftpauseError } from "../wire/errors.ts";
import { attemptFailed, startAttempt, takeHead, withdraw } from "./attempt.ts";
import { finishGone, finishWithError } from "./finish.ts";
import { enterHeld, explained, watchHeld } from "./hold.ts";
import type { IdentityKeys } from "./inspection.ts";
import { relayFailed, takeEnd, takeFrames, takePayload } from "./relay.ts";
import { scanRequest } from "./request-scan.ts";
import { sharedPrefixOf } from "./shared-prefix.ts";
import { requestIdentity } from "./run-identity.ts";
import {
  callerOf,
  classOf,
  encodingProblem,
  principalOf,
  runOf,
  traceparentOf,
  type ClassesOf,
} from "./turn-intake.ts";
import type { Phase, Turn, TurnApi, TurnHost, TurnRequestBody } from "./turn-state.ts";

const READING: Phase = { kind: "reading" };
const NO_KEYS: IdentityKeys = [];

export type TurnArrival = {
  readonly host: TurnHost;
  readonly exchange: Exchange;
  readonly api: TurnApi;
  readonly identity: Identity;
  readonly classesOf: ClassesOf;
};

/** Takes a request of a turn route, already authenticated, and sees it through to its end. */
export function takeTurn(arrival: TurnArrival): void {
  const { host, exchange } = arrival;
  const turn = new TurnObject(arrival);
  host.turns.add(turn);
  exchange.onGone = turn.onGone;
  exchange.readBody(host.limits.bodyBytesMax, (body) => {
    if (turn.phase.kind !== "reading") return;
    try {
      if (body === "aborted") finishGone(turn);
      else readWhole(turn, arrival, body);
    } catch (error) {
      turn.fault(error);
    }
  });
}

function readWhole(turn: TurnObject, arrival: TurnArrival, body: Buffer | "too-large"): void {
  const { host } = turn;
  if (body === "too-large") {
    finishWithError(turn, {
      code: "body_too_large",
      message: `the body is larger than ${host.limits.bodyBytesMax} bytes (limits.bodyBytesMax)`,
    });
    return;
  }
  const problem = takeHeaders(turn, arrival) ?? takeBody(turn, body);
  if (problem !== undefined) {
    finishWithError(turn, problem);
    return;
  }
  host.metrics.requestBytes(body.length);
  enterHeld(turn);
  host.admissions.ask(turn);
  watchHeld(turn);
}

function takeHeaders(turn: TurnObject, { identity, classesOf }: TurnArrival): LuftpauseError | undefined {
  const { host, exchange, principal } = turn;
  const run = runOf(exchange, host.limits.runIdBytesMax);
  if (typeof run === "object") return run;
  turn.ownRun = run;
  if (host.draining) return { code: "draining", message: "luftpause is shutting down: send the turn again" };
  const allowed = principal === identity.principal ? identity.classes : (classesOf(principal) ?? identity.classes);
  const wanted = classOf(exchange, allowed);
  if ("code" in wanted) return wanted;
  turn.class = wanted.class;
  turn.lowered = wanted.lowered;
  turn.caller = callerOf(exchange, host.limits.callerBytesMax);
  return encodingProblem(exchange);
}

function takeBody(turn: TurnObject, bytes: Buffer): LuftpauseError | undefined {
  const scan = scanRequest(bytes, turn.api.api);
  if ("code" in scan) return scan;
  const { heldBodies } = turn.host;
  if (!heldBodies.fits(bytes.length)) {
    return {
      code: "overloaded",
      message: `the bodies of held turns already take ${heldBodies.bytes} of ${heldBodies.bytesMax} bytes (limits.heldBodyBytesMax)`,
    };
  }
  turn.model = scan.model;
  turn.stream = scan.stream;
  turn.promptBytes = bytes.length;
  turn.sharedPrefix = sharedPrefixOf(bytes, scan);
  // Rule 1 needs no table: a run that the client names is not looked up.
  if (turn.ownRun === undefined) {
    const { keys, prefix } = requestIdentity(turn, bytes, scan);
    turn.keys = keys;
    turn.prefix = prefix;
  }
  // A turn can be held for long: of what the scan found only places are kept, no texts.
  const { stream, includeUsage, streamOptions, priority, root } = scan;
  turn.body = { bytes, splicePlace: { stream, includeUsage, streamOptions, priority, root } };
  return undefined;
}

class TurnObject implements Turn {
  readonly id: TurnId;
  readonly host: TurnHost;
  readonly exchange: Exchange;
  readonly api: TurnApi;
  readonly principal: PrincipalId;
  readonly arrivalMs: number;
  readonly freshRun: RunId;
  caller: CallerId = ANONYMOUS_CALLER;
  class: ServiceClass = "interactive";
  lowered = false;
  ownRun: RunId | undefined = undefined;
  run: RunId | undefined = undefined;
  source: RunSource | undefined = undefined;
  side = false;
  keys: IdentityKeys = NO_KEYS;
  prefix: string | undefined = undefined;
  sharedPrefix: string | undefined = undefined;
  promptBytes = 0;
  model = "";
  stream = false;
  body: TurnRequestBody | undefined = undefined;
  phase: Phase = READING;
  attempts = 0;
  nextSignMs: number;
  spliced: string | undefined = undefined;
  usageAsked = false;
  reportedStart = false;
  reportedError = false;
  answerBytes = 0;
  replica: ReplicaId | undefined = undefined;
  readonly onGone: () => void;
  readonly onDrain: () => void;

  constructor({ host, exchange, api, identity }: TurnArrival) {
    host.serial += 1;
    const serial = `${host.dataplane}-${host.serial.toString(36)}`;
    this.id = asTurnId(`turn-${serial}`);
    this.freshRun = asRunId(`run-${serial}`);
    this.host = host;
    this.exchange = exchange;
    this.api = api;
    this.principal = principalOf(exchange, identity);
    this.arrivalMs = host.clock.nowMs();
    this.nextSignMs = this.arrivalMs + host.limits.holdSignAfterMs;
    this.onGone = () => finishGone(this);
    this.onDrain = () => {
      if (this.phase.kind === "answering") this.phase.call.resume();
    };
  }

  get flightAt(): ReplicaId | undefined {
    const { phase } = this;
    return phase.kind === "attempt" || phase.kind === "answering" ? phase.replica.config.name : undefined;
  }

  flight(nowMs: number): FlightReport | undefined {
    const { flightAt, run, source } = this;
    if (flightAt === undefined || run === undefined || source === undefined) return undefined;
    return {
      turn: this.id,
      run,
      principal: this.principal,
      caller: this.caller,
      class: this.class,
      model: this.model,
      api: this.api.api,
      source,
      replica: flightAt,
      side: this.side,
      ageMs: nowMs - this.arrivalMs,
    };
  }

  request(): TurnRequest {
    const traceparent = traceparentOf(this.exchange);
    return {
      type: "requested",
      turn: this.id,
      principal: this.principal,
      caller: this.caller,
      class: this.class,
      model: this.model,
      api: this.api.api,
      // What was recognised once stays: the keys may name another run by the time the turn is asked for again.
      run: this.ownRun ?? this.run,
      keys: this.keys,
      freshRun: this.freshRun,
      side: this.side,
      heldMs: this.host.clock.nowMs() - this.arrivalMs,
      attempt: this.attempts,
      promptBytes: this.promptBytes,
      streams: this.stream,
      ...(this.sharedPrefix === undefined ? undefined : { prefixKey: this.sharedPrefix }),
      ...(traceparent === undefined ? undefined : { traceparent }),
    };
  }

  onHeld(run: RunId, source: RunSource): void {
    this.#recognised(run, source);
  }

  onAdmitted(replicaId: ReplicaId, run: RunId, source: RunSource, priority: number | undefined): void {
    try {
      this.#admitted(replicaId, run, source, priority);
    } catch (error) {
      this.fault(error);
    }
  }

  #admitted(replicaId: ReplicaId, run: RunId, source: RunSource, priority: number | undefined): void {
    if (this.phase.kind !== "held") return;
    const { host } = this;
    this.#recognised(run, source);
    host.metrics.admitted(this.class, host.clock.nowMs() - this.arrivalMs);
    const replica = host.pool.get(replicaId);
    if (replica === undefined) {
      // The scheduler counts it as admitted: it must hear of a failure, not of a client that left.
      host.admissions.failed(this, "internal");
      const message = `engine ${replicaId}: not among the endpoints of this dataplane`;
      finishWithError(this, { code: "engine_unreachable", message });
      return;
    }
    startAttempt(this, replica, priority);
  }

  onRejected(refusal: {
    readonly run: RunId;
    readonly source: RunSource;
    readonly code: LuftpauseError["code"];
    readonly message: string;
  }): void {
    this.#recognised(refusal.run, refusal.source);
    finishWithError(this, { code: refusal.code, message: refusal.message });
  }

  onWithdraw(): void {
    withdraw(this);
  }

  onExplained(reason: string, place: number): void {
    explained(this, reason, place);
  }

  onHead(head: EngineHead): void {
    try {
      takeHead(this, head);
    } catch (error) {
      this.fault(error);
    }
  }

  onPayload(buffer: Buffer, start: number, end: number): void {
    try {
      takePayload(this, buffer, start, end);
    } catch (error) {
      this.fault(error);
    }
  }

  onFrames(buffer: Buffer, start: number, end: number): void {
    try {
      takeFrames(this, buffer, start, end);
    } catch (error) {
      this.fault(error);
    }
  }

  onEnd(): void {
    try {
      takeEnd(this);
    } catch (error) {
      this.fault(error);
    }
  }

  onFail(failure: EngineFailure): void {
    try {
      const { phase } = this;
      if (phase.kind === "attempt") attemptFailed(this, phase, failure);
      else if (phase.kind === "answering") relayFailed(this, phase, failure);
    } catch (error) {
      this.fault(error);
    }
  }

  /** A bug of ours ends this turn, not the process with everybody else's. */
  fault(error: unknown): void {
    const { host } = this;
    host.log("error", "turn-fault", { turn: this.id, error: error instanceof Error ? error.stack : String(error) });
    finishWithError(this, {
      code: "internal",
      message: "luftpause has made a mistake with this turn; its log says which",
    });
  }

  #recognised(run: RunId, source: RunSource): void {
    this.run = run;
    if (this.source !== undefined) return;
    // Asked again after an outage, a turn names its run itself: the rule that found it stays.
    this.source = source;
    this.host.metrics.recognised(source);
  }
}
