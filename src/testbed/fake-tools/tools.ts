/** The tools of the simulated tool server: what they are, and what a call of one does. */
import { createRandom, hashText } from "../../base/random.ts";
import type { Delay, ResolvedToolsOptions } from "./options.ts";

type JsonObject = { readonly [key: string]: unknown };

export type ToolCallOf = {
  readonly arguments: JsonObject;
  readonly options: ResolvedToolsOptions;
  /** Fires when the caller has withdrawn the call. */
  readonly signal: AbortSignal;
};

export type ContentBlock = { readonly type: string; readonly [field: string]: unknown };
export type ToolResult = {
  readonly content: readonly ContentBlock[];
  readonly structuredContent?: JsonObject;
  readonly isError?: boolean;
};

export type FakeTool = {
  readonly description: string;
  readonly properties: { readonly [name: string]: JsonObject };
  readonly required?: readonly string[];
  /** Left out: the tool gives no hints, as most real ones. */
  readonly annotations?: { readonly [hint: string]: boolean };
  /** `task`: where the client polls tasks it gets one; `ask`: a person is asked first. */
  readonly manner?: "task" | "ask";
  readonly run: (call: ToolCallOf) => Promise<ToolResult> | ToolResult;
};

/** A red square of 8 by 8 pixels. */
const PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEklEQVR4nGP4z8CAFWEXHbQSACj/P8Fu7N9hAAAAAElFTkSuQmCC";
const HUGE_BYTES = 1_000_000;
const HUGE_BYTES_MAX = 200_000_000;
const STEPS_MAX = 1_000;

const string = (description: string): JsonObject => ({ type: "string", description });
const number = (description: string): JsonObject => ({ type: "integer", description });

/** By name, in the order of the list. */
export const FAKE_TOOLS: { readonly [name: string]: FakeTool } = {
  lookup: {
    description: "Looks a term up and returns a short text about it.",
    properties: { query: string("What to look up.") },
    required: ["query"],
    annotations: { readOnlyHint: true },
    run: async (call) => {
      await pause(drawn(call, call.options.lookupMs), call.signal);
      return text(placeholder(call, 3));
    },
  },
  deep_search: {
    description: "Searches long and wide; takes about a second.",
    properties: { query: string("What to search for.") },
    required: ["query"],
    annotations: { readOnlyHint: true, openWorldHint: true },
    run: async (call) => {
      await pause(drawn(call, call.options.deepSearchMs), call.signal);
      return text(placeholder(call, 12));
    },
  },
  destroy: {
    description: "Deletes a record for good.",
    properties: { id: string("Which record.") },
    required: ["id"],
    annotations: { readOnlyHint: false, destructiveHint: true },
    run: ({ arguments: { id } }) => text(`record ${words(id)} is deleted`),
  },
  note: {
    description: "Writes a note down. Gives no hints on what a second call would do.",
    properties: { text: string("The note.") },
    required: ["text"],
    run: ({ arguments: { text: note } }) => text(`noted: ${words(note)}`),
  },
  put: {
    description: "Sets a key to a value.",
    properties: { key: string("The key."), value: string("Its value.") },
    required: ["key", "value"],
    annotations: { readOnlyHint: false, destructiveHint: false, idempotentHint: true },
    run: ({ arguments: { key, value } }) => text(`${words(key)} is ${words(value)}`),
  },
  fail: {
    description: "Fails always.",
    properties: { why: string("Words for the error.") },
    annotations: { readOnlyHint: true },
    run: ({ arguments: { why } }) => ({ ...text(why === undefined ? "it failed" : words(why)), isError: true }),
  },
  huge: {
    description: "Returns a very long text.",
    properties: { bytes: number(`How long; ${HUGE_BYTES} when left out.`) },
    annotations: { readOnlyHint: true },
    run: ({ arguments: { bytes } }) => text(longText(typeof bytes === "number" ? bytes : HUGE_BYTES)),
  },
  picture: {
    description: "Returns a picture between two texts.",
    properties: {},
    annotations: { readOnlyHint: true },
    run: () => ({
      content: [
        { type: "text", text: "before the picture" },
        { type: "image", data: PICTURE, mimeType: "image/png" },
        { type: "text", text: "after the picture" },
      ],
    }),
  },
  count: {
    description: "Counts up to a number, step by step; an MCP task where the client polls tasks.",
    properties: { steps: number("Where to stop; 3 when left out."), stepMs: number("A step takes this long; 100.") },
    annotations: { readOnlyHint: true },
    manner: "task",
    run: async ({ arguments: { steps, stepMs }, signal }) => {
      const last = Math.min(STEPS_MAX, typeof steps === "number" ? steps : 3);
      for (let step = 0; step < last; step += 1) await pause(typeof stepMs === "number" ? stepMs : 100, signal);
      return text(`counted to ${last}`);
    },
  },
  ask: {
    description: "Asks a person before it answers.",
    properties: { question: string("What to ask.") },
    annotations: { readOnlyHint: true },
    manner: "ask",
    run: () => text("the person said yes"),
  },
};

/** As `tools/list` shows them. */
export function listedTools(options: ResolvedToolsOptions): readonly JsonObject[] {
  const tools: JsonObject[] = Object.entries(FAKE_TOOLS).map(([name, tool]) => ({
    name,
    description: tool.description,
    inputSchema: { type: "object", properties: tool.properties, required: [...(tool.required ?? [])] },
    ...(tool.annotations === undefined ? {} : { annotations: tool.annotations }),
  }));
  // In the middle: what comes after it must not be lost.
  if (options.faults.has("bad-schema")) tools.splice(1, 0, { name: "broken", inputSchema: "no schema at all" });
  return tools;
}

function text(said: string): ToolResult {
  return { content: [{ type: "text", text: said }] };
}

/** Waits; a call that is withdrawn ends its wait at once. */
function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const end = (): void => {
      clearTimeout(timer);
      signal.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    signal.addEventListener("abort", end);
  });
}

/** The same call takes the same time under the same seed. */
function drawn({ arguments: given, options }: ToolCallOf, [leastMs, mostMs]: Delay): number {
  const { seed } = options;
  return leastMs + (mostMs - leastMs) * createRandom(hashText(JSON.stringify(given), seed)).next();
}

const LORE = [
  "It has been known for long under several names.",
  "The oldest record of it is a letter.",
  "Most of what is written on it repeats one source.",
  "Two surveys disagree on its extent.",
  "Its course was changed more than once.",
  "In spring it looks another way than in autumn.",
];

function placeholder({ arguments: { query }, options }: ToolCallOf, sentences: number): string {
  const random = createRandom(hashText(words(query), options.seed));
  const lines = Array.from({ length: sentences }, () => LORE[random.integer(0, LORE.length - 1)]);
  return `About ${words(query)}: ${lines.join(" ")}`;
}

function longText(bytes: number): string {
  const line = "A line of a very long result, one like the other.\n";
  const wanted = Math.max(0, Math.min(HUGE_BYTES_MAX, bytes));
  return line.repeat(Math.ceil(wanted / line.length)).slice(0, wanted);
}

function words(value: unknown): string {
  return typeof value === "string" ? value : (JSON.stringify(value) ?? "nothing");
}
