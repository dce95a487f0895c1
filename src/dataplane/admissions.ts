/**
 * The dataplane's end of the link (spec 2, The link): asks for turns, reports how they went, hands over its state when
 * the link is made, and passes the scheduler's answers to the turns they are for.
 *
 * It does not: keep epochs or reconnect (the port's), or decide anything about a turn (the turn's own).
 *
 * A1: a turn is in `open` from its first request until its end was reported; `open-turns` names exactly these.
 * A2: after `onLinked` the first message is `hello`, before any event of a turn.
 * A3: an answer for a turn that is not open is ignored: it has left, and the scheduler knows or will know by resync.
 */
import type { Clock } from "../base/clock.ts";
import type { CallerId, DataplaneId, PrincipalId, ReplicaId, RunId, TurnId } from "../base/ids.ts";
import { unreachable } from "../base/invariant.ts";
import type { Log } from "../telemetry/index.ts";
import {
  LINK_PROTOCOL,
  type AdmissionPort,
  type FailureReason,
  type FlightReport,
  type IdentityKey,
  type ModelReport,
  type ReplicaView,
  type RunSource,
  type RunView,
  type SchedulerMessage,
  type ServiceClass,
  type TurnRequest,
  type Usage,
} from "../wire/admission.ts";
import type { ErrorCode } from "../wire/errors.ts";
import { RunLedger, type LedgerLimits } from "./run-ledger.ts";

/** A turn as the link sees it. */
export type LinkedTurn = {
  readonly id: TurnId;
  readonly principal: PrincipalId;
  readonly caller: CallerId;
  readonly class: ServiceClass;
  readonly side: boolean;
  /** Known once the scheduler has recognised it. */
  readonly run: RunId | undefined;
  /** Where it is in flight; undefined while it is held. */
  readonly flightAt: ReplicaId | undefined;
  /** For resync; undefined while it is held. */
  flight(nowMs: number): FlightReport | undefined;
  request(): TurnRequest;
  onHeld(run: RunId, source: RunSource): void;
  /** @param priority what the engine is told; undefined: nothing. */
  onAdmitted(replica: ReplicaId, run: RunId, source: RunSource, priority: number | undefined): void;
  onRejected(refusal: {
    readonly run: RunId;
    readonly source: RunSource;
    readonly code: ErrorCode;
    readonly message: string;
  }): void;
  onWithdraw(): void;
  onExplained(reason: string, place: number): void;
};

/** How a whole answer ended. */
export type TurnOutcome = {
  readonly usage: Usage;
  readonly finishReason: string | undefined;
  readonly paused: boolean;
  /** The first tool that it calls. */
  readonly tool: string | undefined;
  readonly keys: readonly IdentityKey[];
};

export type AdmissionsOptions = {
  readonly dataplane: DataplaneId;
  readonly port: AdmissionPort;
  readonly clock: Clock;
  readonly limits: LedgerLimits & {
    readonly linkRetryMs: number;
    readonly openTurnsEveryMs: number;
    readonly identitySweepMs: number;
  };
  readonly log: Log;
  readonly onPool: (replicas: readonly ReplicaView[]) => void;
  readonly onDrain: () => void;
};

/** A query is answered with "unknown" after this long: the person who asks must not hang on a lost answer. */
const QUERY_WAIT_MS = 2_000;
/** Queries at once; further ones are answered at once as if the scheduler were away. */
const QUERIES_MAX = 1_024;

/** Runs that ended while the link was down, told when it is made; what is more is left to the runs' expiry. */
const ENDED_AWAY_MAX = 10_000;

const NOTHING_KEPT = { runCount: 0, keyCount: 0 };

type Query = { readonly done: (view: RunView | undefined | "unavailable") => void; readonly stop: () => void };

export class Admissions {
  readonly #options: AdmissionsOptions;
  readonly #port: AdmissionPort;
  /** None where the scheduler lives as long as we do: it remembers the same itself. */
  readonly #ledger: RunLedger | undefined;
  readonly #open = new Map<TurnId, LinkedTurn>();
  /** Asked for, without any answer so far. */
  readonly #unanswered = new Set<LinkedTurn>();
  readonly #queries = new Map<number, Query>();
  #queryCount = 0;
  /** What the scheduler last said of the models: handed over to one that starts again, which may not see them. */
  #models: readonly ModelReport[] = [];
  #endedAway: { readonly run: RunId; readonly principal: PrincipalId }[] = [];
  #synced = false;
  #saidHello = false;
  #stopRetry: (() => void) | undefined;
  #stopNaming: () => void;
  #stopSweep: () => void;
  #closed = false;

  constructor(options: AdmissionsOptions) {
    this.#options = options;
    this.#port = options.port;
    this.#ledger = options.port.inProcess === true ? undefined : new RunLedger(options.limits);
    this.#stopNaming = options.clock.after(options.limits.openTurnsEveryMs, this.#nameOpenTurns);
    this.#stopSweep = options.clock.after(options.limits.identitySweepMs, this.#sweep);
    options.port.attach({
      onLinked: () => this.#linked(),
      onLost: () => this.#lost(),
      onMessage: (message) => this.#take(message),
    });
    // A port that was linked before we came may or may not have said so.
    if (options.port.linked && !this.#saidHello) this.#linked();
  }

  /** The link is made and the scheduler has taken our state. */
  get synced(): boolean {
    return this.#synced && this.#port.linked;
  }

  get linked(): boolean {
    return this.#port.linked;
  }

  get openTurns(): ReadonlyMap<TurnId, LinkedTurn> {
    return this.#open;
  }

  /** What is kept for the next link. */
  get ledger(): { readonly runCount: number; readonly keyCount: number } {
    return this.#ledger ?? NOTHING_KEPT;
  }

  /** Asks for a turn. Its answer may come before this returns. */
  ask(turn: LinkedTurn): void {
    this.#open.set(turn.id, turn);
    this.#unanswered.add(turn);
    this.#port.send(turn.request());
    if (this.#unanswered.size > 0) this.#stopRetry ??= this.#after(this.#options.limits.linkRetryMs, this.#askAgain);
  }

  /** The turn has ended while it was held. */
  abandoned(turn: LinkedTurn, reason: FailureReason): void {
    if (!this.#left(turn)) return;
    this.#port.send({ type: "abandoned", turn: turn.id, reason });
  }

  started(turn: LinkedTurn): void {
    this.#port.send({ type: "started", turn: turn.id });
  }

  finished(turn: LinkedTurn, outcome: TurnOutcome): void {
    if (!this.#left(turn)) return;
    const { run } = turn;
    if (run !== undefined) {
      this.#ledger?.finished(ownerOf(turn, run), outcome.paused, turn.side, outcome.keys, this.#now());
    }
    const { usage, finishReason, paused, tool, keys } = outcome;
    const called = tool === undefined ? undefined : { tool };
    this.#port.send({ type: "finished", turn: turn.id, usage, finishReason, paused, keys, ...called });
  }

  /** The turn has ended badly after it was admitted. */
  failed(turn: LinkedTurn, reason: FailureReason): void {
    if (!this.#left(turn)) return;
    if (turn.run !== undefined) this.#ledger?.failed(ownerOf(turn, turn.run), turn.side, this.#now());
    this.#port.send({ type: "failed", turn: turn.id, reason });
  }

  /** The engine refused the turn: it is held again by the scheduler, under the same id. */
  pushedBack(turn: LinkedTurn, retryAfterMs: number): void {
    this.#port.send({ type: "pushed-back", turn: turn.id, retryAfterMs });
  }

  withdrawn(turn: LinkedTurn): void {
    this.#port.send({ type: "withdrawn", turn: turn.id });
  }

  tooLate(turn: LinkedTurn): void {
    this.#port.send({ type: "too-late", turn: turn.id });
  }

  explain(turn: LinkedTurn): void {
    this.#port.send({ type: "explain", turn: turn.id });
  }

  /** The run is over. With turns open the scheduler waits for the last one to end. */
  runEnded(run: RunId, principal: PrincipalId): void {
    this.#ledger?.ended(run, principal);
    if (this.#port.linked) this.#port.send({ type: "run-ended", run, principal });
    else if (this.#endedAway.length < ENDED_AWAY_MAX) this.#endedAway.push({ run, principal });
  }

  /** What is known of a run; "unavailable" when the scheduler does not answer. */
  queryRun(run: RunId, principal: PrincipalId, done: Query["done"]): void {
    if (!this.#port.linked || this.#queries.size >= QUERIES_MAX) {
      done("unavailable");
      return;
    }
    this.#queryCount += 1;
    const query = this.#queryCount;
    const stop = this.#after(QUERY_WAIT_MS, () => {
      this.#queries.delete(query);
      done("unavailable");
    });
    this.#queries.set(query, { done, stop });
    this.#port.send({ type: "run-query", query, run, principal });
  }

  /** Ends every timer. Nothing is asked for or named afterwards. */
  close(): void {
    this.#closed = true;
    this.#stopRetry?.();
    this.#stopNaming();
    this.#stopSweep();
    for (const { stop } of this.#queries.values()) stop();
    this.#queries.clear();
  }

  #now(): number {
    return this.#options.clock.nowMs();
  }

  #after(delayMs: number, action: () => void): () => void {
    return this.#options.clock.after(delayMs, action);
  }

  /** @returns false when its end was reported before: an end is reported once. */
  #left(turn: LinkedTurn): boolean {
    this.#unanswered.delete(turn);
    return this.#open.delete(turn.id);
  }

  #linked(): void {
    this.#synced = false;
    this.#saidHello = true;
    const nowMs = this.#now();
    const flights: FlightReport[] = [];
    for (const turn of this.#open.values()) {
      const flight = turn.flight(nowMs);
      if (flight !== undefined) flights.push(flight);
    }
    const runs = this.#ledger?.runReports(nowMs) ?? [];
    const keys = this.#ledger?.keyReports(nowMs) ?? [];
    const { dataplane, log } = this.#options;
    log("info", "scheduler-linked", { runs: runs.length, flights: flights.length, keys: keys.length });
    const models = this.#models;
    this.#port.send({ type: "hello", protocol: LINK_PROTOCOL, dataplane, runs, flights, keys, models }); // A2
    const endedAway = this.#endedAway;
    this.#endedAway = [];
    for (const { run, principal } of endedAway) this.#port.send({ type: "run-ended", run, principal });
    // The map keeps the order of arrival, and with it the turns' places.
    for (const turn of this.#open.values()) if (turn.flightAt === undefined) this.ask(turn);
  }

  #lost(): void {
    this.#synced = false;
    this.#saidHello = false;
    this.#options.log("warn", "scheduler-lost", { openTurns: this.#open.size });
    for (const { done, stop } of this.#queries.values()) {
      stop();
      done("unavailable");
    }
    this.#queries.clear();
  }

  #take(message: SchedulerMessage): void {
    switch (message.type) {
      case "welcome":
        this.#synced = true;
        return;
      case "pool":
        this.#models = message.replicas.map(({ replica, models }) => ({ replica, models }));
        this.#options.onPool(message.replicas);
        return;
      case "drain":
        this.#options.onDrain();
        return;
      case "run-known": {
        const query = this.#queries.get(message.query);
        this.#queries.delete(message.query);
        query?.stop();
        query?.done(message.view);
        return;
      }
      case "held":
        this.#answered(message.turn)?.onHeld(message.run, message.source);
        return;
      case "admitted":
        this.#admitted(message);
        return;
      case "rejected": {
        const turn = this.#answered(message.turn);
        if (turn === undefined) return;
        // It was never known as a turn: nothing is left to report.
        this.#left(turn);
        turn.onRejected(message);
        return;
      }
      case "withdraw":
        this.#open.get(message.turn)?.onWithdraw();
        return;
      case "explained":
        this.#open.get(message.turn)?.onExplained(message.reason, message.place);
        return;
      default:
        unreachable(message);
    }
  }

  #admitted(message: Extract<SchedulerMessage, { readonly type: "admitted" }>): void {
    const turn = this.#answered(message.turn);
    // An admission that was asked for twice comes twice: the second finds the turn in flight.
    if (turn === undefined || turn.flightAt !== undefined) return;
    const { run, replica, source, priority } = message;
    this.#ledger?.admitted(ownerOf(turn, run), replica, turn.side, this.#now());
    turn.onAdmitted(replica, run, source, priority);
  }

  /** The open turn that an answer is for (A3). */
  #answered(id: TurnId): LinkedTurn | undefined {
    const turn = this.#open.get(id);
    if (turn !== undefined) this.#unanswered.delete(turn);
    return turn;
  }

  readonly #askAgain = (): void => {
    this.#stopRetry = undefined;
    if (this.#closed || this.#unanswered.size === 0) return;
    this.#stopRetry = this.#after(this.#options.limits.linkRetryMs, this.#askAgain);
    // Without a link nothing is sent: `onLinked` asks for all of them.
    if (!this.#port.linked) return;
    for (const turn of this.#unanswered) this.#port.send(turn.request());
  };

  readonly #nameOpenTurns = (): void => {
    if (this.#closed) return;
    this.#stopNaming = this.#after(this.#options.limits.openTurnsEveryMs, this.#nameOpenTurns);
    this.#port.send({ type: "open-turns", turns: [...this.#open.keys()] }); // A1
  };

  readonly #sweep = (): void => {
    if (this.#closed) return;
    this.#stopSweep = this.#after(this.#options.limits.identitySweepMs, this.#sweep);
    this.#ledger?.sweep(this.#now());
  };
}

function ownerOf(
  turn: LinkedTurn,
  run: RunId,
): {
  readonly run: RunId;
  readonly principal: PrincipalId;
  readonly caller: CallerId;
  readonly class: ServiceClass;
} {
  return { run, principal: turn.principal, caller: turn.caller, class: turn.class };
}
