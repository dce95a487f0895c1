/**
 * `decide` (spec 4): picks a label. With labels one token of a generative model is scored, without them a single-pass
 * classifier answers.
 */
import { randomUUID } from "node:crypto";
import { errorOf } from "./chat-answer.ts";
import type { ModelClient, PlainAnswer } from "./model-client.ts";
import type { DecideAnswer, DecideQuestion, Requester, ServiceRefusal } from "./run-service.ts";
import { refused } from "./spawning.ts";

export type ClassifyOptions = {
  readonly model: ModelClient;
  readonly defaultModel: () => Promise<{ readonly model: string } | { readonly problem: string }>;
  /** The model of the single-pass classifier, when the question names none. */
  readonly classifierModel: () => string | undefined;
  /** The configured names of the classes of a classifier, in the order of its probabilities. */
  readonly labelsOf: (model: string) => readonly string[];
};

const WAIT_MS = 600_000;
const LABELS_MIN = 2;
const LABELS_MAX = 20;

type Loose = { readonly [key: string]: unknown };

export async function classify(
  options: ClassifyOptions,
  who: Requester,
  question: DecideQuestion,
  signal: AbortSignal | undefined,
): Promise<DecideAnswer | ServiceRefusal> {
  if (question.input.trim() === "") return refused("input: say what shall be decided about");
  const { labels } = question;
  if (labels === undefined) return classifySinglePass(options, who, question, signal);
  const unique = new Set(labels);
  if (unique.size !== labels.length || labels.length < LABELS_MIN || labels.length > LABELS_MAX || unique.has("")) {
    return refused(`labels: ${LABELS_MIN} to ${LABELS_MAX} different texts`);
  }
  const chosen = question.model === undefined ? await options.defaultModel() : { model: question.model };
  if ("problem" in chosen) return refused(chosen.problem);
  const run = `decide-${randomUUID()}`;
  try {
    const orders = question.calibrate === true ? [labels, labels.toReversed()] : [labels];
    const scored: Scores[] = [];
    for (const order of orders) {
      const body = questionBody(chosen.model, question.input, order);
      const answer = await ask(options, { who, run, body, signal });
      if ("message" in answer) return answer;
      scored.push(scoreLabels(labels, topTokens(answer.body)));
    }
    return merged(labels, scored);
  } finally {
    options.model.endRun(run, who.principal);
  }
}

/** A turn like any other: it waits while the dataplane has no room. */
async function ask(
  { model }: ClassifyOptions,
  turn: {
    readonly who: Requester;
    readonly run: string;
    readonly body: Loose;
    readonly signal: AbortSignal | undefined;
  },
): Promise<PlainAnswer | ServiceRefusal> {
  const { who, run, signal } = turn;
  const { principal, caller } = who;
  let { body } = turn;
  for (;;) {
    let answer: PlainAnswer;
    try {
      const request = { run, principal, caller, serviceClass: "interactive", body, waitMs: WAIT_MS, signal } as const;
      answer = await model.post("/v1/chat/completions", request);
    } catch (error) {
      return refused((error as Error).message);
    }
    if (answer.status === 200) return answer;
    const message = errorOf(answer.body)?.message ?? `the dataplane answered ${answer.status}`;
    if (answer.status === 429 || answer.status === 503) {
      const aborted = await pause(answer.retryAfterMs ?? 1_000, signal);
      if (aborted) return refused("given up");
    } else if (answer.status === 400 && "chat_template_kwargs" in body && message.includes("chat_template_kwargs")) {
      // An endpoint without the switch: its models do not think aloud, or cannot be told not to.
      const { chat_template_kwargs: _switch, ...rest } = body;
      body = rest;
    } else {
      return refused(message);
    }
  }
}

function pause(ms: number, signal: AbortSignal | undefined): Promise<boolean> {
  return new Promise((resolve) => {
    const end = (aborted: boolean): void => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", onAbort);
      resolve(aborted);
    };
    const onAbort = (): void => end(true);
    const timer = setTimeout(() => end(false), ms);
    signal?.addEventListener("abort", onAbort);
    if (signal?.aborted === true) end(true);
  });
}

function questionBody(model: string, input: string, labels: readonly string[]): Loose {
  const list = labels.map((label) => `- ${label}`).join("\n");
  const content = `Choose the one label that fits the input best. Answer with the label alone, nothing else.\n\nLabels:\n${list}\n\nInput:\n${input}\n\nLabel:`;
  return {
    model,
    messages: [{ role: "user", content }],
    max_tokens: 1,
    temperature: 0,
    logprobs: true,
    top_logprobs: 20,
    chat_template_kwargs: { enable_thinking: false },
  };
}

type TopToken = { readonly token: string; readonly logprob: number };

function topTokens(body: unknown): readonly TopToken[] {
  const choices = (body as { readonly choices?: unknown } | undefined)?.choices;
  const choice = (Array.isArray(choices) ? choices[0] : undefined) as Loose | undefined;
  const content = (choice?.["logprobs"] as Loose | null | undefined)?.["content"];
  const first = (Array.isArray(content) ? content[0] : undefined) as Loose | undefined;
  const top = first?.["top_logprobs"];
  if (!Array.isArray(top)) return [];
  return top.flatMap((row: Loose) => {
    const { token, logprob } = row;
    return typeof token === "string" && typeof logprob === "number" ? [{ token, logprob }] : [];
  });
}

/** Probability of each label that a candidate token speaks for, before normalisation. */
type Scores = ReadonlyMap<string, number>;

/** A candidate scores a label if it is a non-empty prefix of that label and of no other. */
function scoreLabels(labels: readonly string[], top: readonly TopToken[]): Scores {
  const scores = new Map<string, number>();
  for (const { token, logprob } of top) {
    const text = token.replace(/^[\s\u2581\u0120]+/, "");
    if (text === "") continue;
    const fitting = labels.filter((label) => label.startsWith(text));
    const [only] = fitting;
    if (fitting.length !== 1 || only === undefined) continue;
    scores.set(only, (scores.get(only) ?? 0) + Math.exp(logprob));
  }
  return scores;
}

/** Normalised over what was scored in every order, then averaged: small models prefer the first label. */
function merged(labels: readonly string[], scored: readonly Scores[]): DecideAnswer | ServiceRefusal {
  const means = new Map<string, number>();
  for (const scores of scored) {
    const total = [...scores.values()].reduce((sum, score) => sum + score, 0);
    for (const [label, score] of scores) {
      means.set(label, (means.get(label) ?? 0) + score / total / scored.length);
    }
  }
  const total = [...means.values()].reduce((sum, mean) => sum + mean, 0);
  const probabilities = Object.fromEntries([...means].map(([label, mean]) => [label, mean / total]));
  const [best] = [...means].sort(([, left], [, right]) => right - left);
  if (best === undefined) {
    return refused(
      "no label was scored: none of the model's 20 likeliest tokens begins exactly one label; take labels that differ in their first letters, or another model",
    );
  }
  return { kind: "answered", label: best[0], probabilities, unscored: labels.filter((label) => !means.has(label)) };
}

async function classifySinglePass(
  options: ClassifyOptions,
  { principal, caller }: Requester,
  question: DecideQuestion,
  signal: AbortSignal | undefined,
): Promise<DecideAnswer | ServiceRefusal> {
  const model = question.model ?? options.classifierModel();
  if (model === undefined) {
    return refused("no single-pass classifier is configured: give labels, and a generative model picks one of them");
  }
  const run = `decide-${randomUUID()}`;
  const body = { model, input: question.input };
  let answer: PlainAnswer;
  try {
    const request = { run, principal, caller, serviceClass: "interactive", body, waitMs: WAIT_MS, signal } as const;
    answer = await options.model.post("/v1/decide", request);
  } catch (error) {
    return refused((error as Error).message);
  }
  if (answer.status !== 200) {
    return refused(errorOf(answer.body)?.message ?? `the dataplane answered ${answer.status}`);
  }
  const data = (answer.body as { readonly data?: unknown } | undefined)?.data;
  const row = (Array.isArray(data) ? data[0] : undefined) as Loose | undefined;
  const label = row?.["label"];
  const probs = row?.["probs"];
  if (typeof label !== "string" || !Array.isArray(probs)) return refused("the classifier answered without a label");
  return {
    kind: "answered",
    label,
    probabilities: named(label, probs as number[], options.labelsOf(model)),
    unscored: [],
  };
}

/** Keyed by the configured labels where there are as many, else by index, the winner by its name. */
function named(
  winner: string,
  probs: readonly number[],
  labels: readonly string[],
): { readonly [label: string]: number } {
  const best = probs.indexOf(Math.max(...probs));
  return Object.fromEntries(
    probs.map((prob, at) => {
      const name = labels.length === probs.length ? labels[at] : at === best ? winner : undefined;
      return [name ?? String(at), prob];
    }),
  );
}
