/** `await` and `run`: calls that wait for sub-agents, and ask a person on the way (spec 4, Long calls and Who is asked). */
import {
  inputRequired,
  type CallToolResult,
  type ElicitResult,
  type InputRequiredResult,
  type ServerContext,
} from "@modelcontextprotocol/server";
import type { AwaitEntry, SpawnSpec } from "../run-service.ts";
import type { Arguments } from "./arguments.ts";
import type { FaceDeps } from "./deps.ts";
import type { Client } from "./requester.ts";
import { answered, endedBadly, failed, isOver, nextOf, resultOf } from "./results.ts";
import { applyAnswers, newWait, waitFor, type Questions, type Wait } from "./waiting.ts";

export type LongCall = {
  readonly deps: FaceDeps;
  readonly client: Client;
  readonly given: Arguments;
  readonly context: ServerContext;
  /** Fires when the client is gone or has cancelled the call: that ends the waiting, never a run (W1). */
  readonly signal: AbortSignal;
  /** Seals a wait for the client to bring back; undefined in a session, where questions are put at once. */
  readonly mint: ((wait: Wait) => Promise<string>) | undefined;
};

type LongResult = CallToolResult | InputRequiredResult;

const AWAIT_SECONDS = 50;
/** A person who does not answer within this long is taken for nobody; the approval stays open. */
const FORM_TIMEOUT_MS = 600_000;
const PROGRESS_EVERY_MS = 10_000;
/** `run` waits this long at most: its answer then names the handle, and what to call. */
const RUN_WAIT_MS = 3_600_000;
const HANDLES_MAX = 1_000;

export async function awaitRuns(call: LongCall): Promise<LongResult> {
  const {
    handles,
    mode = "all",
    timeoutSeconds,
  } = call.given as {
    readonly handles: readonly string[];
    readonly mode?: "all" | "any";
    readonly timeoutSeconds?: number;
  };
  if (handles.length === 0) return failed("handles: name at least one; status without a handle lists your runs");
  if (handles.length > HANDLES_MAX) return failed(`handles: at most ${HANDLES_MAX} in one call`);
  const asked = [...new Set(handles)];
  const patience: Patience =
    timeoutSeconds === undefined
      ? { runsMs: AWAIT_SECONDS * 1000, allMs: undefined }
      : { runsMs: timeoutSeconds * 1000, allMs: timeoutSeconds * 1000 };
  return waitAndAsk(call, newWait(asked, mode), patience, (entries, done) => {
    return answered({ done, results: entries.map(resultOf), next: done ? undefined : nextOf(entries) });
  });
}

export async function run(call: LongCall): Promise<LongResult> {
  const handle = resumedHandle(call) ?? (await spawnedHandle(call));
  if (typeof handle !== "string") return handle;
  return waitAndAsk(call, newWait([handle], "all"), { runsMs: RUN_WAIT_MS, allMs: undefined }, ([entry]) => {
    if (entry === undefined) return failed(`unknown handle ${handle}`);
    return answered({ ...resultOf(entry), next: nextOf([entry]) }, endedBadly(entry));
  });
}

export async function spawnedHandle({ deps, client, given }: LongCall): Promise<string | CallToolResult> {
  const spawned = await deps.service.run(client.who, given as SpawnSpec);
  return spawned.kind === "refused" ? failed(spawned.message) : (spawned.handles[0] ?? failed("no run was started"));
}

/** A call that brings a wait back never spawns. */
function resumedHandle({ context, mint }: LongCall): string | undefined {
  const wait = mint === undefined ? undefined : context.mcpReq.requestState<Wait | undefined>();
  return wait?.handles[0];
}

/**
 * How long a call waits for its runs, and in all. A time that the client has named bounds the whole call; where it named
 * none, a person who reads a form is not hurried by the time that is meant for runs.
 */
type Patience = { readonly runsMs: number; readonly allMs: number | undefined };

async function waitAndAsk(
  call: LongCall,
  fresh: Wait,
  { runsMs, allMs }: Patience,
  shape: (entries: readonly AwaitEntry[], done: boolean) => CallToolResult,
): Promise<LongResult> {
  const { deps, client, context, signal, mint } = call;
  const { service, clock, wallMs, humanMinMs } = deps;
  const { who } = client;
  // Who has no time has none for a person.
  const elicits = client.elicits && allMs !== 0;
  const untilMs = allMs === undefined ? Number.POSITIVE_INFINITY : clock.nowMs() + allMs;
  let leftMs = runsMs;
  let wait = fresh;
  const asItIs = async (): Promise<CallToolResult> => {
    const { handles, mode } = wait;
    const { done, results } = await service.awaitRuns(who, { handles, mode, timeoutMs: 0 });
    return shape(results, done);
  };
  const brought = mint === undefined ? undefined : context.mcpReq.requestState<Wait | undefined>();
  if (brought !== undefined) {
    wait = brought;
    const tookMs = wallMs() - brought.askedAtMs;
    const responses = context.mcpReq.inputResponses;
    if (!(await applyAnswers({ service, who, wait, responses, humanMinMs, tookMs }))) return asItIs();
  }
  const stopProgress = tellProgress(call, wait);
  try {
    for (;;) {
      const beganMs = clock.nowMs();
      const waited = await waitFor({ service, who, wait, timeoutMs: leftMs, signal, wallMs, elicits });
      leftMs = Math.max(0, leftMs - (clock.nowMs() - beganMs));
      if (waited.kind === "done") return shape(waited.awaited.results, waited.awaited.done);
      wait = waited.wait;
      if (mint !== undefined) {
        const inputRequests = Object.fromEntries(
          Object.entries(waited.questions).map(([id, params]) => [id, inputRequired.elicit(params)]),
        );
        return inputRequired({ inputRequests, requestState: await mint(wait) });
      }
      const { responses, isOver } = await askUntilOver(call, wait, waited.questions, untilMs);
      const tookMs = wallMs() - wait.askedAtMs;
      const isAnswered = await applyAnswers({ service, who, wait, responses, humanMinMs, tookMs });
      if (isOver || !isAnswered) return await asItIs();
      leftMs = Math.min(leftMs, Math.max(0, untilMs - clock.nowMs()));
    }
  } finally {
    stopProgress();
  }
}

/** Puts a round of questions, and takes them back when what the call waits for has happened, or its time is over. */
async function askUntilOver(
  call: LongCall,
  wait: Wait,
  questions: Questions,
  untilMs: number,
): Promise<{ readonly responses: { readonly [id: string]: ElicitResult }; readonly isOver: boolean }> {
  const { deps, client } = call;
  const { handles, mode } = wait;
  const over = new AbortController();
  const answeredAll = new AbortController();
  const timeoutMs = Math.min(FORM_TIMEOUT_MS, untilMs - deps.clock.nowMs());
  const watching = deps.service
    .awaitRuns(client.who, { handles, mode, timeoutMs, signal: answeredAll.signal })
    .then(() => over.abort());
  const responses = await askInSession(
    { ...call, signal: AbortSignal.any([call.signal, over.signal]) },
    wait,
    questions,
  );
  const isOver = over.signal.aborted;
  answeredAll.abort();
  await watching;
  return { responses, isOver };
}

/** Puts all questions of a round side by side; one that is answered elsewhere meanwhile is taken back. */
async function askInSession(
  { deps, client, context, signal }: LongCall,
  wait: Wait,
  questions: Questions,
): Promise<{ readonly [id: string]: ElicitResult }> {
  const { service } = deps;
  const answers: { [id: string]: ElicitResult } = {};
  const settled = new Map(wait.asked.map(({ id }) => [id, new AbortController()]));
  const handles = [...new Set(wait.asked.map(({ handle }) => handle))];
  const look = async (): Promise<void> => {
    const open = new Set<string>();
    for (const handle of handles) {
      const view = await service.view(client.who, handle);
      for (const { id } of view?.pendingApprovals ?? []) open.add(id);
    }
    for (const [id, controller] of settled) if (!open.has(id)) controller.abort();
  };
  const stop = service.subscribe(handles, () => {
    look().catch(() => undefined);
  });
  try {
    await Promise.all([
      look(),
      ...wait.asked.map(async ({ id }) => {
        const params = questions[id];
        const taken = settled.get(id);
        if (params === undefined || taken === undefined) return;
        try {
          answers[id] = await context.mcpReq.elicitInput(
            { ...params, ...echoedMeta(context) },
            {
              timeout: FORM_TIMEOUT_MS,
              signal: AbortSignal.any([signal, taken.signal]),
              // On the call's own stream: a client need not open another one to be asked.
              relatedRequestId: context.mcpReq.id,
            },
          );
        } catch {
          // W2: a lost channel, a time-out and an error of the client all mean that nobody was asked.
        }
      }),
    ]);
  } finally {
    stop();
  }
  return answers;
}

/** Goose finds the call that a form belongs to by these, where several run side by side. */
const ECHOED_META = ["agent-tool-call-request-id", "agent-session-id"] as const;

function echoedMeta({ mcpReq }: ServerContext): { readonly _meta?: { readonly [key: string]: unknown } } {
  const meta: { readonly [key: string]: unknown } | undefined = mcpReq._meta;
  const echoed = ECHOED_META.flatMap((key) => (meta?.[key] === undefined ? [] : [[key, meta[key]] as const]));
  return echoed.length === 0 ? {} : { _meta: Object.fromEntries(echoed) };
}

/** @returns ends the notifications. Without a token there are none; a token may be 0. */
function tellProgress({ deps, client, context, signal }: LongCall, wait: Wait): () => void {
  const progressToken = context.mcpReq._meta?.progressToken;
  if (progressToken === undefined) return () => undefined;
  let progress = 0;
  let over = false;
  let stopTimer: () => void = () => undefined;
  const tick = async (): Promise<void> => {
    const { handles, mode } = wait;
    const { results } = await deps.service.awaitRuns(client.who, { handles, mode, timeoutMs: 0 });
    if (over || signal.aborted) return;
    progress += 1;
    const message = progressText(results);
    await context.mcpReq.notify({ method: "notifications/progress", params: { progressToken, progress, message } });
    arm();
  };
  const arm = (): void => {
    if (over) return;
    stopTimer = deps.clock.after(PROGRESS_EVERY_MS, () => {
      // A client that is gone is seen by the signal.
      tick().catch(() => undefined);
    });
  };
  arm();
  return () => {
    over = true;
    stopTimer();
  };
}

function progressText(entries: readonly AwaitEntry[]): string {
  const ended = entries.filter(isOver).length;
  const going = entries.flatMap((entry) => ("state" in entry && !isOver(entry) ? [entry.detail ?? entry.state] : []));
  const counts = new Map<string, number>();
  for (const state of going) counts.set(state, (counts.get(state) ?? 0) + 1);
  if (entries.length === 1) return going[0] ?? "ended";
  return [`${ended} of ${entries.length} ended`, ...[...counts].map(([state, count]) => `${count} ${state}`)].join(
    ", ",
  );
}
