/** Flags of one command: a table that is parsed, checked and printed as help. */
import { parseArgs } from "node:util";
import { CommandError, EXIT } from "./exit.ts";
import { nearest } from "./config/nearest.ts";

export type FlagSpec = {
  /** `boolean` stands alone; the others take a value. */
  readonly kind: "boolean" | "string" | "integer";
  readonly about: string;
  /** Placeholder of the value in the help, such as URL. */
  readonly value?: string;
  /** May be given several times. */
  readonly many?: boolean;
  readonly least?: number;
  readonly most?: number;
};

export type FlagTable = { readonly [flag: string]: FlagSpec };

export type ParsedFlags = {
  has(flag: string): boolean;
  text(flag: string): string | undefined;
  texts(flag: string): readonly string[];
  integer(flag: string): number | undefined;
  readonly positionals: readonly string[];
};

export type Command = {
  readonly name: string;
  /** What stands behind the name in the usage line. */
  readonly operands: string;
  readonly summary: string;
  /** Further lines of help. */
  readonly details?: string;
  readonly flags: FlagTable;
  /** Bounds on the number of positional arguments. */
  readonly positionals: { readonly least: number; readonly most: number };
  run(flags: ParsedFlags): Promise<number>;
};

const HELP: FlagTable = { help: { kind: "boolean", about: "Shows this help." } };

/**
 * Parses the arguments of a command.
 * @throws CommandError (usage) that names the flag, what is wrong, and the nearest known flag.
 */
export function parseFlags(command: Command, args: readonly string[]): ParsedFlags {
  const table: FlagTable = { ...command.flags, ...HELP };
  const fail = (message: string): never => {
    throw new CommandError(EXIT.usage, `luftpause ${command.name}: ${message}\nSee: luftpause ${command.name} --help`);
  };
  const { tokens } = parseArgs({
    args: [...args],
    options: Object.fromEntries(
      Object.entries(table).map(([flag, spec]) => [flag, { type: spec.kind === "boolean" ? "boolean" : "string" }]),
    ),
    strict: false,
    allowPositionals: true,
    tokens: true,
  });
  const values = new Map<string, string[]>();
  const positionals: string[] = [];
  for (const token of tokens) {
    if (token.kind === "positional") positionals.push(token.value);
    if (token.kind !== "option") continue;
    const spec = table[token.name];
    if (spec === undefined) {
      const near = nearest(token.name, Object.keys(table));
      fail(`unknown flag ${token.rawName}${near === undefined ? "" : `; did you mean --${near}?`}`);
      continue;
    }
    values.set(token.name, [...(values.get(token.name) ?? []), checkValue(token.name, spec, token.value, fail)]);
    if ((values.get(token.name)?.length ?? 0) > 1 && spec.many !== true && spec.kind !== "boolean") {
      fail(`--${token.name} was given twice`);
    }
  }
  if (!values.has("help")) checkPositionals(command, positionals, fail);
  return {
    has: (flag) => values.has(flag),
    text: (flag) => values.get(flag)?.at(-1),
    texts: (flag) => values.get(flag) ?? [],
    integer: (flag) => (values.has(flag) ? Number(values.get(flag)?.at(-1)) : undefined),
    positionals,
  };
}

function checkValue(flag: string, spec: FlagSpec, value: string | undefined, fail: (message: string) => never): string {
  if (spec.kind === "boolean") {
    return value === undefined ? "" : fail(`--${flag} takes no value, got '${value}'`);
  }
  if (value === undefined || value === "") return fail(`--${flag} needs a value: --${flag} ${spec.value ?? "VALUE"}`);
  if (spec.kind === "integer") {
    const number = Number(value);
    const { least = 0, most = Number.MAX_SAFE_INTEGER } = spec;
    if (!Number.isSafeInteger(number) || number < least || number > most) {
      return fail(`--${flag} must be a whole number from ${least} to ${most}, got '${value}'`);
    }
  }
  return value;
}

function checkPositionals(command: Command, positionals: readonly string[], fail: (message: string) => never): void {
  const { least, most } = command.positionals;
  if (positionals.length < least) fail(`needs ${command.operands}`);
  const extra = positionals[most];
  if (extra !== undefined) fail(`unexpected argument '${extra}'`);
}

/** The help text of a command. */
export function helpText(command: Command): string {
  const rows = Object.entries({ ...command.flags, ...HELP }).map(([flag, spec]) => {
    const name = spec.kind === "boolean" ? `--${flag}` : `--${flag} ${spec.value ?? "VALUE"}`;
    return [name, spec.about] as const;
  });
  const width = Math.max(...rows.map(([name]) => name.length));
  const operands = command.operands === "" ? "" : ` ${command.operands}`;
  return [
    `luftpause ${command.name}${operands} [flags]`,
    "",
    command.summary,
    ...(command.details === undefined ? [] : ["", command.details]),
    "",
    "Flags:",
    ...rows.map(([name, about]) => `  ${name.padEnd(width)}  ${about}`),
  ].join("\n");
}
