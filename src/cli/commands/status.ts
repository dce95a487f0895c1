import type { Status } from "../../scheduler/index.ts";
import { parseAddress, reachable } from "../address.ts";
import { CONFIG_FLAGS, configFromFlags } from "../config/from-flags.ts";
import { CommandError, EXIT } from "../exit.ts";
import type { Command } from "../flags.ts";
import { table } from "../table.ts";

const ASK_MS = 5_000;
const WATCH_EVERY_MS = 1_000;

export const status: Command = {
  name: "status",
  operands: "",
  summary: "Shows replicas, held turns and runs of a running luftpause.",
  details: "The token is taken from the config or from LUFTPAUSE_TOKEN. Exit code 4 when no replica is healthy.",
  flags: {
    ...CONFIG_FLAGS,
    url: { kind: "string", value: "URL", about: "Where it runs; without it the config's listen address." },
    json: { kind: "boolean", about: "Prints the status as JSON." },
    watch: { kind: "boolean", about: "Shows it again each second until Ctrl-C." },
  },
  positionals: { least: 0, most: 0 },
  async run(flags) {
    const { config } = configFromFlags(flags);
    const url = (flags.text("url") ?? reachable(parseAddress(config.listen))).replace(/\/+$/, "");
    for (;;) {
      const current = await ask(`${url}/status`, config.token ?? config.serviceToken);
      const text = flags.has("json") ? JSON.stringify(current) : format(current);
      const clear = flags.has("watch") && process.stdout.isTTY ? "\x1b[H\x1b[2J" : "";
      process.stdout.write(`${clear}${text}\n`);
      if (!flags.has("watch")) return isWell(current) ? EXIT.ok : EXIT.unhealthy;
      await new Promise((resolve) => {
        setTimeout(resolve, WATCH_EVERY_MS);
      });
    }
  },
};

async function ask(url: string, token: string | undefined): Promise<Status> {
  const headers = token === undefined ? {} : { authorization: `Bearer ${token}` };
  let answer: Response;
  try {
    answer = await fetch(url, { headers, signal: AbortSignal.timeout(ASK_MS) });
  } catch {
    throw new CommandError(EXIT.unhealthy, `${url}: no answer; is luftpause running? Name another with --url`);
  }
  if (answer.status === 401) {
    throw new CommandError(EXIT.fault, `${url}: the token is missing or wrong; set LUFTPAUSE_TOKEN`);
  }
  if (answer.status !== 200) throw new CommandError(EXIT.fault, `${url}: answered ${answer.status}`);
  return (await answer.json()) as Status;
}

function isWell(current: Status): boolean {
  return current.replicas.some((replica) => replica.healthy);
}

function format(current: Status): string {
  const replicas = table(
    [
      { title: "REPLICA" },
      { title: "ENGINE" },
      { title: "HEALTH" },
      { title: "IN FLIGHT", right: true },
      { title: "ROOM KEPT", right: true },
      { title: "ENGINE RUN/WAIT", right: true },
      { title: "KV", right: true },
      { title: "MODELS" },
    ],
    current.replicas.map((row) => [
      row.replica,
      row.engine,
      row.healthy ? "ok" : (current.problems[row.replica] ?? "not probed yet"),
      `${row.turnsInFlight}/${row.limit ?? "open"}`,
      String(row.keptRoom),
      `${row.engineRunning ?? "-"}/${row.engineWaiting ?? "-"}`,
      row.kvUsage === null ? "-" : `${Math.round(row.kvUsage * 100)}%`,
      row.models.join(","),
    ]),
    widthOf(),
  );
  const { interactive, batch } = current.runCounts;
  const runs = table(
    [{ title: "RUNS" }, ...["HELD", "GENERATING", "PAUSED", "IDLE"].map((title) => ({ title, right: true }))],
    Object.entries({ interactive, batch }).map(([name, row]) => [
      name,
      ...[row.held, row.generating, row.paused, row.idle].map(String),
    ]),
  );
  return [`policy ${current.policy}`, "", replicas, "", runs, "", heldTable(current)].join("\n");
}

function heldTable(current: Status): string {
  if (current.turns.held === 0) return "no turn is held";
  const rows = current.held.map((row) => [
    row.class,
    row.principal,
    row.caller === "" ? "(anonymous)" : row.caller,
    String(row.turns),
    `${(row.longestHeldMs / 1000).toFixed(1)} s`,
    row.why,
  ]);
  if (current.heldElsewhere > 0) rows.push(["", "", "(other callers)", String(current.heldElsewhere), "", ""]);
  return table(
    [
      { title: "HELD" },
      { title: "PRINCIPAL" },
      { title: "CALLER" },
      { title: "TURNS", right: true },
      { title: "LONGEST", right: true },
      { title: "WHY" },
    ],
    rows,
    widthOf(),
  );
}

function widthOf(): number | undefined {
  return process.stdout.isTTY ? process.stdout.columns : undefined;
}
