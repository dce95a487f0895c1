/**
 * What stands between agents and engines in a simulation: it is asked for turns and sends each to an engine, at once or
 * later. Its policy is all that differs between two columns of a table.
 */
import type { ServiceClass, Usage } from "../wire/admission.ts";

/** A turn as an agent asks for it. */
export type AskedTurn = {
  readonly id: string;
  readonly run: string;
  readonly class: ServiceClass;
  readonly caller: string;
  /** Size of its body. */
  readonly promptBytes: number;
  /** What its prompt begins with. */
  readonly prefixKey: string;
  /** Of the prompt alone. */
  readonly promptHashes: Float64Array;
};

/** What the front does with a turn that it was asked for. */
export type TurnActions = {
  /** @returns why the engine did not take it; undefined: it did. */
  send(engine: number, priority: number | undefined): string | undefined;
  /** Takes the turn back from its engine, unless its answer has begun. @returns whether that was so */
  takeBack(): boolean;
  fail(why: string): void;
};

/** How a turn ended. */
export type TurnEnd = {
  readonly usage: Usage;
  /** The tool whose result the run now waits for; undefined: the answer was the last one. */
  readonly tool: string | undefined;
};

export type Front = {
  ask(turn: AskedTurn, actions: TurnActions): void;
  /** The first content of the answer is there. */
  started(turn: AskedTurn): void;
  finished(turn: AskedTurn, end: TurnEnd): void;
  /** The harness says that the run is over. */
  runEnded(run: string): void;
};
