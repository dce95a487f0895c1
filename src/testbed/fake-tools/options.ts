/** Options of the simulated tool server, checked once. */
import { parseToolFaults, type ToolFaults } from "./faults.ts";

/** Which protocol eras it speaks: sessions of 2025, requests of 2026-07-28 without a session, or both. */
export const ERAS = ["both", "sessions", "sessionless"] as const;
export type Era = (typeof ERAS)[number];

/** Least and most, in milliseconds; drawn evenly, per call, from the seed and the call's arguments. */
export type Delay = readonly [leastMs: number, mostMs: number];

export type FakeToolsOptions = {
  readonly era?: Era;
  readonly lookupMs?: Delay;
  readonly deepSearchMs?: Delay;
  readonly seed?: number;
  /** Written as on the command line: `name` or `name=value`. */
  readonly faults?: readonly string[];
  /** A file that gets a line per call that has begun: what a test or a person compares with the journal. */
  readonly ledger?: string;
  readonly host?: string;
  readonly port?: number;
};

export type ResolvedToolsOptions = {
  readonly era: Era;
  readonly lookupMs: Delay;
  readonly deepSearchMs: Delay;
  readonly seed: number;
  readonly faults: ToolFaults;
  readonly ledger: string | undefined;
  readonly host: string;
  readonly port: number;
};

/** Look-ups as in the demo; a deep search takes about a second (spec 6). */
const LOOKUP_MS: Delay = [300, 1_000];
const DEEP_SEARCH_MS: Delay = [500, 1_500];

/** @returns what is wrong, in words, where something is. */
export function resolveToolsOptions(options: FakeToolsOptions): ResolvedToolsOptions | string {
  const parsed = parseToolFaults(options.faults ?? []);
  if (parsed.kind === "invalid") return parsed.message;
  const { faults } = parsed;
  if (faults.has("crash-first") && options.ledger === undefined) {
    return "fault 'crash-first' needs a ledger: the calls that it has seen";
  }
  return {
    era: options.era ?? "both",
    lookupMs: options.lookupMs ?? LOOKUP_MS,
    deepSearchMs: options.deepSearchMs ?? DEEP_SEARCH_MS,
    seed: options.seed ?? 1,
    faults,
    ledger: options.ledger,
    host: options.host ?? "127.0.0.1",
    port: options.port ?? 0,
  };
}
