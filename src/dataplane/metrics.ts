/**
 * What the dataplane counts (spec 7, Seeing). Label values come from closed sets or from the config: no client can make
 * a series. Children are looked up once and kept, since the look-up costs more than the count.
 */
import type { ReplicaId } from "../base/ids.ts";
import { Counter, Gauge, Histogram, Registry } from "../telemetry/index.ts";
import type { RunSource, ServiceClass } from "../wire/admission.ts";
import type { ErrorCode } from "../wire/errors.ts";

/** How a turn ended. */
export type Outcome = "finished" | "engine-error" | "client-left-held" | "client-left" | ErrorCode;

const SECONDS = [0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600];

type Gauges = {
  readonly openTurns: () => { readonly held: number; readonly inFlight: number };
  readonly heldBodyBytes: () => number;
  readonly openCalls: () => number;
  readonly retriedOnFresh: () => number;
  readonly linked: () => boolean;
  readonly runs: () => number;
  readonly keys: () => number;
};

/** Keeps the child of each label value. */
class Children<Child> {
  readonly #make: (a: string, b: string) => Child;
  readonly #children = new Map<string, Map<string, Child>>();

  constructor(make: (a: string, b: string) => Child) {
    this.#make = make;
  }

  of(a: string, b = ""): Child {
    let inner = this.#children.get(a);
    if (inner === undefined) {
      inner = new Map();
      this.#children.set(a, inner);
    }
    let child = inner.get(b);
    if (child === undefined) {
      child = this.#make(a, b);
      inner.set(b, child);
    }
    return child;
  }
}

export class Metrics {
  readonly registry = new Registry();
  readonly #turns: Children<{ inc(): void }>;
  readonly #firstToken: Children<{ observe(seconds: number): void }>;
  readonly #held: Children<{ observe(seconds: number): void }>;
  readonly #runSource: Children<{ inc(): void }>;
  readonly #engineErrors: Children<{ inc(): void }>;
  readonly #pushedBack: Children<{ inc(): void }>;
  readonly #auxiliary: Children<{ inc(): void }>;
  readonly #requestBytes: Counter;
  readonly #answerBytes: Counter;
  readonly #tapsSkipped: Counter;
  readonly #early200: Counter;
  readonly #refused: Children<{ inc(): void }>;

  constructor() {
    const registers = [this.registry];
    const counter = <Label extends string>(name: string, help: string, labelNames: readonly Label[]) =>
      new Counter({ name: `luftpause_dataplane_${name}`, help, labelNames: [...labelNames], registers });
    const histogram = (name: string, help: string) =>
      new Histogram({
        name: `luftpause_dataplane_${name}`,
        help,
        labelNames: ["class"],
        buckets: SECONDS,
        registers,
      });
    const turns = counter("turns_total", "Turns that ended, by how.", ["outcome", "class"]);
    this.#turns = new Children((outcome, serviceClass) => turns.labels(outcome, serviceClass));
    const firstToken = histogram("first_token_seconds", "From a turn's arrival to its first content byte.");
    this.#firstToken = new Children((serviceClass) => firstToken.labels(serviceClass));
    const held = histogram("held_seconds", "From a turn's arrival to its last admission.");
    this.#held = new Children((serviceClass) => held.labels(serviceClass));
    const source = counter("runs_recognised_total", "Turns by the rule that recognised their run.", ["source"]);
    this.#runSource = new Children((rule) => source.labels(rule));
    const errors = counter("engine_errors_total", "Failures and error answers of engines.", ["replica", "kind"]);
    this.#engineErrors = new Children((replica, kind) => errors.labels(replica, kind));
    const pushed = counter("turns_held_again_total", "Turns that an engine or the scheduler gave back.", [
      "replica",
      "why",
    ]);
    this.#pushedBack = new Children((replica, why) => pushed.labels(replica, why));
    const auxiliary = counter("auxiliary_requests_total", "Requests that are no turns, by how they ended.", [
      "api",
      "outcome",
    ]);
    this.#auxiliary = new Children((api, outcome) => auxiliary.labels(api, outcome));
    const refused = counter("requests_refused_total", "Requests refused before they became a turn.", ["code"]);
    this.#refused = new Children((code) => refused.labels(code));
    this.#requestBytes = counter("request_bytes_total", "Bytes of the bodies of turns.", []);
    this.#answerBytes = counter("answer_bytes_total", "Bytes of the engines' answers to turns.", []);
    this.#tapsSkipped = counter("taps_skipped_total", "Answers of which a part was too large to look into.", []);
    this.#early200 = counter("early_answers_total", "Held streaming turns that got their 200 before an engine.", []);
  }

  /** Values that are read when the page is: called once by the service. */
  watch(gauges: Gauges): void {
    const gauge = (name: string, help: string, read: () => number): void => {
      const one = new Gauge({
        name: `luftpause_dataplane_${name}`,
        help,
        registers: [],
        collect() {
          this.set(read());
        },
      });
      this.registry.registerMetric(one);
    };
    gauge("held_turns", "Turns that are held.", () => gauges.openTurns().held);
    gauge("turns_in_flight", "Turns that are at an engine.", () => gauges.openTurns().inFlight);
    gauge("held_body_bytes", "Bytes of the bodies of held turns.", gauges.heldBodyBytes);
    gauge("engine_connections", "Connections to engines, idle ones included.", gauges.openCalls);
    gauge("engine_retries", "Requests that were sent again on a fresh connection, so far.", gauges.retriedOnFresh);
    gauge("linked", "1 while the scheduler is linked.", () => (gauges.linked() ? 1 : 0));
    gauge("runs_remembered", "Runs that would be handed over on resync.", gauges.runs);
    gauge("keys_remembered", "Identity keys that would be handed over on resync.", gauges.keys);
  }

  turnEnded(outcome: Outcome, serviceClass: ServiceClass): void {
    this.#turns.of(outcome, serviceClass).inc();
  }

  firstToken(serviceClass: ServiceClass, ms: number): void {
    this.#firstToken.of(serviceClass).observe(ms / 1000);
  }

  admitted(serviceClass: ServiceClass, heldMs: number): void {
    this.#held.of(serviceClass).observe(heldMs / 1000);
  }

  recognised(source: RunSource): void {
    this.#runSource.of(source).inc();
  }

  engineError(replica: ReplicaId, kind: "unreachable" | "lost" | "4xx" | "5xx"): void {
    this.#engineErrors.of(replica, kind).inc();
  }

  heldAgain(replica: ReplicaId, why: "pushed-back" | "withdrawn"): void {
    this.#pushedBack.of(replica, why).inc();
  }

  auxiliary(api: string, outcome: string): void {
    this.#auxiliary.of(api, outcome).inc();
  }

  refused(code: ErrorCode): void {
    this.#refused.of(code).inc();
  }

  early200(): void {
    this.#early200.inc();
  }

  requestBytes(bytes: number): void {
    this.#requestBytes.inc(bytes);
  }

  answerBytes(bytes: number): void {
    this.#answerBytes.inc(bytes);
  }

  tapSkipped(): void {
    this.#tapsSkipped.inc();
  }
}
