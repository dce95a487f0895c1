/** Policies side by side over several seeds: means, spread, and ratios to the first one, seed by seed. */
import type { LoadReport } from "../workload/index.ts";

export type PolicyRun = { readonly policy: string; readonly seed: number; readonly report: LoadReport };

/** Mean and sample standard deviation. `half`: half the width of the 95 % interval of the mean. */
export type Estimate = { readonly mean: number; readonly sd: number; readonly half: number };

export type PolicyRow = {
  readonly policy: string;
  readonly interactivePerMinute: Estimate;
  readonly batchPerMinute: Estimate;
  readonly interactiveP50Seconds: Estimate;
  /** Ratios to the first policy with the same seed; undefined for what the first one has none of. */
  readonly interactiveRatio: Estimate | undefined;
  readonly batchRatio: Estimate | undefined;
  readonly p50Ratio: Estimate | undefined;
  readonly firstContentP95Seconds: Estimate;
  /** Longest wait of a batch turn for its first content. */
  readonly worstBatchWaitSeconds: Estimate;
  readonly cachedShare: Estimate;
  readonly failed: number;
};

const FIGURES = {
  interactivePerMinute: ({ interactive }: LoadReport) => interactive.runsPerMinute,
  batchPerMinute: ({ batch }: LoadReport) => batch.runsPerMinute,
  interactiveP50Seconds: ({ interactive }: LoadReport) => interactive.runSeconds.p50,
  firstContentP95Seconds: ({ interactive }: LoadReport) => interactive.firstContentSeconds.p95,
  worstBatchWaitSeconds: ({ batch }: LoadReport) => batch.firstContentSeconds.max,
  cachedShare: ({ cachedShare }: LoadReport) => cachedShare,
} as const;

/** @param runs of every policy with the same seeds; the first policy is what the others are compared to. */
export function policyTable(runs: readonly PolicyRun[]): readonly PolicyRow[] {
  const first = runs[0]?.policy;
  const base = new Map(runs.filter(({ policy }) => policy === first).map(({ seed, report }) => [seed, report]));
  return [...new Set(runs.map(({ policy }) => policy))].map((policy) => {
    const own = runs.filter((run) => run.policy === policy);
    const estimate = (of: (report: LoadReport) => number): Estimate => estimateOf(own.map(({ report }) => of(report)));
    const ratio = (of: (report: LoadReport) => number): Estimate | undefined => {
      const ratios = own.flatMap(({ seed, report }) => {
        const against = base.get(seed);
        return against === undefined || of(against) === 0 ? [] : [of(report) / of(against)];
      });
      return ratios.length === 0 ? undefined : estimateOf(ratios);
    };
    return {
      policy,
      interactivePerMinute: estimate(FIGURES.interactivePerMinute),
      batchPerMinute: estimate(FIGURES.batchPerMinute),
      interactiveP50Seconds: estimate(FIGURES.interactiveP50Seconds),
      interactiveRatio: ratio(FIGURES.interactivePerMinute),
      batchRatio: ratio(FIGURES.batchPerMinute),
      p50Ratio: ratio(FIGURES.interactiveP50Seconds),
      firstContentP95Seconds: estimate(FIGURES.firstContentP95Seconds),
      worstBatchWaitSeconds: estimate(FIGURES.worstBatchWaitSeconds),
      cachedShare: estimate(FIGURES.cachedShare),
      failed: own.reduce((sum, { report }) => sum + report.interactive.failed + report.batch.failed, 0),
    };
  });
}

/** Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom; beyond, the normal one. */
const T95 = [
  12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131, 2.12, 2.11,
  2.101, 2.093, 2.086, 2.08, 2.074, 2.069, 2.064, 2.06, 2.056, 2.052, 2.048, 2.045, 2.042,
];

function estimateOf(values: readonly number[]): Estimate {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  if (values.length < 2) return { mean, sd: 0, half: Number.NaN };
  const sd = Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (values.length - 1));
  return { mean, sd, half: ((T95[values.length - 2] ?? 1.96) * sd) / Math.sqrt(values.length) };
}
