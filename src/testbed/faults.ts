/**
 * Fault switches of the simulated engine (spec 6): by name, per request (`x-fake-fault`, or `fake_fault` in the body)
 * or for the whole engine (option, `POST /fake/faults`). One table says what there is; parsing and help read it.
 */

export type FaultSpec = {
  /** `engine`: only for the whole engine; `any`: per request too. */
  readonly scope: "engine" | "any";
  /** `none`: takes no value; a number: the value when none is given; a list: one of these words, the first by default. */
  readonly value: "none" | number | readonly [string, ...string[]];
  readonly about: string;
};

/** Every fault switch, in the order of the help. */
export const FAULTS = {
  "die-at-once": { scope: "any", value: "none", about: "closes the connection without a byte of an answer" },
  "die-after-bytes": { scope: "any", value: 100, about: "closes the connection after n bytes of the body" },
  "cut-event": { scope: "any", value: 2, about: "closes the connection inside the event that follows n whole ones" },
  "end-after-events": { scope: "any", value: 2, about: "ends the stream cleanly after n events, without a finish" },
  "no-done": { scope: "any", value: "none", about: "ends the stream cleanly without [DONE]" },
  "error-event": { scope: "any", value: 2, about: "sends an error event after n events, then ends cleanly" },
  stall: { scope: "any", value: 1, about: "falls silent after n tokens; keeps its place until the client leaves" },
  "slow-headers": { scope: "any", value: 5_000, about: "sends status and headers only after n ms" },
  "ignore-abort": { scope: "any", value: "none", about: "goes on generating when the client has left" },
  gzip: { scope: "any", value: "none", about: "compresses the body, whatever the client accepts" },
  "wrong-length": { scope: "any", value: 64, about: "announces a content-length of n bytes, whatever the body has" },
  crlf: { scope: "any", value: "none", about: "ends the lines of a stream with CRLF" },
  "no-space": { scope: "any", value: "none", about: "leaves out the space after `data:`" },
  "split-utf8": { scope: "any", value: "none", about: "cuts every multi-byte character over two writes" },
  "duplicate-ids": { scope: "any", value: "none", about: "gives every tool call the id call_0" },
  "index-zero": { scope: "any", value: "none", about: "gives all tool calls of a stream index 0" },
  "late-name": { scope: "any", value: "none", about: "sends a tool call's name in its second delta" },
  refuse: { scope: "any", value: 503, about: "answers with this status (400-599) instead of working" },
  "refuse-first": { scope: "engine", value: 1, about: "with refuse: only the first n requests" },
  "retry-after": { scope: "any", value: 1, about: "with refuse: sends Retry-After in seconds" },
  "close-idle": { scope: "engine", value: 0, about: "closes each connection n ms after its answer, unannounced" },
  "drop-reused": {
    scope: "engine",
    value: "none",
    about: "closes a kept-alive connection when the next request comes",
  },
  metrics: { scope: "engine", value: ["malformed", "huge", "slow", "error"], about: "spoils /metrics" },
  health: { scope: "engine", value: ["failing", "slow"], about: "spoils /health" },
  freeze: { scope: "engine", value: "none", about: "stops the whole engine: connections open, nothing answers" },
} as const satisfies { readonly [name: string]: FaultSpec };

export type FaultName = keyof typeof FAULTS;

/** Switches that are on, with their values; `true` where a switch takes none. */
export type FaultSet = ReadonlyMap<FaultName, number | string | true>;

export const NO_FAULTS: FaultSet = new Map();

export type ParsedFaults =
  | { readonly kind: "ok"; readonly faults: FaultSet }
  | { readonly kind: "invalid"; readonly message: string };

/**
 * Reads switches written as `name` or `name=value`.
 * @param texts each may hold several, separated by commas.
 * @param where `request` refuses the switches that are only for the whole engine.
 * @returns a message that names the switch and the known ones when one is wrong.
 */
export function parseFaults(texts: readonly string[], where: "request" | "engine"): ParsedFaults {
  const faults = new Map<FaultName, number | string | true>();
  for (const text of texts.flatMap((part) => part.split(",")).map((part) => part.trim())) {
    if (text === "") continue;
    const [name = "", ...rest] = text.split("=");
    if (!isFaultName(name)) {
      return { kind: "invalid", message: `unknown fault '${name}'; known: ${Object.keys(FAULTS).join(", ")}` };
    }
    if (where === "request" && FAULTS[name].scope === "engine") {
      return { kind: "invalid", message: `fault '${name}' is for the whole engine: set it by POST /fake/faults` };
    }
    const value = readValue(name, rest.length === 0 ? undefined : rest.join("="));
    if (value === undefined)
      return { kind: "invalid", message: `fault '${name}' takes ${wanted(name)}, got '${text}'` };
    faults.set(name, value);
  }
  return { kind: "ok", faults };
}

/** The value of a numeric switch, or undefined when it is off. */
export function faultNumber(faults: FaultSet, name: FaultName): number | undefined {
  const value = faults.get(name);
  return typeof value === "number" ? value : undefined;
}

/** A line per switch for `--help`. */
export function faultsHelp(): string {
  return Object.entries<FaultSpec>(FAULTS)
    .map(([name, { value, about, scope }]) => {
      const sign = value === "none" ? "" : typeof value === "number" ? `[=${value}]` : `=${value.join("|")}`;
      return `${(name + sign).padEnd(34)} ${about}${scope === "engine" ? " (engine only)" : ""}`;
    })
    .join("\n");
}

/** Whether a text names a switch. */
function isFaultName(name: string): name is FaultName {
  return Object.hasOwn(FAULTS, name);
}

function readValue(name: FaultName, text: string | undefined): number | string | true | undefined {
  const spec: FaultSpec = FAULTS[name];
  if (spec.value === "none") return text === undefined ? true : undefined;
  if (typeof spec.value === "number") {
    if (text === undefined) return spec.value;
    const value = /^\d{1,9}$/.test(text) ? Number(text) : undefined;
    return name === "refuse" && (value === undefined || value < 400 || value > 599) ? undefined : value;
  }
  if (text === undefined) return spec.value[0];
  return spec.value.includes(text) ? text : undefined;
}

function wanted(name: FaultName): string {
  const spec: FaultSpec = FAULTS[name];
  if (spec.value === "none") return "no value";
  if (name === "refuse") return "a status from 400 to 599";
  return typeof spec.value === "number" ? "a whole number" : `one of ${spec.value.join(", ")}`;
}
