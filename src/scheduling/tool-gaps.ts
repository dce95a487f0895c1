/**
 * How long runs stay away for a tool: the last gaps between a turn that ended in its call and the run's next turn. From
 * them follows how long a paused run keeps its place (spec 9, Not coming back).
 *
 * Names of tools come from clients: their number is bounded, the one that was used longest ago leaves first.
 */
export type ToolGaps = {
  /** Milliseconds, the oldest first. */
  readonly lastMs: number[];
  /** Of `lastMs`, as of the last count. */
  p95Ms: number;
  /** Gaps since it was counted. */
  uncounted: number;
};

export type GapTable = Map<string, ToolGaps>;

const TOOLS_MAX = 512;
const GAPS_KEPT = 100;
/** A p95 of a hundred moves little with each gap: it is counted once in so many. */
const COUNTED_EVERY = 8;

export function learnGap(table: GapTable, tool: string, gapMs: number): void {
  let gaps = table.get(tool);
  if (gaps === undefined) gaps = { lastMs: [], p95Ms: 0, uncounted: 0 };
  else table.delete(tool);
  table.set(tool, gaps);
  if (table.size > TOOLS_MAX) {
    for (const oldest of table.keys()) {
      table.delete(oldest);
      break;
    }
  }
  gaps.lastMs.push(gapMs);
  if (gaps.lastMs.length > GAPS_KEPT) gaps.lastMs.shift();
  gaps.uncounted += 1;
  if (gaps.uncounted < COUNTED_EVERY && gaps.lastMs.length > COUNTED_EVERY) return;
  gaps.uncounted = 0;
  const sorted = [...gaps.lastMs].sort((a, b) => a - b);
  gaps.p95Ms = sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * 0.95))] ?? 0;
}

/** The 95th percentile of a tool's durations; 0: nothing is known of it. */
export function p95Of(table: GapTable, tool: string | undefined): number {
  return tool === undefined ? 0 : (table.get(tool)?.p95Ms ?? 0);
}
