// One end of a link as a process of its own: `node side.ts server VARIANT FOLDERS`, which prints its address, or
// `node side.ts client VARIANT FOLDERS ADDRESS SERVER-PID MILLISECONDS`, which prints one JSON line for each pattern.
import { cpuNs, loadAverage } from "../support/accounting.ts";
import { dial, serve, type Channel, type Folders, type Variant } from "./transports.ts";
import { answerTurns, PATTERNS, Turns } from "./turns.ts";

const [role, variantText = "", foldersText = "", address = "", serverPid = "", spanText = ""] = process.argv.slice(2);
const variant = variantText as Variant;
const folders = JSON.parse(foldersText) as Folders;

if (role === "server") {
  process.stdout.write(`${await serve(variant, folders, answerTurns)}\n`);
} else {
  const turns = new Turns(variant === "call" ? byCall() : await dial(variant, folders, address));
  const pids = variant === "call" ? [process.pid] : [process.pid, Number(serverPid)];
  const spanMs = Number(spanText);
  for (const [name, pattern] of Object.entries(PATTERNS)) {
    turns.start(pattern);
    // Compiled, connected, and the first turns of the paced pattern on their way to an end.
    await pause(Math.max(500, spanMs / 2));
    const before = { cpu: cpuNs(pids), ended: turns.ended };
    turns.delaysMs = [];
    await pause(spanMs);
    const ended = turns.ended - before.ended;
    const usPerTurn = (cpuNs(pids) - before.cpu) / 1_000 / ended;
    const sorted = turns.delaysMs.toSorted((a, b) => a - b);
    const answerP50Us = (sorted[sorted.length >> 1] ?? NaN) * 1_000;
    await turns.stop();
    const line = { pattern: name, turns: ended, usPerTurn, answerP50Us, load: loadAverage() };
    process.stdout.write(`${JSON.stringify(line)}\n`);
  }
  process.exit(0);
}

/** Both ends in this process: what is left is the load itself, and the messages as function calls. */
function byCall(): Channel {
  const dataplane: Channel = { send: (value) => scheduler.onValue(value), onValue: () => undefined };
  const scheduler: Channel = { send: (value) => dataplane.onValue(value), onValue: () => undefined };
  answerTurns(scheduler);
  return dataplane;
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => {
    setTimeout(resolve, ms);
  });
}
