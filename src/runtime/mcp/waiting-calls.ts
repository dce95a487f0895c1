/** Bound on the calls that wait at the same time: each holds a connection and what it has asked for. */
import type { CallToolResult } from "@modelcontextprotocol/server";
import { failed } from "./results.ts";

export class WaitingCalls {
  readonly #most: number;
  #now = 0;

  constructor(most: number) {
    this.#most = most;
  }

  get now(): number {
    return this.#now;
  }

  async count<Result>(call: () => Promise<Result>): Promise<Result | CallToolResult> {
    if (this.#now >= this.#most) {
      return failed(`${this.#most} calls wait already: name several handles in one await, and call again in a moment`);
    }
    this.#now += 1;
    try {
      return await call();
    } finally {
      this.#now -= 1;
    }
  }
}
