/**
 * The dataplane: routes requests, and holds what its turns share. Sockets are the front's, decisions the scheduler's.
 *
 * D1: every route but the open ones of the table needs the token, unknown paths included.
 * D2: once draining, no request becomes a turn; readiness is the first thing that changes.
 */
import type { Clock } from "../base/clock.ts";
import { asRunId, type DataplaneId, type PrincipalId } from "../base/ids.ts";
import { unreachable } from "../base/invariant.ts";
import type { Authenticate, EngineClient, Exchange, Identity } from "../http/index.ts";
import type { Log, Registry } from "../telemetry/index.ts";
import type { AdmissionPort } from "../wire/admission.ts";
import type { EndpointConfig } from "../wire/endpoint.ts";
import type { LuftpauseError } from "../wire/errors.ts";
import { HEADER } from "../wire/headers.ts";
import { Admissions } from "./admissions.ts";
import { answerError, answerJson } from "./answers.ts";
import { takeAuxiliary, type AuxiliaryHost, type AuxiliaryRequest } from "./auxiliary.ts";
import { AuxiliarySlots } from "./auxiliary-slots.ts";
import { finishWithError } from "./finish.ts";
import { HeldBodies } from "./held-bodies.ts";
import { answerModels, answerRun, answerText, endRun } from "./info-routes.ts";
import { Metrics } from "./metrics.ts";
import { Pool } from "./pool.ts";
import { isLoop } from "./request-headers.ts";
import { matchRoute, type RouteAction } from "./routes.ts";
import { takeTurn } from "./turn.ts";
import { turnApi } from "./turn-api.ts";
import { principalOf, type ClassesOf } from "./turn-intake.ts";
import type { DataplaneLimits, Turn } from "./turn-state.ts";

export type DataplaneOptions = {
  /** New at every start: names this process on the link, and its turns. */
  readonly dataplane: DataplaneId;
  /** The engines, as the scheduler has them too. */
  readonly endpoints: readonly EndpointConfig[];
  readonly limits: DataplaneLimits;
  readonly port: AdmissionPort;
  readonly clock: Clock;
  readonly authenticate: Authenticate;
  /** Classes of a principal that a service names; undefined for one that is not configured. */
  readonly classesOf?: ClassesOf;
  readonly engineClient: EngineClient;
  readonly log: Log;
  /** Our id toward engines; a request that carries it already is a loop. Header-safe, without comma. */
  readonly hop: string;
  /** `/metrics` without a token. */
  readonly metricsPublic: boolean;
};

/** An open turn, for status. */
export type OpenTurnView = {
  readonly turn: string;
  readonly run: string | undefined;
  readonly principal: PrincipalId;
  readonly caller: string;
  readonly class: string;
  readonly model: string;
  readonly phase: "reading" | "held" | "attempt" | "answering";
  readonly replica: string | undefined;
  readonly ageMs: number;
};

export type Dataplane = {
  /** Serves one request; never throws. */
  handle(exchange: Exchange): void;
  /** Ready to take turns: linked, synced, not draining. `reason` says what is missing. */
  ready(): { readonly ready: boolean; readonly reason: string };
  /**
   * Takes no new turns, answers the held ones, lets streams end for `limits.drainSeconds`, then breaks them off.
   * Resolves when nothing is open. Calling it again changes nothing.
   */
  drain(): Promise<void>;
  /** Ends everything that is open at once, and every timer. */
  close(): void;
  /** Another pool: applied at once; turns in flight go on where they are. */
  reconfigure(endpoints: readonly EndpointConfig[]): void;
  readonly metrics: Registry;
  openTurns(): readonly OpenTurnView[];
};

/** Makes the dataplane; it says hello on the port at once, or as soon as that is linked. */
export function createDataplane(options: DataplaneOptions): Dataplane {
  return new DataplaneService(options);
}

/** A set that says when its last element has gone. */
class OpenSet<T> extends Set<T> {
  readonly #onEmpty: () => void;

  constructor(onEmpty: () => void) {
    super();
    this.#onEmpty = onEmpty;
  }

  override delete(item: T): boolean {
    const had = super.delete(item);
    if (had && this.size === 0) this.#onEmpty();
    return had;
  }
}

class DataplaneService implements Dataplane {
  readonly #options: DataplaneOptions;
  readonly #host: AuxiliaryHost;
  readonly #metrics = new Metrics();
  #drained: Promise<void> | undefined;
  #whenEmpty: (() => void) | undefined;

  constructor(options: DataplaneOptions) {
    this.#options = options;
    const { clock, limits, log, port, engineClient, dataplane, hop } = options;
    const pool = new Pool(options.endpoints);
    const slots = new AuxiliarySlots({ clock, ...limits });
    const admissions = new Admissions({
      dataplane,
      port,
      clock,
      limits,
      log,
      onPool(replicas) {
        pool.update(replicas);
        slots.serve();
      },
      onDrain: () => void this.drain(), // The scheduler asks; the process decides when to end.
    });
    this.#host = {
      clock,
      limits,
      log,
      metrics: this.#metrics,
      engineClient,
      pool,
      admissions,
      heldBodies: new HeldBodies(limits.heldBodyBytesMax),
      dataplane,
      hop,
      turns: new OpenSet<Turn>(() => this.#emptied()),
      draining: false,
      serial: 0,
      slots,
      auxiliary: new OpenSet<AuxiliaryRequest>(() => this.#emptied()),
    };
    this.#watch();
  }

  get metrics(): Registry {
    return this.#metrics.registry;
  }

  handle(exchange: Exchange): void {
    try {
      this.#route(exchange);
    } catch (error) {
      const { log, limits } = this.#host;
      log("error", "request-fault", { error: error instanceof Error ? error.stack : String(error) });
      if (exchange.begun) exchange.breakOff();
      else
        answerError(
          exchange,
          { code: "internal", message: "luftpause has made a mistake; its log says which" },
          limits,
        );
    }
  }

  ready(): { readonly ready: boolean; readonly reason: string } {
    const { draining, admissions } = this.#host;
    if (draining) return { ready: false, reason: "draining" };
    if (!admissions.linked) return { ready: false, reason: "no link to the scheduler" };
    if (!admissions.synced) return { ready: false, reason: "not synced with the scheduler" };
    return { ready: true, reason: "ready" };
  }

  openTurns(): readonly OpenTurnView[] {
    const nowMs = this.#host.clock.nowMs();
    const views: OpenTurnView[] = [];
    for (const turn of this.#host.turns) {
      const { phase } = turn;
      if (phase.kind === "ended") continue;
      views.push({
        turn: turn.id,
        run: turn.run ?? turn.ownRun,
        principal: turn.principal,
        caller: turn.caller,
        class: turn.class,
        model: turn.model,
        phase: phase.kind,
        replica: turn.flightAt,
        ageMs: nowMs - turn.arrivalMs,
      });
    }
    return views;
  }

  reconfigure(endpoints: readonly EndpointConfig[]): void {
    this.#host.pool.reconfigure(endpoints);
    this.#host.slots.serve();
  }

  drain(): Promise<void> {
    this.#drained ??= this.#startDrain();
    return this.#drained;
  }

  close(): void {
    this.#host.draining = true;
    this.#cutAll();
    this.#host.admissions.close();
  }

  #route(exchange: Exchange): void {
    const matched = matchRoute(exchange.method, exchange.path);
    const guard = matched.kind === "route" ? matched.route.guard : "token";
    const open = guard === "open" || (guard === "metrics" && this.#options.metricsPublic);
    const identity = open ? undefined : this.#options.authenticate(exchange);
    if (!open && identity === undefined) {
      const message = "no valid token: send it as `Authorization: Bearer …`, `x-api-key` or `x-goog-api-key`";
      this.#refuse(exchange, { code: "invalid_token", message }); // D1
    } else if (matched.kind === "unknown") {
      this.#refuse(exchange, {
        code: "route_unknown",
        message: `no route ${exchange.method} ${exchange.path.slice(0, 200)}`,
      });
    } else if (matched.kind === "wrong-method") {
      const message = `this route takes ${matched.allow}, not ${exchange.method}`;
      this.#refuse(exchange, { code: "method_not_allowed", message }, ["allow", matched.allow]);
    } else if (isLoop(exchange.header(HEADER.hop), this.#host.hop)) {
      const message = "this request has passed this luftpause before: one of its endpoints leads back to it";
      this.#refuse(exchange, { code: "loop", message });
    } else {
      this.#act(exchange, matched.route.action, { identity, rest: matched.rest });
    }
  }

  #act(
    exchange: Exchange,
    action: RouteAction,
    { identity, rest }: { readonly identity: Identity | undefined; readonly rest: string },
  ): void {
    const host = this.#host;
    switch (action.kind) {
      case "turn": {
        const api = turnApi(action.api);
        if (api === undefined || identity === undefined) throw new Error(`route of ${action.api} is no turn`);
        takeTurn({ host, exchange, api, identity, classesOf: this.#options.classesOf ?? noClasses });
        return;
      }
      case "auxiliary":
        host.serial += 1;
        takeAuxiliary(host, exchange, action.api, asRunId(`run-${host.dataplane}-${host.serial.toString(36)}`));
        return;
      case "models":
        answerModels(host, exchange);
        return;
      case "run-get":
        if (identity !== undefined) answerRun(host, exchange, principalOf(exchange, identity), rest);
        return;
      case "run-delete":
        if (identity !== undefined) endRun(host, exchange, principalOf(exchange, identity), rest);
        return;
      case "healthz":
        answerJson(exchange, 200, { service: "luftpause", part: "dataplane", status: "ok" });
        return;
      case "readyz": {
        const { ready, reason } = this.ready();
        answerJson(exchange, ready ? 200 : 503, { service: "luftpause", part: "dataplane", status: reason });
        return;
      }
      case "metrics":
        void this.#answerMetrics(exchange); // Catches its own failure.
        return;
      case "well-known":
        this.#refuse(exchange, { code: "route_unknown", message: "there is nothing here" });
        return;
      default:
        unreachable(action);
    }
  }

  #refuse(exchange: Exchange, error: LuftpauseError, headers: readonly string[] = []): void {
    this.#metrics.refused(error.code);
    answerError(exchange, error, this.#host.limits, headers);
  }

  async #answerMetrics(exchange: Exchange): Promise<void> {
    try {
      const page = await this.#metrics.registry.metrics();
      answerText(exchange, 200, page, this.#metrics.registry.contentType);
    } catch (error) {
      this.#host.log("error", "metrics-fault", { error: String(error) });
      answerError(exchange, { code: "internal", message: "the metrics could not be read" }, this.#host.limits);
    }
  }

  #startDrain(): Promise<void> {
    const { clock, limits, log, turns, auxiliary } = this.#host;
    this.#host.draining = true; // D2
    log("info", "draining", { openTurns: turns.size });
    for (const turn of turns) if (turn.phase.kind === "held") refuseDraining(turn);
    for (const request of auxiliary) request.drain();
    if (turns.size === 0 && auxiliary.size === 0) return Promise.resolve();
    return new Promise((resolve) => {
      const stop = clock.after(limits.drainSeconds * 1000, () => this.#cutAll());
      this.#whenEmpty = () => {
        stop();
        resolve();
      };
    });
  }

  #cutAll(): void {
    for (const turn of this.#host.turns) refuseDraining(turn);
    for (const request of this.#host.auxiliary) request.cut();
  }

  #emptied(): void {
    const { turns, auxiliary } = this.#host;
    if (turns.size > 0 || auxiliary.size > 0) return;
    this.#whenEmpty?.();
    this.#whenEmpty = undefined;
  }

  #watch(): void {
    const { turns, heldBodies, engineClient, admissions } = this.#host;
    this.#metrics.watch({
      openTurns() {
        let held = 0;
        let inFlight = 0;
        let streaming = 0;
        for (const turn of turns) {
          if (turn.phase.kind === "held") held += 1;
          else if (turn.flightAt !== undefined) inFlight += 1;
          if (turn.stream && turn.exchange.begun) streaming += 1;
        }
        return { held, inFlight, streaming };
      },
      heldBodyBytes: () => heldBodies.bytes,
      openCalls: () => engineClient.stats().open,
      retriedOnFresh: () => engineClient.stats().retriedOnFresh,
      linked: () => admissions.linked,
      runs: () => admissions.ledger.runCount,
      keys: () => admissions.ledger.keyCount,
    });
  }
}

const noClasses: ClassesOf = () => undefined;

function refuseDraining(turn: Turn): void {
  finishWithError(turn, { code: "draining", message: "luftpause is shutting down: send the turn again" });
}
