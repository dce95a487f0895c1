// From samples to ratios, goals and tables. Ratios are medians of same-round ratios, given with their least and largest.
import { median, type Churn } from "./churn.ts";
import { CASES, type CaseName, type Sample } from "./measure.ts";
import type { MemoryRow } from "./memory.ts";
import { VARIANTS, type VariantName } from "./options.ts";

export type Results = {
  readonly samples: readonly Sample[];
  readonly memory: readonly MemoryRow[];
  readonly churn: Churn | null;
};

type Spread = { readonly median: number; readonly min: number; readonly max: number; readonly rounds: number };

/** `met` null: not measured in this run. */
export type Gate = {
  readonly name: string;
  readonly goal: string;
  readonly measured: string;
  readonly met: boolean | null;
};

const round2 = (n: number): number => Math.round(n * 100) / 100;

function spread(values: readonly number[]): Spread | null {
  if (values.length === 0) return null;
  return {
    median: round2(median(values)),
    min: round2(Math.min(...values)),
    max: round2(Math.max(...values)),
    rounds: values.length,
  };
}

function samplesOf(results: Results, name: CaseName, variant: VariantName): Sample[] {
  return results.samples.filter((s) => s.case === name && s.variant === variant);
}

/** Pairs two variants round by round. */
function paired(
  results: Results,
  name: CaseName,
  a: VariantName,
  b: VariantName,
  of: (a: Sample, b: Sample) => number,
): Spread | null {
  const others = samplesOf(results, name, b);
  return spread(
    samplesOf(results, name, a).flatMap((sample) => {
      const other = others.find((o) => o.round === sample.round);
      const value = other === undefined ? NaN : of(sample, other);
      return Number.isFinite(value) ? [value] : [];
    }),
  );
}

const cpuRatio = (a: Sample, b: Sample): number => (a.usPerTurn ?? NaN) / (b.usPerTurn ?? NaN);

export type CaseRow = {
  readonly case: CaseName;
  readonly variant: VariantName;
  readonly usPerTurn: number | null;
  readonly usPerEvent: number | null;
  readonly ratioToNginx: Spread | null;
  readonly turnsPerSecond: number;
  readonly eventsPerSecond: number;
  readonly proxyCpu: number;
  readonly toolsCpu: number;
  /** Medians over the rounds: delay of an event at p50, time of a whole turn at p99; milliseconds. */
  readonly eventP50Ms: number | null;
  readonly turnP99Ms: number;
  readonly failed: number;
  readonly addedP50Us: {
    readonly total: Spread | null;
    readonly firstByte: Spread | null;
    readonly event: Spread | null;
  };
};

/** One row for each case and variant that was measured. */
export function caseRows(results: Results): CaseRow[] {
  return CASES.flatMap((spec) =>
    VARIANTS.flatMap((variant) => {
      const own = samplesOf(results, spec.name, variant);
      if (own.length === 0) return [];
      const middle = (of: (s: Sample) => number | null): number => round2(median(own.map((s) => of(s) ?? 0)));
      const added = (of: (s: Sample) => number) =>
        spec.part !== "light" || variant === "direct"
          ? null
          : paired(results, spec.name, variant, "direct", (a, b) => of(a) - of(b));
      return [
        {
          case: spec.name,
          variant,
          usPerTurn: variant === "direct" ? null : middle((s) => s.usPerTurn),
          usPerEvent: variant === "direct" || spec.load.chunks === undefined ? null : middle((s) => s.usPerEvent),
          ratioToNginx: variant === "direct" ? null : paired(results, spec.name, variant, "nginx", cpuRatio),
          turnsPerSecond: middle((s) => s.turnsPerSecond),
          eventsPerSecond: middle((s) => s.eventsPerSecond),
          proxyCpu: middle((s) => s.proxyCpu),
          toolsCpu: middle((s) => s.toolsCpu),
          eventP50Ms: spec.load.chunks === undefined ? null : middle((s) => s.load.eventDelayUs.p50 / 1000),
          turnP99Ms: middle((s) => s.load.totalUs.p99 / 1000),
          failed: own.reduce((sum, s) => sum + s.load.failed, 0),
          addedP50Us: {
            total: added((s) => s.load.totalUs.p50),
            firstByte: added((s) => s.load.firstByteUs.p50),
            event: spec.load.chunks === undefined ? null : added((s) => s.load.eventDelayUs.p50),
          },
        },
      ];
    }),
  );
}

// --- goals ------------------------------------------------------------------------------------------------------

const text = (s: Spread | null, unit = ""): string =>
  s === null ? "not measured" : `${s.median}${unit} [${s.min}–${s.max}], ${s.rounds} rounds`;

function atMost(name: string, limit: number, s: Spread | null, unit = ""): Gate {
  return { name, goal: `≤ ${limit}${unit}`, measured: text(s, unit), met: s === null ? null : s.median <= limit };
}

function atLeast(name: string, limit: number, s: Spread | null): Gate {
  return { name, goal: `≥ ${limit}`, measured: text(s), met: s === null ? null : s.median >= limit };
}

function memoryGates(results: Results): Gate[] {
  const row = (streams: number) => results.memory.find((r) => r.variant === "luftpause" && r.streams === streams);
  const five = row(5000);
  const eight = row(8000);
  return [
    {
      name: "memory per idle stream at 5,000 open",
      goal: "≤ 25 KB",
      measured: five === undefined ? "not measured" : `${five.kbPerStream} KB`,
      met: five === undefined ? null : five.kbPerStream <= 25,
    },
    {
      name: "8,000 open streams in one process",
      goal: "all open, none fails, all given back",
      measured:
        eight === undefined
          ? "not measured"
          : `${eight.load.held} open, ${eight.load.failed} failed, files ${eight.files.before} → ${eight.files.held} → ${eight.files.after}, ${eight.kbPerStream} KB each`,
      met: eight === undefined ? null : eight.sound,
    },
  ];
}

/** What churn may add, in KB: 5 % of the process or 8 MB, the larger: what garbage collection alone moves. */
const growthAllowedKb = (earlyKb: number): number => Math.max(0.05 * earlyKb, 8 * 1024);
const FILES_SLACK = 70; // 50 clients' connections and their partners in the pool may be open or not

function churnGate(churn: Churn | null): Gate {
  const goal = "10 min of churn: PSS +5 % or +8 MB at most, no failed turn, files and streams given back";
  if (churn === null || churn.variant !== "luftpause")
    return { name: "no growth", goal, measured: "not measured", met: null };
  const grown = churn.lateKb - churn.earlyKb;
  const minutes = Math.round(churn.load.seconds / 6) / 10;
  const still =
    grown <= growthAllowedKb(churn.earlyKb) &&
    churn.load.failed === 0 &&
    churn.engineStreamsLeft === 0 &&
    churn.files.after <= churn.files.before + FILES_SLACK;
  return {
    name: "no growth",
    goal,
    measured:
      `${minutes} min, ${churn.load.served} served, ${churn.load.aborted} aborted, ${churn.load.failed} failed: PSS ` +
      `${Math.round(churn.earlyKb / 1024)} → ${Math.round(churn.lateKb / 1024)} MB (${churn.slopeKbPerMinute} KB/min), ` +
      `files ${churn.files.before} → ${churn.files.after}`,
    // Less than the goal's ten minutes can show growth, but not its absence.
    met: still && minutes < 10 ? null : still,
  };
}

function correctnessGates(results: Results): Gate[] {
  const own = results.samples.filter((s) => s.variant === "luftpause");
  const failed = own.reduce((sum, s) => sum + s.load.failed, 0);
  const served = own.reduce((sum, s) => sum + s.load.served, 0);
  const ids = own.map((s) => s.load.runIds);
  const sum = (key: keyof Sample["load"]["runIds"]): number => ids.reduce((total, r) => total + r[key], 0);
  const wrong = sum("other") + sum("joined") + sum("unnamed");
  const first = own.find((s) => s.load.failed > 0)?.load.firstFailure ?? "";
  return [
    {
      name: "every turn answered well",
      goal: "0 failed",
      measured:
        own.length === 0
          ? "not measured"
          : `${failed} of ${served + failed} failed${first === "" ? "" : ` (${first})`}`,
      met: own.length === 0 ? null : failed === 0,
    },
    {
      name: "recognition really ran",
      goal: "each continuation its own run, each new conversation a fresh one",
      measured:
        own.length === 0
          ? "not measured"
          : `${sum("same")} continued, ${sum("fresh")} fresh; wrong: ${sum("other")} other run, ${sum("joined")} joined, ${sum("unnamed")} without a run id`,
      met: own.length === 0 ? null : wrong === 0 && sum("same") > 0,
    },
  ];
}

/** The goals of the issue, each with what was measured. */
export function gates(results: Results): Gate[] {
  const ours = (name: CaseName) => paired(results, name, "luftpause", "nginx", cpuRatio);
  const peer = (name: CaseName) => paired(results, name, "portkey", "luftpause", cpuRatio);
  const rows = caseRows(results);
  const added = rows.find((r) => r.case === "light-stream" && r.variant === "luftpause")?.addedP50Us.event ?? null;
  const inMs = added === null ? null : spread([added.min, added.median, added.max].map((us) => us / 1000));
  return [
    atMost("CPU per streamed turn / nginx, 64 open", 1.6, ours("s64")),
    atMost("CPU per streamed turn / nginx, 400 open", 1.3, ours("s400")),
    atMost("CPU per small JSON turn / nginx", 3.5, ours("json")),
    atLeast("CPU of Portkey / ours, JSON", 10, peer("json")),
    atLeast("CPU of Portkey / ours, streams, 64 open", 2.4, peer("s64")),
    atLeast("CPU of Portkey / ours, streams, 400 open", 2.4, peer("s400")),
    atMost("added p50 per chunk", 0.3, inMs === null ? null : { ...inMs, rounds: added?.rounds ?? 0 }, " ms"),
    ...memoryGates(results),
    churnGate(results.churn),
    ...correctnessGates(results),
  ];
}

// --- tables -----------------------------------------------------------------------------------------------------

function table(head: readonly string[], rows: readonly (readonly (string | number | null)[])[]): string {
  const cells = [head, ...rows.map((row) => row.map((cell) => (cell === null ? "–" : String(cell))))];
  const widths = head.map((_, i) => Math.max(...cells.map((row) => (row[i] ?? "").length)));
  return cells
    .map((row) => row.map((cell, i) => (i === 0 ? cell.padEnd(widths[i]!) : cell.padStart(widths[i]!))).join("  "))
    .join("\n");
}

/** One line while the bench runs. */
export function sampleLine(s: Sample): string {
  const cost = s.usPerTurn === null ? "" : `${s.usPerTurn} us/turn`;
  const bad = s.load.failed === 0 ? "" : ` FAILED ${s.load.failed}: ${s.load.firstFailure}`;
  const others =
    s.othersOnProxyCpu !== null && s.othersOnProxyCpu > 0.1 ? ` others on the proxy's CPU: ${s.othersOnProxyCpu}` : "";
  return `round ${s.round} ${s.case.padEnd(12)} ${s.variant.padEnd(9)} ${cost.padStart(16)} ${String(s.turnsPerSecond).padStart(6)} turns/s  proxy ${s.proxyCpu}  tools ${s.toolsCpu}  load ${s.loadAverage}${others}${bad}`;
}

const brief = (s: Spread | null): string | null => (s === null ? null : `${s.median} [${s.min}–${s.max}]`);

/** The readable report. */
export function report(results: Results): string {
  const blocks: string[] = [];
  const rows = caseRows(results);
  for (const spec of CASES) {
    const own = rows.filter((r) => r.case === spec.name);
    if (own.length === 0) continue;
    const light = spec.part === "light";
    const head = light
      ? ["variant", "us/turn", "added p50 us: turn", "first byte", "event", "failed"]
      : [
          "variant",
          "us/turn",
          "x nginx",
          "us/event",
          "turns/s",
          "events/s",
          "proxy CPU",
          "tools CPU",
          "event p50 ms",
          "turn p99 ms",
          "failed",
        ];
    const lines = own.map((r) =>
      light
        ? [
            r.variant,
            r.usPerTurn,
            brief(r.addedP50Us.total),
            brief(r.addedP50Us.firstByte),
            brief(r.addedP50Us.event),
            r.failed,
          ]
        : [
            r.variant,
            r.usPerTurn,
            brief(r.ratioToNginx),
            r.usPerEvent,
            r.turnsPerSecond,
            r.eventsPerSecond,
            r.proxyCpu,
            r.toolsCpu,
            r.eventP50Ms,
            r.turnP99Ms,
            r.failed,
          ],
    );
    blocks.push(`${spec.name}: ${spec.what}\n${table(head, lines)}`);
  }
  if (results.memory.length > 0) {
    const lines = results.memory.map((r) => [
      r.variant,
      r.streams,
      r.baseKb,
      r.kbPerStream,
      r.usPerEvent,
      r.afterKb,
      r.files.held,
      r.engineStreamsLeft,
      r.sound ? "yes" : "NO",
    ]);
    blocks.push(
      `idle streams\n${table(["variant", "streams", "base KB", "KB/stream", "us/event", "after KB", "files", "left at engine", "sound"], lines)}`,
    );
  }
  const goals = gates(results).map((g) => [
    g.name,
    g.goal,
    g.met === null ? "–" : g.met ? "met" : "MISSED",
    g.measured,
  ]);
  blocks.push(
    `goals\n${goals.map(([name, goal, met, measured]) => `${met!.padEnd(6)}  ${name}: ${goal}\n        ${measured}`).join("\n")}`,
  );
  return blocks.join("\n\n");
}
