/**
 * What the dataplane counts (spec 7, Seeing). Label values come from closed sets or from the config: no client can make
 * a series. The counts are plain numbers that are read when the page is: counting in prom-client's own instruments cost
 * 3 % of a small turn (bench/overhead).
 */
import type { ReplicaId } from "../base/ids.ts";
import { Gauge, Registry, Tally, Distribution } from "../telemetry/index.ts";
import type { RunSource, ServiceClass } from "../wire/admission.ts";
import type { ErrorCode } from "../wire/errors.ts";

/** How a turn ended. */
export type Outcome = "finished" | "engine-error" | "client-left-held" | "client-left" | ErrorCode;

const PREFIX = "luftpause_dataplane_";
const SECONDS = [0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600];

type Gauges = {
  readonly openTurns: () => { readonly held: number; readonly inFlight: number; readonly streaming: number };
  readonly heldBodyBytes: () => number;
  readonly openCalls: () => number;
  readonly retriedOnFresh: () => number;
  readonly linked: () => boolean;
  readonly runs: () => number;
  readonly keys: () => number;
};

export class Metrics {
  readonly registry = new Registry();
  readonly #turns = this.#tally("turns_total", "Turns that ended, by how.", ["outcome", "class"]);
  readonly #firstToken = this.#seconds("first_token_seconds", "From a turn's arrival to its first content byte.");
  readonly #held = this.#seconds("held_seconds", "From a turn's arrival to its admissions.");
  readonly #sources = this.#tally("runs_recognised_total", "Turns by the rule that recognised their run.", ["source"]);
  readonly #engineErrors = this.#tally("engine_errors_total", "Failures and error answers of engines.", [
    "replica",
    "kind",
  ]);
  readonly #heldAgain = this.#tally("turns_held_again_total", "Turns that an engine or the scheduler gave back.", [
    "replica",
    "why",
  ]);
  readonly #auxiliary = this.#tally("auxiliary_requests_total", "Requests that are no turns, by how they ended.", [
    "api",
    "outcome",
  ]);
  readonly #refused = this.#tally("requests_refused_total", "Requests refused before they became a turn.", ["code"]);
  readonly #requestBytes = this.#tally("request_bytes_total", "Bytes of the bodies of turns.", []);
  readonly #answerBytes = this.#tally("answer_bytes_total", "Bytes of the engines' answers to turns.", []);
  readonly #tapsSkipped = this.#tally("taps_skipped_total", "Answers with a part too large to look into.", []);
  readonly #early200 = this.#tally("early_answers_total", "Held streams that got their 200 before an engine.", []);

  /** Values that are read when the page is: called once by the service. */
  watch(gauges: Gauges): void {
    const gauge = (name: string, help: string, read: () => number): void => {
      const one = new Gauge({
        name: PREFIX + name,
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
    gauge("open_streams", "Streams of which the client has got a status.", () => gauges.openTurns().streaming);
    gauge("held_body_bytes", "Bytes of the bodies of held turns.", gauges.heldBodyBytes);
    gauge("engine_connections", "Connections to engines, idle ones included.", gauges.openCalls);
    gauge("engine_retries", "Requests that were sent again on a fresh connection, so far.", gauges.retriedOnFresh);
    gauge("linked", "1 while the scheduler is linked.", () => (gauges.linked() ? 1 : 0));
    gauge("runs_remembered", "Runs that would be handed over on resync.", gauges.runs);
    gauge("keys_remembered", "Identity keys that would be handed over on resync.", gauges.keys);
  }

  turnEnded(outcome: Outcome, serviceClass: ServiceClass): void {
    this.#turns.add(1, outcome, serviceClass);
  }

  firstToken(serviceClass: ServiceClass, ms: number): void {
    this.#firstToken.observe(ms / 1000, serviceClass);
  }

  admitted(serviceClass: ServiceClass, heldMs: number): void {
    this.#held.observe(heldMs / 1000, serviceClass);
  }

  recognised(source: RunSource): void {
    this.#sources.add(1, source);
  }

  engineError(replica: ReplicaId, kind: "unreachable" | "lost" | "4xx" | "5xx" | "in-answer"): void {
    this.#engineErrors.add(1, replica, kind);
  }

  heldAgain(replica: ReplicaId, why: "pushed-back" | "withdrawn"): void {
    this.#heldAgain.add(1, replica, why);
  }

  auxiliary(api: "embeddings" | "classify", outcome: "ok" | Outcome): void {
    this.#auxiliary.add(1, api, outcome);
  }

  refused(code: ErrorCode): void {
    this.#refused.add(1, code);
  }

  early200(): void {
    this.#early200.add(1);
  }

  requestBytes(bytes: number): void {
    this.#requestBytes.add(bytes);
  }

  answerBytes(bytes: number): void {
    this.#answerBytes.add(bytes);
  }

  tapSkipped(): void {
    this.#tapsSkipped.add(1);
  }

  #tally(name: string, help: string, labels: readonly string[]): Tally {
    const tally = new Tally({ name: PREFIX + name, help, labels });
    this.registry.registerMetric(tally.metric);
    return tally;
  }

  #seconds(name: string, help: string): Distribution {
    const distribution = new Distribution({ name: PREFIX + name, help, label: "class", bounds: SECONDS });
    this.registry.registerMetric(distribution.metric);
    return distribution;
  }
}
