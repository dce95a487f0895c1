/**
 * Reads the config: defaults < file < environment < flags (spec 7, Config). A fault is a list of problems, each with
 * its place, what is wrong and how to mend it; nothing is guessed and nothing unknown is ignored.
 */
import { readFileSync } from "node:fs";
import { isMap, isScalar, LineCounter, parseDocument, type Document, type Node } from "yaml";
import type { z } from "zod";
import { configSchema, type Config } from "./schema.ts";
import { nearest } from "./nearest.ts";
import { settablePaths } from "./paths.ts";

export type Environment = { readonly [name: string]: string | undefined };

export type ConfigSources = {
  /** From `--config` or LUFTPAUSE_CONFIG: must exist. Undefined: `luftpause.yaml` in the folder, if it is there. */
  readonly file: string | undefined;
  readonly environment: Environment;
  /** `[path, text]` of flags, in order; the text is read as YAML, as environment values are. */
  readonly overrides: readonly (readonly [string, string])[];
};

export type ConfigOutcome =
  | { readonly kind: "ok"; readonly config: Config; readonly file: string | undefined }
  | { readonly kind: "invalid"; readonly problems: readonly string[] };

const DEFAULT_FILE = "luftpause.yaml";

/** Reserved names that are no config paths (spec 7). */
const RESERVED = new Set([
  "LUFTPAUSE_TOKEN",
  "LUFTPAUSE_CONFIG",
  "LUFTPAUSE_INSECURE",
  "LUFTPAUSE_VERSION",
  "LUFTPAUSE_REGISTRY",
  "LUFTPAUSE_BIND",
]);

type Path = readonly (string | number)[];

/** Where the value at a path came from, for messages: `luftpause.yaml:3:5` or the variable or the flag. */
type Origins = {
  readonly document: Document | undefined;
  readonly lines: LineCounter;
  readonly file: string | undefined;
  readonly named: Map<string, string>;
};

/** Reads, merges and validates. Never throws for bad input. */
export function loadConfig(sources: ConfigSources): ConfigOutcome {
  const problems: string[] = [];
  const origins: Origins = { ...readFile(sources, problems), named: new Map() };
  if (problems.length > 0) return { kind: "invalid", problems };
  const tree = (origins.document?.toJS() ?? {}) as unknown;
  if (!isObject(tree)) {
    return { kind: "invalid", problems: [`${origins.file}: the config must be a map of keys, such as "listen: …"`] };
  }
  checkSecretsAreReferences(tree, origins, problems);
  overlayEnvironment(tree, sources.environment, origins, problems);
  for (const [path, text] of sources.overrides) {
    setPath(tree, path.split("."), parseText(text, `--set ${path}`, problems));
    origins.named.set(path, `flag for ${path}`);
  }
  const resolved = resolveReferences(tree, [], sources.environment, origins, problems);
  if (problems.length > 0) return { kind: "invalid", problems };
  const parsed = configSchema.safeParse(resolved, { reportInput: true });
  if (!parsed.success) {
    return { kind: "invalid", problems: parsed.error.issues.flatMap((issue) => describeIssue(issue, origins)) };
  }
  problems.push(...crossChecks(parsed.data, origins));
  if (problems.length > 0) return { kind: "invalid", problems };
  return { kind: "ok", config: parsed.data, file: origins.file };
}

function readFile(sources: ConfigSources, problems: string[]): Omit<Origins, "named"> {
  const lines = new LineCounter();
  const file = sources.file ?? sources.environment["LUFTPAUSE_CONFIG"] ?? DEFAULT_FILE;
  const required = file !== DEFAULT_FILE || sources.file !== undefined;
  let text: string;
  try {
    text = readFileSync(file, "utf8");
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code ?? String(error);
    if (code === "ENOENT" && !required) return { document: undefined, lines, file: undefined };
    problems.push(`${file}: cannot be read (${code}); name an existing file with --config`);
    return { document: undefined, lines, file };
  }
  const document = parseDocument(text, { lineCounter: lines, prettyErrors: false });
  for (const error of document.errors) {
    const { line, col } = lines.linePos(error.pos[0]);
    problems.push(`${file}:${line}:${col}: not valid YAML: ${error.message}`);
  }
  // An empty file, or one with comments only, is an empty config.
  if (document.contents === null || (isScalar(document.contents) && document.contents.value === null)) {
    return { document: undefined, lines, file };
  }
  return { document, lines, file };
}

function overlayEnvironment(tree: object, environment: Environment, origins: Origins, problems: string[]): void {
  const known = settablePaths();
  for (const [name, text] of Object.entries(environment)) {
    if (!name.startsWith("LUFTPAUSE_") || text === undefined) continue;
    if (RESERVED.has(name)) continue;
    const path = known.get(name);
    if (path === undefined) {
      const near = nearest(name, [...known.keys(), ...RESERVED]);
      problems.push(`${name}: unknown environment variable${near === undefined ? "" : `; did you mean ${near}?`}`);
      continue;
    }
    const secret = path.toLowerCase().endsWith("token");
    setPath(tree, path.split("."), secret ? text : parseText(text, name, problems));
    origins.named.set(path, name);
  }
  const token = environment["LUFTPAUSE_TOKEN"];
  const untouched = !("token" in tree) && !("principals" in tree);
  if (token !== undefined && token !== "" && untouched) {
    setPath(tree, ["token"], token);
    origins.named.set("token", "LUFTPAUSE_TOKEN");
  }
}

/** Reads an environment or flag value as YAML, so that numbers, lists and null mean what they mean in the file. */
function parseText(text: string, where: string, problems: string[]): unknown {
  const document = parseDocument(text, { prettyErrors: false });
  const error = document.errors[0];
  if (error !== undefined) {
    problems.push(`${where}: not a valid value: ${error.message}`);
    return undefined;
  }
  return document.toJS() as unknown;
}

const SECRET_KEY = /^(?:token|apiKey|serviceToken|requestStateKey)$/;
/** Headers that carry one, in the headers of a tool server. */
const SECRET_HEADER = /^(?:authorization|proxy-authorization|cookie|.*(?:api-?key|token|secret).*)$/i;
/** Of a tool server: nobody can tell which of their values are secrets. */
const MAYBE_SECRETS: ReadonlySet<string> = new Set(["headers", "env"]);
/** References inside a longer value, such as `Bearer ${NAME}`. */
const INNER_REFERENCE = /\$\{(?:file:([^}]+)|([A-Za-z_][A-Za-z0-9_]*))\}/g;
const REFERENCE = /^\$\{(?:file:([^}]+)|([A-Za-z_][A-Za-z0-9_]*))\}$/;

/** A secret in the file must be a reference: files are committed, copied into tickets, and printed. */
function checkSecretsAreReferences(tree: unknown, origins: Origins, problems: string[]): void {
  const walk = (value: unknown, path: Path): void => {
    if (Array.isArray(value)) {
      for (const [index, element] of value.entries()) walk(element, [...path, index]);
    } else if (isObject(value)) {
      for (const [key, child] of Object.entries(value)) walk(child, [...path, key]);
    } else if (typeof value === "string" && isSecret(path) && !hasReference(value, path)) {
      problems.push(
        `${place(origins, path)}: ${pathText(path)}: a secret stands here in the clear; ` +
          "write a reference: ${NAME} for an environment variable, ${file:/path} for a file",
      );
    }
  };
  walk(tree, []);
}

function isSecret(path: Path): boolean {
  const key = String(path.at(-1));
  return SECRET_KEY.test(key) || (path.at(-2) === "headers" && SECRET_HEADER.test(key));
}

function hasReference(text: string, path: Path): boolean {
  return holdsReferences(path) ? text.search(INNER_REFERENCE) !== -1 : REFERENCE.test(text);
}

/** Headers and the environment of a tool server are often made of a word and a secret. */
function holdsReferences(path: Path): boolean {
  return path[0] === "tools" && (path[2] === "headers" || path[2] === "env");
}

function resolveReferences(
  value: unknown,
  path: Path,
  environment: Environment,
  origins: Origins,
  problems: string[],
): unknown {
  const inner = (child: unknown, key: string | number) =>
    resolveReferences(child, [...path, key], environment, origins, problems);
  if (Array.isArray(value)) return value.map((element, index) => inner(element, index));
  if (isObject(value)) return Object.fromEntries(Object.entries(value).map(([key, child]) => [key, inner(child, key)]));
  if (typeof value !== "string") return value;
  const resolve = (file: string | undefined, variable: string | undefined): string | undefined => {
    const found = readReference(file, variable, environment);
    if ("text" in found) return found.text;
    problems.push(`${place(origins, path)}: ${pathText(path)}: ${found.problem}`);
    return undefined;
  };
  if (holdsReferences(path)) {
    return value.replaceAll(INNER_REFERENCE, (_, file?: string, variable?: string) => resolve(file, variable) ?? "");
  }
  const match = REFERENCE.exec(value);
  return match === null ? value : resolve(match[1], match[2]);
}

function readReference(
  file: string | undefined,
  variable: string | undefined,
  environment: Environment,
): { readonly text: string } | { readonly problem: string } {
  if (variable !== undefined) {
    const text = environment[variable];
    if (text !== undefined && text !== "") return { text };
    return { problem: `the environment variable ${variable} is not set; set it, or remove this line` };
  }
  try {
    return { text: readFileSync(file ?? "", "utf8").trim() };
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code ?? String(error);
    return { problem: `the file ${file} cannot be read (${code})` };
  }
}

/** What a schema cannot say: names are unique, and what excludes what. */
function crossChecks(config: Config, origins: Origins): string[] {
  const problems: string[] = [];
  const unique = (group: "endpoints" | "principals" | "tools") => {
    const seen = new Set<string>();
    for (const [index, { name }] of config[group].entries()) {
      if (seen.has(name)) {
        const path = [group, index, "name"];
        problems.push(`${place(origins, path)}: ${pathText(path)}: '${name}' is taken; names must differ`);
      }
      seen.add(name);
    }
  };
  unique("endpoints");
  unique("principals");
  unique("tools");
  for (const [index, server] of config.tools.entries()) problems.push(...toolServerProblems(server, index, origins));
  if (config.token !== undefined && config.principals.length > 0) {
    problems.push(`${place(origins, ["token"])}: token: give either one token or principals, not both`);
  }
  const tokens = new Set<string>();
  for (const [index, { token }] of config.principals.entries()) {
    if (tokens.has(token)) {
      const path = ["principals", index, "token"];
      problems.push(`${place(origins, path)}: ${pathText(path)}: two principals have the same token`);
    }
    tokens.add(token);
  }
  const { retryAfterSentMinSeconds: least, retryAfterSentMaxSeconds: most } = config.limits;
  if (least > most) {
    problems.push(`${place(origins, ["limits"])}: limits.retryAfterSentMinSeconds is above retryAfterSentMaxSeconds`);
  }
  return problems;
}

function describeIssue(issue: z.core.$ZodIssue, origins: Origins): string[] {
  const path = issue.path.filter((part) => typeof part !== "symbol");
  if (issue.code === "unrecognized_keys") {
    return issue.keys.map((key) => {
      const near = nearest(key, keysAt(path));
      const hint = near === undefined ? "" : `; did you mean ${near}?`;
      return `${place(origins, [...path, key])}: ${pathText([...path, key])}: unknown key${hint}`;
    });
  }
  return [`${place(origins, path)}: ${pathText(path)}: ${issueInWords(issue)}`];
}

const TYPE_WORDS: { readonly [type: string]: string } = {
  int: "a whole number",
  number: "a number",
  string: "text",
  boolean: "true or false",
  array: "a list",
  object: "a map of keys",
};

function issueInWords(issue: z.core.$ZodIssue): string {
  if (issue.code === "invalid_type" && "input" in issue && issue.input === undefined) return "is missing";
  if (issue.code === "invalid_type") return `must be ${TYPE_WORDS[issue.expected] ?? issue.expected}`;
  if (issue.code === "invalid_value") return `must be one of ${issue.values.map(String).join(", ")}`;
  if (issue.code === "too_small") return `must be at least ${issue.minimum}`;
  if (issue.code === "too_big") return `must be at most ${issue.maximum}`;
  return issue.message.replace(/^Invalid input: expected/, "must be").replace(/, received .*$/, "");
}

/** The keys that the schema knows at a path, for "did you mean". */
function keysAt(path: Path): string[] {
  let current: unknown = configSchema;
  const unwrap = () => {
    for (let depth = 0; depth < 8; depth += 1) {
      const def = (current as { def?: { innerType?: unknown; element?: unknown } }).def;
      if (def?.innerType !== undefined) current = def.innerType;
      else if (def?.element !== undefined) current = def.element;
      else return;
    }
  };
  unwrap();
  for (const part of path) {
    if (typeof part === "number") continue;
    current = (current as { shape?: { [key: string]: unknown } }).shape?.[part];
    if (current === undefined) return [];
    unwrap();
  }
  return Object.keys((current as { shape?: object }).shape ?? {});
}

/** File, line and column of a path, or the variable or flag that set it, or its group's. */
function place(origins: Origins, path: Path): string {
  for (let length = path.length; length > 0; length -= 1) {
    const named = origins.named.get(path.slice(0, length).join("."));
    if (named !== undefined) return named;
    const node = nodeAt(origins, path.slice(0, length));
    if (node?.range !== undefined && node.range !== null) {
      const { line, col } = origins.lines.linePos(node.range[0]);
      return `${origins.file}:${line}:${col}`;
    }
  }
  return origins.file ?? "config";
}

function nodeAt(origins: Origins, path: Path): Node | undefined {
  const parent = path.length === 1 ? origins.document?.contents : origins.document?.getIn(path.slice(0, -1), true);
  // The key itself is the better place to point at than its value.
  if (isMap(parent)) {
    const pair = parent.items.find((item) => isScalar(item.key) && item.key.value === path.at(-1));
    if (pair !== undefined && isScalar(pair.key)) return pair.key;
  }
  const node = origins.document?.getIn(path, true);
  return node === undefined || node === null ? undefined : (node as Node);
}

function pathText(path: Path): string {
  return path.reduce<string>((text, part) => {
    if (typeof part === "number") return `${text}[${part}]`;
    return text === "" ? part : `${text}.${part}`;
  }, "");
}

function setPath(tree: object, path: readonly string[], value: unknown): void {
  let current = tree as { [key: string]: unknown };
  for (const key of path.slice(0, -1)) {
    const child = current[key];
    if (!isObject(child)) current[key] = {};
    current = current[key] as { [key: string]: unknown };
  }
  const last = path.at(-1);
  if (last !== undefined) current[last] = value;
}

function isObject(value: unknown): value is object {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** The config as text with its secrets struck out, for `config show` and support. */
export function withoutSecrets(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withoutSecrets);
  if (!isObject(value)) return value;
  return Object.fromEntries(
    Object.entries(value).map(([key, child]) => {
      if (SECRET_KEY.test(key) && child !== undefined && child !== null) return [key, "(set)"];
      return [key, MAYBE_SECRETS.has(key) && isObject(child) ? allSet(child) : withoutSecrets(child)];
    }),
  );
}

function allSet(values: object): object {
  return Object.fromEntries(Object.keys(values).map((key) => [key, "(set)"]));
}

/** A tool server is reached either by its address or by its command. */
function toolServerProblems(server: Config["tools"][number], index: number, origins: Origins): string[] {
  const { url, command, args, env, headers } = server;
  const at = (key: string, words: string): string => {
    const path = ["tools", index, key];
    return `${place(origins, path)}: ${pathText(path)}: ${words}`;
  };
  if (url === null && command === null) return [at("name", "give its url (HTTP), or its command (stdio)")];
  if (url !== null && command !== null) return [at("command", "give either url or command, not both")];
  if (url === null) return Object.keys(headers).length > 0 ? [at("headers", "is for a url, not a command")] : [];
  const stdio = [args.length > 0 ? "args" : undefined, Object.keys(env).length > 0 ? "env" : undefined];
  return stdio.flatMap((key) => (key === undefined ? [] : [at(key, "is for a command, not a url")]));
}
