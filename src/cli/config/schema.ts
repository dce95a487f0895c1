/**
 * The one schema of `luftpause.yaml` (spec 7, Config). The JSON Schema for editors, the reference in
 * docs/configuration.md and the names of the environment variables are generated from it.
 */
import { z } from "zod";
import { ACTIVE_SET_DEFAULTS, ACTIVE_SET_PAUSED_ROOM_SECONDS } from "../../scheduling/index.ts";
import { DEFAULTS } from "../../wire/limits.ts";

/** How many of a thing, or how long: never negative, never fractional where it counts something. */
const count = (fallback: number, about: string) => z.int().min(0).default(fallback).describe(about);
const positive = (fallback: number, about: string) => z.int().min(1).default(fallback).describe(about);

const atLeastOne = (fallback: number, about: string) => z.number().min(1).default(fallback).describe(about);
const share = (fallback: number, about: string) => z.number().positive().max(1).default(fallback).describe(about);

const address = (fallback: string, about: string) =>
  z
    .string()
    .regex(/^(?:[^\s:[\]]+|\[[0-9a-fA-F:.]+\]):\d{1,5}$/, "must be HOST:PORT, such as 127.0.0.1:7700 or [::1]:7700")
    .refine((text) => Number(text.slice(text.lastIndexOf(":") + 1)) <= 65_535, "port must be 0 to 65535")
    .default(fallback)
    .describe(about);

const httpUrl = (about: string) =>
  z
    .string()
    .refine(isHttpUrl, "must be an http:// or https:// address without query, fragment or credentials")
    .describe(about);

function isHttpUrl(text: string): boolean {
  if (!URL.canParse(text)) return false;
  const url = new URL(text);
  const http = url.protocol === "http:" || url.protocol === "https:";
  return http && url.search === "" && url.hash === "" && url.username === "" && url.password === "";
}

const secret = (about: string) => z.string().min(1).meta({ secret: true }).describe(about);

const serviceClass = z.enum(["interactive", "batch"]);

const name = (about: string) =>
  z
    .string()
    .regex(/^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/, "must be 1 to 64 letters, digits, '.', '_' or '-'")
    .describe(about);

const wireApi = z.enum([
  "chat",
  "completions",
  "messages",
  "responses",
  "responses-stateful",
  "embeddings",
  "classify",
  "decisions",
]);

const endpoint = z.strictObject({
  name: name("The replica's id, in pins, metrics and status."),
  url: httpUrl("Base address of the engine, without /v1."),
  kind: z
    .enum(["generative", "single-pass"])
    .default("generative")
    .describe("`generative` answers turns; `single-pass` answers /v1/decide."),
  engine: z
    .enum(["auto", "sglang", "vllm", "llama.cpp", "ollama", "router", "hosted"])
    .default("auto")
    .describe("What is behind it; `auto` finds out. Decides the defaults of the other keys."),
  models: z.array(z.string().min(1)).default([]).describe("Empty: read from /v1/models at every good probe."),
  apiKey: secret("The engine's own key. Clients' credentials never go there.").optional(),
  healthPath: z
    .string()
    .regex(/^\/[\x21-\x7e]*$/, "must be a path that begins with /")
    .default("/health")
    .describe("Path that answers 2xx while the engine is healthy."),
  loadFrom: z
    .array(httpUrl("Address of an engine."))
    .default([])
    .describe("Engines behind a router, whose load is summed."),
  maxInFlight: z
    .int()
    .min(1)
    .nullable()
    .default(null)
    .describe("Bound on turns in flight; null: only the cap measured from the engine's load."),
  speaks: z
    .union([z.literal("auto"), z.array(wireApi).min(1)])
    .default("auto")
    .describe("APIs that it serves; `auto` probes once each. Hosted endpoints default to [chat]."),
  backpressure: z
    .enum(["auto", "hold", "pass"])
    .default("auto")
    .describe(
      "`hold`: its 429 and 503 are held again; `pass`: they reach the client; `auto`: hold where load is read.",
    ),
  priority: z
    .enum(["auto", "higher-first", "lower-first", "off"])
    .default("auto")
    .describe(
      "Direction of the engine's own priority, which policy active-set sends; `auto`: higher-first where its metrics show that it takes one (SGLang), else none is sent. vLLM with priority scheduling: lower-first.",
    ),
  splice: z
    .boolean()
    .default(true)
    .describe("Byte edits of the request body (stream_options.include_usage, priority)."),
  lastTurn: z
    .enum(["by-engine", "none", "auto"])
    .default("by-engine")
    .describe(
      "How a sub-agent's last turn is told that no calls are left: `none` by tool_choice, `auto` by words in the last tool result.",
    ),
  classifyPath: z
    .union([z.literal("auto"), z.string().regex(/^\//, "must be a path that begins with /")])
    .default("auto")
    .describe("Single-pass: path of the classification route; `auto`: by engine."),
  labels: z.array(z.string().min(1)).default([]).describe("Single-pass: names of the classes in the order of probs."),
  forwardHeaders: z
    .array(z.string().regex(/^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/, "must be a header name"))
    .default([])
    .describe("Request headers that also pass to a hosted endpoint."),
});

const principal = z.strictObject({
  name: name("The principal: whose runs these are, and the unit of weighted fairness."),
  token: secret("Its token."),
  weight: z.number().positive().max(1_000_000).default(1).describe("Share of the pool against other principals."),
  classes: z.array(serviceClass).min(1).default(["interactive", "batch"]).describe("Classes that it may use."),
});

const toolServer = z.strictObject({
  name: name("The `server` in `server/tool`."),
  url: httpUrl("").nullable().default(null).describe("HTTP: its MCP address, such as http://127.0.0.1:9000/mcp."),
  command: z.string().min(1).nullable().default(null).describe("Stdio: the command that starts it, without a shell."),
  args: z.array(z.string()).default([]).describe("Stdio: the arguments of the command."),
  env: z
    .record(z.string().regex(/^[A-Za-z_][A-Za-z0-9_]*$/, "must be the name of an environment variable"), z.string())
    .meta({ secret: true })
    .default({})
    .describe(
      "Stdio: environment of the command, besides PATH, HOME, certificates and the like; values may hold ${NAME}.",
    ),
  headers: z
    .record(z.string().regex(/^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/, "must be a header name"), z.string())
    .meta({ secret: true })
    .default({})
    .describe("HTTP: headers of every request; values may hold ${NAME}, such as `Bearer ${WIKI_TOKEN}`."),
  allow: z.array(z.string().min(1)).default(["*"]).describe("Tools that sub-agents may use; patterns with `*`."),
  deny: z.array(z.string().min(1)).default([]).describe("Tools that they may not use; wins over allow."),
  trust: z
    .boolean()
    .default(true)
    .describe("Whether its hints count; of a server that is not trusted only those that make us more careful."),
  approve: z
    .enum(["explicit", "spec", "all", "none"])
    .default("explicit")
    .describe(
      "Which tools ask a person: those marked destructive, those that are by MCP's own defaults, every one, or none.",
    ),
  effects: z
    .record(z.string(), z.enum(["read-only", "idempotent", "unsafe"]))
    .default({})
    .describe("What a call of a tool does, by tool; overrides the hints. Unknown means unsafe."),
  onCrash: z
    .enum(["ask", "rerun"])
    .default("ask")
    .describe("An unsafe call without an outcome after a crash: a person is asked, or it is made again."),
  timeoutSeconds: positive(600, "One call ends after this long."),
  resultBytesMax: z.int().min(256).default(65_536).describe("What the model sees of one result at most, in bytes."),
});

/** A group of keys that may be left out whole: every member has a default, so the empty group is a valid input. */
const group = <Shape extends z.core.$ZodLooseShape>(shape: Shape, about: string) =>
  z
    .strictObject(shape)
    .prefault({} as never)
    .describe(about);

export const configSchema = z.strictObject({
  listen: address("127.0.0.1:7700", "Address of `luftpause up`: proxy, status and metrics on one port."),
  stateDir: z
    .string()
    .min(1)
    .default("./state")
    .describe("Directory of the runtime's journal, the only state that is kept."),
  policy: z
    .enum(["classic", "active-set"])
    .default("classic")
    .describe("Scheduling policy: turns admitted one by one, or batch runs admitted as many as the KV caches hold."),
  capRelease: z
    .enum(["step", "at-once"])
    .default("step")
    .describe("How a capped replica opens again when its engine holds nothing back: one more per probe, or at once."),
  pausedRoomSeconds: z
    .union([z.literal("by-policy"), z.int().min(0)])
    .default("by-policy")
    .describe(
      `Room is kept this long for a paused interactive run; \`by-policy\`: ${DEFAULTS.pausedRoomSeconds} with classic, ${ACTIVE_SET_PAUSED_ROOM_SECONDS} with active-set.`,
    ),
  activeSet: group(
    {
      bound: z
        .enum(["pool", "survival", "both", "none"])
        .default(ACTIVE_SET_DEFAULTS.bound)
        .describe("What bounds the live batch runs of a replica that shows its pool and cached tokens."),
      ceiling: share(ACTIVE_SET_DEFAULTS.ceiling, "Share of the KV pool that the live runs may fill."),
      growth: z.boolean().default(ACTIVE_SET_DEFAULTS.growth).describe("A run that grows past the ceiling makes room."),
      limitAtFirst: atLeastOne(
        ACTIVE_SET_DEFAULTS.limitAtFirst,
        "Limit of live batch runs of a replica that shows only whether prefixes survive, at first.",
      ),
      limitCut: share(ACTIVE_SET_DEFAULTS.limitCut, "... by which it is multiplied when a prefix was lost."),
      lostBelow: share(
        ACTIVE_SET_DEFAULTS.lostBelow,
        "A prefix is lost when less than this share of the run's last prompt was cached.",
      ),
      limitRaise: z
        .number()
        .min(0)
        .default(ACTIVE_SET_DEFAULTS.limitRaise)
        .describe("While prefixes survive and runs wait, the limit L rises by this ÷ L."),
      sliceFactor: z
        .number()
        .min(0)
        .default(ACTIVE_SET_DEFAULTS.sliceFactor)
        .describe("A batch run's slice: so many times its own re-prefill time; 0: it keeps its place."),
      workConservingBelow: count(
        ACTIVE_SET_DEFAULTS.workConservingBelow,
        "A replica with fewer turns in flight takes held work whatever the bound says; 0: never.",
      ),
      preempt: z
        .boolean()
        .default(ACTIVE_SET_DEFAULTS.preempt)
        .describe("A batch turn that has sent nothing is taken back when an interactive turn comes."),
      tokenShares: z
        .boolean()
        .default(ACTIVE_SET_DEFAULTS.tokenShares)
        .describe("Shares are counted in tokens; false: in turns in flight, as in classic."),
      outputWeight: z
        .number()
        .min(0)
        .default(ACTIVE_SET_DEFAULTS.outputWeight)
        .describe("Weight of a token of output in a share, a token of uncached prompt being 1."),
      shareHalfLifeMs: positive(ACTIVE_SET_DEFAULTS.shareHalfLifeMs, "Half-life of a share."),
      placeFactor: z
        .number()
        .min(0)
        .default(ACTIVE_SET_DEFAULTS.placeFactor)
        .describe("A paused batch run keeps its place for this × the p95 of its tool's durations, if others wait."),
      placeLeastMs: count(ACTIVE_SET_DEFAULTS.placeLeastMs, "... at least this long."),
      placeMostMs: count(ACTIVE_SET_DEFAULTS.placeMostMs, "... at most this long."),
    },
    "Numbers and switches of `policy: active-set`.",
  ),
  token: secret("The token that every route needs; also the environment variable LUFTPAUSE_TOKEN.").optional(),
  principals: z.array(principal).default([]).describe("Several named tokens, instead of the one."),
  serviceToken: secret("Token of our own services among themselves, where there are principals.").optional(),
  endpoints: z.array(endpoint).default([]).describe("The pool of engines."),
  tools: z.array(toolServer).default([]).describe("The MCP servers whose tools sub-agents may use."),
  limits: group(
    {
      bodyBytesMax: positive(DEFAULTS.bodyBytesMax, "Largest request body, in bytes."),
      heldBodyBytesMax: positive(
        DEFAULTS.heldBodyBytesMax,
        "Bodies of held turns together, in bytes; a quarter of the memory where that is smaller.",
      ),
      auxiliaryRequestsMax: positive(
        DEFAULTS.auxiliaryRequestsMax,
        "Requests that are not turns, at once per replica.",
      ),
      auxiliaryWaitMs: count(DEFAULTS.auxiliaryWaitMs, "How long such a request waits for its place."),
      drainSeconds: count(DEFAULTS.drainSeconds, "After SIGTERM streams may end for this long."),
      holdMaxSeconds: z
        .union([z.literal("auto"), z.int().min(0)])
        .default("auto")
        .describe(
          "`auto`: the client's known deadline; a number overrides it; 0: a held turn is never answered early.",
        ),
      holdSignAfterMs: positive(DEFAULTS.holdSignAfterMs, "A held streaming turn shows a first sign after this long."),
      holdSignEveryMs: positive(DEFAULTS.holdSignEveryMs, "... and further ones this often."),
      holdAnswerBeforeMs: count(DEFAULTS.holdAnswerBeforeMs, "A held turn is answered this long before its deadline."),
      holdDeadlineNodeMs: positive(DEFAULTS.holdDeadlineNodeMs, "Deadline of clients on Node."),
      holdDeadlineMs: positive(DEFAULTS.holdDeadlineMs, "Deadline of other clients."),
      retryAfterDefaultMs: count(DEFAULTS.retryAfterDefaultMs, "Wait after an engine's 429 or 503 that names none."),
      retryAfterHonouredMaxMs: count(DEFAULTS.retryAfterHonouredMaxMs, "Longest Retry-After of an engine honoured."),
      retryAfterSentMinSeconds: positive(DEFAULTS.retryAfterSentMinSeconds, "Least Retry-After that we send."),
      retryAfterSentMaxSeconds: positive(DEFAULTS.retryAfterSentMaxSeconds, "Largest Retry-After that we send."),
      connectTimeoutMs: positive(DEFAULTS.connectTimeoutMs, "Connecting to an engine."),
      reusedSocketRetryMs: count(
        DEFAULTS.reusedSocketRetryMs,
        "A request that failed on a reused idle socket is sent once more when it failed this soon.",
      ),
      callerBytesMax: positive(DEFAULTS.callerBytesMax, "The caller header is cut here."),
      runIdBytesMax: positive(DEFAULTS.runIdBytesMax, "Longest run id."),
      identityKeysMax: positive(DEFAULTS.identityKeysMax, "Keys by which runs are recognised, at most."),
      identityTtlMs: positive(DEFAULTS.identityTtlMs, "... and how long each is remembered."),
      identitySweepMs: positive(DEFAULTS.identitySweepMs, "... and how often old ones are swept out."),
    },
    "Bounds and time-outs of the proxy.",
  ),
  scheduler: group(
    {
      link: address("127.0.0.1:5000", "Separate service: address of the link for dataplanes."),
      linkTls: z
        .strictObject({
          certFile: z.string().min(1).describe("PEM file of the certificate."),
          keyFile: z.string().min(1).describe("PEM file of its key."),
        })
        .nullable()
        .default(null)
        .describe("Separate service: the link over TLS."),
      listen: address("127.0.0.1:5001", "Separate service: address of status, metrics and health."),
      probeEveryMs: positive(DEFAULTS.probeEveryMs, "Health and load are probed this often."),
      probeTimeoutMs: positive(DEFAULTS.probeTimeoutMs, "One probe ends after this long."),
      loadStaleAfterProbes: positive(
        DEFAULTS.loadStaleAfterProbes,
        "Failed load probes in a row after which a replica counts as reporting no load.",
      ),
      tickMs: positive(DEFAULTS.tickMs, "The tick that drives the expiries."),
      turnExpiryMs: positive(DEFAULTS.turnExpiryMs, "A turn without a sign of life from its dataplane is dropped."),
      dataplaneGraceMs: count(
        DEFAULTS.dataplaneGraceMs,
        "A dataplane whose link is lost keeps its turns in flight counted this long.",
      ),
      runIdleExpiryMs: positive(DEFAULTS.runIdleExpiryMs, "A run without a turn is forgotten."),
      arrivalKeptMs: count(
        DEFAULTS.arrivalKeptMs,
        "A retry keeps the place of its failed turn when it comes this soon.",
      ),
      eventLog: z
        .strictObject({
          path: z.string().min(1).describe("File; older parts get .1, .2, … behind their name."),
          bytesMax: positive(
            64 * 1024 * 1024,
            "The file is rotated at this size of its events; the known runs at its head come on top.",
          ),
          filesMax: positive(8, "Parts kept, the running one included."),
        })
        .nullable()
        .default(null)
        .describe("Writes every decision to a log that `luftpause replay` can run again."),
    },
    "The scheduler.",
  ),
  dataplane: group(
    {
      listen: address("127.0.0.1:8080", "Separate service: address of the proxy."),
      scheduler: address("127.0.0.1:5000", "Separate service: where its scheduler's link is."),
      schedulerTls: z
        .strictObject({ caFile: z.string().min(1).nullable().default(null).describe("PEM file of the authority.") })
        .nullable()
        .default(null)
        .describe("Separate service: the link over TLS."),
      openTurnsEveryMs: positive(DEFAULTS.openTurnsEveryMs, "Open turns are named on the link this often."),
      linkRetryMs: positive(DEFAULTS.linkRetryMs, "Reconnecting to the scheduler, asking again for a turn."),
    },
    "The dataplane.",
  ),
  runtime: group(
    {
      listen: address("127.0.0.1:7000", "Separate service: address of MCP, status and metrics."),
      dataplane: httpUrl("Separate service: where its dataplane is, without /v1.").default("http://127.0.0.1:8080"),
      defaultModel: z
        .string()
        .min(1)
        .nullable()
        .default(null)
        .describe(
          "Model of a sub-agent that names none; null: the only one, else the first generative one of the config.",
        ),
      maxToolCalls: count(8, "Tool calls of a sub-agent that names no bound; 0: no tools."),
      maxTokens: count(256, "Longest answer of one of its turns; 0: the engine's own."),
      maxDepth: positive(3, "Levels of a run tree."),
      maxChildren: positive(64, "Children of one run."),
      keepFinishedDays: positive(7, "A run that has ended is kept this long."),
      turnTimeoutSeconds: positive(600, "One attempt of a turn ends after this long, counted from its admission."),
      turnSilenceSeconds: positive(
        60,
        "A turn without any byte for this long, before the first one of its answer, is withdrawn and asked again.",
      ),
      serviceToken: secret("Token of the runtime towards the dataplane; null: the serviceToken above, else the token.")
        .nullable()
        .default(null),
      requestStateKey: secret("Key of the requestState of MCP; null: made once and kept in the journal.")
        .nullable()
        .default(null),
      allowedHosts: z
        .array(z.string().min(1))
        .default([])
        .describe(
          "Host names besides this machine's own under which MCP may be reached, such as `runtime` in compose; `*`: all. Others are refused: a web page could use them (DNS rebinding).",
        ),
      approvals: group(
        {
          humanMinMs: count(1_000, "A decline that comes sooner is nobody's answer; 0 trusts instant declines."),
          expireSeconds: positive(86_400, "An approval that nobody answers is refused after this long."),
        },
        "Approvals of tool calls by a person.",
      ),
    },
    "The runtime: durable sub-agents over MCP.",
  ),
  metrics: group({ public: z.boolean().default(false).describe("Opens /metrics without a token.") }, "Metrics."),
  logs: group(
    {
      level: z.enum(["debug", "info", "warn", "error"]).default("info").describe("Least level that is written."),
    },
    "Logs; never with the content of requests or answers.",
  ),
});

/** The validated config with every default filled in; secrets already resolved. */
export type Config = z.output<typeof configSchema>;
export type EndpointEntry = Config["endpoints"][number];
export type ToolServerEntry = Config["tools"][number];

/** JSON Schema of what may stand in the file, for editors. */
export function configJsonSchema(): unknown {
  return z.toJSONSchema(configSchema, { io: "input", unrepresentable: "any" });
}
