/** Fault switches of the simulated tool server (spec 6, Simulated tools). One table says what there is. */

type FaultSpec = {
  /** `tool`: may name the one tool that it is about; `ms`: the value when none is given. */
  readonly value: "none" | "tool" | number;
  readonly about: string;
};

/** Every switch, in the order of the help. */
const TOOL_FAULTS = {
  crash: { value: "tool", about: "ends the process in a call, before its answer" },
  "crash-first": {
    value: "tool",
    about: "as crash, once per idempotency key: a repeated call is answered (needs --ledger)",
  },
  hang: { value: "tool", about: "never answers a call" },
  "wrong-id": { value: "tool", about: "answers a call under an id that nobody asked with" },
  "bad-schema": { value: "none", about: "lists one tool more, whose inputSchema is no schema" },
  noise: { value: "none", about: "stdio: writes log lines on stdout around every message" },
  chatter: { value: "none", about: "stdio: writes a megabyte on stderr before every answer" },
  stubborn: {
    value: "none",
    about: "stdio: starts a child, and neither of them ends at SIGTERM or at the end of stdin",
  },
  mute: { value: "none", about: "answers nothing at all, not even the handshake" },
  "slow-start": { value: 2_000, about: "answers nothing for the first n ms" },
} as const satisfies { readonly [name: string]: FaultSpec };

export type ToolFaultName = keyof typeof TOOL_FAULTS;

/** Switches that are on: a tool's name, a number, or `true` for all tools and for switches without a value. */
export type ToolFaults = ReadonlyMap<ToolFaultName, string | number | true>;

export type ParsedToolFaults =
  | { readonly kind: "ok"; readonly faults: ToolFaults }
  | { readonly kind: "invalid"; readonly message: string };

/** Reads switches written as `name` or `name=value`; a message names the wrong one and the known ones. */
export function parseToolFaults(texts: readonly string[]): ParsedToolFaults {
  const faults = new Map<ToolFaultName, string | number | true>();
  for (const text of texts) {
    const at = text.indexOf("=");
    const name = at < 0 ? text : text.slice(0, at);
    const value = at < 0 ? undefined : text.slice(at + 1);
    if (!isFaultName(name)) {
      return { kind: "invalid", message: `unknown fault '${name}'; known: ${Object.keys(TOOL_FAULTS).join(", ")}` };
    }
    const spec: FaultSpec = TOOL_FAULTS[name];
    const read = valueOf(spec, value);
    if (read === undefined) return { kind: "invalid", message: `fault '${name}' takes ${wanted(spec)}, got '${text}'` };
    faults.set(name, read);
  }
  return { kind: "ok", faults };
}

/** Whether a switch is on for a call of this tool. */
export function strikes(faults: ToolFaults, name: ToolFaultName, tool: string): boolean {
  const value = faults.get(name);
  return value === true || value === tool;
}

/** A line per switch for `--help`. */
export function toolFaultsHelp(): string {
  return Object.entries<FaultSpec>(TOOL_FAULTS)
    .map(([name, { value, about }]) => {
      const sign = value === "none" ? "" : value === "tool" ? "[=TOOL]" : `[=${value}]`;
      return `${(name + sign).padEnd(22)} ${about}`;
    })
    .join("\n");
}

function isFaultName(name: string): name is ToolFaultName {
  return Object.hasOwn(TOOL_FAULTS, name);
}

function valueOf({ value }: FaultSpec, text: string | undefined): string | number | true | undefined {
  if (value === "none") return text === undefined ? true : undefined;
  if (value === "tool") return text === undefined ? true : text === "" ? undefined : text;
  if (text === undefined) return value;
  return /^\d{1,9}$/.test(text) ? Number(text) : undefined;
}

function wanted({ value }: FaultSpec): string {
  if (value === "none") return "no value";
  return value === "tool" ? "the name of a tool, or no value for all" : "a whole number of milliseconds";
}
