// The table of a flood: mean ± standard deviation over the seeds, and ratios to the first arm, seed by seed.
import type { LoadReport } from "../../src/workload/index.ts";
import type { Arm } from "./arms.ts";

export type Row = {
  readonly arm: string;
  readonly seed: number;
  readonly report: LoadReport;
  /** Turns that each engine got: a router that fills one engine only is seen here. */
  readonly perEngine: readonly number[];
  readonly cpuMsPerTurn: number;
  readonly load: number;
};

type Figure = { readonly title: string; readonly of: (row: Row) => number; readonly digits: number };

const FIGURES: readonly Figure[] = [
  { title: "interactive/min", of: ({ report }) => report.interactive.runsPerMinute, digits: 1 },
  { title: "p50 s", of: ({ report }) => report.interactive.runSeconds.p50, digits: 1 },
  { title: "first content p95 s", of: ({ report }) => report.interactive.firstContentSeconds.p95, digits: 2 },
  { title: "batch/min", of: ({ report }) => report.batch.runsPerMinute, digits: 1 },
  { title: "worst batch wait s", of: ({ report }) => report.batch.firstContentSeconds.max, digits: 0 },
  { title: "cached %", of: ({ report }) => 100 * report.cachedShare, digits: 0 },
  { title: "failed", of: ({ report }) => report.interactive.failed + report.batch.failed, digits: 0 },
  { title: "proxy CPU ms/turn", of: ({ cpuMsPerTurn }) => cpuMsPerTurn, digits: 2 },
];
/** Figures that are also given as a ratio to the first arm. */
const RATIOS = new Set(["interactive/min", "p50 s", "batch/min"]);

export function reportText(rows: readonly Row[], arms: readonly Arm[]): string {
  const base = arms[0]?.name;
  const titles = ["arm", ...FIGURES.flatMap(({ title }) => (RATIOS.has(title) ? [title, "×"] : [title]))];
  const lines = arms.map(({ name }) => {
    const own = rows.filter(({ arm }) => arm === name);
    return [
      name,
      ...FIGURES.flatMap((figure) => {
        const cell = meanAndSpread(own.map(figure.of), figure.digits);
        if (!RATIOS.has(figure.title)) return [cell];
        const ratios = own.flatMap((row) => {
          const other = rows.find(({ arm, seed }) => arm === base && seed === row.seed);
          const against = other === undefined ? 0 : figure.of(other);
          return against === 0 ? [] : [figure.of(row) / against];
        });
        return [cell, meanAndSpread(ratios, 2)];
      }),
    ];
  });
  const widths = titles.map((title, at) => Math.max(title.length, ...lines.map((cells) => (cells[at] ?? "").length)));
  const format = (cells: readonly string[]): string =>
    cells.map((cell, at) => (at === 0 ? cell.padEnd(widths[at] ?? 0) : cell.padStart(widths[at] ?? 0))).join("  ");
  return [format(titles), ...lines.map(format), "", ...arms.map(({ name, about }) => `${name}: ${about}`)].join("\n");
}

function meanAndSpread(values: readonly number[], digits: number): string {
  if (values.length === 0) return "–";
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  if (values.length === 1) return mean.toFixed(digits);
  const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (values.length - 1);
  return `${mean.toFixed(digits)} ± ${Math.sqrt(variance).toFixed(digits)}`;
}
