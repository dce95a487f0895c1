/**
 * Interpreter of the scripts in test/scenarios: blocks of commands, `----`, and what came of them. A script is read, run and
 * written again with the outcome of this run; a reviewer reads the difference.
 *
 * | command | meaning |
 * | --- | --- |
 * | `pool capRelease=at-once pausedRoom=120s` with `+ replica a models=m speaks=chat max=2`, `+ weight p 3` | configure or reload |
 * | `after 2s` | time passes (no event) |
 * | `up a b`, `down a` | a probe found them healthy without load, or not |
 * | `probe a running=3 waiting=1 models=m speaks=chat replaced` | a poll, sent and answered at once |
 * | `sent a`, `answer a running=3 waiting=1` | the same in two events |
 * | `ask t1 run=r class=batch caller=x principal=p model=m api=chat keys=tool-calls:x side held=5s dataplane=d` | |
 * | `start t1`, `finish t1 paused keys=…`, `fail t1 engine-lost`, `abandon t1`, `push-back t1 1s`, `withdraw t1` | |
 * | `name d t1 t2`, `lose d`, `link d` with `+ run r …`, `+ flight t1 …`, `+ keys r …` | |
 * | `end r`, `tick` | |
 * | `why t1`, `show` | explanation of a hold; the whole pool |
 */
import { asCallerId, asDataplaneId, asPrincipalId, asReplicaId, asRunId, asTurnId } from "../../src/base/ids.ts";
import {
  checkInvariants,
  createState,
  decide,
  explain,
  explainAll,
  runOfTurn,
  runView,
  snapshot,
  type SchedulerEffect,
  type SchedulerEvent,
  type SchedulerState,
  type SchedulingConfig,
} from "../../src/scheduling/index.ts";
import type { FailureReason, FlightReport, RunReport, RunSource, ServiceClass } from "../../src/wire/admission.ts";
import type { WireApi } from "../../src/wire/endpoint.ts";
import { config, finished, key, linked, probed, replica, requested, sample } from "./support.ts";

/** Runs a script and returns it with the outcomes of this run. */
export function runScript(text: string): string {
  const run = new ScenarioRun();
  const out: string[] = [];
  const lines = text.split("\n");
  let block: string[] = [];
  for (let at = 0; at < lines.length; at += 1) {
    const line = lines[at]!;
    if (line !== "----") {
      if (line === "" || line.startsWith("#")) out.push(...block.splice(0), line);
      else block.push(line);
      continue;
    }
    const outcome = run.block(block);
    out.push(...block, "----", ...outcome);
    block = [];
    // The recorded outcome ends with an empty line and is left out.
    while (at + 1 < lines.length && lines[at + 1] !== "") at += 1;
  }
  if (block.length > 0) throw new Error(`the last block has no ---- line: ${block[0]}`);
  return out.join("\n");
}

type Words = { readonly names: readonly string[]; readonly options: ReadonlyMap<string, string> };

class ScenarioRun {
  #state: SchedulerState | undefined;
  #nowMs = 0;

  block(lines: readonly string[]): string[] {
    const out: string[] = [];
    for (let at = 0; at < lines.length; at += 1) {
      const parts: string[] = [];
      while (lines[at + 1]?.startsWith("+ ") === true) {
        parts.push(lines[at + 1]!.slice(2));
        at += 1;
      }
      const line = lines[at - parts.length]!;
      try {
        out.push(...this.#command(line, parts));
      } catch (error) {
        throw new Error(`in the scenario's line \`${line}\`: ${String(error)}`, { cause: error });
      }
    }
    return out.length === 0 ? ["–"] : out;
  }

  #command(line: string, parts: readonly string[]): string[] {
    const { names, options } = words(line);
    const [command, ...subjects] = names;
    const [first = ""] = subjects;
    const nowMs = this.#nowMs;
    switch (command) {
      case "after":
        this.#nowMs += milliseconds(first);
        return [];
      case "pool":
        return this.#configure(options, parts);
      case "up":
      case "down":
        return subjects.flatMap((name) => this.#feed(probed(nowMs, name, { healthy: command === "up" })));
      case "sent":
        return this.#feed({ type: "probe-sent", nowMs, replica: asReplicaId(first) });
      case "probe":
        return [
          ...this.#feed({ type: "probe-sent", nowMs, replica: asReplicaId(first) }),
          ...this.#feed(probeOf(nowMs, subjects, options)),
        ];
      case "answer":
        return this.#feed(probeOf(nowMs, subjects, options));
      case "ask":
        return this.#ask(subjects, options);
      case "finish": {
        const keys = list(options.get("keys"));
        return this.#feed(finished(nowMs, first, { paused: subjects.includes("paused"), keys }));
      }
      case "start":
        return this.#feed({ type: "turn-started", nowMs, turn: asTurnId(first) });
      case "withdraw":
        return this.#feed({ type: "turn-withdrawn", nowMs, turn: asTurnId(first) });
      case "fail":
        return this.#feed({ type: "turn-failed", nowMs, turn: asTurnId(first), reason: subjects[1] as FailureReason });
      case "abandon":
        return this.#feed({ type: "turn-abandoned", nowMs, turn: asTurnId(first), reason: "client-left" });
      case "push-back": {
        const retryAfterMs = milliseconds(subjects[1] ?? "0s");
        return this.#feed({ type: "turn-pushed-back", nowMs, turn: asTurnId(first), retryAfterMs });
      }
      case "name": {
        const turns = subjects.slice(1).map(asTurnId);
        return this.#feed({ type: "turns-named", nowMs, dataplane: asDataplaneId(first), turns });
      }
      case "lose":
        return this.#feed({ type: "dataplane-lost", nowMs, dataplane: asDataplaneId(first) });
      case "link":
        return this.#feed(linkOf(nowMs, first, parts));
      case "end": {
        const principal = asPrincipalId(options.get("principal") ?? "p");
        return this.#feed({ type: "run-ended", nowMs, run: asRunId(first), principal });
      }
      case "tick":
        return this.#feed({ type: "ticked", nowMs });
      case "why":
        return subjects.map((turn) => this.#why(turn));
      case "show":
        return this.#show();
      default:
        throw new Error(`unknown command ${command ?? ""}`);
    }
  }

  get #known(): SchedulerState {
    if (this.#state === undefined) throw new Error("a scenario begins with `pool`");
    return this.#state;
  }

  #feed(event: SchedulerEvent): string[] {
    const { state, effects } = decide(this.#known, event);
    this.#state = state;
    checkInvariants(state);
    return effects.map(describe);
  }

  #configure(options: ReadonlyMap<string, string>, parts: readonly string[]): string[] {
    const rows = parts.map(words);
    const about: Partial<SchedulingConfig> = {
      capRelease: (options.get("capRelease") ?? "step") as SchedulingConfig["capRelease"],
      pausedRoomMs: milliseconds(options.get("pausedRoom") ?? "1800s"),
      replicas: rows.filter(({ names }) => names[0] === "replica").map(replicaOf),
      principalWeights: rows
        .filter(({ names }) => names[0] === "weight")
        .map(({ names }) => ({ principal: asPrincipalId(names[1] ?? ""), weight: Number(names[2]) })),
    };
    if (this.#state !== undefined) {
      return this.#feed({ type: "pool-configured", nowMs: this.#nowMs, config: config(about) });
    }
    this.#state = createState(config(about), this.#nowMs);
    return [];
  }

  #ask(subjects: readonly string[], options: ReadonlyMap<string, string>): string[] {
    const turn = subjects[0] ?? "";
    const event = requested(this.#nowMs, turn, {
      class: (options.get("class") ?? "interactive") as ServiceClass,
      caller: options.get("caller") ?? "c",
      principal: options.get("principal") ?? "p",
      model: options.get("model") ?? "m",
      api: (options.get("api") ?? "chat") as WireApi,
      keys: list(options.get("keys")),
      side: subjects.includes("side"),
      heldMs: milliseconds(options.get("held") ?? "0s"),
      dataplane: options.get("dataplane") ?? "d",
    });
    const run = options.get("run");
    const effects = this.#feed({ ...event, run: run === undefined ? undefined : asRunId(run) });
    const found = runOfTurn(this.#known, event.turn);
    const isHeld = explain(this.#known, event.turn) !== undefined;
    return isHeld ? [...effects, `held ${turn} (run ${found?.run}, ${found?.source}): ${this.#why(turn)}`] : effects;
  }

  #why(turn: string): string {
    const found = explain(this.#known, asTurnId(turn));
    return found === undefined ? `${turn} is not held` : `place ${found.place}, ${found.reason}`;
  }

  #show(): string[] {
    const state = this.#known;
    const status = snapshot(state);
    const replicas = status.replicas.map((row) => {
      const limit = row.limit === null ? "open" : `of ${row.limit}`;
      const marks = [
        row.healthy ? "" : ", unhealthy",
        row.configured ? "" : ", left",
        row.keptRoom === 0 ? "" : `, room kept for ${row.keptRoom}`,
        row.foreignLoad === 0 ? "" : `, foreign load ${row.foreignLoad}`,
      ];
      return `replica ${row.replica}: ${row.turnsInFlight} in flight, ${limit}${marks.join("")}`;
    });
    const runs = [...state.principals.values()].flatMap(({ id, runs: known }) =>
      [...known.keys()].map((run) => {
        const view = runView(state, id, run);
        return `run ${run}: ${view?.class}, ${view?.phase}, ${view?.replica ?? "nowhere"}`;
      }),
    );
    const held = explainAll(state).map((row) => `held ${row.turn}: place ${row.place}, ${row.reason}`);
    return [...replicas, ...runs.toSorted(), ...held];
  }
}

function describe(effect: SchedulerEffect): string {
  switch (effect.type) {
    case "admit-turn":
      return `admit ${effect.turn} to ${effect.replica} (run ${effect.run}, ${effect.source})`;
    case "reject-turn":
      return `refuse ${effect.turn}: ${effect.code}, ${effect.message}`;
    case "withdraw-turn":
      return `withdraw ${effect.turn}`;
  }
}

function words(line: string): Words {
  const all = line.split(/\s+/).filter((word) => word !== "");
  const names = all.filter((word) => !/^\w+=/.test(word));
  const options = new Map(
    all
      .filter((word) => /^\w+=/.test(word))
      .map((word) => [word.slice(0, word.indexOf("=")), word.slice(word.indexOf("=") + 1)]),
  );
  return { names, options };
}

function list(text: string | undefined): string[] {
  return text === undefined || text === "" ? [] : text.split(",");
}

function milliseconds(text: string): number {
  const match = /^(\d+)(ms|s|min)$/.exec(text);
  if (match === null) throw new Error(`a time is written like 5s, 20ms or 3min, not ${text}`);
  return Number(match[1]) * { ms: 1, s: 1_000, min: 60_000 }[match[2] as "ms" | "s" | "min"];
}

function optionalNumber(text: string | undefined): number | undefined {
  return text === undefined ? undefined : Number(text);
}

function replicaOf({ names, options }: Words): SchedulingConfig["replicas"][number] {
  const speaks = options.get("speaks");
  return replica(names[1] ?? "", {
    kind: names.includes("single-pass") ? "single-pass" : "generative",
    models: list(options.get("models") ?? "m"),
    speaks: speaks === "auto" ? undefined : (list(speaks ?? "chat") as WireApi[]),
    maxInFlight: optionalNumber(options.get("max")),
  });
}

function probeOf(nowMs: number, subjects: readonly string[], options: ReadonlyMap<string, string>): SchedulerEvent {
  const running = optionalNumber(options.get("running"));
  const waiting = optionalNumber(options.get("waiting"));
  const models = options.get("models");
  const speaks = options.get("speaks");
  return {
    ...probed(nowMs, subjects[0] ?? "", {
      replaced: subjects.includes("replaced"),
      ...(models === undefined ? {} : { models: list(models) }),
      ...(speaks === undefined ? {} : { speaks: list(speaks) as WireApi[] }),
    }),
    load: running === undefined && waiting === undefined ? undefined : sample({ running, waiting }),
  };
}

function linkOf(nowMs: number, dataplane: string, parts: readonly string[]): SchedulerEvent {
  const runs: RunReport[] = [];
  const flights: FlightReport[] = [];
  const keys: { run: string; principal: string; keys: string[]; ageMs: number }[] = [];
  for (const { names, options } of parts.map(words)) {
    const [kind, subject = ""] = names;
    const who = {
      principal: asPrincipalId(options.get("principal") ?? "p"),
      caller: asCallerId(options.get("caller") ?? "c"),
      class: (options.get("class") ?? "interactive") as ServiceClass,
    };
    const home = options.get("replica");
    const paused = options.get("paused");
    if (kind === "run") {
      runs.push({
        ...who,
        run: asRunId(subject),
        phase: paused === undefined ? "idle" : "paused",
        replica: home === undefined ? undefined : asReplicaId(home),
        quietMs: milliseconds(options.get("quiet") ?? paused ?? "0s"),
        ...(paused === undefined ? {} : { pausedMs: milliseconds(paused) }),
      });
    } else if (kind === "flight") {
      flights.push({
        ...who,
        turn: asTurnId(subject),
        run: asRunId(options.get("run") ?? ""),
        model: options.get("model") ?? "m",
        api: "chat",
        source: (options.get("source") ?? "header") as RunSource,
        replica: asReplicaId(home ?? ""),
        side: names.includes("side"),
        ageMs: milliseconds(options.get("age") ?? "0s"),
      });
    } else if (kind === "keys") {
      const ageMs = milliseconds(options.get("age") ?? "0s");
      keys.push({ run: subject, principal: who.principal, keys: names.slice(2), ageMs });
    } else throw new Error(`a link carries run, flight and keys, not ${kind ?? ""}`);
  }
  const keyReports = keys.map((row) => ({
    run: asRunId(row.run),
    principal: asPrincipalId(row.principal),
    keys: row.keys.map(key),
    ageMs: row.ageMs,
  }));
  return linked(nowMs, dataplane, { runs, flights, keys: keyReports });
}
