/**
 * One turn as a tagged state machine: what each phase owns, and what all of them share. Types only; the moves are in
 * `turn.ts` (events), `hold.ts`, `attempt.ts`, `relay.ts` and `finish.ts`.
 *
 *   reading ─▶ held ─▶ attempt ─▶ answering ─▶ ended
 *               ▲─────────┘ pushed back, withdrawn
 *
 * T1: a phase's timers and calls are stopped when it is left, by the one function that leaves it.
 * T2: `ended` is entered once; whatever comes afterwards is ignored.
 * T3: the scheduler hears of the end once (`Admissions` knows the turn until then).
 * T4: after `exchange.begun` no status changes: an error becomes the API's event and a broken-off connection.
 */
import type { Clock } from "../base/clock.ts";
import type { CallerId, DataplaneId, PrincipalId, ReplicaId, RunId, TurnId } from "../base/ids.ts";
import type { EngineCall, EngineClient, EngineHandler, Exchange } from "../http/index.ts";
import type { Log } from "../telemetry/index.ts";
import type { RunSource, ServiceClass } from "../wire/admission.ts";
import type { WireApi } from "../wire/endpoint.ts";
import type { ErrorShape } from "../wire/errors.ts";
import type { Limits } from "../wire/limits.ts";
import type { Admissions, LinkedTurn } from "./admissions.ts";
import type { HeldBodies } from "./held-bodies.ts";
import type { CuttingTap, IdentityKeys, Tap } from "./inspection.ts";
import type { SplicePlace } from "./splice.ts";
import type { Metrics } from "./metrics.ts";
import type { Pool, Replica } from "./pool.ts";

export type DataplaneLimits = Omit<Limits, "holdMaxSeconds"> & {
  /** A number overrides the deadline that a client shows; 0: a held turn is never answered early. */
  readonly holdMaxSeconds: number | "auto";
};

/** What every turn works with. */
export type TurnHost = {
  readonly clock: Clock;
  readonly limits: DataplaneLimits;
  readonly log: Log;
  readonly metrics: Metrics;
  readonly engineClient: EngineClient;
  readonly pool: Pool;
  readonly admissions: Admissions;
  readonly heldBodies: HeldBodies;
  readonly dataplane: DataplaneId;
  /** Our id toward engines, for the loop guard. */
  readonly hop: string;
  /** Turns of all phases but `ended`. */
  readonly turns: Set<Turn>;
  draining: boolean;
  /** Counts turns, for their ids. */
  serial: number;
};

/** What is different between the APIs that clients speak. */
export type TurnApi = {
  readonly api: WireApi;
  readonly shape: ErrorShape;
  /** Stands between events while the client is kept alive. `text` is one line without controls. */
  keepAlive(text: string): string;
};

/** A body that could be read: what it asks for. */
export type TurnRequestBody = {
  /** Released after the engine's first byte. */
  readonly bytes: Buffer;
  /** Where splices go. The rest of the scan is not kept. */
  readonly splicePlace: SplicePlace;
};

export type HeldPhase = {
  readonly kind: "held";
  /** Counted against the bound on held bodies. */
  readonly bytes: number;
  /** Stops the next sign of a stream, or the early answer of another turn. */
  stop: (() => void) | undefined;
  /** A sign is due as soon as the scheduler has said why the turn is held. */
  explaining: boolean;
};

export type AttemptPhase = {
  readonly kind: "attempt";
  readonly replica: Replica;
  /** What the engine client reads when it sends; its body is let go with the head of the answer, when none is sent again. */
  readonly sent: { body: Uint8Array | undefined };
  /** Undefined only while the call is being made. */
  call: EngineCall | undefined;
  /** Stops the next keep-alive after an early 200. */
  stop: (() => void) | undefined;
};

/** How the engine's body goes on. */
export type Relay =
  /** Payload as it comes; `framed`: the wire bytes with their chunk frames instead. */
  | { readonly kind: "plain"; readonly tap: Tap | undefined }
  | {
      readonly kind: "framed";
      readonly tap: Tap;
      /** What may be the last chunk is not passed on before it is known whether the answer is whole. */
      held: Buffer | undefined;
    }
  | {
      readonly kind: "cut";
      readonly tap: CuttingTap;
      readonly emit: (buffer: Buffer, start: number, end: number) => void;
    }
  /** After an early 200: the body of an engine's error, to be told in the stream. */
  | { readonly kind: "collect"; readonly status: number; readonly parts: Buffer[]; bytes: number };

export type AnsweringPhase = {
  readonly kind: "answering";
  readonly replica: Replica;
  readonly call: EngineCall;
  readonly relay: Relay;
  /** Events of its own end it: an SSE body, status 2xx. */
  readonly sse: boolean;
  /** Stops the next keep-alive, which goes on until the first byte of the body. */
  stop: (() => void) | undefined;
  /** A byte of the body has come. */
  bodyBegun: boolean;
};

export type Phase =
  | { readonly kind: "reading" }
  | HeldPhase
  | AttemptPhase
  | AnsweringPhase
  | { readonly kind: "ended" };

export type Turn = LinkedTurn &
  EngineHandler & {
    readonly id: TurnId;
    readonly host: TurnHost;
    readonly exchange: Exchange;
    readonly api: TurnApi;
    readonly principal: PrincipalId;
    readonly arrivalMs: number;
    caller: CallerId;
    class: ServiceClass;
    /** The class asked for was lowered. */
    lowered: boolean;
    /** From the client's header. */
    ownRun: RunId | undefined;
    readonly freshRun: RunId;
    run: RunId | undefined;
    source: RunSource | undefined;
    side: boolean;
    /** What names its run, to look up. */
    keys: IdentityKeys;
    /** Digest of its messages, remembered with its answer. */
    prefix: string | undefined;
    /** Digest of what its prompt begins with. */
    sharedPrefix: string | undefined;
    /** Size of its body. */
    promptBytes: number;
    model: string;
    stream: boolean;
    request: LinkedTurn["request"];
    body: TurnRequestBody | undefined;
    phase: Phase;
    /** Times that it was pushed back or withdrawn. */
    attempts: number;
    /** When the next sign of life of a held stream is due. */
    nextSignMs: number;
    /** Splices of the running attempt, for our header. */
    spliced: string | undefined;
    /** Usage was asked for by us alone: its chunk is cut out of the stream. */
    usageAsked: boolean;
    /** The first content byte was reported. */
    reportedStart: boolean;
    /** The engine's answer is an error, of which the scheduler knows. */
    reportedError: boolean;
    answerBytes: number;
    /** The last replica that it was admitted to. */
    replica: ReplicaId | undefined;
    /** Restarts reading from the engine; one function per turn. */
    readonly onDrain: () => void;
  };
