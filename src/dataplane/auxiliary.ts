/**
 * Requests that are no turns: embeddings, and classification at single-pass replicas (`/v1/decide`). No run state, no
 * place among the held turns; the engine's answer passes unchanged (spec 3, Auxiliary requests).
 *
 * X1: a request ends once, by `#end`, which gives back its place and its bytes.
 */
import type { RunId } from "../base/ids.ts";
import type { EngineCall, EngineFailure, EngineHandler, EngineHead, Exchange } from "../http/index.ts";
import type { LuftpauseError } from "../wire/errors.ts";
import { HEADER } from "../wire/headers.ts";
import { answerKind, copyEngineHeaders } from "./answer-headers.ts";
import { answerError } from "./answers.ts";
import type { AuxiliarySlots, Waiter } from "./auxiliary-slots.ts";
import { engineOf, type Replica } from "./pool.ts";
import { attemptHeaders } from "./request-headers.ts";
import { scanRequest } from "./request-scan.ts";
import { classOf, encodingProblem, runOf } from "./turn-intake.ts";
import type { TurnHost } from "./turn-state.ts";

export type AuxiliaryApi = "embeddings" | "classify";

export type AuxiliaryHost = TurnHost & {
  readonly slots: AuxiliarySlots;
  /** Requests that have not ended. */
  readonly auxiliary: Set<AuxiliaryRequest>;
};

type Phase =
  | { readonly kind: "reading" }
  | { readonly kind: "waiting"; readonly waiter: Waiter }
  | { readonly kind: "calling"; readonly replica: Replica; call: EngineCall | undefined }
  | { readonly kind: "ended" };

const BOTH = ["interactive", "batch"] as const;
const ENDED: Phase = { kind: "ended" };

/** Takes an authenticated request and sees it through. */
export function takeAuxiliary(host: AuxiliaryHost, exchange: Exchange, api: AuxiliaryApi, freshRun: RunId): void {
  const request = new AuxiliaryRequest(host, exchange, api, freshRun);
  host.auxiliary.add(request);
  request.read();
}

export class AuxiliaryRequest implements EngineHandler {
  readonly #host: AuxiliaryHost;
  readonly #exchange: Exchange;
  readonly #api: AuxiliaryApi;
  readonly #run: RunId | LuftpauseError;
  readonly #freshRun: RunId;
  #phase: Phase = { kind: "reading" };
  #body: Buffer | undefined;
  #model = "";

  constructor(host: AuxiliaryHost, exchange: Exchange, api: AuxiliaryApi, freshRun: RunId) {
    this.#host = host;
    this.#exchange = exchange;
    this.#api = api;
    this.#freshRun = freshRun;
    this.#run = runOf(exchange, host.limits.runIdBytesMax) ?? freshRun;
  }

  read(): void {
    this.#exchange.onGone = () => this.#gone();
    this.#exchange.readBody(this.#host.limits.bodyBytesMax, (body) => {
      if (this.#phase.kind !== "reading") return;
      try {
        if (body === "aborted") this.#gone();
        else if (body === "too-large") this.#refuseTooLarge();
        else this.#take(body);
      } catch (error) {
        this.#fault(error);
      }
    });
  }

  /** The service shuts down: a request that waits is refused, one at an engine goes on. */
  drain(): void {
    if (this.#phase.kind === "waiting") this.#fail(DRAINING);
  }

  /** The time for draining is over. */
  cut(): void {
    this.#fail(DRAINING);
  }

  onHead(head: EngineHead): void {
    try {
      this.#begin(head);
    } catch (error) {
      this.#fault(error);
    }
  }

  #begin(head: EngineHead): void {
    const { status, rawHeaders, lengthBytes } = head;
    const exchange = this.#exchange;
    const { sse } = answerKind(rawHeaders);
    const headers = this.#runHeaders();
    copyEngineHeaders(headers, rawHeaders, sse);
    this.#forgetBody();
    exchange.onDrain = () => {
      if (this.#phase.kind === "calling") this.#phase.call?.resume();
    };
    if (status === 204 || status === 304) exchange.begin(status, headers, { kind: "none" });
    else if (sse || lengthBytes === undefined) exchange.begin(status, headers, { kind: "stream" });
    else exchange.begin(status, headers, { kind: "length", bytes: lengthBytes });
    this.#host.metrics.auxiliary(this.#api, status < 300 ? "ok" : "engine-error");
  }

  onPayload(buffer: Buffer, start: number, end: number): void {
    if (this.#exchange.write(buffer.subarray(start, end)) || this.#phase.kind !== "calling") return;
    this.#phase.call?.pause();
  }

  onFrames(): void {
    // The payload is framed anew: these answers come in one piece.
  }

  onEnd(): void {
    this.#exchange.end();
    this.#end();
  }

  onFail(failure: EngineFailure): void {
    const { name } = this.#phase.kind === "calling" ? this.#phase.replica.config : { name: "" };
    const code = failure.kind === "unreachable" ? "engine_unreachable" : "engine_lost";
    this.#fail({ code, message: `engine ${name}: ${failure.reason}` });
  }

  #take(body: Buffer): void {
    const problem = this.#check(body);
    if (problem !== undefined) {
      this.#fail(problem);
      return;
    }
    this.#body = body;
    this.#host.heldBodies.add(body.length);
    const key = `${this.#api}\n${this.#model}`;
    const waiter = this.#host.slots.take({
      key,
      candidates: () => this.#candidates(),
      onPlaced: (replica) => this.#call(replica),
      onTimeout: () => this.#timedOut(),
    });
    if (this.#phase.kind === "reading") this.#phase = { kind: "waiting", waiter };
  }

  #check(body: Buffer): LuftpauseError | undefined {
    const { draining, heldBodies } = this.#host;
    if (this.#api === "classify") {
      if (typeof this.#run === "object") return this.#run;
      const wanted = classOf(this.#exchange, BOTH);
      if ("code" in wanted) return wanted;
    }
    if (draining) return DRAINING;
    const encoding = encodingProblem(this.#exchange);
    if (encoding !== undefined) return encoding;
    const scan = scanRequest(body, this.#api);
    if ("code" in scan) return scan;
    this.#model = scan.model;
    if (!this.#isKnown()) return { code: "model_not_found", message: this.#unknownText() };
    if (heldBodies.fits(body.length)) return undefined;
    return { code: "overloaded", message: `requests that are held already take ${heldBodies.bytes} bytes` };
  }

  /** A model stays known while an endpoint has it, healthy or not. One that was not asked yet may have it. */
  #isKnown(): boolean {
    for (const replica of this.#host.pool.all()) {
      if (this.#serves(replica) || (replica.view?.probed !== true && this.#mayServe(replica))) return true;
    }
    return false;
  }

  /** Of an endpoint whose models or APIs nobody knows yet. */
  #mayServe({ config }: Replica): boolean {
    if (config.models.length > 0 && !config.models.includes(this.#model)) return false;
    if (this.#api === "classify") return config.kind === "single-pass";
    return config.speaks === "auto" || config.speaks.includes(this.#api);
  }

  *#candidates(): Iterable<Replica> {
    for (const replica of this.#host.pool.all()) {
      if (replica.view?.healthy === true && this.#serves(replica)) yield replica;
    }
  }

  #serves({ view, config }: Replica): boolean {
    const models = config.models.length > 0 ? config.models : (view?.models ?? []);
    if (!models.includes(this.#model)) return false;
    if (this.#api === "classify") return config.kind === "single-pass";
    const speaks = config.speaks === "auto" ? (view?.speaks ?? []) : config.speaks;
    return speaks.includes(this.#api);
  }

  #unknownText(): string {
    return this.#api === "classify"
      ? `no SinglePass replica serves model '${this.#model}'`
      : `no replica serves embeddings of model '${this.#model}'`;
  }

  #timedOut(): void {
    if (!this.#isKnown()) {
      this.#fail({ code: "model_not_found", message: this.#unknownText() });
      return;
    }
    const seconds = this.#host.limits.auxiliaryWaitMs / 1000;
    const healthy = [...this.#candidates()].length > 0;
    this.#fail(
      healthy
        ? { code: "overloaded", message: `every replica of model '${this.#model}' was full for ${seconds} s` }
        : { code: "no_healthy_replica", message: `no healthy replica of model '${this.#model}' for ${seconds} s` },
    );
  }

  #call(replica: Replica): void {
    const { config, target } = replica;
    const { path, query, rawHeaders } = this.#exchange;
    const phase: Phase = { kind: "calling", replica, call: undefined };
    this.#phase = phase;
    const enginePath = this.#api === "classify" ? classifyPathOf(replica) : path;
    phase.call = this.#host.engineClient.call(
      target,
      {
        method: "POST",
        path: target.basePath + enginePath + query,
        headers: attemptHeaders({
          rawHeaders,
          hosted: engineOf(replica) === "hosted",
          forwardHeaders: config.forwardHeaders,
          apiKey: config.apiKey,
          hop: this.#host.hop,
        }),
        body: this.#body,
      },
      this,
    );
  }

  /** A bug of ours ends this request, not the process with everybody else's. */
  #fault(error: unknown): void {
    this.#host.log("error", "request-fault", { error: error instanceof Error ? error.stack : String(error) });
    this.#fail({ code: "internal", message: "luftpause has made a mistake; its log says which" });
  }

  #gone(): void {
    this.#host.metrics.auxiliary(this.#api, "client-left");
    this.#end();
  }

  #refuseTooLarge(): void {
    const bytes = this.#host.limits.bodyBytesMax;
    this.#fail({ code: "body_too_large", message: `the body is larger than ${bytes} bytes (limits.bodyBytesMax)` });
  }

  #fail(error: LuftpauseError): void {
    if (this.#phase.kind === "ended") return;
    this.#host.metrics.auxiliary(this.#api, error.code);
    this.#end();
    if (this.#exchange.over) return;
    if (this.#exchange.begun) this.#exchange.breakOff();
    else
      answerError(this.#exchange, error, this.#host.limits, error.code === "body_too_large" ? [] : this.#runHeaders());
  }

  /** Every answer to a classification names a run, as clients of turns expect it (spec 3, Headers). */
  #runHeaders(): string[] {
    if (this.#api !== "classify") return [];
    return [HEADER.runId, typeof this.#run === "object" ? this.#freshRun : this.#run];
  }

  #forgetBody(): void {
    if (this.#body === undefined) return;
    this.#host.heldBodies.remove(this.#body.length);
    this.#body = undefined;
  }

  #end(): void {
    const phase = this.#phase;
    if (phase.kind === "ended") return;
    this.#phase = ENDED;
    this.#exchange.onGone = undefined;
    this.#exchange.onDrain = undefined;
    this.#forgetBody();
    this.#host.auxiliary.delete(this);
    if (phase.kind === "waiting") this.#host.slots.giveUp(phase.waiter);
    if (phase.kind !== "calling") return;
    phase.call?.abort();
    this.#host.slots.release(phase.replica.config.name);
  }
}

const DRAINING: LuftpauseError = { code: "draining", message: "luftpause is shutting down: send the request again" };

/** SGLang serves classification below /v1, vLLM does not (research: classify). */
function classifyPathOf(replica: Replica): string {
  return replica.config.classifyPath ?? (engineOf(replica) === "sglang" ? "/v1/classify" : "/classify");
}
