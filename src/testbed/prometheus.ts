/** Prometheus text, as the engines' client libraries write it. */
import type { Histogram } from "../engine/index.ts";

export type Labels = Readonly<Record<string, string>>;
export type Sample = { readonly labels?: Labels; readonly value: number };

export type Page = {
  gauge(name: string, help: string, samples: readonly Sample[]): void;
  counter(name: string, help: string, samples: readonly Sample[]): void;
  /** Observations in milliseconds, shown in seconds. */
  histogramSeconds(name: string, help: string, histogram: Histogram): void;
  text(): string;
};

/** A page whose series all carry `common`. */
export function createPage(common: Labels): Page {
  const lines: string[] = [];
  const head = (name: string, help: string, type: string): void => {
    lines.push(`# HELP ${name} ${help}`, `# TYPE ${name} ${type}`);
  };
  const sample = (name: string, { labels = {}, value }: Sample): void => {
    lines.push(`${name}${labelText({ ...common, ...labels })} ${numberText(value)}`);
  };
  return {
    gauge(name, help, samples) {
      head(name, help, "gauge");
      for (const one of samples) sample(name, one);
    },
    counter(name, help, samples) {
      head(name, help, "counter");
      for (const one of samples) sample(name, one);
    },
    histogramSeconds(name, help, histogram) {
      head(name, help, "histogram");
      let below = 0;
      for (const [at, bound] of histogram.bounds.entries()) {
        below += histogram.counts[at] ?? 0;
        sample(`${name}_bucket`, { labels: { le: String(bound / 1_000) }, value: below });
      }
      sample(`${name}_bucket`, { labels: { le: "+Inf" }, value: histogram.count });
      sample(`${name}_sum`, { value: histogram.sum / 1_000 });
      sample(`${name}_count`, { value: histogram.count });
    },
    text: () => `${lines.join("\n")}\n`,
  };
}

function labelText(labels: Labels): string {
  const pairs = Object.entries(labels).map(([name, value]) => `${name}="${escapeLabel(value)}"`);
  return pairs.length === 0 ? "" : `{${pairs.join(",")}}`;
}

function escapeLabel(value: string): string {
  return value.replaceAll("\\", "\\\\").replaceAll('"', '\\"').replaceAll("\n", "\\n");
}

// Python's client, which vLLM and SGLang use, writes floats: 3.0.
function numberText(value: number): string {
  return Number.isInteger(value) && Math.abs(value) < 1e15 ? `${value}.0` : String(value);
}
