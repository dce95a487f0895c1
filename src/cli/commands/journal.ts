import { statSync } from "node:fs";
import path from "node:path";
import {
  exportJournal,
  importJournal,
  openSqliteStore,
  StoreError,
  type Damage,
  type ImportReport,
  type SqliteStore,
} from "../../runtime/index.ts";
import { CONFIG_FLAGS, configFromFlags } from "../config/from-flags.ts";
import { CommandError, EXIT } from "../exit.ts";
import type { Command, ParsedFlags } from "../flags.ts";
import { JOURNAL_FILE } from "../journal-file.ts";

/** Names that one line of a report lists before it only counts. */
const NAMES_SHOWN = 10;

export const journal: Command = {
  name: "journal",
  operands: "verify|compact|export FOLDER|import FOLDER",
  summary: "Checks, shrinks, exports or imports the journal of runs. The runtime that has it must be stopped.",
  details: [
    "verify         reads every record, and names a damaged one by run and sequence",
    "compact        gives the room of deleted runs back; needs as much room again meanwhile",
    "export FOLDER  writes runs.jsonl and tasks.jsonl, one record a line (docs/journal.md)",
    "import FOLDER  reads them; runs that are there stay as they are",
  ].join("\n"),
  flags: {
    ...CONFIG_FLAGS,
    "state-dir": { kind: "string", value: "DIR", about: "Where the journal is, as stateDir in the config." },
    json: { kind: "boolean", about: "Prints the outcome as JSON." },
  },
  positionals: { least: 1, most: 2 },
  async run(flags) {
    const [action = "", folder] = flags.positionals;
    const act = ACTIONS[action];
    if (act === undefined) {
      throw new CommandError(
        EXIT.usage,
        `luftpause journal: '${action}' is not one of ${Object.keys(ACTIONS).join(", ")}`,
      );
    }
    if (act.needsFolder !== (folder !== undefined)) {
      const what = act.needsFolder ? "needs a folder" : `takes no folder, got '${folder}'`;
      throw new CommandError(EXIT.usage, `luftpause journal ${action} ${what}`);
    }
    const file = path.join(configFromFlags(flags, { "state-dir": "stateDir" }).config.stateDir, JOURNAL_FILE);
    // Only an import makes a journal: whoever looks at one that is not there looks in the wrong place.
    if (action !== "import" && statSync(file, { throwIfNoEntry: false }) === undefined) {
      throw new CommandError(EXIT.fault, `${file}: there is no journal; say where it is with --state-dir`);
    }
    try {
      const store = await openSqliteStore({ file });
      try {
        if (store.logDamage !== undefined) process.stderr.write(`${store.logDamage}\n`);
        return await act.run(store, { file, folder: folder ?? "", flags });
      } finally {
        await store.close();
      }
    } catch (error) {
      if (error instanceof CommandError) throw error;
      if (error instanceof StoreError) throw new CommandError(EXIT.fault, error.message);
      const code = (error as NodeJS.ErrnoException).code;
      if (code === undefined) throw error;
      throw new CommandError(EXIT.fault, `luftpause journal ${action}: ${(error as Error).message}`);
    }
  },
};

type Call = { readonly file: string; readonly folder: string; readonly flags: ParsedFlags };
type Action = { readonly needsFolder: boolean; run(store: SqliteStore, call: Call): Promise<number> };

const ACTIONS: { readonly [name: string]: Action } = {
  verify: {
    needsFolder: false,
    async run(store, { file, flags }) {
      const counts = { runs: 0, records: 0 };
      const damage: Damage[] = [];
      for await (const run of store.loadAll()) {
        counts.runs += 1;
        counts.records += run.records.length;
        if (run.damage !== undefined) damage.push(run.damage);
      }
      const structure = await store.integrity();
      const { logDamage } = store;
      const sound = damage.length === 0 && structure.length === 0 && logDamage === undefined;
      report(flags, { ...counts, damage, structure, ...(logDamage === undefined ? {} : { logDamage }) }, [
        `${file}: ${counts.runs} runs, ${counts.records} records: ${sound ? "all sound" : "damaged"}`,
        ...damage.map(({ message }) => `  ${message}`),
        ...structure.map((text) => `  file structure: ${text}`),
      ]);
      return sound ? EXIT.ok : EXIT.fault;
    },
  },
  compact: {
    needsFolder: false,
    async run(store, { file, flags }) {
      const before = statSync(file).size;
      await store.compact();
      // The file itself shrinks when the log is copied back, which closing does.
      await store.close();
      const after = statSync(file).size;
      report(flags, { before, after }, [`${file}: ${mebibytes(before)} before, ${mebibytes(after)} after`]);
      return EXIT.ok;
    },
  },
  export: {
    needsFolder: true,
    async run(store, { file, folder, flags }) {
      const outcome = await exportJournal(store, folder);
      const { runs, records, tasks, damage } = outcome;
      report(flags, outcome, [
        `${file}: ${runs} runs, ${records} records, ${tasks} tasks written to ${folder}`,
        ...damage.map(({ message }) => `  left out from here on: ${message}`),
      ]);
      return damage.length === 0 ? EXIT.ok : EXIT.fault;
    },
  },
  import: {
    needsFolder: true,
    async run(store, { file, folder, flags }) {
      const outcome = await importJournal(store, folder);
      report(flags, outcome, importText(file, outcome));
      return EXIT.ok;
    },
  },
};

function importText(file: string, outcome: ImportReport): readonly string[] {
  const { runs, records, tasks, alreadyThere, shortened, orphans, torn } = outcome;
  return [
    `${file}: ${runs} runs, ${records} records, ${tasks} tasks imported`,
    ...torn.map((place) => `  ${place.file}:${place.line}: this last line was torn off and is lost`),
    ...shortened.map((run) => `  run ${run.runId} has ${run.records} of its ${run.expected} records and is live again`),
    ...(alreadyThere.length === 0 ? [] : [`  already there, left as they are: ${names(alreadyThere)}`]),
    ...(orphans.length === 0 ? [] : [`  tasks without a run, left out: ${names(orphans)}`]),
  ];
}

function names(all: readonly string[]): string {
  const more = all.length - NAMES_SHOWN;
  return `${all.slice(0, NAMES_SHOWN).join(", ")}${more > 0 ? ` and ${more} more` : ""}`;
}

function mebibytes(bytes: number): string {
  return `${(bytes / 1024 / 1024).toFixed(1)} MiB`;
}

function report(flags: ParsedFlags, outcome: object, lines: readonly string[]): void {
  process.stdout.write(flags.has("json") ? `${JSON.stringify(outcome)}\n` : `${lines.join("\n")}\n`);
}
