/**
 * Prometheus instruments. Every service makes its own registry and names its series `luftpause_…` with bounded labels:
 * never an id, a path or a model name that a client chose.
 *
 * `Tally` and `Distribution` count on the hot path: plain numbers, put into prom-client's shape only when the page is
 * read. Its own counter and histogram hash their labels at every count (3 % of a small turn, bench/overhead).
 */
import { Counter, Histogram, type MetricObjectWithValues, type MetricValueWithName } from "prom-client";

export { Counter, Gauge, Registry } from "prom-client";

/** A counter with up to two labels. */
export class Tally {
  /** To be registered. */
  readonly metric: Counter;
  readonly #counts = new Map<string, Map<string, number>>();

  constructor(options: { readonly name: string; readonly help: string; readonly labels: readonly string[] }) {
    const { name, help, labels } = options;
    const counts = this.#counts;
    this.metric = new Counter({
      name,
      help,
      labelNames: [...labels],
      registers: [],
      collect() {
        this.reset();
        for (const [first, inner] of counts) {
          for (const [second, count] of inner) this.labels(...[first, second].slice(0, labels.length)).inc(count);
        }
      },
    });
    // A counter without labels is there from the start.
    if (labels.length === 0) this.add(0);
  }

  /** @param first value of the first label, @param second of the second one, where the tally has them. */
  add(count: number, first = "", second = ""): void {
    const inner = this.#counts.get(first);
    if (inner === undefined) this.#counts.set(first, new Map([[second, count]]));
    else inner.set(second, (inner.get(second) ?? 0) + count);
  }
}

type Buckets = { readonly counts: number[]; sum: number; count: number };

/** A histogram with one label. */
export class Distribution {
  /** To be registered. */
  readonly metric: Histogram;
  readonly #bounds: readonly number[];
  readonly #byValue = new Map<string, Buckets>();

  /** @param options.bounds upper bounds of the buckets, ascending. */
  constructor(options: {
    readonly name: string;
    readonly help: string;
    readonly label: string;
    readonly bounds: readonly number[];
  }) {
    this.#bounds = options.bounds;
    this.metric = new DistributionMetric(options, () => this.#values(options.name, options.label));
  }

  observe(value: number, labelValue: string): void {
    let buckets = this.#byValue.get(labelValue);
    if (buckets === undefined) {
      buckets = { counts: this.#bounds.map(() => 0), sum: 0, count: 0 };
      this.#byValue.set(labelValue, buckets);
    }
    buckets.sum += value;
    buckets.count += 1;
    // Few bounds, and most values are small: a walk from below is the shortest search.
    for (let at = 0; at < this.#bounds.length; at += 1) {
      if (value <= (this.#bounds[at] ?? Infinity)) {
        buckets.counts[at] = (buckets.counts[at] ?? 0) + 1;
        return;
      }
    }
  }

  #values(name: string, label: string): MetricValueWithName<string>[] {
    const values: MetricValueWithName<string>[] = [];
    for (const [labelValue, { counts, sum, count }] of this.#byValue) {
      let below = 0;
      for (const [at, bound] of this.#bounds.entries()) {
        below += counts[at] ?? 0;
        values.push({ metricName: `${name}_bucket`, labels: { le: bound, [label]: labelValue }, value: below });
      }
      const labels = { [label]: labelValue };
      values.push({ metricName: `${name}_bucket`, labels: { le: "+Inf", ...labels }, value: count });
      values.push(
        { metricName: `${name}_sum`, labels, value: sum },
        { metricName: `${name}_count`, labels, value: count },
      );
    }
    return values;
  }
}

class DistributionMetric extends Histogram {
  readonly #about: { readonly name: string; readonly help: string };
  readonly #read: () => MetricValueWithName<string>[];

  constructor(about: { readonly name: string; readonly help: string }, read: () => MetricValueWithName<string>[]) {
    super({ name: about.name, help: about.help, registers: [] });
    this.#about = about;
    this.#read = read;
  }

  override get(): Promise<MetricObjectWithValues<MetricValueWithName<string>>> {
    const { name, help } = this.#about;
    const page = { name, help, type: "histogram", aggregator: "sum", values: this.#read() };
    // The declared type names an enum that prom-client does not have at run time, and its own collector.
    return Promise.resolve(page as unknown as MetricObjectWithValues<MetricValueWithName<string>>);
  }

  /** What prom-client reads for its text page, where a metric has it. */
  getForPromString(): Promise<MetricObjectWithValues<MetricValueWithName<string>>> {
    return this.get();
  }
}
