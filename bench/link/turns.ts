// The load: turns as they cross the link. Each is three messages of the dataplane and one answer of the scheduler.
import { asCallerId, asPrincipalId, asReplicaId, asRunId, asTurnId } from "../../src/base/ids.ts";
import type { DataplaneMessage } from "../../src/wire/admission.ts";
import type { SchedulerFrame } from "../../src/wire/link-frames.ts";
import type { Channel } from "./transports.ts";

/** How turns follow one another. */
export type Pattern =
  /** So many at once, each begun when another ended: what the link costs when it is never idle. */
  | { readonly kind: "closed"; readonly inFlight: number }
  /** Poisson arrivals, each open for a while: what it costs when messages come one by one, as they do in service. */
  | { readonly kind: "paced"; readonly perSecond: number; readonly openMs: number };

export const PATTERNS: { readonly [name: string]: Pattern } = {
  "1 in flight": { kind: "closed", inFlight: 1 },
  "32 in flight": { kind: "closed", inFlight: 32 },
  "400 in flight": { kind: "closed", inFlight: 400 },
  "1,000 turns/s": { kind: "paced", perSecond: 1_000, openMs: 400 },
};

const PRINCIPAL = asPrincipalId("default");
const CALLER = asCallerId("bench");
const hash = (seed: number): string => `${seed.toString(36).padStart(8, "0")}ABCDEFGHIJKLMN`;

function requested(number: number): DataplaneMessage {
  return {
    type: "requested",
    turn: asTurnId(`t-${number.toString(36)}-0123456789ab`),
    principal: PRINCIPAL,
    caller: CALLER,
    class: "batch",
    model: "meta-llama/Llama-3.1-8B-Instruct",
    api: "chat",
    run: undefined,
    keys: [
      { source: "tool-calls", hash: hash(number) },
      { source: "prefix", hash: hash(number + 1), weak: true },
    ],
    freshRun: asRunId(`run-${number.toString(36)}-0123456789abcdef`),
    side: false,
    heldMs: 0,
    attempt: 0,
  };
}

function finished(turn: string, number: number): DataplaneMessage {
  return {
    type: "finished",
    turn: asTurnId(turn),
    usage: { promptTokens: 12_345, completionTokens: 210, cachedTokens: 12_000 },
    finishReason: "tool_calls",
    paused: true,
    keys: [
      { source: "tool-calls", hash: hash(number + 2) },
      { source: "prefix", hash: hash(number + 3), weak: true },
    ],
  };
}

/** The scheduler's end: admits at once. What deciding costs is another bench's question. */
export function answerTurns(channel: Channel): void {
  channel.onValue = (value) => {
    const message = value as DataplaneMessage;
    if (message.type !== "requested") return;
    const { turn, freshRun: run } = message;
    const admitted = { type: "admitted", turn, replica: asReplicaId("sglang-a"), run, source: "new" } as const;
    channel.send({ epoch: 1, message: admitted } satisfies SchedulerFrame);
  };
}

/** The dataplane's end. */
export class Turns {
  readonly #channel: Channel;
  readonly #askedMs = new Map<string, number>();
  #pattern: Pattern | undefined;
  #number = 0;
  #timer: NodeJS.Timeout | undefined;
  ended = 0;
  delaysMs: number[] = [];

  constructor(channel: Channel) {
    this.#channel = channel;
    channel.onValue = (value) => this.#admitted((value as SchedulerFrame).message as { turn: string });
  }

  start(pattern: Pattern): void {
    this.#pattern = pattern;
    if (pattern.kind === "closed") for (let at = 0; at < pattern.inFlight; at += 1) this.#ask();
    else this.#arrive(pattern.perSecond, performance.now());
  }

  /** Resolves when every turn has been answered. */
  async stop(): Promise<void> {
    this.#pattern = undefined;
    clearTimeout(this.#timer);
    while (this.#askedMs.size > 0) await new Promise((resolve) => setTimeout(resolve, 5));
  }

  #arrive(perSecond: number, dueMs: number): void {
    if (this.#pattern === undefined) return;
    let nextMs = dueMs;
    while (nextMs <= performance.now()) {
      this.#ask();
      nextMs += (-Math.log(1 - Math.random()) * 1_000) / perSecond;
    }
    this.#timer = setTimeout(() => this.#arrive(perSecond, nextMs), Math.max(0, nextMs - performance.now()));
  }

  #ask(): void {
    this.#number += 1;
    const message = requested(this.#number);
    if (message.type === "requested") this.#askedMs.set(message.turn, performance.now());
    this.#channel.send(message);
  }

  #admitted({ turn }: { turn: string }): void {
    const askedMs = this.#askedMs.get(turn);
    if (askedMs === undefined) throw new Error(`an answer for ${turn}, which nobody asked for`);
    this.#askedMs.delete(turn);
    if (this.delaysMs.length < 50_000) this.delaysMs.push(performance.now() - askedMs);
    const started = (): void => this.#channel.send({ type: "started", turn: asTurnId(turn) });
    const done = (): void => {
      this.#channel.send(finished(turn, this.#number));
      this.ended += 1;
      if (this.#pattern?.kind === "closed") this.#ask();
    };
    if (this.#pattern?.kind === "paced") {
      setTimeout(started, this.#pattern.openMs / 8);
      setTimeout(done, this.#pattern.openMs);
    } else {
      // Never in the turn of the event loop in which the answer came: an engine is asked in between.
      setImmediate(() => {
        started();
        setImmediate(done);
      });
    }
  }
}
