/** The tools of the MCP face, written for a model that has never seen them (spec 4, Tools). */
import type { Tool } from "@modelcontextprotocol/server";

export type ToolName = "spawn" | "await" | "run" | "status" | "cancel" | "approve" | "tools" | "decide";

type Schema = { readonly [key: string]: unknown };

/** A tool as it is listed; the schema has an object at its top. */
export type FaceTool = {
  readonly name: ToolName;
  readonly description: string;
  readonly inputSchema: Schema & { readonly type: "object"; readonly properties: { readonly [name: string]: Schema } };
  readonly outputSchema: Schema & { readonly type: "object" };
  readonly annotations: Tool["annotations"];
  readonly _meta?: { readonly [key: string]: unknown };
};

const text = (description: string): Schema => ({ type: "string", description });
const integer = (description: string, more: Schema = {}): Schema => ({ type: "integer", description, ...more });
const flag = (description: string): Schema => ({ type: "boolean", description });
const names = (description: string, most?: number): Schema => ({
  type: "array",
  items: { type: "string" },
  ...(most === undefined ? {} : { maxItems: most }),
  description,
});
/** Names and patterns of tools in one argument. */
const PATTERNS_MAX = 500;
const open = (properties: { readonly [name: string]: Schema }, required: readonly string[] = []) =>
  ({ type: "object", properties, required: [...required] }) as const;

/** What one sub-agent can be given beside its task. */
const BOUNDS = {
  model: text("Model of the sub-agent. Leave it out for the default one; the answer names it."),
  serviceClass: {
    type: "string",
    enum: ["interactive", "batch"],
    description: "interactive (default): somebody waits for it. batch: it may wait while interactive ones run.",
  },
  system: text("System prompt of the sub-agent."),
  maxToolCalls: integer("Tool calls that it may make; 0: none, it answers from the task alone. Default 8.", {
    minimum: 0,
  }),
  tools: names(
    "Tools that it may use, as `tools` lists them: name, server/name, or a pattern with *. [] for none. Default: all. Small models do better with few.",
    PATTERNS_MAX,
  ),
  maxTokens: integer("Longest answer of one of its turns, in tokens; 0: as long as the engine allows. Default 256.", {
    minimum: 0,
  }),
  parallelToolCalls: flag("Whether several tool calls of one answer run side by side. Default false."),
  parent: text("Handle of the run that spawns it: it then counts into that run's budgets and is cancelled with it."),
  budgetTokens: integer("Bound of prompt and completion tokens of the sub-agent and all its descendants.", {
    minimum: 1,
  }),
  budgetToolCalls: integer("Bound of the tool calls of the sub-agent and all its descendants.", { minimum: 1 }),
  budgetSeconds: {
    type: "number",
    minimum: 1,
    description: "Bound of the time of the sub-agent and all its descendants, in seconds from now.",
  },
  approveTools: names(
    "Tools for which a person is asked before each call; the same forms of names as `tools`.",
    PATTERNS_MAX,
  ),
  idempotencyKey: text("Spawning again with the same key and arguments gives the same handle, not a second run."),
} as const;

const TASK = text("What the sub-agent shall do. It sees nothing else: put in all that it needs to know.");

const APPROVAL = open({
  id: text("Name it in `approve`."),
  tool: text("Name of the tool."),
  server: text("Its server."),
  arguments: { type: "object", description: "Exactly what would be called." },
  reason: { type: "string", enum: ["destructive", "listed", "policy", "indeterminate"] },
  askedAt: text("ISO 8601."),
  expiresAt: text("ISO 8601."),
});

const RUN_PROPERTIES = {
  handle: text("Of the run."),
  state: text("Running, AwaitingApproval, Completed, Failed or Cancelled."),
  detail: text("While it runs: turn-held, generating or tools."),
  reason: text("Why it ended: completed, max_tool_calls, failed, engine_unavailable, cancelled or budget."),
  model: text("Model of the run."),
  turns: integer("Model requests so far."),
  toolCalls: integer("Tool calls so far, refused ones included."),
  failedToolCalls: integer(
    "Tool calls that failed or were refused. Equal to toolCalls: the answer came without tools.",
  ),
  usage: { type: "object" },
  seconds: { type: "number" },
  budget: { type: "object" },
  pendingApprovals: { type: "array", items: APPROVAL },
  pendingApproval: APPROVAL,
} as const;

const RESULT = open(
  {
    ...RUN_PROPERTIES,
    answer: text("What it answered, when it has completed."),
    partial: text("Its text so far, when it ended without an answer."),
    error: text("Why there is no answer."),
    next: text("What to call next."),
  },
  ["handle"],
);

/** Claude Code keeps other tools behind a search of its own: these are needed before anybody would search. */
const ALWAYS = { "anthropic/alwaysLoad": true } as const;
const READS = { readOnlyHint: true, openWorldHint: false } as const;
/** Runs it starts may call tools of the outside world. */
const STARTS = { readOnlyHint: false, destructiveHint: false, idempotentHint: false, openWorldHint: true } as const;

export const FACE_TOOLS: readonly FaceTool[] = [
  {
    name: "spawn",
    description:
      "Starts one or many sub-agents in the background and answers at once with their handles; each is an agent with its own model and tools that works on one task. For several tasks call this ONCE with `tasks`, then `await` once with all handles. Their runs survive restarts and disconnects.",
    inputSchema: open({
      task: TASK,
      tasks: {
        type: "array",
        minItems: 1,
        maxItems: 1000,
        items: {
          anyOf: [{ type: "string" }, { type: "object", properties: { task: TASK, ...BOUNDS }, required: ["task"] }],
        },
        description:
          "Instead of `task`: a list, one sub-agent each. An entry is a text, or an object with its own `task` and arguments that override the common ones.",
      },
      ...BOUNDS,
    }),
    outputSchema: open(
      {
        handles: names("One per task, in order."),
        handle: text("When there is one."),
        model: text("Their model."),
        next: text("What to call next."),
      },
      ["handles"],
    ),
    annotations: STARTS,
    _meta: ALWAYS,
  },
  {
    name: "await",
    description:
      "Waits until sub-agents have ended and returns their answers. Pass all handles at once. When it returns done: false, call it again with the same handles; nothing is lost. Answers can be fetched again later.",
    inputSchema: open(
      {
        handles: names("Handles from `spawn`."),
        mode: {
          type: "string",
          enum: ["all", "any"],
          description: "all (default): until every one has ended. any: until one has.",
        },
        timeoutSeconds: { type: "number", minimum: 0, maximum: 600, description: "Longest wait; default 50." },
      },
      ["handles"],
    ),
    outputSchema: open(
      { done: { type: "boolean" }, results: { type: "array", items: RESULT }, next: text("What to call next.") },
      ["done", "results"],
    ),
    annotations: READS,
    _meta: ALWAYS,
  },
  {
    name: "run",
    description:
      "Starts ONE sub-agent and waits for its answer in the same call. For several tasks use `spawn` with `tasks` and then `await`: calls of `run` may be made one after the other.",
    inputSchema: open({ task: TASK, ...BOUNDS }, ["task"]),
    outputSchema: RESULT,
    annotations: STARTS,
    _meta: ALWAYS,
  },
  {
    name: "status",
    description:
      "Shows one run, or without `handle` your runs, the newest first, also those of earlier sessions: the way to find handles again.",
    inputSchema: open({
      handle: text("Of the one run to show."),
      mine: flag("Only runs of this session. Default false."),
      limit: integer("Runs on a page; default 50.", { minimum: 1, maximum: 500 }),
      cursor: text("From the page before."),
    }),
    outputSchema: open(
      {
        runs: {
          type: "array",
          items: open(
            { ...RUN_PROPERTIES, parent: text("Handle of its parent."), children: names("Handles of its children.") },
            ["handle", "state"],
          ),
        },
        cursor: text("For the next page."),
      },
      ["runs"],
    ),
    annotations: READS,
    _meta: ALWAYS,
  },
  {
    name: "cancel",
    description: "Cancels a run and all its running descendants. Returns how many it cancelled.",
    inputSchema: open({ handle: text("Of the run.") }, ["handle"]),
    outputSchema: open({ cancelled: integer("Runs that it cancelled; 0 when the run had ended.") }, ["cancelled"]),
    annotations: { readOnlyHint: false, destructiveHint: true, idempotentHint: true, openWorldHint: false },
  },
  {
    name: "approve",
    description:
      "Answers a run that waits for a person's approval of a tool call (state AwaitingApproval). Pass on what the person said: do not decide for them.",
    inputSchema: open(
      {
        handle: text("Of the run that waits."),
        allow: flag("true: the call may be made. false: it is refused, and the sub-agent is told so."),
        id: text("Of the approval, when the run has several pending."),
        scope: {
          type: "string",
          enum: ["once", "run", "tree"],
          description:
            "once (default): this call. run: also equal calls of this run later. tree: also those of its whole tree.",
        },
        resolution: {
          type: "string",
          enum: ["rerun", "result", "fail", "cancel"],
          description:
            "Only for reason indeterminate, a call that may or may not have happened before a crash: run it again, take `result` as its outcome, fail it, or cancel the run.",
        },
        // An empty outcome is one, too.
        result: { ...text("The outcome, for resolution: result."), minLength: 0 },
      },
      ["handle", "allow"],
    ),
    outputSchema: open(
      {
        handle: text("Of the run."),
        id: text("Of the approval."),
        tool: text("server/tool."),
        allow: flag("The answer that counts: the first one that was given."),
        scope: text("once, run or tree."),
        resolution: text("Where the outcome was not known."),
      },
      ["handle", "id", "allow"],
    ),
    annotations: { readOnlyHint: false, destructiveHint: true, idempotentHint: true, openWorldHint: true },
    _meta: ALWAYS,
  },
  {
    name: "tools",
    description:
      "Lists the tools that sub-agents can use, by server. Name some of them in `tools` of `spawn` or `run`.",
    inputSchema: open({}),
    outputSchema: open(
      {
        tools: {
          type: "array",
          items: open(
            {
              server: text("Its server."),
              name: text("Its name."),
              description: text("What it does."),
              readOnly: flag("Hint."),
              destructive: flag("Hint."),
              idempotent: flag("Hint."),
              asks: flag("Whether a person is asked before each call."),
              state: { type: "string", enum: ["ok", "down"] },
            },
            ["server", "name", "asks", "state"],
          ),
        },
      },
      ["tools"],
    ),
    annotations: READS,
  },
  {
    name: "decide",
    description:
      "Picks one label for a text, in one step and without generation: route a request, judge a tool result, choose the next step. Faster and cheaper than a sub-agent where no text is needed. Small models prefer the first label: use `calibrate`, or a larger model.",
    inputSchema: open(
      {
        input: text("The text to decide about, with the question if it is not plain."),
        labels: {
          type: "array",
          items: { type: "string" },
          minItems: 2,
          maxItems: 20,
          description: "The choices. Leave them out for those of the classifier. Best if their first words differ.",
        },
        model: text("Model that decides."),
        calibrate: flag("Scores the labels in two orders and averages: twice the cost, less bias. Default false."),
      },
      ["input"],
    ),
    outputSchema: open(
      {
        label: text("The most probable one."),
        probabilities: { type: "object", description: "By label." },
        unscored: names("Labels without a probability of their own."),
      },
      ["label", "probabilities", "unscored"],
    ),
    annotations: READS,
  },
];

export function faceTool(name: string): FaceTool | undefined {
  return FACE_TOOLS.find((tool) => tool.name === name);
}
