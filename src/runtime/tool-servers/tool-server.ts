/**
 * One tool server, supervised: connected again when it is lost, its tools read again when they change, its calls bounded.
 *
 * V1: a call always ends: by an answer, by its time, by its signal, or because the server was lost.
 * V2: what the server certainly has not begun is sent once more; anything else never.
 * V3: the tools that were listed last stay listed while the server is away, so that prompts keep their prefix.
 */
import type { Clock } from "../../base/clock.ts";
import type { Log } from "../../telemetry/index.ts";
import { ConnectionFault, type CallFault, type Connect, type Connection } from "./connection.ts";
import { offersOf } from "./offers.ts";
import type { OfferedTool, ToolCall, ToolOutcome } from "./port.ts";
import { resultText } from "./result-text.ts";
import type { ToolServerConfig } from "./server-config.ts";

export type ToolServerDeps = {
  readonly clock: Clock;
  readonly log: Log;
  readonly connect: Connect;
  readonly version: string;
  /** 0 ≤ n < 1; spreads the attempts of many that lost the same server. */
  readonly random: () => number;
  /** Keeps a result that was too long. @returns words on where it is, for the model and for people */
  readonly spill: (key: string, text: string) => Promise<string | undefined>;
};

type Link =
  | { readonly kind: "connecting" }
  | { readonly kind: "up"; readonly connection: Connection; readonly sinceMs: number }
  | { readonly kind: "down"; readonly why: string; readonly stop: () => void }
  | { readonly kind: "closed" };

const CONNECT_TIMEOUT_MS = 30_000;
const RETRY_FIRST_MS = 500;
const RETRY_MAX_MS = 30_000;
/** A connection that lived this long was a good one: the next attempts begin anew. */
const GOOD_AFTER_MS = 30_000;
/** A call waits this long for a server that is away. */
const AWAY_WAIT_MAX_MS = 30_000;
/** Servers of the old era do not say that they are gone: while they owe an answer they are asked this often. */
const SIGN_OF_LIFE_EVERY_MS = 15_000;
/** Not every server says that its list has changed. */
const LIST_EVERY_MS = 300_000;

export class ToolServer {
  readonly #config: ToolServerConfig;
  readonly #deps: ToolServerDeps;
  #link: Link = { kind: "connecting" };
  #tools: readonly OfferedTool[] = [];
  #failures = 0;
  #pending = 0;
  #stopTimers: (() => void)[] = [];
  #waiters = new Set<() => void>();
  #firstTried: (() => void) | undefined;
  /** Resolves when the first attempt to connect and list has ended, well or not. */
  readonly tried: Promise<void>;

  constructor(config: ToolServerConfig, deps: ToolServerDeps) {
    this.#config = config;
    this.#deps = deps;
    this.tried = new Promise((resolve) => {
      this.#firstTried = resolve;
    });
  }

  get name(): string {
    return this.#config.name;
  }

  get state(): "ok" | "down" {
    return this.#link.kind === "up" ? "ok" : "down";
  }

  /** Calls that it owes an answer. */
  get pending(): number {
    return this.#pending;
  }

  get tools(): readonly OfferedTool[] {
    const { state } = this;
    return state === "ok" ? this.#tools : this.#tools.map((tool) => ({ ...tool, state }));
  }

  start(): void {
    this.#connect().catch((error: unknown) => this.#lost(String(error)));
  }

  async call(call: ToolCall): Promise<ToolOutcome> {
    const { clock } = this.#deps;
    const deadlineMs = clock.nowMs() + this.#config.timeoutMs;
    this.#pending += 1;
    try {
      const first = await this.#attempt(call, deadlineMs);
      if ("result" in first) return await this.#outcome(call, first.result);
      if (first.fault.kind !== "not-sent") return this.#failed(first.fault);
      const second = await this.#attempt(call, deadlineMs); // V2
      return "result" in second ? await this.#outcome(call, second.result) : this.#failed(second.fault);
    } finally {
      this.#pending -= 1;
    }
  }

  async close(): Promise<void> {
    const link = this.#link;
    this.#link = { kind: "closed" };
    this.#endTimers();
    this.#firstTried?.();
    this.#wake();
    if (link.kind === "down") link.stop();
    if (link.kind === "up") await link.connection.close();
  }

  async #attempt(
    call: ToolCall,
    deadlineMs: number,
  ): Promise<{ readonly result: unknown } | { readonly fault: CallFault }> {
    const connection = await this.#available(call.signal, deadlineMs);
    const timeoutMs = deadlineMs - this.#deps.clock.nowMs();
    if (call.signal.aborted) return { fault: { kind: "cancelled" } };
    if (connection === undefined) return { fault: { kind: "not-sent", message: this.#whyAway() } };
    if (timeoutMs <= 0) return { fault: { kind: "timed-out" } };
    const { tool, arguments: given, idempotencyKey, signal } = call;
    try {
      return { result: await connection.call({ tool, arguments: given, idempotencyKey, signal, timeoutMs }) };
    } catch (error) {
      if (!(error instanceof ConnectionFault)) throw error;
      const { fault } = error;
      // Lost or not known any more: nobody else should wait for this connection to notice.
      if (fault.kind === "not-sent" || fault.kind === "lost") this.#dropped(connection, fault.message);
      return { fault };
    }
  }

  #failed(fault: CallFault): ToolOutcome {
    const { name, timeoutMs } = this.#config;
    switch (fault.kind) {
      case "answered":
        return { ok: false, text: `Error: ${fault.message}` };
      case "not-sent":
        return { ok: false, text: `Error: the tool server ${name} is away (${fault.message}); the call was not made` };
      case "lost":
        return {
          ok: false,
          text: `Error: the tool server ${name} was lost during the call (${fault.message}); whether it was carried out is not known`,
        };
      case "timed-out":
        return { ok: false, text: `Error: the tool server ${name} did not answer within ${timeoutMs / 1000} s` };
      case "cancelled":
        return { ok: false, text: "Error: the call was cancelled" };
    }
  }

  async #outcome({ tool, idempotencyKey }: ToolCall, result: unknown): Promise<ToolOutcome> {
    const { ok, text, whole } = resultText(result, this.#config.resultBytesMax);
    if (whole === undefined) return { ok, text };
    const where = await this.#deps.spill(idempotencyKey, whole);
    this.#deps.log("info", "tool-result-cut", { server: this.name, tool, chars: whole.length, spilled: where });
    return { ok, text: where === undefined ? text : `${text}\n[all of it is kept in ${where}]` };
  }

  /** The connection, waited for while the server is away; undefined when it stays away. */
  async #available(signal: AbortSignal, deadlineMs: number): Promise<Connection | undefined> {
    const { clock } = this.#deps;
    const untilMs = Math.min(deadlineMs, clock.nowMs() + AWAY_WAIT_MAX_MS);
    for (;;) {
      const link = this.#link;
      if (link.kind === "up") return link.connection;
      const leftMs = untilMs - clock.nowMs();
      if (link.kind === "closed" || leftMs <= 0 || signal.aborted) return undefined;
      await new Promise<void>((resolve) => {
        const done = (): void => {
          stop();
          signal.removeEventListener("abort", done);
          this.#waiters.delete(done);
          resolve();
        };
        const stop = clock.after(leftMs, done);
        signal.addEventListener("abort", done, { once: true });
        this.#waiters.add(done);
      });
    }
  }

  #wake(): void {
    for (const waiter of this.#waiters) waiter();
  }

  #whyAway(): string {
    return this.#link.kind === "down" ? this.#link.why : "it is being connected to";
  }

  async #connect(): Promise<void> {
    const { connect, version, clock } = this.#deps;
    this.#link = { kind: "connecting" };
    let connection: Connection | undefined;
    try {
      connection = await connect({
        transport: this.#config.transport,
        version,
        timeoutMs: CONNECT_TIMEOUT_MS,
        onChanged: () => this.#readList(),
        onClosed: (why) => {
          if (connection !== undefined) this.#dropped(connection, why);
        },
      });
      const listed = await connection.list();
      if (this.#isClosed()) {
        await connection.close();
        return;
      }
      this.#take(listed);
    } catch (error) {
      await connection?.close();
      if (!this.#isClosed()) this.#lost(error instanceof Error ? error.message : String(error));
      return;
    }
    this.#link = { kind: "up", connection, sinceMs: clock.nowMs() };
    this.#deps.log("info", "tool-server-up", { server: this.name, tools: this.#tools.length });
    this.#firstTried?.();
    this.#every(LIST_EVERY_MS, () => this.#readList());
    this.#every(SIGN_OF_LIFE_EVERY_MS, () => {
      if (this.#pending > 0) this.#askForLife(connection);
    });
    this.#wake();
  }

  #isClosed(): boolean {
    return this.#link.kind === "closed";
  }

  #askForLife(connection: Connection): void {
    connection.isThere().then(
      (isThere) => {
        if (!isThere) this.#dropped(connection, "it was started again, or has ended");
      },
      () => undefined,
    );
  }

  /** The connection is of no use any more. */
  #dropped(connection: Connection, why: string): void {
    const link = this.#link;
    if (link.kind !== "up" || link.connection !== connection) return;
    if (this.#deps.clock.nowMs() - link.sinceMs >= GOOD_AFTER_MS) this.#failures = 0;
    this.#lost(why);
    // Its calls end by this (V1).
    connection.close().catch(() => undefined);
  }

  #lost(why: string): void {
    const { log, clock, random } = this.#deps;
    this.#endTimers();
    const backOffMs = Math.min(RETRY_MAX_MS, RETRY_FIRST_MS * 2 ** this.#failures);
    const retryMs = Math.round(backOffMs * (0.5 + random() / 2));
    this.#failures += 1;
    log("warn", "tool-server-down", { server: this.name, why, retryMs });
    const stop = clock.after(retryMs, () => this.start());
    this.#link = { kind: "down", why, stop };
    this.#firstTried?.();
  }

  #readList(): void {
    const link = this.#link;
    if (link.kind !== "up") return;
    link.connection.list().then(
      (listed) => {
        if (this.#link === link) this.#take(listed);
      },
      (error: unknown) => {
        this.#deps.log("warn", "tool-list-failed", { server: this.name, error: String(error) });
      },
    );
  }

  #take(listed: readonly unknown[]): void {
    const { log } = this.#deps;
    const { tools, left } = offersOf(this.#config, listed);
    this.#tools = tools;
    for (const { tool, problem } of left) log("warn", "tool-left-out", { server: this.name, tool, problem });
  }

  #every(ms: number, action: () => void): void {
    let stop: () => void;
    const arm = (): void => {
      stop = this.#deps.clock.after(ms, () => {
        arm();
        action();
      });
    };
    arm();
    this.#stopTimers.push(() => stop());
  }

  #endTimers(): void {
    for (const stop of this.#stopTimers.splice(0)) stop();
  }
}
