/** A histogram as Prometheus shows it: cumulative buckets, a sum and a count. Bounded by its bucket list. */
export type Histogram = {
  /** Upper bounds, ascending, in the unit of the observed values. */
  readonly bounds: readonly number[];
  /** Observations per bucket, not cumulative; the last one is above every bound. */
  readonly counts: number[];
  sum: number;
  count: number;
};

/** Bounds in milliseconds, wide enough for a queue that has run full. */
const BOUNDS_MS = [5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000];

export function createHistogram(): Histogram {
  return { bounds: BOUNDS_MS, counts: Array.from({ length: BOUNDS_MS.length + 1 }, () => 0), sum: 0, count: 0 };
}

export function observe(histogram: Histogram, value: number): void {
  const found = histogram.bounds.findIndex((bound) => value <= bound);
  const at = found === -1 ? histogram.bounds.length : found;
  histogram.counts[at] = (histogram.counts[at] ?? 0) + 1;
  histogram.sum += value;
  histogram.count += 1;
}
