/**
 * Waiting for runs in one MCP call, and asking a person on the way (spec 4, Who is asked).
 *
 * W1: what ends the waiting (a disconnect, a cancelled call, the time) never ends a run.
 * W2: an answer counts only when a person can have given it; everything else leaves the approval pending, and the call
 *     ends with words on `approve`.
 * W3: a call asks at most `ROUNDS_MAX` times. One question that several calls of a tree wait for is asked once.
 */
import { inputResponse, type ElicitRequestFormParams } from "@modelcontextprotocol/server";
import type { ApprovalView, Awaited, AwaitEntry, Requester, RunService } from "../run-service.ts";

/** What a call waits for. Goes through the client in `requestState`, so that another process can go on. */
export type Wait = {
  readonly handles: readonly string[];
  readonly mode: "all" | "any";
  /** Approvals in the questions that are open, and when they were put, wall-clock milliseconds. */
  readonly asked: readonly Asked[];
  readonly askedAtMs: number;
  /** Rounds of questions so far. */
  readonly rounds: number;
};

type Asked = { readonly id: string; readonly handle: string };

/** A form for each question, by the id of an approval. */
export type Questions = { readonly [id: string]: ElicitRequestFormParams };

export type Waited =
  | { readonly kind: "done"; readonly awaited: Awaited }
  | { readonly kind: "ask"; readonly questions: Questions; readonly wait: Wait };

export type WaitOptions = {
  readonly service: RunService;
  readonly who: Requester;
  readonly wait: Wait;
  readonly timeoutMs: number;
  readonly signal: AbortSignal;
  readonly wallMs: () => number;
  /** Whether the client can put a form before a person. */
  readonly elicits: boolean;
};

const ROUNDS_MAX = 8;
const SHOWN_ARGUMENTS_MAX = 2_000;

export function newWait(handles: readonly string[], mode: "all" | "any"): Wait {
  return { handles, mode, asked: [], askedAtMs: 0, rounds: 0 };
}

/** Waits until the runs have ended, the time is over, or a person has to be asked. */
export async function waitFor(options: WaitOptions): Promise<Waited> {
  const { service, who, wait, timeoutMs, signal, wallMs, elicits } = options;
  const awaited = await service.awaitRuns(who, {
    handles: wait.handles,
    mode: wait.mode,
    timeoutMs,
    signal,
    untilPending: elicits,
  });
  const asks = elicits && wait.rounds < ROUNDS_MAX && !awaited.done && !signal.aborted;
  const questions = asks ? questionsOf(awaited.results) : [];
  if (questions.length === 0) return { kind: "done", awaited };
  return {
    kind: "ask",
    questions: Object.fromEntries(questions.map(({ approval, handle }) => [approval.id, formOf(approval, handle)])),
    wait: {
      ...wait,
      asked: questions.map(({ approval, handle }) => ({ id: approval.id, handle })),
      askedAtMs: wallMs(),
      rounds: wait.rounds + 1,
    },
  };
}

type Question = { readonly approval: ApprovalView; readonly handle: string };

function questionsOf(entries: readonly AwaitEntry[]): readonly Question[] {
  const byQuestion = new Map<string, Question>();
  for (const entry of entries) {
    if (!("state" in entry)) continue;
    for (const approval of entry.pendingApprovals) {
      if (!byQuestion.has(approval.question)) byQuestion.set(approval.question, { approval, handle: entry.handle });
    }
  }
  return [...byQuestion.values()];
}

const WHY: { readonly [reason in ApprovalView["reason"]]: string } = {
  destructive: "Its server marks it as destructive.",
  listed: "It was to be asked about (approveTools).",
  policy: "The tool server is configured to ask.",
  indeterminate: "It was under way when the runtime was stopped: it may have happened already. Allow runs it again.",
};

export function formOf(
  { tool, server, reason, arguments: given }: ApprovalView,
  handle: string,
): ElicitRequestFormParams {
  const json = JSON.stringify(given);
  const shown = json.length > SHOWN_ARGUMENTS_MAX ? `${json.slice(0, SHOWN_ARGUMENTS_MAX)}… (cut)` : json;
  return {
    mode: "form",
    message: `Sub-agent ${handle} wants to call ${server}/${tool} with ${shown}. ${WHY[reason]} Allow it?`,
    requestedSchema: {
      type: "object",
      properties: {
        allow: { type: "boolean", title: "Allow", description: `Whether ${server}/${tool} may be called.` },
      },
      required: ["allow"],
    },
  };
}

/** What a person's answer to a form means; undefined: nobody was asked (W2). */
export function verdictOf(
  answer: ReturnType<typeof inputResponse>,
  tookMs: number,
  humanMinMs: number,
): boolean | undefined {
  if (answer.kind !== "elicit") return undefined;
  const allow = answer.content?.["allow"];
  if (answer.action === "accept") return typeof allow === "boolean" ? allow : undefined;
  return answer.action === "decline" && tookMs >= humanMinMs ? false : undefined;
}

/**
 * Gives the answers of a round to their runs.
 * @returns whether every question has an answer: from this client, or from elsewhere meanwhile.
 */
export async function applyAnswers(options: {
  readonly service: RunService;
  readonly who: Requester;
  readonly wait: Wait;
  readonly responses: { readonly [id: string]: unknown } | undefined;
  readonly humanMinMs: number;
  readonly tookMs: number;
}): Promise<boolean> {
  const { service, who, wait, responses, humanMinMs, tookMs } = options;
  let all = true;
  for (const { id, handle } of wait.asked) {
    const allow = verdictOf(inputResponse(responses, id), tookMs, humanMinMs);
    if (allow !== undefined) {
      await service.approve(who, { handle, id, allow, channel: "elicitation" });
      continue;
    }
    const view = await service.view(who, handle);
    if (view?.pendingApprovals.some((approval) => approval.id === id) === true) all = false;
  }
  return all;
}
